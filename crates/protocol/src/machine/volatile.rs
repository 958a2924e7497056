//! What a machine knows beside its durable state, for checks that compare machines.

use super::Machine;
use crate::Activity;
use hansa_base::{ContributionNo, LeaseId, MonoMs, ReplicaKey};
use std::time::Duration;

/// Deadlines and reports; times are distances from now, and zero once they are over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Volatile {
    /// How long each lease holder and member of the open round lives without progress.
    pub work: Vec<(ReplicaKey, Duration)>,
    /// How long each live incarnation lives without a call.
    pub sessions: Vec<(ReplicaKey, Duration)>,
    /// When the round closes without those who have not contributed.
    pub grace: Option<Duration>,
    /// How long each announced contribution has until it is refused as too slow.
    pub uploads: Vec<(ContributionNo, Duration)>,
    /// Members of the open round that were told what to train.
    pub started: Vec<ReplicaKey>,
    /// Leases whose holder was heard of since this machine began.
    pub reported: Vec<LeaseId>,
    /// What each replica last reported: its activity and its counter.
    pub reports: Vec<(ReplicaKey, Activity, u64)>,
}

impl Machine {
    /// What this machine knows that is not durable, as of `now`.
    #[must_use]
    pub fn volatile(&self, now: MonoMs) -> Volatile {
        let clocks = &self.clocks;
        let vitals = self.vitals.iter();
        let left = |at: &MonoMs| at.since(now);
        Volatile {
            work: clocks
                .work
                .iter()
                .map(|(key, at)| (*key, left(at)))
                .collect(),
            sessions: clocks
                .sessions
                .iter()
                .map(|(key, at)| (*key, left(at)))
                .collect(),
            grace: clocks.grace.as_ref().map(left),
            uploads: clocks
                .uploads
                .iter()
                .map(|(no, upload)| (*no, left(&upload.ends())))
                .collect(),
            started: clocks.started.keys().copied().collect(),
            reported: self.reported.iter().copied().collect(),
            reports: vitals
                .map(|(key, v)| (*key, v.progress.activity, v.progress.counter))
                .collect(),
        }
    }
}
