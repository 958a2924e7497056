//! What came of a job, and what follows from it.

use std::fmt;

use crate::{Line, Refusal, UnixS};

/// What came of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The batch system took no job.
    NotSubmitted(Refusal),
    /// It was withdrawn before there was a job.
    Withdrawn,
    /// It ended by itself, with exit code 0.
    Completed {
        /// How long it ran.
        ran_s: u64,
    },
    /// It ended with exit code 75: there was nothing to do yet.
    ComeBackLater,
    /// It reached its walltime.
    TimedOut,
    /// Somebody else cancelled it.
    Cancelled {
        /// The user's number, where that is said.
        by: Option<u32>,
    },
    /// It was cancelled as decided here.
    CancelledAsOrdered,
    /// It failed.
    Failed {
        /// How long it ran.
        ran_s: u64,
        /// Its exit code.
        exit_code: Option<u32>,
        /// The signal that ended it.
        signal: Option<u32>,
    },
    /// A node failed, at boot or later, and it was not requeued.
    NodeFailed {
        /// Its nodes.
        nodes: Vec<Line>,
    },
    /// It ran out of memory.
    OutOfMemory,
    /// It made room for another job, and was not requeued.
    Preempted,
    /// It could not have ended before its deadline.
    Deadline,
    /// Neither squeue nor sacct know it any more.
    Lost,
}

impl Outcome {
    /// Whether the job failed before it had run for `quick_s`; `None` if it says nothing about whether
    /// jobs work here.
    #[must_use]
    pub const fn is_quick_failure(&self, quick_s: u64) -> Option<bool> {
        match self {
            // A job that has nothing to do says so by its exit code: ending at once is not that.
            Self::Completed { ran_s } | Self::Failed { ran_s, .. } => Some(*ran_s < quick_s),
            Self::TimedOut | Self::ComeBackLater => Some(false),
            _ => None,
        }
    }
}

/// A job of this exit code found nothing to do.
pub(crate) const COME_BACK_LATER: u32 = 75;

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSubmitted(refusal) => write!(f, "not submitted, {refusal}"),
            Self::Withdrawn => f.write_str("withdrawn before there was a job"),
            Self::Completed { ran_s } => write!(f, "completed after {ran_s} s"),
            Self::ComeBackLater => f.write_str("the job found nothing to do yet"),
            Self::TimedOut => f.write_str("reached its walltime"),
            Self::Cancelled { by: Some(by) } => write!(f, "cancelled by user {by}"),
            Self::Cancelled { by: None } => f.write_str("cancelled, not by us"),
            Self::CancelledAsOrdered => f.write_str("cancelled as ordered"),
            Self::Failed {
                ran_s,
                exit_code,
                signal,
            } => {
                write!(f, "failed after {ran_s} s")?;
                match (exit_code, signal) {
                    (_, Some(signal)) if *signal > 0 => write!(f, " by signal {signal}"),
                    (Some(code), _) => write!(f, " with exit code {code}"),
                    _ => Ok(()),
                }
            }
            Self::NodeFailed { nodes } => match nodes.as_slice() {
                [] => f.write_str("a node failed"),
                [node] => write!(f, "node {node} failed"),
                more => write!(f, "one of its {} nodes failed", more.len()),
            },
            Self::OutOfMemory => f.write_str("ran out of memory"),
            Self::Preempted => f.write_str("made room for another job"),
            Self::Deadline => f.write_str("could not have ended before its deadline"),
            Self::Lost => f.write_str("neither squeue nor sacct know the job"),
        }
    }
}

/// What follows for the replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    /// Its next job is submitted as soon as it may.
    Next,
    /// The same, but not before a time.
    Wait {
        /// Until then.
        until: UnixS,
        /// Failures in a row, this one included.
        failures: u32,
    },
    /// The site's queue is paused.
    Pause(PauseWhy),
}

impl fmt::Display for Then {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Next => f.write_str("the next one follows"),
            Self::Wait { until, failures: 0 } => write!(f, "the next one waits until {until}"),
            Self::Wait { until, failures } => write!(
                f,
                "the next one waits until {until}, after {failures} failure{} in a row",
                if *failures == 1 { "" } else { "s" }
            ),
            Self::Pause(why) => write!(f, "the site's queue is paused: {why}"),
        }
    }
}

/// Why a site's queue is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PauseWhy {
    /// An operator ordered it.
    Operator(Line),
    /// So many jobs in a row failed at once.
    QuickFailures(u32),
    /// A job ran out of memory: the shape is too small for the model.
    OutOfMemory,
    /// The batch system refuses the shape for good.
    Refused(Refusal),
    /// The allocation is used up.
    AllocationExhausted(Line),
}

impl PauseWhy {
    /// Whether another profile or budget may be the cure.
    #[must_use]
    pub const fn ends_with_another_profile(&self) -> bool {
        !matches!(self, Self::Operator(_))
    }
}

impl fmt::Display for PauseWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator(why) if why.as_str().is_empty() => f.write_str("by an operator"),
            Self::Operator(why) => write!(f, "by an operator: {why}"),
            Self::QuickFailures(jobs) => {
                write!(f, "{jobs} jobs in a row failed at once; see `hansa logs`")
            }
            Self::OutOfMemory => {
                f.write_str("a job ran out of memory: the shape is too small for the model")
            }
            Self::Refused(refusal) => write!(f, "{refusal}"),
            Self::AllocationExhausted(text) => write!(f, "the allocation is exhausted: {text}"),
        }
    }
}
