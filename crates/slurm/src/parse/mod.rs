//! What Slurm's commands print, as types.
//!
//! ```text
//!   bytes ──► numbered lines ──► answer or rows        what the site says
//!                           └──► skipped: line, why    what was not understood
//! ```
//!
//! Slurm's text differs by version, locale, time format and site wrapper, comments may hold line
//! ends, and a transfer may be cut. So each parser here keeps three promises:
//!
//! - it takes any bytes and never fails: what is unknown is a variant, what is noise is reported
//!   with its line and the reason;
//! - garbage never becomes a number: a value is read whole or kept as text. A number that may lack
//!   its last digits, because the output does not end with a line end, counts as garbage. So hand in
//!   the output as it came, with its last line end;
//! - it depends on its arguments only: the time and the site's zone are among them ([`Now`]).

mod config;
mod field;
mod hostlist;
mod job;
mod partition;
mod records;
mod refusal;
mod reservation;
mod sacct;
mod squeue;
mod state;
mod submit;
mod table;
mod test_only;
mod text;
mod time;
mod tres;

pub use config::{Config, Version};
pub use field::{Field, Limit, Word};
pub use hostlist::NodeList;
pub use job::{Array, ExitCode, JobId, JobRef, Step};
pub use partition::{Partition, PartitionState, Partitions};
pub use refusal::{Lasting, Refusal, RefusalKind};
pub use reservation::{Reservation, Reservations};
pub use sacct::{Sacct, SacctRow};
pub use squeue::{SQUEUE_FIELDS, SQUEUE_FORMAT, Squeue, SqueueRow};
pub use state::JobState;
pub use submit::{Submitted, SubmittedReply};
pub use table::{FieldList, FieldListError};
pub use test_only::{Answer, Estimate, Start, TestOnly};
pub use text::{Skipped, Why};
pub use time::{Elapsed, Now, Precision, TimeError, UnixTime, Walltime, Zone};
pub use tres::{Cpus, Gpus, Nodes, Tres};
