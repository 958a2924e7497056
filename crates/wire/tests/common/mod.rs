//! Every event, and a state in which every field says something.
#![allow(clippy::unwrap_used, dead_code)]

use std::collections::BTreeMap;
use std::time::Duration;

use hansa_base::*;
use hansa_protocol::*;
use hansa_wire::journal::*;

pub fn hash(byte: u8) -> Hash {
    Hash([byte; 32])
}

pub fn norm(value: f64) -> Norm {
    Norm::new(value).unwrap()
}

pub fn replica(text: &str) -> ReplicaId {
    text.parse().unwrap()
}

pub fn digest() -> DigestFields {
    let shard = |name: &str, byte| ShardIdentity {
        name: name.to_owned(),
        hash: hash(byte),
    };
    DigestFields {
        format_version: 1,
        windows: Windows(40),
        block: Windows(4),
        seed: u64::MAX,
        epoch_rule: RunSpec::EPOCH_RULE.to_owned(),
        permutation_check: 0x1234_5678_9abc_def0,
        tokenizer: hash(1),
        dtype: "u16".to_owned(),
        seq_len: 16,
        shards: vec![shard("train-00000.bin", 2), shard("train-00001.bin", 3)],
        held_out: vec![shard("held-out-00000.bin", 4)],
    }
}

pub fn parts() -> ContributionParts {
    ContributionParts {
        generation: Generation(1),
        base: hash(5),
        spans: vec![Span::new(8, 12), Span::new(20, 23)],
        tokens: Tokens(112),
        steps: Steps(4),
        payload: hash(6),
        bytes: Bytes(4096),
    }
}

pub fn close(step: OuterStep, reason: CloseReason) -> CloseRecord {
    CloseRecord {
        base: Generation(1),
        contributions: vec![ClosedContribution {
            no: ContributionNo(3),
            key: ReplicaKey(0),
            id: parts().id(),
            payload: hash(6),
            tokens: Tokens(112),
            steps: Steps(4),
        }],
        step,
        reason,
    }
}

pub fn times() -> PhaseTimes {
    PhaseTimes {
        download_ms: 1,
        evaluate_ms: 2,
        train_ms: 3,
        checkpoint_ms: 4,
        upload_ms: 5,
        wait_ms: 6,
        trained: Windows(7),
        uploaded: Bytes(8),
    }
}

pub fn plan() -> Plan {
    Plan {
        generation: Generation(1),
        steps: Steps(4),
        accumulation: 2,
        windows: Windows(7),
    }
}

const NESTEROV: OuterStep = OuterStep::Nesterov {
    lr: 0.7,
    momentum: 0.9,
};

pub fn every_event() -> Vec<Event> {
    let (key, no, lease) = (ReplicaKey(0), ContributionNo(3), LeaseId(2));
    let incarnation = Incarnation(5);
    let mut events = vec![
        Event::Registered {
            key,
            id: replica("lumi/r0"),
            incarnation,
            ranks: 8,
            nonce: hash(7),
            presented: Some(hash(8)),
            token: hash(9),
            inherited: Some(lease),
        },
        Event::Granted {
            lease,
            key,
            incarnation,
            spans: parts().spans,
        },
        Event::Marked {
            lease,
            mark: Windows(9),
        },
        Event::Planned { key, plan: plan() },
        Event::Excused {
            key,
            because: ExcusedBecause::NothingFree,
        },
        Event::Excused {
            key,
            because: ExcusedBecause::NoProgress,
        },
        Event::Announced {
            no,
            key,
            incarnation,
            parts: parts(),
        },
        Event::Staged {
            no,
            norm: norm(0.1 + 0.2),
        },
        Event::RefusedAgain { key },
        Event::Closed(close(NESTEROV, CloseReason::AllContributed { members: 1 })),
        Event::Closed(close(
            OuterStep::Adopt { momentum: 0.9 },
            CloseReason::GraceOver {
                staged: 1,
                members: 2,
            },
        )),
    ];
    events.extend(events_of_leases(key, lease));
    events.extend(events_of_generations(key));
    events.extend(events_with_reasons(key, no, lease));
    events.extend(orders(key));
    events
}

fn events_of_leases(key: ReplicaKey, lease: LeaseId) -> Vec<Event> {
    let incarnation = Incarnation(5);
    vec![
        Event::Stolen(Steal {
            from: LeaseId(1),
            mark: Windows(9),
            windows: Windows(4),
            lease,
            key,
            incarnation,
        }),
        Event::Revived {
            key,
            incarnation,
            windows: Windows(6),
        },
        Event::Absolved { key },
    ]
}

