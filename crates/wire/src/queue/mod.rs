//! The messages between a site process and the coordinator's queue machine.
//!
//! ```text
//! POST /v1/site/sync      SyncRequest → SyncReply    (a site's token, for that site)
//! GET  /v1/queue          QueueView
//! GET  /v1/queue/logs     LogsView
//! POST /v1/queue/operate  QueueOrder  → Done         (an operator's token)
//! ```
//!
//! A report is never refused for its texts, which are cut and cleaned on the way in: it lies in a spool
//! and would block all that come after it.

mod journal;
mod reports;
mod state;
pub mod view;

use hansa_base::{ReplicaName, SiteName};
use hansa_queue::{
    Begin, Budget, Chain, GpuS, IntentId, JobId, LeaseNo, Line, LiveJob, Order, REPORTS_MAX, Raw,
    Retry, RunNews, Shape, ShapeName, SiteProfile, Stamped, Stated, StatedShape, Submission,
    SyncReply, SyncRequest, UnixS,
};

use crate::mirror::{mirror_enum, mirror_struct};
use crate::{BadValue, Wire};

pub use journal::{
    AdoptedJson, QUEUE_JOURNAL_VERSION, QueueRecord, decode_queue_record, encode_queue_record,
};
pub use state::{decode_queue_snapshot, encode_queue_snapshot};

/// Path of [`SyncRequest`].
pub const SYNC: &str = "/v1/site/sync";
/// Path of [`view::QueueView`].
pub const QUEUE: &str = "/v1/queue";
/// Path of [`view::LogsView`].
pub const LOGS: &str = "/v1/queue/logs";
/// Path of [`hansa_queue::QueueOrder`].
pub const OPERATE: &str = "/v1/queue/operate";

macro_rules! texts {
    ($($type:ident),*) => {$(
        impl Wire for $type {
            type Json = String;
            fn to_json(&self) -> String {
                self.as_str().to_owned()
            }
            fn from_json(json: String) -> Result<Self, BadValue> {
                Ok(Self::new(&json))
            }
        }
    )*};
}
texts!(JobId, Line, Raw, ShapeName);

macro_rules! numbers {
    ($($type:ident),*) => {$(
        impl Wire for $type {
            type Json = u64;
            fn to_json(&self) -> u64 {
                self.0
            }
            fn from_json(json: u64) -> Result<Self, BadValue> {
                Ok(Self(json))
            }
        }
    )*};
}
numbers!(GpuS, IntentId, LeaseNo, UnixS);

const SHAPES_MAX: usize = 64;
const NODES_MAX: u32 = 1 << 20;
const JOBS_MAX: u32 = 256;
const YEAR_S: u64 = 366 * 86_400;
const LAG_MAX_S: u64 = 7 * 86_400;

mirror_struct!(ShapeJson = Shape {
    name: ShapeName,
    partition: Line,
    account: Option<Line>,
    qos: Option<Line>,
    nodes: u32,
    gpus_per_node: u32,
    walltime_s: u64,
} check |shape| {
    let size = (1..=NODES_MAX).contains(&shape.nodes) && shape.gpus_per_node <= 1024;
    size.then_some(()).ok_or("a shape has 1 to 2^20 nodes of at most 1024 accelerators")?;
    let time = (1..=YEAR_S).contains(&shape.walltime_s);
    time.then_some(()).ok_or("a walltime is at least a second and at most a year")
});
mirror_enum!(ChainJson = Chain {
    unit None
    unit Begin
    unit Singleton
});
mirror_struct!(
    BudgetJson = Budget {
        gpu_s_left: Option<GpuS>,
        reserve_gpu_s: GpuS,
        ends_at: Option<UnixS>,
    }
);
mirror_struct!(RetryJson = Retry {
    quick_failures_max: u32,
    quick_run_s: u64,
    backoff_first_s: u64,
    backoff_longest_s: u64,
    exclude_node_s: u64,
} check |retry| {
    let some = (1..=1000).contains(&retry.quick_failures_max)
        && (1..=YEAR_S).contains(&retry.backoff_first_s)
        && (retry.backoff_first_s..=YEAR_S).contains(&retry.backoff_longest_s)
        && retry.quick_run_s <= YEAR_S
        && retry.exclude_node_s <= YEAR_S;
    some.then_some(()).ok_or(
        "limits of retries: 1 to 1000 quick failures, times of at most a year, the first wait at \
         least a second and no longer than the longest",
    )
});
mirror_struct!(
    StatedShapeJson = StatedShape {
        shape: ShapeName,
        microwindows_per_gpu_s: Option<u64>,
        ranks: Option<u32>,
    }
);
mirror_struct!(StatedJson = Stated {
    startup_ms: Option<u64>,
    transfer_ms: Option<u64>,
    leaves_before_ms: Option<u64>,
    nodes_max: Option<u32>,
    jobs_max: Option<u32>,
    shapes: Vec<StatedShape>,
} check |stated| {
    let short = |ms: Option<u64>| ms.is_none_or(|ms| ms <= YEAR_S * 1000);
    let moves = |shape: &StatedShape| {
        shape.microwindows_per_gpu_s != Some(0) && shape.ranks != Some(0)
    };
    let sane = short(stated.startup_ms)
        && short(stated.transfer_ms)
        && short(stated.leaves_before_ms)
        && stated.shapes.len() <= SHAPES_MAX && stated.shapes.iter().all(moves);
    sane.then_some(()).ok_or("costs of at most a year; speeds and ranks above 0, of at most 64 shapes")
});
mirror_struct!(SiteProfileJson = SiteProfile {
    wanted_jobs: u32,
    preferred: ShapeName,
    shapes: Vec<Shape>,
    chain: Chain,
    max_pending: u32,
    budget: Budget,
    probe_every_s: u64,
    usage_every_s: u64,
    retry: Retry,
} later { stated: Stated, accounting_lag_s: u64 } check check_profile);

