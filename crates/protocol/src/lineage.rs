//! Which history of a run a call belongs to, and whether it proves it.
//!
//! ```text
//!   data directory ──── 1 ──┬──────────────► (destroyed, or served again by mistake)
//!                           │ backup
//!                           └─ restore ── 2 ──►
//! ```
//!
//! A restored copy issues the numbers after the backup's once more: incarnations, leases, generations.
//! So each history has a timeline number of its own, which a restore raises, and every call names it.
//! A call also carries a seal, which only who has the data directory's key can make. Anybody with a
//! site's token can name a number that was never issued here; with the seal it is a proof that another
//! copy of this directory has issued it. Never here: where the key and new numbers come from.

use crate::{Caller, Refusal};
use hansa_base::{Hash, Incarnation, ReplicaId, Timeline};

/// The timelines of a data directory, and the key of its seals.
#[derive(Clone, PartialEq, Eq)]
pub struct Lineage {
    key: Hash,
    timelines: Vec<Timeline>,
}

impl Lineage {
    /// A history that begins: with a random key, kept by all its copies.
    #[must_use]
    pub fn begun(key: Hash, timeline: Timeline) -> Self {
        Self {
            key,
            timelines: vec![timeline],
        }
    }

    /// From its parts, as they are journaled; `None` unless the timelines grow.
    #[must_use]
    pub fn from_parts(key: Hash, timelines: Vec<Timeline>) -> Option<Self> {
        let grow = timelines.is_sorted_by(|before, after| before < after);
        (grow && !timelines.is_empty()).then_some(Self { key, timelines })
    }

    /// The key of the seals.
    #[must_use]
    pub const fn key(&self) -> Hash {
        self.key
    }

    /// All timelines, oldest first: the last is the running one, each other ends at a backup.
    #[must_use]
    pub fn timelines(&self) -> &[Timeline] {
        &self.timelines
    }

    /// The running timeline.
    #[must_use]
    pub fn current(&self) -> Timeline {
        self.timelines.last().copied().unwrap_or_default()
    }

    /// The copy that was restored here goes its own way from now on. False, and no change, unless the
    /// number is raised.
    pub(crate) fn restored(&mut self, timeline: Timeline) -> bool {
        let raised = timeline > self.current();
        if raised {
            self.timelines.push(timeline);
        }
        raised
    }

    /// What an incarnation of the running timeline shows with every call.
    #[must_use]
    pub fn caller(&self, run: Hash, replica: ReplicaId, incarnation: Incarnation) -> Caller {
        let timeline = self.current();
        let seal = Hash(*self.seal(run, &replica, timeline, incarnation).as_bytes());
        Caller {
            replica,
            run,
            timeline,
            incarnation,
            seal,
        }
    }

    fn seal(
        &self,
        run: Hash,
        replica: &ReplicaId,
        timeline: Timeline,
        incarnation: Incarnation,
    ) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key.0);
        hasher
            .update(b"hansa 1 seal")
            .update(&run.0)
            .update(&timeline.0.to_le_bytes())
            .update(&incarnation.0.to_le_bytes())
            .update(replica.to_string().as_bytes());
        hasher.finalize()
    }

    /// Whether a call belongs to the running timeline of this run, `last` being the last incarnation
    /// issued.
    ///
    /// # Errors
    /// [`Refusal::NeverIssued`] only with a seal of this directory's key: it is the one that stops a
    /// coordinator.
    pub(crate) fn admit(
        &self,
        run: Hash,
        last: Incarnation,
        caller: &Caller,
    ) -> Result<(), Refusal> {
        let (ours, theirs) = (self.current(), caller.timeline);
        if caller.run != run {
            let (ours, theirs) = (run, caller.run);
            return Err(Refusal::OtherRun { ours, theirs });
        }
        let known = self.timelines.contains(&theirs);
        let seal = self.seal(run, &caller.replica, theirs, caller.incarnation);
        // `blake3::Hash` compares in constant time.
        if seal != blake3::Hash::from_bytes(caller.seal.0) {
            let replica = caller.replica.clone();
            return Err(match known {
                true => Refusal::NotSealed { replica },
                false => Refusal::OtherHistory { ours, theirs },
            });
        }
        let what = if theirs == ours {
            if caller.incarnation <= last {
                return Ok(());
            }
            format!("incarnation {} of {}", caller.incarnation, caller.replica)
        } else if known {
            return Err(Refusal::Restored { timeline: ours });
        } else if theirs > ours {
            format!("timeline {theirs}, which a later restore of it began")
        } else {
            return Err(Refusal::OtherHistory { ours, theirs });
        };
        Err(Refusal::NeverIssued { what })
    }
}

/// Without the key: a state may end up in a log.
impl std::fmt::Debug for Lineage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Lineage").field(&self.timelines).finish()
    }
}
