//! One whole exchange: a real coordinator and real sessions in processes of their own, over real
//! sockets, with a model of real shapes and a trainer that only pretends to train.
//!
//! Beside it, the floor: as many bytes copied over loopback TCP into files, and one pass over the fp32
//! state, with the same fsyncs. Never here: what a step of training costs.

mod copy;
mod replica;
mod synthetic;
mod watch;
mod world;

pub use replica::{ReplicaTask, run_replica};
pub use world::Plan;

use world::World;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;
use serde_json::Value;

use crate::floor::{Traffic, move_bytes};
use crate::measure::median;
use watch::{Peak, Program};

/// Nothing may take longer than this without an event.
const SILENCE_MAX: Duration = Duration::from_secs(600);

/// What is started to be measured.
#[derive(Clone, Debug)]
pub struct Programs {
    /// This program.
    pub exe: PathBuf,
    /// What starts a replica's program, if not this one: words before the program's name, such as
    /// `ip netns exec far-away`.
    pub replicas_with: Vec<String>,
}

/// What one round cost: seconds of the slowest replica for each step.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Round {
    /// From the end of training to the first byte: the pseudo-gradient, its hashes, the announcement.
    pub encode_s: f64,
    /// Bytes on their way up.
    pub upload_s: f64,
    /// The coordinator's fsync and checks.
    pub verify_s: f64,
    /// The merge, as the coordinator says.
    pub merge_s: f64,
    /// From the last acceptance to the first byte down, without the merge: closing, journal, notice.
    pub publish_s: f64,
    /// Bytes on their way down, fsync and hashing included.
    pub download_s: f64,
    /// From the end of training to the next generation loaded everywhere.
    pub total_s: f64,
}

/// A process and its memory.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// Which process.
    pub process: String,
    /// Largest sum of anonymous and shared memory that was seen.
    pub peak_anon_shmem_bytes: u64,
    /// Largest resident set, the program and mapped files included.
    pub peak_resident_bytes: u64,
}

/// How long calls for control took while weights travelled.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Heartbeats {
    /// How many were answered.
    pub count: usize,
    /// In the middle.
    pub median_ms: f64,
    /// At the most.
    pub longest_ms: f64,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The model's name.
    pub model: String,
    /// Sites that took part.
    pub sites: usize,
    /// Bytes of one contribution.
    pub contribution_bytes: u64,
    /// Bytes of one model.
    pub model_bytes: u64,
    /// Every round but the first, which also starts the programs.
    pub rounds: Vec<Round>,
    /// The medians.
    pub median: Round,
    /// Bytes of all contributions over the time that they took, per second.
    pub upload_goodput_bytes_per_s: f64,
    /// Bytes of all downloads over the time that they took, per second.
    pub download_goodput_bytes_per_s: f64,
    /// The floor, as often.
    pub floors: Vec<Floor>,
    /// The medians.
    pub floor: Floor,
    /// The whole exchange over the floor; medians of both.
    pub ratio: f64,
    /// Of all replicas, from the first to the last.
    pub heartbeats: Heartbeats,
    /// Of each process.
    pub memory: Vec<Memory>,
}

/// Seconds of the floor's parts; medians.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Floor {
    /// As many bytes as all contributions, over loopback TCP into synced files.
    pub up_s: f64,
    /// The fp32 state read and written anew, and the outgoing model written, synced.
    pub state_s: f64,
    /// As many bytes as all downloads, over loopback TCP into synced files.
    pub down_s: f64,
    /// All of it.
    pub total_s: f64,
}

