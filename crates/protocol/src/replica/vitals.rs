//! Signs of life, how time is spent, and what there is to see.

use super::api::{Action, Call, CallFailed, CallNo, Void};
use super::join::broken_law;
use super::machine::{Doing, ReplicaMachine};
use crate::{
    Activity, GenerationInfo, Heartbeat, LeaseView, PhaseTimes, Progress, Refusal, Reply, Standing,
};
use hansa_base::{Bytes, MonoMs, Steps, Tokens, Windows};
use std::time::Duration;

/// What there is to see of a replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Glance {
    /// What it does.
    pub activity: Activity,
    /// The generation that it has loaded.
    pub base: Option<GenerationInfo>,
    /// Windows trained in this phase.
    pub trained: Windows,
    /// Windows of this phase, while it is trained.
    pub planned: Option<Windows>,
    /// Inner steps of this phase.
    pub steps: Steps,
    /// Loss of the last step, in nats per token.
    pub loss: Option<f64>,
    /// Target tokens per second spent training.
    pub tokens_per_s: Option<f64>,
}

#[derive(Clone, Debug)]
pub(super) struct Vitals {
    /// Grows as the activity proceeds.
    pub counter: u64,
    /// States entered so far.
    entries: u64,
    due: Option<MonoMs>,
    /// The heartbeat under way: its number, when it was sent, and what was known then.
    sent: Option<(CallNo, MonoMs, u64)>,
    /// Grows with every answer to another call: what a heartbeat that was sent before says is old.
    news: u64,
    step: Option<Duration>,
    rtt: Option<Duration>,
    loss: Option<f64>,
    tokens_per_s: Option<f64>,
    times: PhaseTimes,
    since: MonoMs,
}

impl Vitals {
    pub fn new(now: MonoMs) -> Self {
        Self {
            counter: 0,
            entries: 0,
            due: None,
            sent: None,
            news: 0,
            step: None,
            rtt: None,
            loss: None,
            tokens_per_s: None,
            times: PhaseTimes::default(),
            since: now,
        }
    }

    /// Another state begins, which is progress even if it is like the one last reported.
    pub fn entered(&mut self) {
        self.entries += 1;
        self.counter = self.entries;
    }

    pub fn due(&self) -> Option<MonoMs> {
        self.due.filter(|_| self.sent.is_none())
    }

    pub fn joined(&mut self, now: MonoMs) {
        (self.due, self.sent) = (Some(now), None);
    }

    /// Says something now, unless that is under way.
    pub fn hurry(&mut self, now: MonoMs) {
        self.due = Some(now);
    }

    pub fn is_heartbeat(&self, no: CallNo) -> bool {
        self.sent.is_some_and(|(sent, ..)| sent == no)
    }

    pub fn news(&mut self) {
        self.news += 1;
    }

    pub fn step(&mut self, took: Duration, windows: Windows, tokens: Tokens, loss: f64) {
        self.times.trained += windows;
        let rate = tokens.0 as f64 / took.as_secs_f64().max(1e-9);
        let smooth = |old: f64| 0.8 * old + 0.2 * rate;
        self.tokens_per_s = Some(self.tokens_per_s.map_or(rate, smooth));
        (self.step, self.loss) = (Some(took), Some(loss));
    }

    pub fn uploaded(&mut self, bytes: Bytes) {
        self.times.uploaded = bytes;
    }

    /// Adds the time since the last change of state to what was done.
    pub fn account(&mut self, now: MonoMs, doing: &Doing) {
        self.times = self.times(now, doing);
        self.since = now;
    }

    /// How this round's time was spent, up to now.
    pub fn times(&self, now: MonoMs, doing: &Doing) -> PhaseTimes {
        let mut times = self.times;
        let spent_ms = now.since(self.since).as_millis() as u64;
        match doing {
            Doing::Loading => times.download_ms += spent_ms,
            Doing::Evaluating(_) | Doing::Reporting(_) => times.evaluate_ms += spent_ms,
            Doing::Training(_) | Doing::Halting(_) => times.train_ms += spent_ms,
            Doing::Restoring | Doing::Encoding | Doing::Checkpointing(_) => {
                times.checkpoint_ms += spent_ms;
            }
            Doing::Announcing | Doing::Uploading => times.upload_ms += spent_ms,
            Doing::Asking | Doing::AtMark(_) => times.wait_ms += spent_ms,
            Doing::SavingNonce
            | Doing::Registering
            | Doing::SavingToken(_)
            | Doing::Leaving(_)
            | Doing::Over => {}
        }
        times
    }

    pub fn new_round(&mut self, now: MonoMs, doing: &Doing) {
        self.account(now, doing);
        self.times = PhaseTimes::default();
    }

