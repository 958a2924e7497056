//! The states of a job, and room for those that Slurm will invent.

use std::fmt;

use super::text::digits;

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident = $long:literal, $short:literal;)*) => {
        /// The state of a job or step.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum JobState {
            $($(#[$doc])* $name,)*
            /// `CANCELLED`, and by whom if that is said.
            Cancelled {
                /// The user id.
                by: Option<u32>,
            },
            /// A state that nobody listed, as printed.
            Other(String),
        }

        impl JobState {
            fn known(text: &str) -> Option<Self> {
                match text {
                    $($long | $short => Some(Self::$name),)*
                    "CANCELLED" | "CA" => Some(Self::Cancelled { by: None }),
                    _ => None,
                }
            }

            fn long(&self) -> &str {
                match self {
                    $(Self::$name => $long,)*
                    Self::Cancelled { .. } => "CANCELLED",
                    Self::Other(text) => text,
                }
            }
        }
    };
}

states! {
    /// The job ended because its node failed to boot.
    BootFail = "BOOT_FAIL", "BF";
    /// It ended with exit code 0.
    Completed = "COMPLETED", "CD";
    /// Some of its processes still run.
    Completing = "COMPLETING", "CG";
    /// It has nodes, and waits for them to be ready.
    Configuring = "CONFIGURING", "CF";
    /// It ended at its deadline.
    Deadline = "DEADLINE", "DL";
    /// It ended with another exit code.
    Failed = "FAILED", "F";
    /// It ended because a node failed.
    NodeFail = "NODE_FAIL", "NF";
    /// It ran out of memory.
    OutOfMemory = "OUT_OF_MEMORY", "OOM";
    /// It waits in the queue.
    Pending = "PENDING", "PD";
    /// It made room for another job.
    Preempted = "PREEMPTED", "PR";
    /// It runs.
    Running = "RUNNING", "R";
    /// It went back to the queue.
    Requeued = "REQUEUED", "RQ";
    /// It goes back to the queue.
    RequeueHold = "REQUEUE_HOLD", "RH";
    /// A federation moves it.
    RequeueFed = "REQUEUE_FED", "RF";
    /// Its size is about to change.
    Resizing = "RESIZING", "RS";
    /// Held, because its reservation was deleted.
    ReservationDeleted = "RESV_DEL_HOLD", "RD";
    /// Another cluster of the federation started it.
    Revoked = "REVOKED", "RV";
    /// A signal is on its way.
    Signaling = "SIGNALING", "SI";
    /// Back in the queue with an exit code that says so.
    SpecialExit = "SPECIAL_EXIT", "SE";
    /// Its files are being staged out.
    StageOut = "STAGE_OUT", "SO";
    /// It keeps its processors, but does not run.
    Stopped = "STOPPED", "ST";
    /// It gave its processors away for a while.
    Suspended = "SUSPENDED", "S";
    /// It reached its walltime.
    Timeout = "TIMEOUT", "TO";
}

impl JobState {
    /// Reads a state; a text that cannot be one (Slurm's are capitals) is refused.
    pub(super) fn read(text: &str) -> Option<Self> {
        // A column too narrow cuts the text and ends it with a plus sign.
        let whole = text.strip_suffix('+').unwrap_or(text);
        if let Some(by) = whole.strip_prefix("CANCELLED by ") {
            let by = if whole == text { digits(by) } else { None };
            return Some(Self::Cancelled { by });
        }
        if let Some(known) = Self::known(whole.trim_end()) {
            return Some(known);
        }
        let capitals = |c: char| c.is_ascii_uppercase() || c == '_';
        let like_one = whole.len() >= 2 && whole.len() <= 40 && whole.chars().all(capitals);
        like_one.then(|| Self::Other(text.to_owned()))
    }

    /// Whether the job is over and will not run again under this id; `None` for a state that
    /// nobody listed.
    #[must_use]
    pub fn is_over(&self) -> Option<bool> {
        match self {
            Self::BootFail
            | Self::Cancelled { .. }
            | Self::Completed
            | Self::Deadline
            | Self::Failed
            | Self::NodeFail
            | Self::OutOfMemory
            | Self::Preempted
            | Self::Revoked
            | Self::Timeout => Some(true),
            Self::Other(_) => None,
            _ => Some(false),
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled { by: Some(uid) } => f.pad(&format!("CANCELLED by {uid}")),
            _ => f.pad(self.long()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_long_short_and_cut() {
        let cancelled = |by| JobState::Cancelled { by };
        let cases = [
            ("COMPLETED", JobState::Completed),
            ("PD", JobState::Pending),
            ("CANCELLED by 0", cancelled(Some(0))),
            ("CANCELLED by 1185300516", cancelled(Some(1_185_300_516))),
            ("CANCELLED by 11853+", cancelled(None)),
            ("CANCELLED+", cancelled(None)),
            ("CANCELLED", cancelled(None)),
            ("EXPEDITING", JobState::Other("EXPEDITING".into())),
            ("OUT_OF_ME+", JobState::Other("OUT_OF_ME+".into())),
        ];
        for (text, state) in cases {
            assert_eq!(JobState::read(text), Some(state), "{text}");
        }
    }

    #[test]
    fn text_that_cannot_be_a_state_is_refused() {
        for bad in [
            "",
            "cpu=32",
            "Running",
            "4",
            "X",
            "2026-11-29T15:25:44",
            "A B",
        ] {
            assert_eq!(JobState::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn nobody_decides_about_an_unknown_state() {
        assert_eq!(JobState::Other("EXPEDITING".into()).is_over(), None);
        assert_eq!(JobState::Completing.is_over(), Some(false));
        assert_eq!(JobState::Timeout.is_over(), Some(true));
    }
}
