//! What a replica keeps on its own disk, so that a successor can carry on.
//!
//! ```text
//!   registration   small; replaced around every registration
//!   latest         a checkpoint (weights, moments, LocalState): mid-phase, or the phase's end
//!   accepted       the checkpoint at the end of the last accepted phase: its moments are good
//!   payload        the encoded pseudo-gradient that `latest` names, and perhaps the next one
//! ```
//!
//! One process at a time may use them: the shell locks their folder.

use crate::{Caller, ContributionParts, GenerationInfo};
use hansa_base::{Epoch, Hash, Incarnation, LeaseId, ReplicaId, Steps, Windows};

/// The resume token and the registration under way. The nonce is durable before a registration is
/// sent, the token of the answer before the first lease request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationRecord {
    /// The run.
    pub run: Hash,
    /// The name.
    pub replica: ReplicaId,
    /// What the last complete registration gave.
    pub held: Option<Caller>,
    /// The token that it gave: what the next registration presents.
    pub token: Option<Hash>,
    /// The nonce of a registration whose answer is not known yet; it is sent again with this one.
    pub nonce: Option<Hash>,
}

/// What the weights of a checkpoint contain: `base` plus training on exactly `[front, cursor)` of
/// the lease.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalState {
    /// The run.
    pub run: Hash,
    /// The name.
    pub replica: ReplicaId,
    /// The incarnation that wrote it.
    pub incarnation: Incarnation,
    /// The base generation.
    pub base: GenerationInfo,
    /// The lease.
    pub lease: LeaseId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Offset in the lease at which the phase started.
    pub front: Windows,
    /// Offset in the lease of the next window to train.
    pub cursor: Windows,
    /// Inner steps taken since `front`.
    pub steps: Steps,
    /// The contribution made of it: announced, or about to be. Only at a phase's end.
    pub contribution: Option<ContributionParts>,
}

impl LocalState {
    /// Windows trained since the base.
    #[must_use]
    pub const fn trained(&self) -> Windows {
        Windows(self.cursor.0 - self.front.0)
    }
}

/// What a process finds on its disk when it starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The registration record.
    pub registration: Option<RegistrationRecord>,
    /// The state in the checkpoint `latest`.
    pub latest: Option<LocalState>,
    /// True if there is a checkpoint `accepted`.
    pub accepted: bool,
}
