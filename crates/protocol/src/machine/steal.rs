//! Stealing: who finds nothing free takes the tail of what another has leased and does not touch yet.
//!
//! ```text
//!   victim   ├─ trained ─┼─ reserved ─┼──── keeps ────┼──── thief ────┤
//!                                     mark
//! ```

use super::Machine;
use crate::phase::Wanted;
use crate::{Event, Lease, Refusal, Steal};
use hansa_base::{MonoMs, ReplicaKey, Windows};
use std::cmp::Reverse;

/// A steal is worth its while from so many steps of the thief on.
const STEPS_MIN: u64 = 2;

impl Machine {
    /// Takes half of what lies beyond a mark, from the lease with most there; whole steps of the
    /// thief, and no more than it wants. Nothing happens if no lease has enough.
    pub(super) fn steal(
        &mut self,
        now: MonoMs,
        key: ReplicaKey,
        wanted: Wanted,
    ) -> Result<(), Refusal> {
        let replica = self.replica(key)?;
        let (incarnation, held) = (replica.incarnation, replica.lease);
        let step = self.spec.micro_batch(replica.ranks).0 * u64::from(wanted.accumulation);
        let others = self.state.leases.values().filter(|lease| lease.key != key);
        let beyond = |lease: &Lease| (self.beyond_mark(lease), Reverse(lease.id));
        let Some(victim) = others.max_by_key(|lease| beyond(lease)) else {
            return Ok(());
        };
        let least = STEPS_MIN.saturating_mul(step).max(1);
        let half = self.beyond_mark(victim).0 / 2;
        if half < least {
            return Ok(());
        }
        let windows = half.min(wanted.windows.0.max(least));
        let windows = Windows(windows - windows % step.max(1));
        let (from, mark) = (victim.id, victim.mark);
        let lease = held.unwrap_or_else(|| self.state.last_lease.next());
        self.emit(Event::Stolen(Steal {
            from,
            mark,
            windows,
            lease,
            key,
            incarnation,
        }))?;
        self.renew(now, key);
        Ok(())
    }
}