fn events_with_reasons(key: ReplicaKey, no: ContributionNo, lease: LeaseId) -> Vec<Event> {
    let incarnation = Incarnation(5);
    let mut events = Vec::new();
    for reason in [
        LeftReason::Goodbye,
        LeftReason::SessionExpired,
        LeftReason::Drained,
        LeftReason::Evicted,
        LeftReason::RunEnded,
        LeftReason::Restored,
    ] {
        events.push(Event::Left {
            key,
            incarnation,
            reason,
        });
    }
    for cause in [
        FreedCause::LeaseExpired,
        FreedCause::SessionExpired,
        FreedCause::ManyAtOnce,
        FreedCause::NotFinite,
        FreedCause::Goodbye,
        FreedCause::Evicted,
        FreedCause::Refused,
        FreedCause::RunEnding,
        FreedCause::Restored,
    ] {
        events.push(Event::Freed {
            lease,
            cause,
            at_risk: Windows(3),
        });
    }
    for because in [
        RefusedBecause::Late,
        RefusedBecause::LeaseLost,
        RefusedBecause::Replaced,
        RefusedBecause::Gate,
        RefusedBecause::NotFinite,
        RefusedBecause::Norm {
            norm: norm(1e9),
            bound: norm(1.0 / 3.0),
        },
        RefusedBecause::RunEnding,
        RefusedBecause::TooSlow,
    ] {
        events.push(Event::Refused { no, because });
    }
    for reason in [
        EndReason::Rounds,
        EndReason::Tokens,
        EndReason::Epochs,
        EndReason::Stopped,
    ] {
        events.push(Event::Ending(reason));
    }
    events
}

fn orders(key: ReplicaKey) -> Vec<Event> {
    let why = || "the room is too warm".to_owned();
    let site = || "lumi".parse::<SiteName>().unwrap();
    vec![
        Event::Paused(Pause::Operator(why())),
        Event::Paused(Pause::Norms(vec![replica("lumi/r0"), replica("lumi/r1")])),
        Event::Paused(Pause::Refusals(vec![replica("lumi/r0")])),
        Event::Resumed { why: why() },
        Event::Drained {
            site: site(),
            why: why(),
        },
        Event::DrainEnds {
            site: site(),
            at: WallS(1_764_000_000),
        },
        Event::Undrained {
            site: site(),
            why: why(),
        },
        Event::Evicted { key, why: why() },
        Event::Readmitted { key, why: why() },
        Event::Stopping { why: why() },
    ]
}

fn events_of_generations(key: ReplicaKey) -> Vec<Event> {
    let generation = Generation(1);
    vec![
        Event::Published {
            generation: Generation(2),
            manifest: hash(10),
            merge_ms: 250,
        },
        Event::Timed {
            key,
            generation,
            times: times(),
        },
        Event::EvaluationAsked { generation, key },
        Event::EvaluationLost { generation },
        Event::Evaluated {
            generation,
            key,
            loss_sum_nats: 1_234.567_890_123_456_7,
            tokens: Tokens(640),
        },
        Event::EpochStarted { epoch: Epoch(1) },
        Event::Quarantined {
            spans: parts().spans,
        },
        Event::LetOut {
            windows: vec![7, 9],
        },
        Event::Restored {
            timeline: Timeline(1_700_000_000_001),
        },
        Event::Ended,
    ]
}

pub fn files(generation: u64) -> GenerationFiles {
    GenerationFiles {
        generation: Generation(generation),
        theta: hash(11),
        momentum: (generation > 0).then_some(hash(12)),
        model: hash(13),
    }
}

pub fn started(recipe: &str) -> Entry {
    Entry::Started(Started {
        hansa_version: "0.1.0".to_owned(),
        recipe: recipe.to_owned(),
        digest: digest(),
        timeline: Timeline(7),
        key: hash(30),
        files: files(0),
    })
}

pub fn every_entry() -> Vec<Entry> {
    let alone = |event| {
        let events = vec![event];
        let files = None;
        Entry::Events(Events { events, files })
    };
    let mut entries = vec![started("name = \"small\"\n")];
    entries.extend(every_event().into_iter().map(alone));
    entries.push(Entry::Events(Events {
        events: vec![Event::Ended, Event::Ended],
        files: Some(files(2)),
    }));
    entries
}

fn member(name: &str, presence: Presence, decided: Option<(Hash, Verdict)>) -> Replica {
    let live = presence == Presence::Live;
    Replica {
        id: replica(name),
        ranks: 4,
        incarnation: Incarnation(5),
        presence,
        nonce: hash(14),
        presented: live.then_some(hash(15)),
        token: hash(16),
        lease: live.then_some(LeaseId(2)),
        lost: (!live).then(lost),
        plan: live.then(plan),
        contributed: live.then_some(Generation(1)),
        decided,
        tally: Tally {
            granted: Windows(1),
            committed: Windows(2),
            reclaimed: Windows(3),
            failed: Windows(8),
            released: Windows(4),
            revived: Windows(9),
            stolen: Windows(10),
            inherited: Windows(5),
            refused: 6,
            incarnations: 7,
        },
        pace: live.then_some(Pace {
            microwindows_per_s: 8_250_000,
            exchange_ms: 9,
            upload_bytes_per_s: Some(10),
        }),
        setback: live.then_some(Setback {
            form: 1,
            norm: 2,
            not_finite: 3,
            excess: norm(4.5),
            last: Generation(1),
            until: Generation(3),
        }),
        evicted: (!live).then(|| "it breaks things".to_owned()),
    }
}