fn check_profile(profile: &SiteProfile) -> Result<(), &'static str> {
    let mut names: Vec<_> = profile.shapes.iter().map(|shape| &shape.name).collect();
    names.sort();
    let count = names.len();
    names.dedup();
    let one_each = names.len() == count && (1..=SHAPES_MAX).contains(&count);
    one_each
        .then_some(())
        .ok_or("a profile has 1 to 64 shapes, each of its own name")?;
    let preferred = profile.shape(&profile.preferred);
    preferred.ok_or("the preferred shape is not among the shapes")?;
    let few = profile.wanted_jobs <= JOBS_MAX && profile.max_pending <= JOBS_MAX;
    few.then_some(())
        .ok_or("a site has at most 256 jobs of a run")?;
    let lag = profile.accounting_lag_s.is_none_or(|lag| lag <= LAG_MAX_S);
    lag.then_some(()).ok_or("accounting is at most a week late")
}

mirror_struct!(SyncRequestJson = SyncRequest {
    site: SiteName,
    holder: Line,
    lease: Option<LeaseNo>,
    take_over: bool,
    leave: bool,
    profile: Option<SiteProfile>,
    spool: Line,
    reports: Vec<Stamped>,
} check |sync| {
    let said = !sync.holder.as_str().is_empty() && !sync.spool.as_str().is_empty();
    said.then_some(()).ok_or("holder and spool are needed")?;
    let few = sync.reports.len() <= REPORTS_MAX;
    few.then_some(()).ok_or("a call carries at most 200 reports")?;
    let ordered = sync.reports.windows(2).all(|pair| pair[0].seq < pair[1].seq);
    ordered.then_some(()).ok_or("reports come in the order of their numbers")
});
mirror_struct!(
    SyncReplyJson = SyncReply {
        lease: LeaseNo,
        lease_ttl_ms: u64,
        next_sync_ms: u64,
        accepted_through: u64,
        orders: Vec<Order>,
        news: RunNews,
    } later { jobs: Vec<LiveJob> }
);
mirror_struct!(
    LiveJobJson = LiveJob {
        intent: IntentId,
        job: JobId,
    }
);
mirror_struct!(
    RunNewsJson = RunNews {
        run_id: String,
        ended: bool,
        paused: Option<Line>,
        drained: Option<Line>,
        queue_paused: Option<Line>,
        windows_left: u64,
        now: UnixS,
    }
);
mirror_enum!(OrderJson = Order {
    struct Withdraw { intent: IntentId, why: Line }
    struct Cancel { intent: IntentId, job: JobId, why: Line }
    struct Recall { intent: IntentId, job: JobId, why: Line }
    struct Release { intent: IntentId, job: JobId }
    struct Probe { shape: ShapeName }
    struct Tail { intent: IntentId, job: JobId }
    tuple Submit(submission: Submission)
});
mirror_enum!(BeginJson = Begin {
    tuple At(time: UnixS)
    unit Now
    unit Singleton
});
mirror_struct!(
    SubmissionJson = Submission {
        intent: IntentId,
        replica: ReplicaName,
        shape: ShapeName,
        link: u32,
        begin: Begin,
        exclude: Vec<Line>,
        tried: bool,
    }
);