    fn progress(&self, activity: Activity) -> Progress {
        Progress {
            activity,
            counter: self.counter,
            step: self.step,
            rtt: self.rtt,
            loss: self.loss,
            tokens_per_s: self.tokens_per_s,
        }
    }
}

impl ReplicaMachine {
    /// What it does, in the coordinator's words.
    #[must_use]
    pub fn activity(&self) -> Activity {
        match self.doing {
            Doing::SavingNonce | Doing::Registering | Doing::SavingToken(_) | Doing::Restoring => {
                Activity::Starting
            }
            Doing::Asking | Doing::AtMark(_) => Activity::Waiting,
            Doing::Loading => Activity::Downloading,
            Doing::Evaluating(_) | Doing::Reporting(_) => Activity::Evaluating,
            Doing::Training(_) | Doing::Halting(_) => Activity::Training,
            Doing::Encoding | Doing::Checkpointing(_) => Activity::Checkpointing,
            Doing::Announcing | Doing::Uploading => Activity::Uploading,
            Doing::Leaving(_) | Doing::Over => Activity::Leaving,
        }
    }

    /// What there is to see.
    #[must_use]
    pub fn glance(&self) -> Glance {
        let planned = match self.doing {
            Doing::Training(plan) | Doing::AtMark(plan) => Some(plan.windows),
            _ => None,
        };
        Glance {
            activity: self.activity(),
            base: self.base(),
            trained: self.work.as_ref().map_or(Windows(0), |w| w.trained()),
            planned,
            steps: self.work.as_ref().map_or(Steps(0), |w| w.steps),
            loss: self.vitals.loss,
            tokens_per_s: self.vitals.tokens_per_s,
        }
    }

    pub(super) fn heartbeat_if_due(&mut self, now: MonoMs) {
        let Some(caller) = self.caller() else { return };
        if self.vitals.due().is_none_or(|due| due > now) {
            return;
        }
        let no = self.number_call();
        self.vitals.sent = Some((no, now, self.vitals.news));
        let progress = self.vitals.progress(self.activity());
        let at = self.work.as_ref().map(|work| (work.lease, work.cursor));
        let call = Call::Heartbeat(Heartbeat {
            caller,
            progress,
            at,
        });
        self.actions.push(Action::Call { no, call });
    }

    pub(super) fn heartbeat_answered(&mut self, now: MonoMs, answer: Result<Reply, CallFailed>) {
        let Some((_, sent, news)) = self.vitals.sent.take() else {
            return;
        };
        let timing = &self.spec.timing;
        let every = match self.doing {
            Doing::AtMark(_) => timing.poll_every(),
            _ => timing.heartbeat_every(),
        };
        self.vitals.due = Some(now.after(every));
        match answer {
            Ok(Reply::Standing(standing)) => {
                self.vitals.rtt = Some(now.since(sent));
                self.end_back_off(now);
                if news == self.vitals.news {
                    self.stand(now, &standing);
                }
            }
            Err(CallFailed::Refused(refusal)) => self.heartbeat_refused(now, refusal),
            // Whatever is under way goes on without the coordinator.
            Ok(_) | Err(CallFailed::Unreachable(_)) => {}
        }
    }

    fn heartbeat_refused(&mut self, now: MonoMs, refusal: Refusal) {
        let ends_it = matches!(
            refusal,
            Refusal::Fenced { .. }
                | Refusal::Evicted { .. }
                | Refusal::Gone { .. }
                | Refusal::Restored { .. }
        );
        if ends_it || refusal.is_of_another_history() {
            self.refused(now, refusal);
        }
    }

    /// While it trains, a replica gives up as soon as it hears that its work cannot count; and it
    /// hears how far it may go.
    fn stand(&mut self, now: MonoMs, standing: &Standing) {
        if let Some(why) = &standing.leave {
            return self.told_to_leave(now, why.clone());
        }
        let (Doing::Training(plan) | Doing::AtMark(plan), Some(work)) = (&self.doing, &self.work)
        else {
            return;
        };
        let plan = *plan;
        if standing.merging || standing.ending.is_some() {
            return self.abandon(now, Void::RoundOver);
        }
        if let Some(why) = broken_law(work, standing.lease.as_ref(), &standing.current) {
            let why = match why {
                Void::LeaseLost(_) => Void::LeaseLost(standing.lost),
                why => why,
            };
            return self.abandon(now, why);
        }
        self.see(standing.lease.as_ref());
        if let Doing::AtMark(_) = self.doing
            && self.may_go_on(plan)
        {
            self.train(now, plan);
        }
    }

    /// Takes a newer view of the lease. Whatever it lacks of the older one lies beyond the mark.
    fn see(&mut self, newer: Option<&LeaseView>) {
        if let (Some(lease), Some(newer)) = (&mut self.lease, newer)
            && newer.id == lease.id
            && newer.seq >= lease.seq
        {
            lease.clone_from(newer);
        }
    }
}
