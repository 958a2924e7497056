//! Which jobs are wanted at which site, and what became of them.
//!
//! ```text
//!   INTENDED   the coordinator's journal: intent 7, one job of shape "small" for replica lumi/r1
//!   REPORTED   the site process, from squeue and sacct: job 4711 is PENDING (Priority)
//!   OBSERVED   heartbeats of the replica at the coordinator: lumi/r1 lives
//! ```
//!
//! The three are never mixed up: losing contact with a site ends no job, and a job that Slurm calls
//! running may train nothing. An intent is made durable before anybody hears of it, and there is never
//! more than one submission for it. Never here: Slurm, clocks, files, sockets, randomness,
//! serialisation.

mod accuracy;
mod apply;
mod command;
mod event;
mod held;
mod judge;
mod learn;
mod machine;
mod operate;
mod order;
mod orders;
mod outcome;
mod phase;
mod planned;
mod policy;
mod profile;
mod report;
mod state;
mod sync;
mod text;
mod view;
mod wants;

pub use accuracy::{Accuracy, STRENGTHS, accuracy, discounted_s};
pub use apply::Misfit;
pub use command::{BudgetChange, Ends, Left, QueueOrder, QueueRefusal};
pub use event::{Event, Intention, Joined, Why};
pub use held::Held;
pub use machine::{Handled, Machine, Timing};
pub use order::{Begin, Order, Submission};
pub use outcome::{Outcome, PauseWhy, Then};
pub use phase::Phase;
pub use planned::{Adopted, Planning, Promise, SitePlan};
pub use profile::{Budget, Chain, Retry, Shape, SiteProfile, Stated, StatedShape};
pub use report::{
    BudgetReport, How, JobReport, JobSource, PartitionReport, ProbeAnswer, ProbeReport, Refusal,
    RefusalKind, Report, ReservationReport, Stamped, UsageReport,
};
pub use state::{
    BudgetState, Decision, Intent, Job, Lease, Paused, Probed, Release, Site, Slot, State, Tail,
};
pub use sync::{LiveJob, REPORTS_MAX, RunNews, SYNC_BYTES_MAX, SyncReply, SyncRequest};
pub use text::{GpuS, IntentId, JobId, LeaseNo, Line, Raw, ShapeName, UnixS};
pub use view::{Now, RunView};
