//! The replica's half: everything that is decided between a trainer and the coordinator.
//!
//! ```text
//!   save ─► register ─► save ─► ask ◄───────────────────────────────────────────────┐
//!                                │ adopt ─► load ────────────────────────────────────┤
//!                                │ evaluate ─► report ───────────────────────────────┤
//!                                │ wait ─────────────────────────────────────────────┤
//!                                └ train ─► encode ─► checkpoint ─► announce ─► upload┘
//! ```
//!
//! [`ReplicaMachine`] takes inputs and gives actions; a shell executes them and feeds back what came
//! of them. It keeps the replica's law: local weights are the base generation plus training on
//! exactly `[front, cursor)` of the own live lease; where that stops holding, the current generation
//! is loaded and training starts at the front again. It never does I/O, and never reads a clock.

mod api;
mod ask;
mod contribute;
mod join;
mod leave;
mod local;
mod machine;
mod train;
mod vitals;

pub use api::{
    Action, Call, CallFailed, CallNo, ExitReason, Input, Moments, Notice, TrainOrder, Void,
};
pub use local::{Found, LocalState, RegistrationRecord};
pub use machine::{Options, ReplicaMachine, WhenBusy};
pub use vitals::Glance;
