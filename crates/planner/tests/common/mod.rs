//! The paper's two sites as builders. What one test uses another does not.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::time::Duration;

use hansa_base::{Steps, Windows};
use hansa_planner::{
    Answer, ChainPolicy, Cost, Evaluation, Exchange, Fact, Limits, Partition, PartitionState,
    Phase, Policy, RunState, Shape, ShapeState, Site, Snapshot, Source, WallMs, WindowsPerGpuS,
};

pub const NOW: WallMs = WallMs(1_764_000_000_000);
pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3600);

pub fn secs(s: f64) -> Duration {
    Duration::from_secs_f64(s)
}

/// A value that a profile stated an hour ago.
pub fn stated<T>(value: T) -> Fact<T> {
    let source = Source::Profile {
        key: "test".to_owned(),
    };
    let at = WallMs(NOW.0 - 3_600_000);
    Fact { value, source, at }
}

pub fn cost(s: f64) -> Cost {
    let stated = Some(stated(secs(s)));
    Cost {
        measured: None,
        stated,
    }
}

/// A shape of one node in the partition `gpu`, probed ten minutes ago: it would wait `wait`.
pub fn shape(name: &str, gpus: u32, walltime: Duration, wait: Duration) -> ShapeState {
    let at = WallMs(NOW.0 - 600_000);
    let source = Source::Probe {
        prober: "anna/acc1".to_owned(),
    };
    ShapeState {
        shape: Shape {
            name: name.into(),
            partition: "gpu".into(),
            account: Some("acc1".to_owned()),
            qos: None,
            nodes: 1,
            gpus_per_node: gpus,
            walltime,
        },
        probe: Some(Fact {
            value: Answer::StartsAt(at.after(wait)),
            source,
            at,
        }),
        rate: None,
        ranks: None,
        shut: None,
    }
}

pub struct SiteOf {
    pub name: &'static str,
    pub windows_per_gpu_s: f64,
    pub startup_s: f64,
    pub transfer_s: f64,
    pub evaluation_s: f64,
}

/// Snellius, 4 H100 of a node: 89.8 sequences/s, start-up 108 s, transfer 33.5 s, evaluation 23.6 s
/// plus windows.
pub const SNELLIUS: SiteOf = SiteOf {
    name: "snellius",
    windows_per_gpu_s: 89.8 / 4.0,
    startup_s: 108.0,
    transfer_s: 33.5,
    evaluation_s: 23.6,
};

/// LUMI, 8 GCDs of a node: 38.2 sequences/s, start-up 216 s, transfer 64.2 s, evaluation 34.7 s plus
/// windows.
pub const LUMI: SiteOf = SiteOf {
    name: "lumi",
    windows_per_gpu_s: 38.2 / 8.0,
    startup_s: 216.0,
    transfer_s: 64.2,
    evaluation_s: 34.7,
};

impl SiteOf {
    pub fn with(&self, shapes: &[ShapeState]) -> Site {
        let queue = PartitionState {
            usage: Some(stated(1.0)),
            ..PartitionState::default()
        };
        Site {
            name: self.name.parse().unwrap(),
            shapes: shapes.to_vec(),
            partitions: BTreeMap::from([(Partition::from("gpu"), queue)]),
            rate: Some(stated(WindowsPerGpuS(self.windows_per_gpu_s))),
            startup: cost(self.startup_s),
            transfer: cost(self.transfer_s),
            evaluation: cost(self.evaluation_s),
            leaves_before: None,
            limits: Limits::default(),
            budget: None,
            closed: Vec::new(),
            chain: stated(ChainPolicy::Ahead),
            jobs: Vec::new(),
        }
    }
}

/// The paper's run (H = 100, per-rank batch 8, merge 17 s, 512 held-out windows at three times the
/// training speed, exchanges in series) at these sites.
pub fn snapshot(sites: Vec<Site>) -> Snapshot {
    Snapshot {
        now: NOW,
        run: RunState {
            target: Windows(2_756_597),
            corpus: Windows(2_756_597),
            seq_len: 2048,
            phase: Phase {
                steps: Steps(100),
                batch: Windows(8),
                accumulation: 1,
            },
            merge: cost(17.0),
            evaluation: Some(Evaluation {
                windows: Windows(512),
                speedup: 3.0,
            }),
        },
        sites,
        policy: Policy {
            exchange: Exchange::Series,
            ..Policy::default()
        },
    }
}
