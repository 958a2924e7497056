//! Everything that leaves a process as text: recipe, messages, journal records, status.
//!
//! ```text
//!   pure types (protocol) ──[Wire]──► mirrors (serde) ──► JSON ──► network, journal
//!                         ◄─checked──                 ◄──
//! ```
//!
//! The pure types stay free of serialisation, so that renaming a field of theirs cannot change a
//! format unnoticed: the mirrors are spelt out here and golden bytes are kept. What comes in is
//! believed only after [`Wire::from_json`]. Never here: files, sockets, clocks.

mod event;
pub mod http;
pub mod journal;
mod local;
mod mirror;
mod payload;
pub mod plan;
pub mod queue;
pub mod recipe;
mod state;
pub mod status;
pub mod strict;
mod types;

pub use mirror::{BadValue, DurationJson, Wire, decode, encode};
pub use payload::PayloadManifest;
pub use recipe::{Recipe, RecipeError};

/// The version of the `/v1` API's messages. Both sides must have the same.
pub const WIRE_VERSION: u32 = 1;
