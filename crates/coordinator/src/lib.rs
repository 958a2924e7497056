//! The server: executes what the protocol decides.
//!
//! ```text
//!  sites ─HTTPS─► net ► api ─commands─► actor: Machine ─events─► Journal ─► answers, effects
//!                        │                                                     │
//!                        └─chunks─► BlobStore ◄────────── merge ◄──────────────┘
//! ```
//!
//! [`Coordinator::open`] a run from a recipe and a data directory, [`Coordinator::listen`],
//! [`Service::run`]. Nothing is decided here that [`hansa_protocol`] decides, and nothing is answered
//! before it is durable. [`verify_journal`] and [`replay_journal`] read a journal beside or without a
//! running coordinator.

mod actor;
mod api;
mod auth;
mod backup;
mod error;
mod export;
mod farewell;
mod gate;
mod log;
pub mod merge;
mod merging;
mod net;
mod news;
mod options;
mod planning;
mod queue;
mod refused;
mod replay;
mod report;
mod restore;
mod service;
mod setup;
mod shell;
mod snapshots;
pub mod trace;
mod verify;

pub use auth::{AUTH_FILE, AuthError, Scope, add_token, issue_token, list_tokens};
pub use backup::{Backup, backup};
pub use error::Error;
pub use news::LeaseHold;
pub use options::{BulkCaps, Listen, Options};
pub use replay::Replayed;
pub use report::History;
pub use restore::{Restored, restore};
pub use service::{Coordinator, Handle, Service, Summary};
pub use setup::{CORPUS_FILE, RECIPE_FILE};
pub use verify::{SiteShare, VerifyReport, replay_journal, verify_journal};
