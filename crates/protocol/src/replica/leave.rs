//! The end of a process: a stop that contributes what is there, a failure, the end of the run.

use super::api::{ExitReason, Notice};
use super::machine::{Doing, ReplicaMachine, Then};
use hansa_base::MonoMs;

impl ReplicaMachine {
    /// A stop was asked for. What is trained is contributed, what is nearly done is finished.
    pub(super) fn stop(&mut self, now: MonoMs) {
        if std::mem::replace(&mut self.stopped, true) {
            return self.exit(
                now,
                self.or_not_finite(ExitReason::Stopped { goodbye: false }),
            );
        }
        self.leave_by
            .get_or_insert(now.after(self.options.leave_within));
        if self.drained.is_none() {
            self.wind_up(now);
        }
    }

    /// The coordinator wants this replica to leave. There is no hurry: no deadline but those of what
    /// is done on the way.
    pub(super) fn told_to_leave(&mut self, now: MonoMs, why: String) {
        if self.leaving() {
            return;
        }
        self.drained = Some(why.clone());
        self.tell(Notice::Leaving(why));
        self.wind_up(now);
    }

    /// True once it is to end.
    pub(super) fn leaving(&self) -> bool {
        self.leave_by.is_some() || self.drained.is_some()
    }

    /// Why it ends, after a goodbye.
    pub(super) fn left(&self) -> ExitReason {
        let told = self.drained.clone().map(ExitReason::Drained);
        told.unwrap_or(ExitReason::Stopped { goodbye: true })
    }

    fn wind_up(&mut self, now: MonoMs) {
        match self.doing {
            Doing::SavingNonce | Doing::Registering | Doing::SavingToken(_) => {
                self.exit(now, ExitReason::Stopped { goodbye: false });
            }
            Doing::Halting(Then::Rejoin) => self.exit(now, self.left()),
            Doing::Training(_) => self.halt(now, Then::Contribute),
            Doing::Asking | Doing::AtMark(_) => self.go_on(now),
            Doing::Loading | Doing::Evaluating(_) => self.leave(now, self.left()),
            Doing::Restoring
            | Doing::Reporting(_)
            | Doing::Halting(_)
            | Doing::Encoding
            | Doing::Checkpointing(_)
            | Doing::Announcing
            | Doing::Uploading
            | Doing::Leaving(_)
            | Doing::Over => {}
        }
    }

    /// Why it ends without a goodbye: whatever came in between, people want to know of a NaN.
    pub(super) fn or_not_finite(&self, otherwise: ExitReason) -> ExitReason {
        match &self.doing {
            Doing::Leaving(reason @ ExitReason::NotFinite(_)) => reason.clone(),
            _ => otherwise,
        }
    }

    /// Says goodbye, if anybody knows this process, and ends.
    pub(super) fn leave(&mut self, now: MonoMs, reason: ExitReason) {
        if self.caller.is_none() {
            return self.exit(now, reason);
        }
        let latest = now.after(self.options.leave_within);
        if self.drained.is_some() || matches!(reason, ExitReason::NotFinite(_)) {
            self.leave_by.get_or_insert(latest);
        }
        self.enter(now, Doing::Leaving(reason));
    }

    /// The coordinator knows that this process ends, or has given it up already.
    pub(super) fn gone(&mut self, now: MonoMs, reason: ExitReason) {
        self.exit(now, reason);
    }
}
