//! The site side of training: one replica, from its registration to its goodbye.
//!
//! ```text
//!   Session ── startup: coordinator, recipe, corpus, state directory
//!      └─ Shell ── hansa_protocol::replica (decides)
//!           ├─ Coordinator   calls, downloads, uploads          tasks
//!           ├─ Worker        the Trainer, one job at a time     a thread
//!           ├─ StateDir      identity, checkpoints, models      the disk
//!           └─ Telling       SessionEvent                       people
//! ```
//!
//! The order that keeps every crash harmless (checkpoint before announcement, token before lease) is
//! the machine's; this crate executes it. It never decides who trains what, and never deletes what a
//! successor could need.

mod cache;
mod checkpoint;
mod contribution;
mod coordinator;
mod corpus;
mod diary;
pub mod embedded;
mod error;
mod event;
#[cfg(test)]
mod fake;
mod fetch;
mod files;
mod jobs;
mod options;
mod session;
mod shell;
mod signals;
mod startup;
mod state_dir;
mod telling;
mod trainer;
mod worker;

pub use error::Error;
pub use event::SessionEvent;
pub use options::{EventSink, LinkOptions, Options};
pub use session::{Handle, Outcome, Session, TrainerFactory};
pub use signals::Signals;
pub use state_dir::StateDirError;
pub use trainer::{EvaluationReport, StepReport, Trainer, TrainerError};
