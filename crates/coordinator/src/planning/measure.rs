//! What the run itself has shown of speeds and costs.
//!
//! A replica says how it spent a round without saying in which job it was; the queue knows which job of
//! it runs. So a round is attributed when its times arrive, and kept. After a restart of the coordinator
//! old rounds count only for a replica whose jobs were all of one shape. Never here: clocks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hansa_base::{Incarnation, ReplicaId, ReplicaKey, SiteName};
use hansa_planner::{Fact, Source, WallMs, WindowsPerGpuS};
use hansa_protocol::PhaseTimes;
use hansa_queue::{IntentId, Shape, ShapeName, State};

use super::facts::{ROUNDS, ROUNDS_LATER, ReplicaFacts, RunFacts};

/// Samples that are kept of each number; their median counts.
const SAMPLES: usize = 20;

/// Values and when the newest of them became known.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    values: VecDeque<f64>,
    at: WallMs,
}

impl Samples {
    fn push(&mut self, value: f64, at: WallMs) {
        if self.values.len() >= SAMPLES {
            self.values.pop_front();
        }
        self.values.push_back(value);
        self.at = at;
    }

    fn count(&self) -> u32 {
        u32::try_from(self.values.len()).unwrap_or(u32::MAX)
    }

    fn mean(&self) -> f64 {
        self.values.iter().sum::<f64>() / self.values.len().max(1) as f64
    }

    fn median(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.values.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let upper = *sorted.get(sorted.len() / 2)?;
        match sorted.len().is_multiple_of(2) {
            true => Some((sorted[sorted.len() / 2 - 1] + upper) / 2.0),
            false => Some(upper),
        }
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    merge_s: Samples,
    /// Windows per second and accelerator.
    rates: BTreeMap<(SiteName, ShapeName), Samples>,
    ranks: BTreeMap<(SiteName, ShapeName), (u32, WallMs)>,
    /// Upload, download and local checkpoints of a round.
    transfer_s: BTreeMap<SiteName, Samples>,
    /// Held-out evaluation: most rounds have none.
    evaluation_s: BTreeMap<SiteName, Samples>,
    startup_s: BTreeMap<SiteName, Samples>,
    /// What has been counted.
    merges: BTreeSet<u64>,
    times: BTreeSet<(u64, ReplicaKey)>,
    starts: BTreeSet<IntentId>,
    /// Since when each replica's incarnation trains; `None` if it did when this began.
    training: BTreeMap<ReplicaId, (Incarnation, Option<WallMs>)>,
    /// When this began: earlier starts were not seen.
    began: Option<WallMs>,
}

impl Measured {
    /// So many rounds are of interest at the next look.
    pub(crate) const fn rounds(&self) -> usize {
        match self.began {
            Some(_) => ROUNDS_LATER,
            None => ROUNDS,
        }
    }

    /// Takes in what the run and its queues show at `now`.
    pub(crate) fn learn(&mut self, run: &RunFacts, queue: &State, now: WallMs) {
        for round in &run.rounds {
            if self.merges.insert(round.base) {
                self.merge_s.push(round.merge_ms as f64 / 1e3, now);
            }
            for (key, times) in &round.times {
                // Once: a second look would find the job that runs then.
                if !self.times.insert((round.base, *key)) {
                    continue;
                }
                let Some(replica) = run.replicas.get(key.0 as usize) else {
                    continue;
                };
                let shape = match self.began {
                    Some(_) => running_shape(queue, &replica.id),
                    None => only_shape(queue, &replica.id),
                };
                if let Some(shape) = shape {
                    self.round(replica, shape, times, now);
                }
            }
        }
        self.starts(run, queue, now);
        self.began = self.began.or(Some(now));
        let newest = run.rounds.last().map_or(0, |round| round.base);
        let oldest = newest.saturating_sub(ROUNDS as u64);
        self.merges.retain(|base| *base >= oldest);
        self.times.retain(|(base, _)| *base >= oldest);
        self.starts.retain(|id| queue.intents.contains_key(id));
    }

    fn round(&mut self, replica: &ReplicaFacts, shape: &Shape, times: &PhaseTimes, now: WallMs) {
        let key = (replica.id.site.clone(), shape.name.clone());
        self.ranks.insert(key.clone(), (replica.ranks, now));
        if times.train_ms > 0 && times.trained.0 > 0 {
            let per_s = times.trained.0 as f64 / (times.train_ms as f64 / 1e3);
            let rate = per_s / f64::from(gpus(shape));
            self.rates.entry(key).or_default().push(rate, now);
        }
        let site = &replica.id.site;
        let moved = times.download_ms.saturating_add(times.upload_ms);
        let moved = moved.saturating_add(times.checkpoint_ms);
        let transfer = self.transfer_s.entry(site.clone()).or_default();
        transfer.push(moved as f64 / 1e3, now);
        let evaluation = self.evaluation_s.entry(site.clone()).or_default();
        evaluation.push(times.evaluate_ms as f64 / 1e3, now);
    }

