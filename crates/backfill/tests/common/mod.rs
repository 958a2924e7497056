//! Real traces, and three made-up sites whose queues they are. What one user needs another does not.
#![allow(dead_code, missing_docs)]

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use hansa_backfill::{
    Place, Queue, Scene, Setting, TraceJob, Walltimes, busiest, read_sacct, read_swf,
};
use hansa_base::{Steps, Windows};
use hansa_planner::{
    ChainPolicy, Cost, Fact, Limits, Phase, Policy, RunState, Shape, ShapeState, Site, Source,
    WallMs, WindowsPerGpuS,
};

pub const HOUR_S: u64 = 3600;
pub const DAY_S: u64 = 86_400;

/// Jobs, and the machine they run on.
pub struct Trace {
    pub name: &'static str,
    pub width: u32,
    pub jobs: Vec<TraceJob>,
    /// Probes lie between these times.
    pub from_s: u64,
    pub until_s: u64,
}

pub struct Traces {
    pub kth: Trace,
    pub wagap: Trace,
    pub pozidriv: Trace,
}

impl Traces {
    /// From the folder that `HANSA_TEST_DATA` names; says what is missing.
    pub fn read() -> Option<Self> {
        let Some(folder) = std::env::var_os("HANSA_TEST_DATA") else {
            eprintln!("skipped: HANSA_TEST_DATA is not set");
            return None;
        };
        let read = |name: &str| {
            let path = Path::new(&folder).join("data/traces").join(name);
            let file = std::fs::File::open(&path);
            let file = file.map_err(|error| eprintln!("skipped: {}: {error}", path.display()));
            let mut text = Vec::new();
            let mut file = flate2::read::GzDecoder::new(file.ok()?);
            file.read_to_end(&mut text).ok()?;
            Some(String::from_utf8_lossy(&text).into_owned())
        };
        let kth = read_swf(&read("KTH-SP2-1996-2.1-cln.swf.gz")?);
        let wagap = read_swf(&read("wagap-2013.swf.gz")?);
        let pozidriv = read_sacct(&read("sacct-pozidriv.log.gz")?);
        Some(Self {
            kth: Trace::new("KTH SP2", 100, kth, 30 * DAY_S),
            // Its waits come from features of nodes, which the replay does not know; on all 2,176
            // processors nobody would wait. A machine that its work fills to 60 % stands in.
            wagap: Trace::new("wagap", 1502, wagap, 10 * DAY_S),
            pozidriv: {
                let ran = pozidriv
                    .iter()
                    .map(|job| (job.submit_s, job.submit_s + job.run_s, job.width));
                // Its size is not known: the busiest moment, if every job had started at once.
                let width = busiest(ran);
                Trace::new("pozidriv", width / 2, pozidriv, 4 * DAY_S)
            },
        })
    }

    pub fn all(&self) -> [&Trace; 3] {
        [&self.kth, &self.wagap, &self.pozidriv]
    }

    /// Three sites with the speeds and costs of the published ones: the KTH machine twice, half a year
    /// apart, and wagap. A node is one of KTH's processors, or 15 of wagap's.
    pub fn scene(&self, target: Windows) -> Scene {
        let kth = self.kth.queue(Walltimes::Realised);
        let wagap = self.wagap.queue(Walltimes::Realised);
        scene(
            target,
            vec![
                place(snellius(), &kth, 20 * DAY_S, 1),
                place(lumi(), &kth, 175 * DAY_S, 1),
                place(site("frontier", 8, 4.5, 300, 90), &wagap, 8 * DAY_S, 15),
            ],
        )
    }
}

pub fn snellius() -> Site {
    site("snellius", 4, 22.45, 108, 34)
}

pub fn lumi() -> Site {
    site("lumi", 8, 4.775, 216, 64)
}

pub fn place(site: Site, queue: &Queue, offset_s: u64, width_per_node: u32) -> Place {
    Place {
        site,
        queue: queue.clone(),
        offset_s,
        width_per_node,
    }
}