/// Runs the exchange and its floor.
///
/// # Errors
/// If a process cannot be started, fails, or falls silent.
pub fn run(plan: &Plan, programs: &Programs) -> anyhow::Result<Report> {
    let world = World::prepare(plan)?;
    let mut coordinator =
        Program::start("coordinator", &[], &programs.exe, &world.serve_arguments())?;
    let listening = coordinator.wait_for("listening", SILENCE_MAX)?;
    // A run's first weights are drawn in memory.
    coordinator.forget_peak();
    let sites = world.admit_sites(&listening)?;
    let mut replicas = Vec::new();
    for site in &sites {
        let task = world.dir().join(format!("{}.json", site.name));
        let json = serde_json::to_vec(&world.replica_task(site)).context("write a task")?;
        std::fs::write(&task, json).with_context(|| format!("write {}", task.display()))?;
        let arguments = ["bench", "replica", &task.display().to_string()].map(str::to_owned);
        let with = &programs.replicas_with;
        replicas.push(Program::start(&site.name, with, &programs.exe, &arguments)?);
    }
    let mut stories = Vec::new();
    for replica in &mut replicas {
        stories.push(Story::of(replica.finish(SILENCE_MAX)?));
    }
    let ended = coordinator.finish(SILENCE_MAX)?;
    if !ended.iter().any(|event| event["run_over"] == true) {
        bail!("the coordinator ended before the run did; what it says on stderr tells why");
    }
    let merges = world.merge_seconds()?;
    let rounds = (1..=plan.runs)
        .map(|base| round(&stories, base, merges.get(&base).copied().unwrap_or(0.0)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let told = |size: fn(&Story) -> Option<u64>| stories.iter().find_map(size);
    let sizes = Sizes {
        contribution: told(|story| story.up_bytes).unwrap_or_else(|| world.contribution_bytes()),
        model: told(|story| story.down_bytes).unwrap_or_else(|| world.model_bytes()),
    };
    let mut memory: Vec<Memory> = replicas.iter().map(|replica| replica.memory()).collect();
    memory.insert(0, coordinator.memory());
    drop((coordinator, replicas));
    let floors = (0..plan.runs)
        .map(|_| floor(plan, &world, sizes))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let beats: Vec<f64> = stories.into_iter().flat_map(|s| s.heartbeats_ms).collect();
    Ok(report(plan, sizes, rounds, floors, &beats, memory))
}

/// Bytes of one file.
#[derive(Clone, Copy)]
struct Sizes {
    contribution: u64,
    model: u64,
}

/// When things happened to a replica, by base generation; seconds since 1970.
struct Story {
    rounds: BTreeMap<u64, Times>,
    /// Sizes of the files that travelled; none if that was so quick that nothing was told.
    up_bytes: Option<u64>,
    down_bytes: Option<u64>,
    heartbeats_ms: Vec<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    trained: f64,
    first_up: f64,
    last_up: f64,
    contributed: f64,
    first_down: f64,
    adopted: f64,
}

impl Story {
    fn of(events: Vec<Value>) -> Self {
        let mut rounds: BTreeMap<u64, Times> = BTreeMap::new();
        let (mut up_bytes, mut down_bytes) = (None, None);
        let mut heartbeats_ms = Vec::new();
        let mut base = 0;
        for event in events {
            let at = event["at_s"].as_f64().unwrap_or(0.0);
            let times = rounds.entry(base).or_default();
            let first = |time: &mut f64| {
                if *time == 0.0 {
                    *time = at;
                }
            };
            match event["event"].as_str().unwrap_or_default() {
                "step" => times.trained = at,
                "uploading" => {
                    first(&mut times.first_up);
                    times.last_up = at;
                    up_bytes = event["total_bytes"].as_u64();
                }
                "heartbeat_answered" => heartbeats_ms.extend(event["took_ms"].as_f64()),
                "contributed" => times.contributed = at,
                "downloading" if times.contributed > 0.0 => {
                    first(&mut times.first_down);
                    down_bytes = event["total_bytes"].as_u64();
                }
                "adopted" => {
                    let generation = event["generation"].as_u64().unwrap_or(0);
                    if times.contributed > 0.0 {
                        times.adopted = at;
                    }
                    base = generation;
                }
                _ => {}
            }
        }
        // What took no time was not told: a download that another replica had made, for one.
        for times in rounds.values_mut() {
            if times.first_up == 0.0 {
                (times.first_up, times.last_up) = (times.contributed, times.contributed);
            }
            if times.first_down == 0.0 {
                times.first_down = times.adopted;
            }
        }
        Self {
            rounds,
            up_bytes,
            down_bytes,
            heartbeats_ms,
        }
    }
}

fn round(stories: &[Story], base: u64, merge_s: f64) -> anyhow::Result<Round> {
    let all = stories.iter().map(|story| story.rounds.get(&base).copied());
    let all = all.collect::<Option<Vec<Times>>>();
    let all = all.filter(|all| all.iter().all(|times| times.adopted > 0.0));
    let all = all.with_context(|| format!("a replica took no part in round {base}"))?;
    let longest = |span: fn(&Times) -> f64| all.iter().map(span).fold(0.0, f64::max);
    let first = |time: fn(&Times) -> f64| all.iter().map(time).fold(f64::MAX, f64::min);
    let accepted = longest(|times| times.contributed);
    Ok(Round {
        encode_s: longest(|times| times.first_up - times.trained),
        upload_s: longest(|times| times.last_up - times.first_up),
        verify_s: longest(|times| times.contributed - times.last_up),
        merge_s,
        publish_s: (first(|times| times.first_down) - accepted - merge_s).max(0.0),
        download_s: longest(|times| times.adopted - times.first_down),
        total_s: longest(|times| times.adopted) - first(|times| times.trained),
    })
}

fn floor(plan: &Plan, world: &World, bytes: Sizes) -> anyhow::Result<Floor> {
    let up = copy::over_loopback(world.dir(), plan.sites, bytes.contribution)?;
    let state = world.state_files()?;
    let sizes = state
        .iter()
        .map(|path| std::fs::metadata(path).map(|m| m.len()));
    let mut writes = sizes.collect::<Result<Vec<u64>, _>>()?;
    writes.push(bytes.model);
    let passed = move_bytes(&Traffic {
        reads: state,
        writes,
        dir: world.dir().to_owned(),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        synced: true,
    })?;
    let down = copy::over_loopback(world.dir(), plan.sites, bytes.model)?;
    Ok(Floor {
        up_s: up.as_secs_f64(),
        state_s: passed.as_secs_f64(),
        down_s: down.as_secs_f64(),
        total_s: (up + passed + down).as_secs_f64(),
    })
}

fn report(
    plan: &Plan,
    bytes: Sizes,
    rounds: Vec<Round>,
    floors: Vec<Floor>,
    beats_ms: &[f64],
    memory: Vec<Memory>,
) -> Report {
    let of_rounds = |part: fn(&Round) -> f64| median(&rounds.iter().map(part).collect::<Vec<_>>());
    let of_floors = |part: fn(&Floor) -> f64| median(&floors.iter().map(part).collect::<Vec<_>>());
    let middle = Round {
        encode_s: of_rounds(|round| round.encode_s),
        upload_s: of_rounds(|round| round.upload_s),
        verify_s: of_rounds(|round| round.verify_s),
        merge_s: of_rounds(|round| round.merge_s),
        publish_s: of_rounds(|round| round.publish_s),
        download_s: of_rounds(|round| round.download_s),
        total_s: of_rounds(|round| round.total_s),
    };
    let floor = Floor {
        up_s: of_floors(|floor| floor.up_s),
        state_s: of_floors(|floor| floor.state_s),
        down_s: of_floors(|floor| floor.down_s),
        total_s: of_floors(|floor| floor.total_s),
    };
    let sites = plan.sites as f64;
    let up_s = (middle.upload_s + middle.verify_s).max(1e-9);
    Report {
        model: plan.model.clone(),
        sites: plan.sites,
        contribution_bytes: bytes.contribution,
        model_bytes: bytes.model,
        upload_goodput_bytes_per_s: sites * bytes.contribution as f64 / up_s,
        download_goodput_bytes_per_s: sites * bytes.model as f64 / middle.download_s.max(1e-9),
        ratio: middle.total_s / floor.total_s.max(1e-9),
        rounds,
        median: middle,
        floor,
        floors,
        heartbeats: Heartbeats {
            count: beats_ms.len(),
            median_ms: median(beats_ms),
            longest_ms: beats_ms.iter().copied().fold(0.0, f64::max),
        },
        memory,
    }
}

/// The memory that a watched process took at the most.
fn memory_of(name: &str, peak: Peak) -> Memory {
    Memory {
        process: name.to_owned(),
        peak_anon_shmem_bytes: peak.anon_shmem_bytes,
        peak_resident_bytes: peak.resident_bytes,
    }
}
