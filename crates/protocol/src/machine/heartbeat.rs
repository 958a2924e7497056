//! Heartbeats: a sign of life, and of progress. Only progress renews a lease.

use super::clocks::lease_ttl;
use super::{Answer, Machine, ReplicaVitals};
use crate::{Activity, Heartbeat, Progress, Reply, RoundPhase, Standing};
use hansa_base::{MonoMs, ReplicaKey};
use std::time::Duration;

impl Machine {
    pub(super) fn heartbeat(&mut self, now: MonoMs, heartbeat: &Heartbeat) -> Answer {
        let key = self.authenticate(now, &heartbeat.caller)?;
        let progress = heartbeat.progress;
        if self.note_progress(now, key, progress)
            && let Some(lease) = self.replica(key)?.lease
        {
            self.clocks.renew(lease, now, self.budget(&progress));
        }
        if let Some((lease, cursor)) = heartbeat.at
            && self.replica(key)?.lease == Some(lease)
        {
            self.raise_mark(key, cursor)?;
        }
        // While the run is paused nothing will happen that is worth asking for often.
        let paused = self.state.orders.paused.is_some();
        let waiting = progress.activity == Activity::Waiting && !paused;
        Ok(Reply::Standing(Standing {
            lease: self.state.lease_of(key).map(crate::Lease::view),
            current: self.state.current,
            merging: self.state.round.phase != RoundPhase::Open,
            ending: self.state.ending,
            waits_for: self.waits_for(),
            next: if waiting {
                self.spec.timing.poll_every()
            } else {
                self.spec.timing.heartbeat_every()
            },
            ttl: lease_ttl(&self.spec, Some(&progress)),
            leave: self.told_to_leave(key)?,
        }))
    }

    /// Records a report; true if it shows progress. Waiting, which the coordinator causes, does.
    fn note_progress(&mut self, now: MonoMs, key: ReplicaKey, progress: Progress) -> bool {
        let last = self.vitals.get(&key);
        let same = last.is_some_and(|vitals| {
            let last = vitals.progress;
            (last.activity, last.counter) == (progress.activity, progress.counter)
        });
        let progressed = last
            .filter(|_| same)
            .map_or(now, |vitals| vitals.progressed);
        self.vitals.insert(
            key,
            ReplicaVitals {
                progress,
                progressed,
                heard: now,
            },
        );
        !same || progress.activity == Activity::Waiting
    }

    /// How long the reported activity may go on before the next sign of progress.
    fn budget(&self, progress: &Progress) -> Duration {
        match progress.activity {
            Activity::Starting | Activity::Checkpointing | Activity::Leaving => {
                self.spec.timing.ttl_max
            }
            Activity::Evaluating => self.spec.timing.evaluation_budget,
            Activity::Training
            | Activity::Downloading
            | Activity::Uploading
            | Activity::Waiting => lease_ttl(&self.spec, Some(progress)),
        }
    }
}