/// A run of `H` 500 and `B` 8 over these sites.
pub fn scene(target: Windows, places: Vec<Place>) -> Scene {
    Scene {
        places,
        run: RunState {
            target,
            corpus: target,
            seq_len: 2048,
            phase: Phase {
                steps: Steps(500),
                batch: Windows(8),
                accumulation: 1,
            },
            merge: cost(17),
            evaluation: None,
        },
        policy: Policy::default(),
        horizon: Duration::from_secs(14 * DAY_S),
        replicas_max: 2,
        accumulation_max: 8,
    }
}

impl Trace {
    fn new(name: &'static str, width: u32, jobs: Vec<TraceJob>, from_s: u64) -> Self {
        let last_s = jobs.last().map_or(0, |job| job.submit_s);
        Self {
            name,
            width,
            jobs,
            from_s: from_s.min(last_s / 4),
            until_s: last_s,
        }
    }

    /// Jobs that all run to their limits are more work: then the machine is larger by as much, or its
    /// queue would only ever grow.
    pub fn queue(&self, walltimes: Walltimes) -> Queue {
        let work = |length_s: fn(&TraceJob) -> u64| -> u64 {
            let jobs = self.jobs.iter();
            jobs.map(|job| u64::from(job.width) * length_s(job)).sum()
        };
        let (full, real) = (work(|job| job.limit_s), work(|job| job.run_s).max(1));
        let width = match walltimes {
            Walltimes::Realised => u64::from(self.width),
            Walltimes::Full => u64::from(self.width) * full / real,
        };
        Queue::new(width.try_into().unwrap(), walltimes, &self.jobs)
    }

    /// The queue, and probes for small and large, short and long jobs, spread over the trace.
    pub fn probed(&self, walltimes: Walltimes, probes: u32) -> (Queue, Setting) {
        let part = |percent: u32| (self.width * percent / 100).max(1);
        let setting = Setting {
            from_s: self.from_s,
            every_s: (self.until_s - self.from_s) / u64::from(probes.max(1)),
            probes,
            shapes: vec![
                (part(4), 2 * HOUR_S, 2 * HOUR_S),
                (part(16), 4 * HOUR_S, 4 * HOUR_S),
                (part(48), 8 * HOUR_S, 8 * HOUR_S),
                (part(16), 24 * HOUR_S, 24 * HOUR_S),
            ],
            patience_s: 30 * DAY_S,
        };
        (self.queue(walltimes), setting)
    }
}

fn stated<T>(value: T) -> Fact<T> {
    let key = "stated".to_owned();
    Fact {
        value,
        source: Source::Profile { key },
        at: WallMs(0),
    }
}

fn cost(seconds: u64) -> Cost {
    Cost {
        measured: None,
        stated: Some(stated(Duration::from_secs(seconds))),
    }
}

/// A site with three shapes of 4, 16 and 48 nodes, and of 4, 8 and 24 hours.
fn site(name: &str, gpus: u32, windows_per_gpu_s: f64, startup_s: u64, transfer_s: u64) -> Site {
    let shape = |(nodes, hours): (u32, u64)| {
        ShapeState::new(Shape {
            name: format!("{nodes}x{hours}h").as_str().into(),
            partition: "batch".into(),
            account: None,
            qos: None,
            nodes,
            gpus_per_node: gpus,
            walltime: Duration::from_secs(hours * HOUR_S),
        })
    };
    Site {
        name: name.parse().unwrap(),
        shapes: [(4, 24), (16, 8), (48, 4)].map(shape).to_vec(),
        partitions: BTreeMap::new(),
        rate: Some(stated(WindowsPerGpuS(windows_per_gpu_s))),
        startup: cost(startup_s),
        transfer: cost(transfer_s),
        evaluation: Cost::UNKNOWN,
        leaves_before: None,
        limits: Limits::default(),
        budget: None,
        closed: Vec::new(),
        chain: stated(ChainPolicy::AfterEnd),
        jobs: Vec::new(),
    }
}
