//! The one call of a site process: reports in, orders out.

use hansa_base::SiteName;

use crate::{IntentId, JobId, LeaseNo, Line, Order, SiteProfile, Stamped, UnixS};

/// Reports of one call.
pub const REPORTS_MAX: usize = 200;
/// Bytes of one call.
pub const SYNC_BYTES_MAX: usize = 1 << 20;

/// What a site process says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    /// The site.
    pub site: SiteName,
    /// Who: host, process and a random part, the same for the process's lifetime.
    pub holder: Line,
    /// The lease that it holds; none at first.
    pub lease: Option<LeaseNo>,
    /// Fence whoever holds the lease.
    pub take_over: bool,
    /// Give the lease back with this call; no orders are answered.
    pub leave: bool,
    /// At the first call of a process, and when it has changed.
    pub profile: Option<SiteProfile>,
    /// The spool's random id.
    pub spool: Line,
    /// From the spool, in order, at most [`REPORTS_MAX`].
    pub reports: Vec<Stamped>,
}

/// What it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncReply {
    /// The lease that it holds now.
    pub lease: LeaseNo,
    /// How long from the moment at which the request was sent.
    pub lease_ttl_ms: u64,
    /// When to call again.
    pub next_sync_ms: u64,
    /// The spool may drop reports up to this number.
    pub accepted_through: u64,
    /// What to do; each is repeated until its outcome has been reported.
    pub orders: Vec<Order>,
    /// How the run stands.
    pub news: RunNews,
    /// The jobs whose end is waited for, so that a site process without a memory of them follows them, too;
    /// an older coordinator does not say.
    pub jobs: Option<Vec<LiveJob>>,
}

/// A job whose end is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveJob {
    /// For which intent.
    pub intent: IntentId,
    /// The job.
    pub job: JobId,
}

/// How the run stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunNews {
    /// The run's identity, 64 hexadecimal digits; its first eight are in job names.
    pub run_id: String,
    /// The run is over.
    pub ended: bool,
    /// The run is paused, and why.
    pub paused: Option<Line>,
    /// The site is drained, and why.
    pub drained: Option<Line>,
    /// The site's queue is paused, and why.
    pub queue_paused: Option<Line>,
    /// Windows that no generation contains yet, in the current epoch.
    pub windows_left: u64,
    /// The coordinator's time.
    pub now: UnixS,
}
