//! Why nothing is submitted for a replica.

use std::fmt;

use crate::event::gpu_hours;
use crate::{GpuS, IntentId, JobId, Line, Refusal, UnixS};

/// The first reason that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// The run is over.
    RunEnded,
    /// The run is paused.
    RunPaused(Line),
    /// Everything is committed or leased: a job that started now would find nothing to train.
    NoWork,
    /// An operator drained the site.
    SiteDrained(Line),
    /// The site's queue is paused.
    QueuePaused(Line),
    /// The planner decides, and has made no plan yet.
    NoPlan,
    /// The plan of this number has no job here.
    NotPlanned(u64),
    /// No site process has told its profile.
    NoProfile,
    /// Nobody runs the site process now.
    NoSiteProcess,
    /// Earlier attempts failed.
    Backoff {
        /// Until then.
        until: UnixS,
        /// The last outcome.
        why: Line,
    },
    /// It could cost more than is left.
    Budget {
        /// What it may cost.
        needed: GpuS,
        /// What is left beyond the reserve, what was used and what live jobs may use.
        free: GpuS,
    },
    /// The allocation would end before it.
    AllocationEnds {
        /// When.
        at: UnixS,
    },
    /// Enough jobs wait.
    Pending {
        /// Jobs that wait.
        pending: u32,
        /// What the profile allows.
        max: u32,
    },
    /// The last probe of the shape was refused for good.
    ShapeRefused(Refusal),
    /// The partition is not up, or takes no job as long as this.
    Partition(Line),
    /// Its job waits until somebody releases it.
    JobHeld {
        /// For which intent.
        intent: IntentId,
        /// The job.
        job: JobId,
        /// In Slurm's word.
        reason: Line,
    },
    /// Its job waits for what no queue gives.
    CannotStart {
        /// For which intent.
        intent: IntentId,
        /// The job.
        job: JobId,
        /// In Slurm's word.
        reason: Line,
    },
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunEnded => f.write_str("the run is over"),
            Self::RunPaused(why) => write!(f, "the run is paused: {why}"),
            Self::NoWork => f.write_str("all windows are committed or being trained"),
            Self::SiteDrained(why) => write!(f, "the site is drained: {why}"),
            Self::QueuePaused(why) => write!(f, "the site's queue is paused: {why}"),
            Self::NoPlan => {
                f.write_str("the planner decides, and has made no plan yet; `hansa plan` says why")
            }
            Self::NotPlanned(plan) => write!(f, "plan {plan} has no job here"),
            Self::NoProfile => f.write_str("no site process has told its profile yet"),
            Self::NoSiteProcess => f.write_str("no site process runs"),
            Self::Backoff { until, why } => write!(f, "waiting until {until} after: {why}"),
            Self::Budget { needed, free } => write!(
                f,
                "it may cost {}, and {} are free",
                gpu_hours(*needed),
                gpu_hours(*free)
            ),
            Self::AllocationEnds { at } => {
                write!(f, "the allocation ends at {at}, before the job would")
            }
            Self::Pending { pending, max } => {
                write!(f, "{pending} jobs wait in the queue, {max} may")
            }
            Self::ShapeRefused(refusal) => write!(f, "the shape is refused: {refusal}"),
            Self::Partition(why) => write!(f, "the partition does not take it: {why}"),
            Self::JobHeld {
                intent,
                job,
                reason,
            } => write!(
                f,
                "job {job} is held ({reason}), and starts once somebody releases it at the site \
                 (`scontrol release {job}`; what an administrator holds only an administrator releases); \
                 `hansa queue cancel {intent}` gives it up"
            ),
            Self::CannotStart {
                intent,
                job,
                reason,
            } => write!(
                f,
                "job {job} cannot start as it is ({reason}): have that limit or the job changed at the site, \
                 or mend the profile's shape and give the job up with `hansa queue cancel {intent}`"
            ),
        }
    }
}
