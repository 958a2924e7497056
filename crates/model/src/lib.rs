//! A model of the lease, commit and fencing core, checked in every state within bounds.
//!
//! ```text
//!   replicas (abstract: the law, two checkpoints) ── calls, with a fate ──► protocol::Machine (real)
//! ```
//!
//! The coordinator is the machine that runs in production, over a journal that is replayed at each
//! restart. Replicas are abstract: they do at any time whatever a replica that keeps its law may do.
//! A call is one action, with its answer or without: what a replica learns early and acts on late is
//! the same as what it learns late. Time passes in steps of half a TTL. Exhaustive within
//! [`Bounds`]; the number of faults bounds what would grow for ever. Never here: chance.

mod canonical;
mod coordinator;
mod explore;
mod process;
mod seen;
mod world;

pub use explore::{Report, explore};

/// How large the world is.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Names.
    pub replicas: u32,
    /// Windows of the one epoch.
    pub windows: u64,
    /// Inner steps of a phase, of one window each.
    pub steps: u64,
    /// How many things may go wrong.
    pub faults: u8,
    /// Threads.
    pub jobs: usize,
    /// A bug to put in, to see whether it is found.
    pub mutation: Option<Mutation>,
}

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The coordinator takes every caller for the latest incarnation of its name.
    FencesNobody,
    /// The end of a lease is not journaled.
    ForgetsFreed,
    /// A merge takes its first contribution twice.
    MergesTwice,
    /// A replica that lost its lease goes on with its weights under the next one.
    KeepsStaleWeights,
    /// A replica trains one window more than was reserved for it.
    TrainsBeyondTheMark,
}
