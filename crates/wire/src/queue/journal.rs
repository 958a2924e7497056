//! The payload of the queue journal's records, versioned like the run's own journal: golden bytes of
//! each version are kept.

use hansa_base::{ReplicaName, SiteName};
use hansa_queue::{
    Adopted, Begin, Budget, BudgetChange, Ends, Event, GpuS, Held, IntentId, Intention, JobId,
    Joined, LeaseNo, Left, Line, Outcome, PauseWhy, Promise, QueueOrder, Refusal, Shape, ShapeName,
    SitePlan, SiteProfile, Stamped, Then, UnixS, Why,
};

use crate::journal::JournalError;
use crate::mirror::{mirror_enum, mirror_struct};
use crate::{decode, encode};

/// The version of records that this build writes and reads.
pub const QUEUE_JOURNAL_VERSION: u32 = 1;

/// What one command changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRecord {
    /// When, by the coordinator's clock: part of what replay needs.
    pub at: UnixS,
    /// In order.
    pub events: Vec<Event>,
}

/// A record's payload, in [`QUEUE_JOURNAL_VERSION`].
#[must_use]
pub fn encode_queue_record(record: &QueueRecord) -> Vec<u8> {
    encode(record)
}

/// Reads a record's payload; never panics, whatever the bytes.
///
/// # Errors
/// If another version wrote it, or it is damaged.
pub fn decode_queue_record(version: u32, payload: &[u8]) -> Result<QueueRecord, JournalError> {
    if version != QUEUE_JOURNAL_VERSION {
        return Err(JournalError::OtherVersion(version));
    }
    Ok(decode(payload)?)
}

mirror_struct!(QueueRecordJson = QueueRecord { at: UnixS, events: Vec<Event> });
mirror_enum!(EventJson = Event {
    struct LeaseTaken { site: SiteName, lease: LeaseNo, holder: Line }
    struct LeaseLeft { site: SiteName, lease: LeaseNo }
    struct Profiled { site: SiteName, profile: SiteProfile }
    struct Reported { site: SiteName, spool: Line, stamped: Stamped }
    struct Delivered { intent: IntentId, lease: LeaseNo }
    struct Withdrawn { intent: IntentId, why: Line }
    struct WithdrawOrdered { intent: IntentId, why: Line }
    struct CancelOrdered { intent: IntentId, why: Line }
    struct RecallOrdered { intent: IntentId, why: Line }
    struct ReleaseOrdered { intent: IntentId }
    struct TailOrdered { intent: IntentId }
    struct Judged { intent: IntentId, outcome: Outcome, then: Then }
    struct Doubled { intent: IntentId, job: JobId }
    struct Late { intent: IntentId, job: JobId }
    struct Excluded { site: SiteName, node: Line, until: UnixS }
    struct SitePaused { site: SiteName, why: PauseWhy }
    struct SiteResumed { site: SiteName, why: Line }
    struct HeldBack { site: SiteName, replica: ReplicaName, held: Option<Held> }
    struct Gap { site: SiteName, after: u64, next: u64 }
    struct Stray { site: SiteName, intent: IntentId, job: JobId }
    struct BudgetSet { site: SiteName, budget: Budget }
    struct BudgetAmended { site: SiteName, reserve_gpu_s: GpuS, ends_at: Option<UnixS> }
    struct Restored { next_intent: IntentId }
    tuple Intended(intention: Intention)
    tuple PlanAdopted(plan: Adopted)
    tuple Joined(joined: Joined)
});
mirror_struct!(
    IntentionJson = Intention {
        intent: IntentId,
        site: SiteName,
        replica: ReplicaName,
        shape: Shape,
        link: u32,
        begin: Begin,
        after: Option<IntentId>,
        exclude: Vec<Line>,
        why: Why,
    }
);
mirror_struct!(
    AdoptedJson = Adopted {
        no: u64,
        made: UnixS,
        why: Line,
        together: bool,
        sites: Vec<SitePlan>,
        promise: Promise,
    }
);
mirror_struct!(
    SitePlanJson = SitePlan {
        site: SiteName,
        shape: ShapeName,
        jobs: u32,
        ahead: bool,
        begin: Option<UnixS>,
    }
);
mirror_struct!(
    PromiseJson = Promise {
        ended: Line,
        ends: UnixS,
        windows: u64,
        rounds: u64,
        cost: GpuS,
    }
);
mirror_enum!(WhyJson = Why {
    struct Wanted { jobs: u32 }
    struct Planned { plan: u64, jobs: u32 }
    tuple Operator(why: Line)
    unit Chained
});
mirror_struct!(
    JoinedJson = Joined {
        intent: IntentId,
        probed: UnixS,
        predicted: UnixS,
        submitted: UnixS,
        started: UnixS,
        usage_permille: Option<u64>,
        deferred: bool,
    }
);
mirror_enum!(HeldJson = Held {
    struct Backoff { until: UnixS, why: Line }
    struct Budget { needed: GpuS, free: GpuS }
    struct AllocationEnds { at: UnixS }
    struct Pending { pending: u32, max: u32 }
    struct JobHeld { intent: IntentId, job: JobId, reason: Line }
    struct CannotStart { intent: IntentId, job: JobId, reason: Line }
    tuple RunPaused(why: Line)
    tuple SiteDrained(why: Line)
    tuple QueuePaused(why: Line)
    tuple ShapeRefused(refusal: Refusal)
    tuple Partition(why: Line)
    tuple NotPlanned(plan: u64)
    unit NoPlan
    unit RunEnded
    unit NoWork
    unit NoProfile
    unit NoSiteProcess
});
mirror_enum!(OutcomeJson = Outcome {
    struct Completed { ran_s: u64 }
    struct Cancelled { by: Option<u32> }
    struct Failed { ran_s: u64, exit_code: Option<u32>, signal: Option<u32> }
    struct NodeFailed { nodes: Vec<Line> }
    tuple NotSubmitted(refusal: Refusal)
    unit Withdrawn
    unit ComeBackLater
    unit TimedOut
    unit CancelledAsOrdered
    unit OutOfMemory
    unit Preempted
    unit Deadline
    unit Lost
});
mirror_enum!(ThenJson = Then {
    struct Wait { until: UnixS, failures: u32 }
    tuple Pause(why: PauseWhy)
    unit Next
});
mirror_enum!(PauseWhyJson = PauseWhy {
    tuple Operator(why: Line)
    tuple QuickFailures(jobs: u32)
    tuple Refused(refusal: Refusal)
    tuple AllocationExhausted(text: Line)
    unit OutOfMemory
});
mirror_enum!(QueueOrderJson = QueueOrder {
    struct Pause { site: SiteName, why: Line }
    struct Resume { site: SiteName, why: Line }
    struct Submit { site: SiteName, shape: Option<ShapeName>, why: Line }
    struct Cancel { intent: IntentId, why: Line }
    struct Tail { intent: IntentId }
    struct Budget { site: SiteName, change: BudgetChange }
});
mirror_struct!(
    BudgetChangeJson = BudgetChange {
        left: Option<Left>,
        reserve_gpu_s: Option<GpuS>,
        ends: Option<Ends>,
    }
);
mirror_enum!(LeftJson = Left {
    tuple Counted(left: GpuS)
    unit Uncounted
});
mirror_enum!(EndsJson = Ends {
    tuple At(at: UnixS)
    unit Never
});
