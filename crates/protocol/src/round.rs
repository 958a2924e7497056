//! The open round and what closes it.

use crate::{CloseReason, OuterSpec, Solo};
use hansa_base::{ContributionNo, Generation, Hash, ReplicaKey, Steps, Tokens};

/// The round that is open, or being merged.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    /// The base generation.
    pub base: Generation,
    /// Staged contributions in order of staging: the order of summation.
    pub staged: Vec<ContributionNo>,
    /// Open, or closed and waiting for its merge.
    pub phase: RoundPhase,
}

/// Where a round stands.
#[derive(Clone, Debug, PartialEq)]
pub enum RoundPhase {
    /// Contributions are taken.
    Open,
    /// The close record is journaled; the merge is a pure function of it.
    Closed(CloseRecord),
}

/// Everything that the merge depends on, beside the base generation's files.
#[derive(Clone, Debug, PartialEq)]
pub struct CloseRecord {
    /// The base generation; the merge makes the next.
    pub base: Generation,
    /// What is merged, in order of summation.
    pub contributions: Vec<ClosedContribution>,
    /// The outer step to take.
    pub step: OuterStep,
    /// Why the round closed.
    pub reason: CloseReason,
}

/// One contribution of a close record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedContribution {
    /// Its number.
    pub no: ContributionNo,
    /// Its author.
    pub key: ReplicaKey,
    /// Its id.
    pub id: Hash,
    /// Manifest hash of the encoded pseudo-gradient.
    pub payload: Hash,
    /// Its weight.
    pub tokens: Tokens,
    /// Inner steps taken.
    pub steps: Steps,
}

/// The outer step of one round, with the solo rule resolved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OuterStep {
    /// `m ← μ·m + Δ̄; θ ← θ − η·(Δ̄ + μ·m)`.
    Nesterov {
        /// `η`.
        lr: f64,
        /// `μ`.
        momentum: f64,
    },
    /// `θ ← θ − Δ; m ← μ·m`.
    Adopt {
        /// `μ`.
        momentum: f64,
    },
}

impl OuterStep {
    /// The step for a round with this many contributions.
    #[must_use]
    pub fn resolve(spec: &OuterSpec, contributions: usize) -> Self {
        let OuterSpec { lr, momentum, solo } = *spec;
        match solo {
            Solo::Full if contributions == 1 => Self::Nesterov { lr: 1.0, momentum },
            Solo::Adopt if contributions == 1 => Self::Adopt { momentum },
            _ => Self::Nesterov { lr, momentum },
        }
    }
}