fn lease() -> Lease {
    Lease {
        id: LeaseId(2),
        epoch: Epoch(2),
        key: ReplicaKey(0),
        incarnation: Incarnation(5),
        front: Windows(4),
        spans: vec![Span::new(12, 20)],
        mark: Windows(9),
        seq: 3,
    }
}

fn lost() -> Lost {
    Lost {
        lease: lease(),
        plan: Some(plan()),
        at_risk: Windows(5),
        cause: FreedCause::SessionExpired,
    }
}

fn ledger() -> Ledger {
    let states = [
        (
            Span::new(0, 8),
            Ownership::Committed(Generation(1), ReplicaKey(1)),
        ),
        (Span::new(8, 12), Ownership::Staged(ContributionNo(3))),
        (Span::new(12, 20), Ownership::Leased(LeaseId(2))),
        (Span::new(20, 30), Ownership::Quarantined),
        (Span::new(30, 40), Ownership::Free),
    ];
    Ledger::from_intervals(Windows(40), states).unwrap()
}

fn contribution(stage: Stage) -> Contribution {
    Contribution {
        key: ReplicaKey(0),
        incarnation: Incarnation(5),
        id: parts().id(),
        parts: parts(),
        stage,
    }
}

fn info() -> GenerationInfo {
    GenerationInfo {
        generation: Generation(1),
        manifest: hash(5),
        inner_step: Steps(4),
        tokens: Tokens(128),
        progress: 1.0 / 3.0,
        progress_per_round: 0.1 + 0.2,
    }
}

fn attempts() -> Attempts {
    let attempt = Attempt {
        end: Position(32),
        lost_with: vec![ReplicaKey(1), ReplicaKey(0)],
        together: Windows(2),
    };
    Attempts::from([(Position(30), attempt)])
}

fn asked() -> Evaluation {
    Evaluation {
        generation: Generation(1),
        asked: Some(ReplicaKey(0)),
    }
}

fn norms() -> Norms {
    Norms {
        recent: vec![(Steps(4), norm(0.7)), (Steps(1), norm(1e-3))],
        raised: Some((norm(16.5), 40)),
    }
}

fn orders_in_force() -> Orders {
    Orders {
        paused: Some(Pause::Operator("wait".to_owned())),
        drained: BTreeMap::from([("lumi".parse().unwrap(), "repairs".to_owned())]),
        drain_ends: None,
        stopping: Some("enough".to_owned()),
    }
}

/// Not a state that a run would come to; one in which no field is empty.
pub fn rich_state() -> State {
    let refused = Verdict::Refused(RefusedBecause::Gate);
    let mut state = State {
        lineage: Lineage::from_parts(hash(30), vec![Timeline(7), Timeline(8)]).unwrap(),
        epoch: Epoch(2),
        ledger: ledger(),
        attempts: attempts(),
        quarantine: BTreeMap::from([(17, Epoch(1))]),
        committed_before: Windows(80),
        replicas: vec![
            member("lumi/r0", Presence::Live, Some((hash(17), refused))),
            member(
                "snellius/r0",
                Presence::Left(LeftReason::SessionExpired),
                Some((hash(18), Verdict::Merged(Generation(1)))),
            ),
            member("frontier/r0", Presence::Left(LeftReason::Goodbye), None),
        ],
        leases: BTreeMap::from([(LeaseId(2), lease())]),
        contributions: BTreeMap::from([
            (ContributionNo(3), contribution(Stage::Staged)),
            (ContributionNo(4), contribution(Stage::Announced)),
        ]),
        round: Round {
            base: Generation(1),
            staged: vec![ContributionNo(3)],
            phase: RoundPhase::Closed(close(NESTEROV, CloseReason::AllContributed { members: 1 })),
        },
        current: info(),
        rounds: vec![RoundSummary {
            base: Generation(0),
            manifest: hash(5),
            reason: CloseReason::GraceOver {
                staged: 1,
                members: 2,
            },
            merged: vec![(ReplicaKey(1), hash(18), Windows(8), Tokens(128), Steps(4))],
            merge_ms: 12,
            times: BTreeMap::from([(ReplicaKey(1), times())]),
        }],
        evaluations: Evaluations {
            due: Some(asked()),
            done: vec![(Generation(0), 0.1 + 0.7, Tokens(640))],
        },
        last_incarnation: Incarnation(5),
        last_lease: LeaseId(2),
        last_contribution: ContributionNo(4),
        norms: norms(),
        orders: orders_in_force(),
        ending: Some(EndReason::Tokens),
        ended: true,
        index: Index::default(),
    };
    state.reindex();
    state
}

pub fn rich_snapshot() -> SnapshotState {
    SnapshotState {
        state: rich_state(),
        files: BTreeMap::from([(Generation(0), files(0)), (Generation(1), files(1))]),
    }
}

pub fn progress() -> Progress {
    Progress {
        activity: Activity::Training,
        counter: 12,
        step: Some(Duration::from_micros(1_234_567)),
        rtt: Some(Duration::from_micros(80)),
        loss: Some(9.25),
        tokens_per_s: Some(1e5 / 3.0),
    }
}
