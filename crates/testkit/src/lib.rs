//! A network to order, a batch system and a login node, for tests and experiments.
//!
//! ```text
//! client ──TCP──► ShapingProxy ──TCP──► server
//!                   delay, rate, cuts, silence; counts what passes
//! ```
//!
//! It works on streams, above the kernel's TCP: it delays and paces bytes but loses none, so it shows what
//! latency, bandwidth and middleboxes do, and not what packet loss does. Never here: anything that a
//! program of Hansa's needs.

mod proxy;
mod slurm;
mod ssh;
mod wire;

pub use proxy::{Counts, Shape, ShapingProxy, Way};
pub use slurm::SlurmCluster;
pub use ssh::{HOST, SshServer};
