//! Reserve marks: how much of its lease a replica may touch before it is heard of again.
//!
//! ```text
//!   front        cursor                 mark                     end of the plan
//!   ├─ trained ────┼──── lead ────┬─ lead ─┼──── may go to others ───┤
//!                                 └ once the cursor is here, the mark goes two leads ahead of it
//! ```
//!
//! A raise is journaled, a heartbeat that raises nothing is not: so a mark moves at most once for each
//! `mark_lead` of training, and never in a phase that is shorter than two.

use super::Machine;
use crate::{Event, Lease, Plan, Refusal};
use hansa_base::{ReplicaKey, Windows};

impl Machine {
    /// Raises the mark of a replica that is at `cursor` of its lease, ahead of need.
    pub(super) fn raise_mark(&mut self, key: ReplicaKey, cursor: Windows) -> Result<(), Refusal> {
        let Some(lease) = self.state.lease_of(key) else {
            return Ok(());
        };
        let (id, raised) = (lease.id, self.mark_wanted(key, lease, cursor)?);
        let mark = raised.filter(|mark| *mark > lease.mark);
        self.reported.insert(id);
        match mark {
            Some(mark) => self.emit(Event::Marked { lease: id, mark }),
            None => Ok(()),
        }
    }

    /// Where the mark should be; `None` if it is far enough ahead, or nothing is to be trained.
    fn mark_wanted(
        &self,
        key: ReplicaKey,
        lease: &Lease,
        cursor: Windows,
    ) -> Result<Option<Windows>, Refusal> {
        let replica = self.replica(key)?;
        let base = self.state.round.base;
        let plan = replica.plan.filter(|plan| plan.generation == base);
        let Some(plan) = plan.filter(|_| replica.contributed != Some(base)) else {
            return Ok(None);
        };
        let planned = plan.windows.min(lease.left());
        let Some(lead) = self.lead(key, plan, replica.ranks) else {
            return Ok(Some(lease.front + planned));
        };
        let cursor = cursor.clamp(lease.front, lease.mark);
        if lease.mark.0 - cursor.0 >= lead.0 {
            return Ok(None);
        }
        let step = self.step_of(plan, replica.ranks).0;
        let ahead = cursor.0 - lease.front.0 + 2 * lead.0;
        let ahead = Windows(ahead.div_ceil(step).saturating_mul(step));
        Ok(Some(lease.front + ahead.min(planned)))
    }

    /// `mark_lead` in windows, a step at least; `None` while the replica's rate is not known.
    fn lead(&self, key: ReplicaKey, plan: Plan, ranks: u32) -> Option<Windows> {
        let step = self.step_of(plan, ranks).0 as f64;
        let pace = self.state.replica(key)?.pace;
        let reported_s = self.vitals.get(&key).and_then(|v| v.progress.step);
        let windows_per_s = match (pace, reported_s) {
            (Some(pace), _) => pace.windows_per_s(),
            (None, Some(step_s)) => step / step_s.as_secs_f64().max(1e-6),
            (None, None) => return None,
        };
        let lead = self.spec.timing.mark_lead.as_secs_f64() * windows_per_s;
        // These numbers come from the network: clamp before they are counts.
        Some(Windows(lead.max(step).min(1e12).ceil() as u64))
    }

    /// Windows at the end of a lease that its holder does not touch. Until it was heard of after a
    /// restart, that is none: it might know of a mark that this coordinator has forgotten.
    pub(super) fn beyond_mark(&self, lease: &Lease) -> Windows {
        if self.reported.contains(&lease.id) {
            return Windows(lease.end().0 - lease.mark.0);
        }
        Windows(0)
    }

    fn step_of(&self, plan: Plan, ranks: u32) -> Windows {
        let step = self.spec.micro_batch(ranks).0;
        Windows(step.saturating_mul(u64::from(plan.accumulation)).max(1))
    }
}
