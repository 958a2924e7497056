//! Mirrors of events and close records: what the journal holds. Golden bytes of each version are
//! kept; a change here that is not a new version breaks runs in progress.

use hansa_base::{
    ContributionNo, Epoch, Generation, Hash, Incarnation, LeaseId, ReplicaId, ReplicaKey, SiteName,
    Steps, Timeline, Tokens, WallS, Windows,
};
use hansa_protocol::{
    CloseReason, CloseRecord, ClosedContribution, ContributionParts, EndReason, Event,
    ExcusedBecause, FreedCause, LeftReason, Norm, OuterStep, Pause, PhaseTimes, Plan,
    RefusedBecause, Span, Steal,
};

use crate::mirror::{mirror_enum, mirror_struct};

mirror_enum!(EventJson = Event {
    struct Registered {
        key: ReplicaKey,
        id: ReplicaId,
        incarnation: Incarnation,
        ranks: u32,
        nonce: Hash,
        presented: Option<Hash>,
        token: Hash,
        inherited: Option<LeaseId>,
    }
    struct Left { key: ReplicaKey, incarnation: Incarnation, reason: LeftReason }
    struct Granted {
        lease: LeaseId,
        key: ReplicaKey,
        incarnation: Incarnation,
        spans: Vec<Span>,
    }
    struct Marked { lease: LeaseId, mark: Windows }
    struct Freed { lease: LeaseId, cause: FreedCause, at_risk: Windows }
    struct Quarantined { spans: Vec<Span> }
    struct LetOut { windows: Vec<u64> }
    struct Planned { key: ReplicaKey, plan: Plan }
    struct Excused { key: ReplicaKey, because: ExcusedBecause }
    struct Announced {
        no: ContributionNo,
        key: ReplicaKey,
        incarnation: Incarnation,
        parts: ContributionParts,
    }
    struct Refused { no: ContributionNo, because: RefusedBecause }
    struct Staged { no: ContributionNo, norm: Norm }
    struct RefusedAgain { key: ReplicaKey }
    struct Published { generation: Generation, manifest: Hash, merge_ms: u64 }
    struct Timed { key: ReplicaKey, generation: Generation, times: PhaseTimes }
    struct EvaluationAsked { generation: Generation, key: ReplicaKey }
    struct EvaluationLost { generation: Generation }
    struct Evaluated {
        generation: Generation,
        key: ReplicaKey,
        loss_sum_nats: f64,
        tokens: Tokens,
    }
    struct EpochStarted { epoch: Epoch }
    struct Restored { timeline: Timeline }
    struct Revived { key: ReplicaKey, incarnation: Incarnation, windows: Windows }
    struct Absolved { key: ReplicaKey }
    struct Resumed { why: String }
    struct Drained { site: SiteName, why: String }
    struct DrainEnds { site: SiteName, at: WallS }
    struct Undrained { site: SiteName, why: String }
    struct Evicted { key: ReplicaKey, why: String }
    struct Readmitted { key: ReplicaKey, why: String }
    struct Stopping { why: String }
    tuple Paused(pause: Pause)
    tuple Stolen(steal: Steal)
    tuple Closed(record: CloseRecord)
    tuple Ending(reason: EndReason)
    unit Ended
});
mirror_struct!(
    StealJson = Steal {
        from: LeaseId,
        mark: Windows,
        windows: Windows,
        lease: LeaseId,
        key: ReplicaKey,
        incarnation: Incarnation,
    }
);
mirror_enum!(ExcusedBecauseJson = ExcusedBecause {
    unit NothingFree
    unit NoProgress
    unit Stopping
});
mirror_enum!(PauseJson = Pause {
    tuple Operator(why: String)
    tuple Norms(who: Vec<ReplicaId>)
    tuple Refusals(who: Vec<ReplicaId>)
});
mirror_enum!(LeftReasonJson = LeftReason {
    unit Goodbye
    unit SessionExpired
    unit Drained
    unit Evicted
    unit RunEnded
    unit Restored
});
mirror_enum!(FreedCauseJson = FreedCause {
    unit LeaseExpired
    unit SessionExpired
    unit ManyAtOnce
    unit NotFinite
    unit Goodbye
    unit Evicted
    unit Refused
    unit RunEnding
    unit Restored
});
mirror_enum!(CloseReasonJson = CloseReason {
    struct AllContributed { members: u32 }
    struct GraceOver { staged: u32, members: u32 }
});
mirror_struct!(CloseRecordJson = CloseRecord {
    base: Generation,
    contributions: Vec<ClosedContribution>,
    step: OuterStep,
    reason: CloseReason,
});
mirror_struct!(
    ClosedContributionJson = ClosedContribution {
        no: ContributionNo,
        key: ReplicaKey,
        id: Hash,
        payload: Hash,
        tokens: Tokens,
        steps: Steps,
    }
);
mirror_enum!(OuterStepJson = OuterStep {
    struct Nesterov { lr: f64, momentum: f64 }
    struct Adopt { momentum: f64 }
});
