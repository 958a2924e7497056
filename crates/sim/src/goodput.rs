//! Eight replicas in bad weather: what their time goes into.
//!
//! Processes die at random and come back on the same disk after a while; nothing else goes wrong. A
//! phase takes a minute, an exchange about two seconds.

use crate::host::{Life, Process};
use crate::random::Random;
use crate::setting::{Costs, Setting, spec};
use crate::world::{Happening, World};
use hansa_base::{Steps, Windows};
use hansa_protocol::{Activity, CloseRecord, End, GraceRule, PhaseSpec};
use std::collections::BTreeMap;
use std::time::Duration;

const REPLICAS: u64 = 8;
/// A step takes that long.
pub const STEP_MS: u64 = 2000;
const STEPS: u64 = 30;
const STEP_WINDOWS: u64 = 1;

/// How often processes die, and how long they are away.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Deaths an hour, of all replicas together.
    pub faults_per_hour: f64,
    /// How long a host needs to come back.
    pub back_ms: u64,
    /// The production clamps of the leases' TTL, not ten seconds.
    pub production: bool,
    /// About how long the run takes.
    pub hours: u64,
}

/// What live processes spent their time on, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spent {
    /// All of it, from a process's start to its end or the run's.
    pub live_ms: u64,
    /// Steps, whatever became of them.
    pub training_ms: u64,
    /// Registering, and taking up a checkpoint.
    pub starting_ms: u64,
    /// Fetching generations.
    pub downloading_ms: u64,
    /// Checkpoints, encoding.
    pub checkpointing_ms: u64,
    /// Announcing, uploading.
    pub uploading_ms: u64,
    /// Waiting for others after contributing.
    pub barrier_ms: u64,
    /// Waiting for the merge.
    pub merge_ms: u64,
    /// Waiting for the next round, or for something free, without having contributed.
    pub idle_ms: u64,
    /// Anything else.
    pub other_ms: u64,
    /// Windows trained, whatever became of them.
    pub windows_trained: u64,
    /// Processes that died.
    pub deaths: u64,
    /// Per round: contributions merged, and replicas alive when it closed.
    pub rounds: Vec<(u32, u32)>,
}

impl Spent {
    /// A round closes.
    pub fn round(&mut self, processes: &BTreeMap<Life, Process>, record: &CloseRecord) {
        let merged = record.contributions.len() as u32;
        self.rounds.push((merged, processes.len() as u32));
    }

    /// Mean share of live replicas whose contribution is merged.
    #[must_use]
    pub fn participation(&self) -> f64 {
        let share =
            |(merged, live): &(u32, u32)| f64::from(*merged) / f64::from((*live).max(*merged));
        self.rounds.iter().map(share).sum::<f64>() / self.rounds.len().max(1) as f64
    }

    /// Committed windows over what live replicas could have trained in all of their time.
    #[must_use]
    pub fn goodput(&self, committed: Windows) -> f64 {
        let rate = STEP_WINDOWS as f64 / STEP_MS as f64;
        committed.0 as f64 / (self.live_ms as f64 * rate)
    }

    /// Milliseconds of training that are in no published weights.
    #[must_use]
    pub fn lost_ms(&self, committed: Windows) -> u64 {
        let lost = self.windows_trained.saturating_sub(committed.0);
        lost * STEP_MS / STEP_WINDOWS
    }
}

impl Setting {
    pub fn of_weather(random: &mut Random, weather: &Weather) -> Self {
        let mut spec = spec(random);
        let hour = REPLICAS * 3600 * STEP_WINDOWS * 1000 / STEP_MS;
        spec.digest.windows = Windows(hour * weather.hours);
        spec.digest.block = Windows(10);
        spec.phase = PhaseSpec {
            steps: Steps(STEPS),
            batch: Windows(STEP_WINDOWS),
            accumulation: 1,
            balance: true,
        };
        let (floor_s, ceiling_s) = if weather.production {
            (60, 1800)
        } else {
            (10, 60)
        };
        spec.timing.ttl_min = Duration::from_secs(floor_s);
        spec.timing.ttl_max = Duration::from_secs(ceiling_s);
        spec.timing.session_ttl = Duration::from_secs(floor_s);
        spec.timing.grace = Duration::from_secs(10);
        spec.timing.grace_rule = GraceRule::Fixed;
        (spec.min_quorum, spec.evaluate_every, spec.attempts_max) = (1, 0, 3);
        spec.end = End::Epochs(1);
        Self {
            spec,
            hosts: REPLICAS,
            faults_until: 0,
            loss: u64::MAX,
            doubled: u64::MAX,
            slow: u64::MAX,
            coordinator_crash: u64::MAX,
            deterministic: true,
            outliers: false,
            poison: None,
            jitter: (97, 103),
            costs: Costs {
                chunk_ms: (100, 400),
                job_ms: (300, 700),
                merge_ms: (200, 400),
                write_ms: (20, 100),
                checkpoint_ms: (10_000, 10_000),
            },
        }
    }
}

impl World {
    /// The next death is so far away as chance will have it.
    pub fn next_death(&mut self) {
        let Some(weather) = self.options.weather.filter(|w| w.faults_per_hour > 0.0) else {
            return;
        };
        let uniform = (self.random.between(1, 1 << 32) as f64) / (1u64 << 32) as f64;
        let away_ms = -uniform.ln() * 3_600_000.0 / weather.faults_per_hour;
        self.after(away_ms as u64 + 1, Happening::Dies);
    }

    /// One of the hosts that are up.
    pub fn one_dies(&mut self) {
        let Some(weather) = self.options.weather else {
            return;
        };
        let up: Vec<usize> = (0..self.hosts.len())
            .filter(|host| self.hosts[*host].current.is_some())
            .collect();
        if !up.is_empty() {
            let host = up[self.random.next() as usize % up.len()];
            if let Some(life) = self.hosts[host].current.take() {
                self.processes.remove(&life);
                self.spent.deaths += 1;
                self.after(weather.back_ms, Happening::Starts(host));
            }
        }
        self.next_death();
    }

    /// Time passes until `until`: what does every process do?
    pub fn account(&mut self, until: u64) {
        let ms = until - self.now;
        if ms == 0 || self.options.weather.is_none() || self.coordinator.twin.ended {
            return;
        }
        for process in self.processes.values() {
            let spent = &mut self.spent;
            spent.live_ms += ms;
            let bucket = match process.machine.activity() {
                Activity::Training => &mut spent.training_ms,
                Activity::Starting => &mut spent.starting_ms,
                Activity::Downloading => &mut spent.downloading_ms,
                Activity::Checkpointing => &mut spent.checkpointing_ms,
                Activity::Uploading => &mut spent.uploading_ms,
                Activity::Waiting => {
                    let twin = &self.coordinator.twin;
                    let id = &self.hosts[process.host].id;
                    let contributed = twin.find(id).and_then(|(_, replica)| replica.contributed);
                    if twin.round.phase != hansa_protocol::RoundPhase::Open {
                        &mut spent.merge_ms
                    } else if contributed == Some(twin.round.base) {
                        &mut spent.barrier_ms
                    } else {
                        &mut spent.idle_ms
                    }
                }
                Activity::Evaluating | Activity::Leaving => &mut spent.other_ms,
            };
            *bucket += ms;
        }
    }
}
