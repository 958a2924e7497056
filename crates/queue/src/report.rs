//! What a site process says: what Slurm answered, and what became of orders. Facts only.

use std::fmt;

use crate::{GpuS, IntentId, JobId, Line, Raw, ShapeName, UnixS};

/// A report with its place in the site's durable spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// Its number in the spool, from 1.
    pub seq: u64,
    /// When it was made, by the site's clock.
    pub at: UnixS,
    /// What it says.
    pub report: Report,
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// What `sbatch --test-only` answered.
    Probe(ProbeReport),
    /// What accounting says of a partition.
    Usage(UsageReport),
    /// A partition's state and limits.
    Partition(PartitionReport),
    /// A reservation or maintenance.
    Reservation(ReservationReport),
    /// What is left of the allocation, from a command of the site's.
    Budget(BudgetReport),
    /// `sbatch` is about to be called for this intent. Made durable before the call.
    Attempting {
        /// For which.
        intent: IntentId,
    },
    /// There is a job.
    Submitted {
        /// For which.
        intent: IntentId,
        /// The job.
        job: JobId,
        /// How this is known.
        how: How,
        /// What was printed.
        raw: Raw,
    },
    /// There is no job, and there will be none for this intent.
    NotSubmitted {
        /// For which.
        intent: IntentId,
        /// Why.
        refusal: Refusal,
        /// What was printed.
        raw: Raw,
    },
    /// What Slurm says of a job.
    Job(JobReport),
    /// Neither squeue nor sacct know the job, after the grace.
    Gone {
        /// For which intent.
        intent: IntentId,
        /// The job.
        job: JobId,
    },
    /// A job's last lines.
    Tail {
        /// For which intent.
        intent: IntentId,
        /// The job.
        job: JobId,
        /// The lines.
        text: Raw,
    },
    /// A job was cancelled as ordered, or had ended.
    Cancelled {
        /// For which intent.
        intent: IntentId,
        /// The job.
        job: JobId,
    },
    /// A successor that waited for its time may start now, as ordered.
    Released {
        /// For which intent.
        intent: IntentId,
        /// The job.
        job: JobId,
    },
    /// Something does not work at the site.
    Trouble {
        /// What: a stable word or two, such as `squeue`.
        what: Line,
        /// What it said.
        text: Line,
    },
    /// It works again.
    Recovered {
        /// What.
        what: Line,
    },
}

/// How a submission is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// `sbatch` printed the id.
    Reply,
    /// The reply was lost; the job was found by its name.
    Found,
}

/// Why the batch system takes no job: now, or ever in this form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What kind of refusal.
    pub kind: RefusalKind,
    /// True if asking again cannot help until somebody changes something.
    pub lasting: bool,
    /// In the batch system's words.
    pub text: Line,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.text)
    }
}

/// What kind of refusal; of `hansa-slurm`'s kinds the ones that are treated differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The allocation is used up.
    AllocationExhausted,
    /// Too many jobs of ours are there.
    JobLimit,
    /// The controller did not answer.
    Controller,
    /// We asked too often.
    RateLimited,
    /// Not the batch system's: the order was withdrawn before there was a job.
    Withdrawn,
    /// Another, by its word.
    Other(Line),
}

impl RefusalKind {
    /// The kind of a word.
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        match word {
            "allocation-exhausted" => Self::AllocationExhausted,
            "job-limit" => Self::JobLimit,
            "controller" => Self::Controller,
            "rate-limited" => Self::RateLimited,
            "withdrawn" => Self::Withdrawn,
            other => Self::Other(Line::new(other)),
        }
    }

    /// The kind in one word.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Self::AllocationExhausted => "allocation-exhausted",
            Self::JobLimit => "job-limit",
            Self::Controller => "controller",
            Self::RateLimited => "rate-limited",
            Self::Withdrawn => "withdrawn",
            Self::Other(word) => word.as_str(),
        }
    }
}

impl fmt::Display for RefusalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// One `sbatch --test-only`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeReport {
    /// The shape.
    pub shape: ShapeName,
    /// User, account and QOS that asked: the answer depends on their priority.
    pub prober: Line,
    /// How long it took.
    pub took_ms: u64,
    /// What was understood.
    pub answer: ProbeAnswer,
    /// The partition that the answer names, if it does.
    pub partition: Option<Line>,
    /// What was printed.
    pub raw: Raw,
}

/// What a probe came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeAnswer {
    /// The job would start then.
    Starts(UnixS),
    /// It would not be taken.
    Refused(Refusal),
    /// No answer that can be understood.
    Failed(Line),
}

/// Realised and requested walltime of the jobs that ended in a trailing window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageReport {
    /// The partition.
    pub partition: Line,
    /// The window's length.
    pub window_s: u64,
    /// Jobs in it.
    pub jobs: u64,
    /// Walltime that they used.
    pub realised_s: u64,
    /// Walltime that they asked for.
    pub requested_s: u64,
    /// CPU-seconds that they used.
    pub realised_cpu_s: u64,
    /// CPU-seconds that they asked for.
    pub requested_cpu_s: u64,
    /// Other users' jobs are hidden: these are our own only.
    pub own_only: bool,
}

/// A partition's state and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionReport {
    /// Its name.
    pub name: Line,
    /// Its state as Slurm says it, such as `UP`.
    pub state: Line,
    /// Its longest walltime.
    pub walltime_max_s: Option<u64>,
    /// What was printed.
    pub raw: Raw,
}

/// A time in which nodes are set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationReport {
    /// Its name.
    pub name: Line,
    /// Its first moment.
    pub start: UnixS,
    /// The first moment after it.
    pub end: UnixS,
    /// The nodes, as Slurm lists them.
    pub nodes: Line,
    /// Nobody can use them.
    pub maintenance: bool,
    /// What was printed.
    pub raw: Raw,
}

/// What is left of the allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetReport {
    /// GPU-time left; `None` if the command did not say.
    pub gpu_s_left: Option<GpuS>,
    /// When it ends.
    pub ends_at: Option<UnixS>,
    /// Who says so.
    pub source: Line,
}

/// Which command said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobSource {
    /// `squeue`: now.
    Squeue,
    /// `sacct`: later, and for good.
    Sacct,
}

/// What Slurm says of a job. Sent when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobReport {
    /// For which intent.
    pub intent: IntentId,
    /// The job.
    pub job: JobId,
    /// Its state in Slurm's long word, such as `PENDING`; unknown ones as they are.
    pub state: Line,
    /// The user who cancelled it, by number, where the state says so.
    pub cancelled_by: Option<u32>,
    /// Why it waits or ended, in Slurm's word.
    pub reason: Line,
    /// Which command said so.
    pub source: JobSource,
    /// When it was submitted.
    pub submitted: Option<UnixS>,
    /// When it started; for one that waits this is not known.
    pub started: Option<UnixS>,
    /// When it ended.
    pub ended: Option<UnixS>,
    /// Its walltime limit.
    pub limit_s: Option<u64>,
    /// Its nodes, by name.
    pub nodes: Vec<Line>,
    /// Its exit code.
    pub exit_code: Option<u32>,
    /// The signal that ended it.
    pub signal: Option<u32>,
    /// How often it was requeued.
    pub restarts: u32,
}
