//! Plans in the queue's journal: golden bytes.
#![allow(clippy::unwrap_used)]

use hansa_base::SiteName;
use hansa_queue::*;
use hansa_wire::queue::*;

/// One record a line, as journal version 1 writes them.
const PLANNED_V1: &str = include_str!("golden/planned_v1.jsonl");

fn lumi() -> SiteName {
    "lumi".parse().unwrap()
}

fn adopted() -> Adopted {
    Adopted {
        no: 2,
        made: UnixS(1_764_000_000),
        why: "changed: gains 20.0 % (a job in small at lumi has ended)".into(),
        together: true,
        sites: vec![SitePlan {
            site: lumi(),
            shape: "small".into(),
            jobs: 2,
            ahead: true,
            begin: Some(UnixS(1_764_000_600)),
        }],
        promise: Promise {
            ended: "target".into(),
            ends: UnixS(1_764_090_000),
            windows: 48_000,
            rounds: 120,
            cost: GpuS(360_000),
        },
    }
}

fn profiled() -> Event {
    let shape = Shape {
        name: "small".into(),
        partition: "small-g".into(),
        account: None,
        qos: None,
        nodes: 1,
        gpus_per_node: 8,
        walltime_s: 7200,
    };
    Event::Profiled {
        site: lumi(),
        profile: SiteProfile {
            wanted_jobs: 2,
            preferred: "small".into(),
            shapes: vec![shape],
            chain: Chain::Begin,
            max_pending: 4,
            budget: Budget::default(),
            probe_every_s: 300,
            usage_every_s: 3600,
            retry: Retry::default(),
            accounting_lag_s: None,
            stated: Some(Stated {
                startup_ms: Some(90_000),
                transfer_ms: Some(20_000),
                leaves_before_ms: Some(300_000),
                nodes_max: Some(16),
                jobs_max: Some(8),
                shapes: vec![StatedShape {
                    shape: "small".into(),
                    microwindows_per_gpu_s: Some(4_800_000),
                    ranks: Some(8),
                }],
            }),
        },
    }
}

fn intended() -> Event {
    Event::Intended(Intention {
        intent: IntentId(7),
        site: lumi(),
        replica: "r1".parse().unwrap(),
        shape: match profiled() {
            Event::Profiled { profile, .. } => profile.shapes[0].clone(),
            _ => unreachable!("a profile"),
        },
        link: 1,
        begin: Begin::Now,
        after: None,
        exclude: Vec::new(),
        why: Why::Planned { plan: 2, jobs: 2 },
    })
}

#[test]
fn plans_of_version_1_load_and_are_still_written_the_same() {
    let held = |held| Event::HeldBack {
        site: lumi(),
        replica: "r1".parse().unwrap(),
        held: Some(held),
    };
    let events = [
        Event::PlanAdopted(adopted()),
        profiled(),
        intended(),
        held(Held::NoPlan),
        held(Held::NotPlanned(2)),
        Event::RecallOrdered {
            intent: IntentId(7),
            why: "plan 3 wants fewer jobs here".into(),
        },
    ];
    let records: Vec<QueueRecord> = events
        .into_iter()
        .map(|event| QueueRecord {
            at: UnixS(1_764_000_000),
            events: vec![event],
        })
        .collect();
    let written: Vec<String> = records
        .iter()
        .map(|record| String::from_utf8(encode_queue_record(record)).unwrap())
        .collect();
    let golden: Vec<&str> = PLANNED_V1.lines().collect();
    assert_eq!(written, golden, "{}", written.join("\n"));
    for (line, record) in golden.iter().zip(&records) {
        assert_eq!(&decode_queue_record(1, line.as_bytes()).unwrap(), record);
    }
}
