//! A batch system in virtual time, and what one can learn about waits and plans from it.
//!
//! ```text
//!   trace ──[read]──► jobs ──► Queue: arrivals, priorities, backfill, ends
//!                               │ test_only(shape)      what Slurm would answer now
//!                               └ clone + submit(shape) what really comes of it
//! ```
//!
//! - [`read_swf`], [`read_sacct`]: real traces as jobs.
//! - [`Queue`]: one homogeneous partition, scheduled in order of submission with backfilling.
//! - [`estimates`]: probes at many instants against what came of them.
//! - [`campaign`]: time to a token target of several ways to place a run, on several queues at once.
//!
//! Never here: clocks, files, randomness; topology, fair share, several partitions.

mod campaign;
mod estimates;
mod profile;
mod queue;
mod steered;
mod trace;

pub use campaign::{Finish, Place, Scene, Strategy, campaign, quantile_s};
pub use estimates::{Estimator, Quality, Setting, estimates};
pub use queue::{Queue, Walltimes};
pub use trace::{TraceJob, busiest, read_sacct, read_swf};
