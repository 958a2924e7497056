//! What runs on a site's login node and touches Slurm.
//!
//! ```text
//!   profile ──► script ──► sbatch          one intent, one job, whatever is killed when
//!        │                   │
//!        └──► collector      └──► squeue, sacct ──► spool ──► coordinator
//! ```
//!
//! Facts go up, orders come down; what to submit is decided at the coordinator. Never here: that
//! decision, root, cron, a port to the outside.

pub mod check;
mod collector;
mod commands;
pub mod convert;
mod error;
mod executor;
mod follower;
mod link;
mod memory;
mod number;
mod pace;
pub mod profile;
pub mod rehearse;
mod relay;
mod runner;
pub mod script;
mod search;
mod service;
pub mod shell;
mod spool;
mod turn;

pub use error::SiteError;
pub use profile::{Profile, ProfileError, default_home};
pub use relay::Relay;
pub use service::{Note, Notes, Options, run};
