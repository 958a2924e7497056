//! What the queue machine is told of the run. It looks, and never touches.

use std::collections::{BTreeMap, BTreeSet};

use hansa_base::{MonoMs, ReplicaId, SiteName};

use crate::{Line, Planning, UnixS};

/// The two times that count: one that survives restarts, and one that never jumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The coordinator's wall clock: for what lies hours apart.
    pub wall: UnixS,
    /// Its monotonic clock: for leases of site processes.
    pub mono: MonoMs,
}

/// How the run stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunView {
    /// The run's identity, 64 hexadecimal digits.
    pub run_id: String,
    /// The run is over.
    pub ended: bool,
    /// It is paused, and why.
    pub paused: Option<Line>,
    /// Drained sites, and why.
    pub drained: BTreeMap<SiteName, Line>,
    /// Windows that are not committed, over what is left of the run.
    pub windows_left: u64,
    /// Who decides which jobs are wanted.
    pub planning: Planning,
    /// Replicas that are alive: the observed state.
    pub observed: BTreeSet<ReplicaId>,
}
