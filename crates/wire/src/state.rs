//! Mirrors of the durable state, for snapshots.

use std::collections::BTreeMap;

use hansa_base::{
    ContributionNo, Epoch, Generation, Hash, Incarnation, LeaseId, Position, ReplicaId, ReplicaKey,
    SiteName, Steps, Timeline, Tokens, WallS, Windows,
};
use hansa_protocol::{
    Attempt, Attempts, CloseReason, CloseRecord, Contribution, ContributionParts, EndReason,
    Evaluation, Evaluations, FreedCause, GenerationInfo, Lease, Ledger, LeftReason, Lineage, Lost,
    Norm, Norms, Orders, Ownership, Pace, Pause, PhaseTimes, Plan, Presence, Replica, Round,
    RoundPhase, RoundSummary, Setback, Span, Stage, State, Tally, Verdict,
};
use serde::{Deserialize, Serialize};

use crate::mirror::{mirror_enum, mirror_struct};
use crate::{BadValue, Wire};

mirror_struct!(StateJson = State {
    lineage: Lineage,
    epoch: Epoch,
    ledger: Ledger,
    attempts: Attempts,
    quarantine: BTreeMap<u64, Epoch>,
    committed_before: Windows,
    replicas: Vec<Replica>,
    leases: BTreeMap<LeaseId, Lease>,
    contributions: BTreeMap<ContributionNo, Contribution>,
    round: Round,
    current: GenerationInfo,
    rounds: Vec<RoundSummary>,
    evaluations: Evaluations,
    last_incarnation: Incarnation,
    last_lease: LeaseId,
    last_contribution: ContributionNo,
    norms: Norms,
    orders: Orders,
    ending: Option<EndReason>,
    ended: bool,
} derived index by reindex);
mirror_struct!(ReplicaJson = Replica {
    id: ReplicaId,
    ranks: u32,
    incarnation: Incarnation,
    presence: Presence,
    nonce: Hash,
    presented: Option<Hash>,
    token: Hash,
    lease: Option<LeaseId>,
    lost: Option<Lost>,
    plan: Option<Plan>,
    contributed: Option<Generation>,
    decided: Option<(Hash, Verdict)>,
    tally: Tally,
    pace: Option<Pace>,
    evicted: Option<String>,
    setback: Option<Setback>,
});
mirror_struct!(
    SetbackJson = Setback {
        form: u32,
        norm: u32,
        not_finite: u32,
        excess: Norm,
        last: Generation,
        until: Generation,
    }
);
mirror_struct!(NormsJson = Norms {
    recent: Vec<(Steps, Norm)>,
    raised: Option<(Norm, u32)>,
});
mirror_struct!(OrdersJson = Orders {
    paused: Option<Pause>,
    drained: BTreeMap<SiteName, String>,
    stopping: Option<String>,
} later { drain_ends: BTreeMap<SiteName, WallS> });
mirror_struct!(
    PaceJson = Pace {
        microwindows_per_s: u64,
        exchange_ms: u64,
        upload_bytes_per_s: Option<u64>,
    }
);
mirror_struct!(LostJson = Lost {
    lease: Lease,
    plan: Option<Plan>,
    at_risk: Windows,
    cause: FreedCause,
});
mirror_enum!(PresenceJson = Presence {
    tuple Left(reason: LeftReason)
    unit Live
});
mirror_struct!(
    TallyJson = Tally {
        granted: Windows,
        committed: Windows,
        reclaimed: Windows,
        failed: Windows,
        released: Windows,
        revived: Windows,
        stolen: Windows,
        inherited: Windows,
        refused: u32,
        incarnations: u32,
    }
);
mirror_struct!(
    AttemptJson = Attempt {
        end: Position,
        lost_with: Vec<ReplicaKey>,
        together: Windows,
    }
);
mirror_struct!(LeaseJson = Lease {
    id: LeaseId,
    epoch: Epoch,
    key: ReplicaKey,
    incarnation: Incarnation,
    front: Windows,
    spans: Vec<Span>,
    mark: Windows,
    seq: u64,
});
mirror_struct!(
    ContributionJson = Contribution {
        key: ReplicaKey,
        incarnation: Incarnation,
        id: Hash,
        parts: ContributionParts,
        stage: Stage,
    }
);
mirror_enum!(StageJson = Stage {
    unit Announced
    unit Staged
});
mirror_struct!(RoundJson = Round {
    base: Generation,
    staged: Vec<ContributionNo>,
    phase: RoundPhase,
});
mirror_enum!(RoundPhaseJson = RoundPhase {
    tuple Closed(record: CloseRecord)
    unit Open
});
mirror_struct!(RoundSummaryJson = RoundSummary {
    base: Generation,
    manifest: Hash,
    reason: CloseReason,
    merged: Vec<(ReplicaKey, Hash, Windows, Tokens, Steps)>,
    merge_ms: u64,
    times: BTreeMap<ReplicaKey, PhaseTimes>,
});
mirror_struct!(EvaluationJson = Evaluation { generation: Generation, asked: Option<ReplicaKey> });
mirror_struct!(EvaluationsJson = Evaluations {
    due: Option<Evaluation>,
    done: Vec<(Generation, f64, Tokens)>,
});
mirror_enum!(OwnershipJson = Ownership {
    tuple Leased(lease: LeaseId)
    tuple Staged(no: ContributionNo)
    tuple Committed(generation: Generation, key: ReplicaKey)
    unit Free
    unit Quarantined
});

/// JSON form of `Lineage`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LineageJson {
    key: String,
    timelines: Vec<u64>,
}

impl Wire for Lineage {
    type Json = LineageJson;

    fn to_json(&self) -> LineageJson {
        LineageJson {
            key: self.key().to_json(),
            timelines: self.timelines().iter().map(Wire::to_json).collect(),
        }
    }

    fn from_json(json: LineageJson) -> Result<Self, BadValue> {
        let key = Hash::from_json(json.key).map_err(|error| error.at("key"))?;
        let timelines = json.timelines.into_iter().map(Timeline).collect();
        Self::from_parts(key, timelines).ok_or_else(|| BadValue::new("the timelines do not grow"))
    }
}

/// JSON form of `Ledger`: its intervals in order, which cover all windows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LedgerJson {
    windows: u64,
    intervals: Vec<((u64, u64), OwnershipJson)>,
}

impl Wire for Ledger {
    type Json = LedgerJson;

    fn to_json(&self) -> LedgerJson {
        let entry = |(span, state): (Span, Ownership)| (span.to_json(), state.to_json());
        LedgerJson {
            windows: self.counts().total().0,
            intervals: self.intervals().map(entry).collect(),
        }
    }

    fn from_json(json: LedgerJson) -> Result<Self, BadValue> {
        let intervals: Vec<(Span, Ownership)> = json
            .intervals
            .into_iter()
            .map(|(span, state)| Ok((Span::from_json(span)?, Ownership::from_json(state)?)))
            .collect::<Result<_, _>>()?;
        Self::from_intervals(Windows(json.windows), intervals)
            .ok_or_else(|| BadValue::new("the intervals leave a gap or overlap"))
    }
}

/// A map in JSON is a list of pairs: keys are numbers, and their order is part of the bytes.
impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    type Json = Vec<(K::Json, V::Json)>;

    fn to_json(&self) -> Self::Json {
        self.iter()
            .map(|(key, value)| (key.to_json(), value.to_json()))
            .collect()
    }

    fn from_json(json: Self::Json) -> Result<Self, BadValue> {
        json.into_iter()
            .map(|(key, value)| Ok((K::from_json(key)?, V::from_json(value)?)))
            .collect()
    }
}
