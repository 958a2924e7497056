//! The end of a process: a stop that contributes what is there, a failure, the end of the run.

use super::api::ExitReason;
use super::machine::{Doing, ReplicaMachine, Then};
use hansa_base::MonoMs;

impl ReplicaMachine {
    /// A stop was asked for. What is trained is contributed, what is nearly done is finished.
    pub(super) fn stop(&mut self, now: MonoMs) {
        let stopped = |goodbye| ExitReason::Stopped { goodbye };
        if self.leave_by.is_some() {
            return self.exit(now, stopped(false));
        }
        self.leave_by = Some(now.after(self.options.leave_within));
        match self.doing {
            Doing::SavingNonce | Doing::Registering | Doing::SavingToken(_) => {
                self.exit(now, stopped(false));
            }
            Doing::Halting(Then::Rejoin) => self.exit(now, stopped(true)),
            Doing::Training(_) => self.halt(now, Then::Contribute),
            Doing::Asking | Doing::AtMark(_) => self.go_on(now),
            Doing::Loading | Doing::Evaluating(_) => self.leave(now, stopped(true)),
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

    /// Says goodbye, if anybody knows this process, and ends.
    pub(super) fn leave(&mut self, now: MonoMs, reason: ExitReason) {
        if self.caller.is_none() {
            return self.exit(now, reason);
        }
        self.enter(now, Doing::Leaving(reason));
    }

    /// The coordinator knows that this process ends, or has given it up already.
    pub(super) fn gone(&mut self, now: MonoMs, reason: ExitReason) {
        self.exit(now, reason);
    }
}
