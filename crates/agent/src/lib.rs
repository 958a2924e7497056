//! A trainer of another kind beside a session.
//!
//! ```text
//!   hansa agent ── Session (leases, heartbeats, uploads, checkpoints' order)
//!        │            └─ Foreign: Trainer ── Link ── local socket ──┐
//!        └─ Child (its own process group) ── torchrun … ── rank 0 ──┘
//!                                             tensors: safetensors files
//! ```
//!
//! A trainer that crashes or hangs ends the session without a goodbye; the next session takes over the
//! lease by the resume token, starts the trainer again, and goes on from the last checkpoint. So there
//! is one way of coming back, whether a process, a job or a node died. Never here: leases, rounds,
//! and what a model looks like inside.

mod agent;
mod checkpoint;
mod child;
mod error;
mod exchange;
mod foreign;
mod link;
mod losses;
mod protocol;
mod run_file;

pub use agent::{Agent, Options, TrainerSource};
pub use error::{Error, LinkError};
pub use losses::TooOften;
pub use protocol::{Ask, Hello, PROTOCOL_VERSION, TensorEntry};
pub use run_file::RunFile;
