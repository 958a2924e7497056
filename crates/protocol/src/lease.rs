//! A lease: an ordered list of spans that one incarnation may train.
//!
//! ```text
//!   0        front       cursor      mark          end
//!   ├─ done ──┼─ trained ──┼─ reserved ─┼─ may go ───┤    offsets in windows since the lease began
//!             ├──────────── spans ───────────────────┤
//! ```
//!
//! `front` is the first window neither staged nor committed. The holder keeps its own `cursor`, the
//! next window to train, and touches nothing at or beyond the reserve `mark`: what lies there may go
//! to another replica without asking.

use crate::FreedCause;
use crate::Span;
use hansa_base::{Epoch, Generation, Incarnation, LeaseId, ReplicaKey, Steps, Windows};

/// A live lease. There is at most one for an incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its number.
    pub id: LeaseId,
    /// The epoch whose positions these are.
    pub epoch: Epoch,
    /// Who holds it.
    pub key: ReplicaKey,
    /// The incarnation that holds it.
    pub incarnation: Incarnation,
    /// Windows of this lease that are staged or committed.
    pub front: Windows,
    /// What is left from `front` on, in order of training; topped up at its end.
    pub spans: Vec<Span>,
    /// Offset of the end of what its holder may touch.
    pub mark: Windows,
    /// How often it was topped up, marked, shrunk or handed on; grows by one each time.
    pub seq: u64,
}

impl Lease {
    /// Windows from `front` on.
    #[must_use]
    pub fn left(&self) -> Windows {
        Span::total(&self.spans)
    }

    /// Offset of its end.
    #[must_use]
    pub fn end(&self) -> Windows {
        self.front + self.left()
    }

    /// Windows from `front` on that its holder may touch.
    #[must_use]
    pub fn reserved(&self) -> Windows {
        Windows(self.mark.0.saturating_sub(self.front.0))
    }

    /// The lease as its holder sees it.
    #[must_use]
    pub fn view(&self) -> LeaseView {
        LeaseView {
            id: self.id,
            epoch: self.epoch,
            front: self.front,
            spans: self.spans.clone(),
            mark: self.mark,
            seq: self.seq,
        }
    }
}

/// A lease that was taken from its holder, who may yet be heard of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// What it held.
    pub lease: Lease,
    /// What it was to train.
    pub plan: Option<Plan>,
    /// So many windows from its front on were held against it.
    pub at_risk: Windows,
    /// Why.
    pub cause: FreedCause,
}

/// A lease as its holder sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// Its number.
    pub id: LeaseId,
    /// The epoch, whose permutation says which windows the positions are.
    pub epoch: Epoch,
    /// Offset of the first window of `spans` since the lease began.
    pub front: Windows,
    /// What is leased, in order of training.
    pub spans: Vec<Span>,
    /// Offset of the end of what may be trained, until a later answer raises it.
    pub mark: Windows,
    /// Version of this view; an answer with a smaller one is older.
    pub seq: u64,
}

impl LeaseView {
    /// Windows from `front` on.
    #[must_use]
    pub fn left(&self) -> Windows {
        Span::total(&self.spans)
    }

    /// Windows from `front` on that may be trained.
    #[must_use]
    pub fn reserved(&self) -> Windows {
        let reserved = Windows(self.mark.0.saturating_sub(self.front.0));
        reserved.min(self.left())
    }
}

/// What one replica is to train in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The base generation.
    pub generation: Generation,
    /// Inner steps.
    pub steps: Steps,
    /// Micro-batches of a step.
    pub accumulation: u32,
    /// Windows of the phase, from the lease's front.
    pub windows: Windows,
}
