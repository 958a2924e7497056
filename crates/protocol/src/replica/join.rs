//! Registration: nonce durable, call, token durable; then on from what the disk and the coordinator
//! have.

use super::api::{Action, Call, ExitReason, Notice, Void};
use super::local::LocalState;
use super::machine::{Doing, Job, ReplicaMachine, Then, Weights, WhenBusy};
use crate::{GenerationInfo, LeaseView, Refusal, Registered};
use hansa_base::{MonoMs, Windows};

impl ReplicaMachine {
    /// Registers. A nonce whose answer is not known is used again, so that the answer is the same.
    pub(super) fn join(&mut self, now: MonoMs) {
        let nonce = self.record.nonce.unwrap_or_else(|| self.fresh_nonce());
        self.record.nonce = Some(nonce);
        self.enter(now, Doing::SavingNonce);
        self.actions.push(Action::Save(self.record.clone()));
    }

    /// The coordinator gave this incarnation up: it registers again, once the trainer is idle.
    pub(super) fn rejoin(&mut self, now: MonoMs) {
        (self.incarnation, self.lease) = (None, None);
        if self.leave_by.is_some() {
            return self.exit(now, ExitReason::Stopped { goodbye: true });
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

    pub(super) fn registration(&self) -> Call {
        Call::Register {
            nonce: self.record.nonce.unwrap_or_default(),
            resume: self.record.token,
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
        self.record.incarnation = Some(registered.incarnation);
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
        self.incarnation = Some(registered.incarnation);
        self.vitals.joined(now);
        let inherited = registered
            .lease
            .as_ref()
            .map_or(Windows(0), LeaseView::left);
        self.tell(Notice::Joined { inherited });
        self.lease = registered.lease;
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
