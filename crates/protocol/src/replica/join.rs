//! Registration: nonce durable, call, token durable; then on from what the disk and the coordinator
//! have.

use super::api::{Action, Call, ExitReason, Notice, Void};
use super::local::LocalState;
use super::machine::{Doing, Held, Job, ReplicaMachine, Then, Weights, WhenBusy};
use crate::{GenerationInfo, LeaseView, Refusal, Registered};
use hansa_base::{MonoMs, Windows};

impl ReplicaMachine {
    /// Registers. A nonce whose answer is not known is used again, so that the answer is the same.
    pub(super) fn join(&mut self, now: MonoMs) {
        let nonce = self.record.nonce.unwrap_or_else(|| self.fresh_nonce());
        self.record.nonce = Some(nonce);
        self.enter(now, Doing::SavingNonce);
        if std::mem::take(&mut self.forget) {
            (self.weights, self.held) = (Weights::Nothing, Held::Nothing);
            self.actions.push(Action::Forget);
        }
        self.actions.push(Action::Save(self.record.clone()));
    }

    /// The coordinator gave this incarnation up: it registers again, once the trainer is idle.
    pub(super) fn rejoin(&mut self, now: MonoMs) {
        (self.caller, self.lease) = (None, None);
        if self.leaving() {
            return self.exit(now, self.left());
        }
        match self.job {
            None => self.join(now),
            Some(job) => {
                if job == Job::Train {
                    self.actions.push(Action::Halt);
                }
                self.enter(now, Doing::Halting(Then::Rejoin));
            }
        }
    }

    /// The run was restored from a backup. What this replica has may be of a part of the history that the
    /// copy never had, so it goes on as a newcomer: nothing of it is contributed or built upon.
    pub(super) fn start_afresh(&mut self, now: MonoMs) {
        self.void(Void::Restored);
        (self.record.held, self.record.token, self.record.nonce) = (None, None, None);
        (self.accepted, self.forget) = (false, true);
        self.rejoin(now);
    }

    /// Whether the coordinator is at an earlier generation than one that it has given to this replica.
    /// That cannot be in one history, whatever was lost or overtaken on the way.
    pub(super) fn is_behind(&self, current: &GenerationInfo) -> bool {
        let work = self.work.as_ref().map(|work| work.base);
        let mut seen = self.base().into_iter().chain(work);
        seen.any(|base| base.generation > current.generation)
    }

    pub(super) fn exit_behind(&mut self, now: MonoMs, current: GenerationInfo) {
        let work = self.work.as_ref().map(|work| work.base);
        let seen = self
            .base()
            .into_iter()
            .chain(work)
            .map(|base| base.generation);
        let (ours, theirs) = (seen.max().unwrap_or_default(), current.generation);
        self.exit(now, ExitReason::OlderCopy { ours, theirs });
    }

    pub(super) fn registration(&self) -> Call {
        Call::Register {
            nonce: self.record.nonce.unwrap_or_default(),
            resume: self.record.token,
            held: self.record.held.clone(),
        }
    }

    pub(super) fn saved(&mut self, now: MonoMs) {
        match self.doing.clone() {
            Doing::SavingNonce => self.enter(now, Doing::Registering),
            Doing::SavingToken(registered) => self.joined(now, *registered),
            _ => {}
        }
    }

    pub(super) fn registered(&mut self, now: MonoMs, registered: Registered) {
        let caller = registered.caller(self.spec.run, self.replica.clone());
        self.record.held = Some(caller);
        self.record.token = Some(registered.token);
        self.record.nonce = None;
        self.enter(now, Doing::SavingToken(Box::new(registered)));
        self.actions.push(Action::Save(self.record.clone()));
    }

    pub(super) fn registration_refused(&mut self, now: MonoMs, refusal: Refusal) {
        match refusal {
            Refusal::OtherData(mismatch) => self.exit(now, ExitReason::OtherData(mismatch)),
            Refusal::RunOver(reason) => self.exit(now, ExitReason::RunComplete(reason)),
            Refusal::Busy { retry, .. } if self.options.when_busy == WhenBusy::Wait => {
                let timing = &self.spec.timing;
                let longest = timing.heartbeat_every().max(timing.poll_every());
                self.call_again(now, retry.clamp(timing.poll_every(), longest));
                self.tell(Notice::Busy(refusal));
            }
            Refusal::Busy { .. } => self.exit(now, ExitReason::Busy(refusal)),
            refusal => self.exit(now, ExitReason::Refused(refusal)),
        }
    }

    /// The token is durable. A contribution of the local checkpoint is announced again whatever else
    /// holds: only the coordinator knows what became of it.
    fn joined(&mut self, now: MonoMs, registered: Registered) {
        self.caller = self.record.held.clone();
        self.vitals.joined(now);
        let inherited = registered
            .lease
            .as_ref()
            .map_or(Windows(0), LeaseView::left);
        self.tell(Notice::Joined { inherited });
        self.lease = registered.lease;
        if self.is_behind(&registered.current) {
            return self.exit_behind(now, registered.current);
        }
        let Some(work) = &self.work else {
            return self.go_on(now);
        };
        if work.contribution.is_some() {
            return self.enter(now, Doing::Announcing);
        }
        let broken = broken_law(work, self.lease.as_ref(), &registered.current);
        // One who registers again has lost its lease, and its work may be on no disk.
        let again = (self.weights == Weights::Work).then_some(Void::LeaseLost(None));
        match broken.or(again) {
            None => self.restore(now),
            Some(why) => {
                self.void(why);
                self.go_on(now);
            }
        }
    }

    /// Takes the work of the checkpoint `latest` up again.
    pub(super) fn restore(&mut self, now: MonoMs) {
        self.enter(now, Doing::Restoring);
        self.start_job(Job::Restore, Action::Restore);
    }
}

/// Why a checkpoint's weights are not the base plus training on the front of the own live lease, if
/// they are not.
pub(super) fn broken_law(
    work: &LocalState,
    lease: Option<&LeaseView>,
    current: &GenerationInfo,
) -> Option<Void> {
    if work.base.manifest != current.manifest {
        return Some(Void::RoundOver);
    }
    let same = lease.is_some_and(|lease| {
        let end = lease.front + lease.left();
        (lease.id, lease.front) == (work.lease, work.front) && work.cursor <= end
    });
    (!same).then_some(Void::LeaseLost(None))
}
