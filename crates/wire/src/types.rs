//! Mirrors of what both messages and records hold, and of every message of the protocol.

use std::time::Duration;

use hansa_base::{
    Bytes, Epoch, Generation, Hash, Incarnation, LeaseId, ReplicaId, SiteName, Steps, Timeline,
    Tokens, WallS, Windows,
};
use hansa_protocol::{
    Activity, Announce, Caller, ContributionParts, DigestFields, EndReason, Evaluated, FreedCause,
    GenerationInfo, Goodbye, Grant, Heartbeat, LeaseAnswer, LeaseRequest, LeaseView, Mismatch,
    Norm, Order, PhaseTimes, Plan, Progress, Refusal, RefusedBecause, Registered, ShardIdentity,
    Span, Standing, Verdict, Wait,
};

use crate::mirror::{mirror_enum, mirror_struct};
use crate::{BadValue, Wire};

/// An epoch has fewer windows than this.
const POSITIONS_MAX: u64 = 1 << 32;

impl Wire for Span {
    type Json = (u64, u64);
    fn to_json(&self) -> (u64, u64) {
        (self.start.0, self.end.0)
    }
    fn from_json((start, end): (u64, u64)) -> Result<Self, BadValue> {
        if start < end && end <= POSITIONS_MAX {
            return Ok(Self::new(start, end));
        }
        Err(BadValue::new(format!(
            "{start}..{end} is no range of positions"
        )))
    }
}

mirror_struct!(
    ShardIdentityJson = ShardIdentity {
        name: String,
        hash: Hash
    }
);
mirror_struct!(DigestJson = DigestFields {
    format_version: u32,
    windows: Windows,
    block: Windows,
    seed: u64,
    epoch_rule: String,
    permutation_check: u64,
    tokenizer: Hash,
    dtype: String,
    seq_len: u32,
    shards: Vec<ShardIdentity>,
    held_out: Vec<ShardIdentity>,
});
mirror_struct!(
    MismatchJson = Mismatch {
        field: String,
        ours: String,
        theirs: String
    }
);
mirror_struct!(
    PlanJson = Plan {
        generation: Generation,
        steps: Steps,
        accumulation: u32,
        windows: Windows,
    }
);
mirror_struct!(LeaseViewJson = LeaseView {
    id: LeaseId,
    epoch: Epoch,
    front: Windows,
    spans: Vec<Span>,
    mark: Windows,
    seq: u64,
});
mirror_struct!(
    GenerationInfoJson = GenerationInfo {
        generation: Generation,
        manifest: Hash,
        inner_step: Steps,
        tokens: Tokens,
        progress: f64,
        progress_per_round: f64,
    }
);
mirror_struct!(
    PhaseTimesJson = PhaseTimes {
        download_ms: u64,
        evaluate_ms: u64,
        train_ms: u64,
        checkpoint_ms: u64,
        upload_ms: u64,
        wait_ms: u64,
        trained: Windows,
        uploaded: Bytes,
    }
);
mirror_struct!(ContributionPartsJson = ContributionParts {
    generation: Generation,
    base: Hash,
    spans: Vec<Span>,
    tokens: Tokens,
    steps: Steps,
    payload: Hash,
    bytes: Bytes,
} check check_parts);

/// A step takes at least one window, so that neither count can overflow a sum.
fn check_parts(parts: &ContributionParts) -> Result<(), &'static str> {
    let windows = parts.windows().0;
    if !(1..=POSITIONS_MAX).contains(&windows) {
        return Err("a contribution needs 1 to 2^32 positions");
    }
    if !(1..=windows).contains(&parts.steps.0) {
        return Err("a contribution needs at least one step, and at most one for each position");
    }
    Ok(())
}

mirror_struct!(
    CallerJson = Caller {
        replica: ReplicaId,
        run: Hash,
        timeline: Timeline,
        incarnation: Incarnation,
        seal: Hash,
    }
);

/// JSON form of `Goodbye`: the caller's own, and what is wrong, where something is.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs)]
pub struct GoodbyeJson {
    #[serde(flatten)]
    pub caller: CallerJson,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_finite: bool,
}

impl Wire for Goodbye {
    type Json = GoodbyeJson;
    fn to_json(&self) -> GoodbyeJson {
        GoodbyeJson {
            caller: self.caller.to_json(),
            not_finite: self.not_finite,
        }
    }
    fn from_json(json: GoodbyeJson) -> Result<Self, BadValue> {
        Ok(Self {
            caller: Caller::from_json(json.caller)?,
            not_finite: json.not_finite,
        })
    }
}