    /// From a job's start until its replica trains.
    fn starts(&mut self, run: &RunFacts, queue: &State, now: WallMs) {
        for replica in &run.replicas {
            let Some(incarnation) = replica.training else {
                continue;
            };
            let known = self.training.get(&replica.id);
            if known.is_none_or(|(known, _)| *known != incarnation) {
                let since = (incarnation, self.began.map(|_| now));
                self.training.insert(replica.id.clone(), since);
            }
        }
        for intent in queue.intents.values().filter(|intent| intent.is_running()) {
            let (intention, id) = (&intent.intention, intent.intention.intent);
            let report = intent.job.as_ref().and_then(|job| job.report.as_ref());
            let Some(started) = report.and_then(|report| report.started) else {
                continue;
            };
            let replica = ReplicaId {
                site: intention.site.clone(),
                replica: intention.replica.clone(),
            };
            let started = WallMs(started.0.saturating_mul(1000));
            // After a restart all that train are heard of anew, hours after their jobs started.
            if self.began.is_none_or(|began| started < began) {
                continue;
            }
            if let Some((_, Some(since))) = self.training.get(&replica)
                && *since > started
                && self.starts.insert(id)
            {
                let seconds = since.since(started).as_secs_f64();
                let site = self.startup_s.entry(replica.site.clone()).or_default();
                site.push(seconds, now);
            }
        }
    }

    /// A merge.
    pub(super) fn merge(&self) -> Option<Fact<Duration>> {
        rounds(&self.merge_s)
    }

    /// One accelerator in a shape.
    pub(super) fn rate(&self, site: &SiteName, shape: &ShapeName) -> Option<Fact<WindowsPerGpuS>> {
        rate(self.rates.get(&(site.clone(), shape.clone()))?)
    }

    /// One accelerator of a site, in the shape that was measured last.
    pub(super) fn rate_of_any(&self, site: &SiteName) -> Option<Fact<WindowsPerGpuS>> {
        let of_site = self.rates.iter().filter(|((name, _), _)| name == site);
        rate(of_site.max_by_key(|(_, samples)| samples.at)?.1)
    }

    /// Ranks of a replica in a shape.
    pub(super) fn ranks(&self, site: &SiteName, shape: &ShapeName) -> Option<Fact<u32>> {
        let (value, at) = *self.ranks.get(&(site.clone(), shape.clone()))?;
        Some(Fact {
            value,
            source: Source::RunRecords { rounds: 1 },
            at,
        })
    }

    /// What a round costs a member beside training: transfers and local checkpoints, and its mean share
    /// of evaluations.
    pub(super) fn transfer(&self, site: &SiteName) -> Option<Fact<Duration>> {
        let mut fact = rounds(self.transfer_s.get(site)?)?;
        let evaluation = self.evaluation_s.get(site).map_or(0.0, Samples::mean);
        fact.value += duration(evaluation);
        Some(fact)
    }

    /// From a job's start until its replica trains.
    pub(super) fn startup(&self, site: &SiteName) -> Option<Fact<Duration>> {
        let samples = self.startup_s.get(site)?;
        Some(Fact {
            value: duration(samples.median()?),
            source: Source::JobLogs {
                jobs: samples.count(),
            },
            at: samples.at,
        })
    }
}

/// Accelerators of a job; one without is counted by its nodes.
pub(super) fn gpus(shape: &Shape) -> u32 {
    shape
        .nodes
        .saturating_mul(shape.gpus_per_node.max(1))
        .max(1)
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

fn rounds(samples: &Samples) -> Option<Fact<Duration>> {
    Some(Fact {
        value: duration(samples.median()?),
        source: Source::RunRecords {
            rounds: samples.count(),
        },
        at: samples.at,
    })
}

fn rate(samples: &Samples) -> Option<Fact<WindowsPerGpuS>> {
    Some(Fact {
        value: WindowsPerGpuS(samples.median()?),
        source: Source::RunRecords {
            rounds: samples.count(),
        },
        at: samples.at,
    })
}

/// The shape of a replica's job that runs now.
fn running_shape<'a>(queue: &'a State, id: &'a ReplicaId) -> Option<&'a Shape> {
    let mut live = queue.live_of(&id.site, &id.replica);
    let running = live.find(|intent| intent.is_running())?;
    Some(&running.intention.shape)
}

/// The shape of all jobs of a replica that are remembered, if it is one.
fn only_shape<'a>(queue: &'a State, id: &ReplicaId) -> Option<&'a Shape> {
    let mut shapes = queue.intents.values().filter_map(|intent| {
        let intention = &intent.intention;
        let same = intention.site == id.site && intention.replica == id.replica;
        same.then_some(&intention.shape)
    });
    let first = shapes.next()?;
    shapes.all(|shape| shape == first).then_some(first)
}
