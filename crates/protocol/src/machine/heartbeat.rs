//! Heartbeats: a sign of life, and of progress. Only progress renews a lease.

use super::clocks::{clamped, lease_ttl};
use super::{Answer, Machine, ReplicaVitals};
use crate::{Activity, Heartbeat, Progress, Reply, RoundPhase, Standing};
use hansa_base::{MonoMs, ReplicaKey};
use std::time::Duration;

impl Machine {
    pub(super) fn heartbeat(&mut self, now: MonoMs, heartbeat: &Heartbeat) -> Answer {
        let key = self.authenticate(now, &heartbeat.caller)?;
        let progress = heartbeat.progress;
        let progressed = self.note_progress(now, key, progress);
        let lost = self.replica(key)?.lost.as_ref().map(|lost| lost.cause);
        if let (true, Some((lease, cursor))) = (progressed, heartbeat.at) {
            self.revive(now, key, lease, cursor)?;
        }
        if progressed {
            self.renew(now, key);
        }
        if let Some(held) = self.replica(key)?.lease {
            self.reported.insert(held);
            if let Some((_, cursor)) = heartbeat.at.filter(|(lease, _)| *lease == held) {
                self.raise_mark(key, cursor)?;
            }
        }
        // While the run is paused nothing will happen that is worth asking for often.
        let paused = self.state.orders.paused.is_some();
        let waiting = progress.activity == Activity::Waiting && !paused;
        Ok(Reply::Standing(Standing {
            lease: self.state.lease_of(key).map(crate::Lease::view),
            lost: lost.filter(|_| self.state.lease_of(key).is_none()),
            current: self.state.current,
            merging: self.state.round.phase != RoundPhase::Open,
            ending: self.state.ending,
            waits_for: self.waits_for(),
            next: if waiting {
                self.spec.timing.poll_every()
            } else {
                self.spec.timing.heartbeat_every()
            },
            ttl: self.budget(key, Some(&progress)),
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

    /// How long an activity may go on before its next sign of progress. Steps and bytes are counted:
    /// a report of theirs is due with each heartbeat, or step. What counts nothing must end in time:
    /// in that which was measured of it, where that is known.
    pub(super) fn budget(&self, key: ReplicaKey, progress: Option<&Progress>) -> Duration {
        let timing = &self.spec.timing;
        let activity = progress.map(|progress| progress.activity);
        match activity {
            Some(Activity::Starting | Activity::Leaving) => timing.ttl_max,
            Some(Activity::Checkpointing) => {
                let pace = self.state.replica(key).and_then(|replica| replica.pace);
                pace.map_or(timing.ttl_max, |pace| {
                    clamped(&self.spec, timing.alpha * pace.exchange_s())
                })
            }
            Some(Activity::Evaluating) => timing.evaluation_budget.max(timing.ttl_min),
            Some(Activity::Downloading | Activity::Uploading) => {
                let step = None;
                let moving = progress.map(|progress| Progress { step, ..*progress });
                lease_ttl(&self.spec, moving.as_ref())
            }
            Some(Activity::Training | Activity::Waiting) | None => lease_ttl(&self.spec, progress),
        }
    }
}