mirror_struct!(RegisteredJson = Registered {
    incarnation: Incarnation,
    timeline: Timeline,
    seal: Hash,
    token: Hash,
    lease: Option<LeaseView>,
    announced: Option<Hash>,
    current: GenerationInfo,
});
mirror_struct!(LeaseRequestJson = LeaseRequest {
    caller: Caller,
    base: Hash,
    times: Option<(Generation, PhaseTimes)>,
});
mirror_struct!(
    GrantJson = Grant {
        lease: LeaseView,
        plan: Plan,
        base: GenerationInfo
    }
);
mirror_enum!(LeaseAnswerJson = LeaseAnswer {
    tuple Train(grant: Grant)
    tuple Adopt(generation: GenerationInfo)
    tuple Evaluate(generation: Generation)
    tuple Wait(wait: Wait)
    tuple Leave(why: String)
    tuple Finish(reason: EndReason)
});
mirror_enum!(WaitJson = Wait {
    struct ExchangeTooLong { exchange: Duration, round: Duration }
    struct SetBack { refusals: u32, until: Generation }
    tuple Members(members: Vec<ReplicaId>)
    tuple Paused(why: String)
    unit Merging
    unit NothingFree
    unit NextRound
    unit Ending
});
mirror_struct!(
    HeartbeatJson = Heartbeat {
        caller: Caller,
        progress: Progress,
        at: Option<(LeaseId, Windows)>,
    }
);
mirror_struct!(ProgressJson = Progress {
    activity: Activity,
    counter: u64,
    step: Option<Duration>,
    rtt: Option<Duration>,
    loss: Option<f64>,
    tokens_per_s: Option<f64>,
});
mirror_enum!(ActivityJson = Activity {
    unit Starting
    unit Downloading
    unit Training
    unit Checkpointing
    unit Uploading
    unit Evaluating
    unit Waiting
    unit Leaving
});
mirror_struct!(StandingJson = Standing {
    lease: Option<LeaseView>,
    lost: Option<FreedCause>,
    current: GenerationInfo,
    merging: bool,
    ending: Option<EndReason>,
    waits_for: Vec<ReplicaId>,
    next: Duration,
    ttl: Duration,
    leave: Option<String>,
});
mirror_struct!(
    AnnounceJson = Announce {
        caller: Caller,
        parts: ContributionParts
    }
);
mirror_enum!(VerdictJson = Verdict {
    tuple Merged(generation: Generation)
    tuple Refused(because: RefusedBecause)
    unit Upload
    unit Staged
});
mirror_struct!(
    EvaluatedJson = Evaluated {
        caller: Caller,
        generation: Generation,
        loss_sum_nats: f64,
        tokens: Tokens,
    }
);
impl Wire for Norm {
    type Json = f64;
    fn to_json(&self) -> f64 {
        self.get()
    }
    fn from_json(json: f64) -> Result<Self, BadValue> {
        Self::new(json).ok_or_else(|| BadValue::new(format!("{json} is no norm")))
    }
}

mirror_enum!(RefusedBecauseJson = RefusedBecause {
    struct Norm { norm: Norm, bound: Norm }
    unit Late
    unit LeaseLost
    unit Replaced
    unit Gate
    unit NotFinite
    unit RunEnding
    unit TooSlow
});
mirror_enum!(EndReasonJson = EndReason {
    unit Rounds
    unit Tokens
    unit Epochs
    unit Stopped
});
mirror_enum!(RefusalJson = Refusal {
    struct Busy { replica: ReplicaId, retry: Duration }
    struct Fenced { replica: ReplicaId }
    struct Gone { replica: ReplicaId }
    struct NeverIssued { what: String }
    struct Unknown { replica: ReplicaId }
    struct OtherRun { ours: Hash, theirs: Hash }
    struct Restored { timeline: Timeline }
    struct OtherHistory { ours: Timeline, theirs: Timeline }
    struct NotSealed { replica: ReplicaId }
    struct NoSuchGeneration { generation: Generation }
    struct NotFromFront { lease: Option<LeaseId> }
    struct BeyondMark { said: Windows, reserved: Windows }
    struct Stale { base: Generation, current: Generation }
    struct ContributedAlready { replica: ReplicaId }
    struct WrongTokens { said: Tokens, real: Tokens }
    struct Evicted { replica: ReplicaId, why: String }
    struct Drained { site: SiteName, why: String }
    struct UnknownSite { site: SiteName }
    struct Pointless { what: String }
    tuple OtherData(mismatch: Mismatch)
    tuple UnknownContribution(id: Hash)
    tuple NotQuarantined(window: u64)
    tuple RunOver(reason: EndReason)
    tuple Broken(what: String)
});
mirror_enum!(OrderJson = Order {
    struct Pause { why: String }
    struct Resume { why: String }
    struct Drain { site: SiteName, why: String, until: Option<WallS> }
    struct Undrain { site: SiteName, why: String }
    struct Evict { replica: ReplicaId, why: String }
    struct Readmit { replica: ReplicaId, why: String }
    struct Stop { why: String }
    struct LetOut { windows: Vec<u64> }
});
