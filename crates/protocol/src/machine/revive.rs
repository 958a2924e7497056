//! Revival: one that was given up is heard of after all, and nobody else has begun with what it had.

use super::Machine;
use crate::{ContributionParts, Event, Lost, Presence, Refusal, RoundPhase, Span};
use hansa_base::{LeaseId, MonoMs, ReplicaKey, Windows};

impl Machine {
    /// A late sign of progress, with the lost lease and how far it was trained. What was trained can
    /// be contributed only if all of it is still free: then the lease lives again, with what of its
    /// front nobody else has. In any case the loss was nobody's data.
    pub(super) fn revive(
        &mut self,
        now: MonoMs,
        key: ReplicaKey,
        lease: LeaseId,
        cursor: Windows,
    ) -> Result<(), Refusal> {
        let replica = self.replica(key)?;
        let incarnation = replica.incarnation;
        let Some(lost) = replica.lost.as_ref().filter(|lost| lost.lease.id == lease) else {
            return Ok(());
        };
        let trained = Windows(cursor.0.saturating_sub(lost.lease.front.0));
        let windows = self.state.ledger.free_prefix(&lost.lease.spans);
        if !self.can_count(key, lost) || windows < trained || windows == Windows(0) {
            return self.emit(Event::Absolved { key });
        }
        self.emit(Event::Revived {
            key,
            incarnation,
            windows,
        })?;
        self.renew(now, key);
        self.clocks.started.entry(key).or_insert(now);
        Ok(())
    }

    /// The same for a contribution that is announced before a heartbeat came through.
    pub(super) fn revive_for(
        &mut self,
        now: MonoMs,
        key: ReplicaKey,
        parts: &ContributionParts,
    ) -> Result<(), Refusal> {
        let windows = parts.windows();
        let lost = self.replica(key)?.lost.as_ref();
        let fits = lost.filter(|lost| Span::split(&lost.lease.spans, windows).0 == parts.spans);
        match fits.map(|lost| (lost.lease.id, lost.lease.front)) {
            Some((lease, front)) if parts.base == self.state.current.manifest => {
                self.revive(now, key, lease, front + windows)
            }
            _ => Ok(()),
        }
    }

    /// True if what was trained under a lost lease could still be contributed.
    fn can_count(&self, key: ReplicaKey, lost: &Lost) -> bool {
        let base = self.state.round.base;
        let replica = self.state.replica(key);
        self.state.round.phase == RoundPhase::Open
            && self.state.ending.is_none()
            && lost.lease.epoch == self.state.epoch
            && lost.plan.is_some_and(|plan| plan.generation == base)
            && replica.is_some_and(|r| r.contributed != Some(base) && r.lease.is_none())
    }

    /// An incarnation that was given up as dead calls: it did not die of its data.
    pub(super) fn absolve_the_gone(&mut self, key: ReplicaKey) -> Result<(), Refusal> {
        let replica = self.replica(key)?;
        let gone = replica.presence != Presence::Live;
        if gone && replica.lost.is_some() {
            self.emit(Event::Absolved { key })?;
        }
        Ok(())
    }
}
