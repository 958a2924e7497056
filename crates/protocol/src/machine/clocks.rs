//! Deadlines. They live only here, on the coordinator's monotonic clock, and start afresh after a
//! restart or a stall: nobody loses a lease because the coordinator was away.

use crate::{Progress, RunSpec, State};
use hansa_base::{LeaseId, MonoMs, ReplicaKey};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub(super) struct Clocks {
    /// When each lease is lost without progress.
    pub leases: BTreeMap<LeaseId, MonoMs>,
    /// When each live incarnation is given up without a call.
    pub sessions: BTreeMap<ReplicaKey, MonoMs>,
    /// When the round closes without those who have not contributed.
    pub grace: Option<MonoMs>,
    /// When the evaluation that is due is taken from whom was asked, or given up at the run's end.
    pub evaluation: Option<MonoMs>,
    /// The last tick: a long gap is a stall of the coordinator itself.
    pub ticked: MonoMs,
}

impl Clocks {
    pub fn fresh(spec: &RunSpec, state: &State, now: MonoMs) -> Self {
        let timing = &spec.timing;
        let lease = now.after(timing.ttl_max);
        let session = now.after(timing.session_ttl);
        Self {
            leases: state.leases.keys().map(|id| (*id, lease)).collect(),
            sessions: state.live().map(|(key, _)| (key, session)).collect(),
            grace: (!state.round.staged.is_empty()).then(|| now.after(timing.grace)),
            evaluation: state
                .evaluations
                .due
                .map(|_| now.after(timing.evaluation_budget)),
            ticked: now,
        }
    }

    pub fn heard(&mut self, spec: &RunSpec, key: ReplicaKey, now: MonoMs) {
        self.sessions
            .insert(key, now.after(spec.timing.session_ttl));
    }

    /// Moves a lease's deadline out, never in.
    pub fn renew(&mut self, lease: LeaseId, now: MonoMs, ttl: Duration) {
        let deadline = self.leases.entry(lease).or_default();
        *deadline = (*deadline).max(now.after(ttl));
    }

    /// True if so much time has passed since the last tick that the coordinator was away.
    pub fn stalled(&mut self, spec: &RunSpec, now: MonoMs) -> bool {
        let gap = now.since(self.ticked);
        self.ticked = now;
        gap > spec.timing.ttl_min.min(spec.timing.session_ttl) / 2
    }
}

/// `α·(expected time to the next progress report) + β·RTT`, clamped. Progress is reported with each
/// heartbeat, but not more often than a step ends.
pub(super) fn lease_ttl(spec: &RunSpec, progress: Option<&Progress>) -> Duration {
    let timing = &spec.timing;
    let step = progress.and_then(|p| p.step).unwrap_or_default();
    let rtt = progress.and_then(|p| p.rtt).unwrap_or_default();
    let report = step.max(timing.heartbeat_every()).as_secs_f64();
    let ttl_s = timing.alpha * report + timing.beta * rtt.as_secs_f64();
    // A measured time comes from the network: clamp before it becomes a duration.
    let (least, most) = (timing.ttl_min.as_secs_f64(), timing.ttl_max.as_secs_f64());
    Duration::from_secs_f64(ttl_s.clamp(least, most))
}
