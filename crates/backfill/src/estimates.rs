//! Estimates of waits against what came of them.
//!
//! At many instants of a replay one probe is made, as a collector would, and a job submitted in a copy
//! of the world, so that the replay itself goes on undisturbed. Each estimator sees only what was known
//! at its instant: a past job is known from its start on.

use std::time::Duration;

use hansa_planner::{Fact, PartitionState, Policy, Source, WaitPair, WallMs, wait};

use crate::queue::Queue;

/// How a wait is estimated from a probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Estimator {
    /// The discount with this strength; 0 is the probe as it is.
    Discount(f64),
    /// Quantiles of what came of alike probes; the discount of 0.5 while there are too few.
    Learned,
}

/// When and what is probed.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The first probe.
    pub from_s: u64,
    /// From one to the next.
    pub every_s: u64,
    /// How many.
    pub probes: u32,
    /// Width, limit and real length of the jobs, in turns.
    pub shapes: Vec<(u32, u64, u64)>,
    /// A job that has not started by then is left out.
    pub patience_s: u64,
}

/// How good an estimator was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// Which.
    pub estimator: Estimator,
    /// Probes that came to something.
    pub probes: usize,
    /// Of these, jobs that really waited more than a minute.
    pub waited: usize,
    /// The median of |p50 − real|.
    pub error_s: f64,
    /// The same, of jobs that really waited.
    pub error_of_waiting_s: f64,
    /// The mean of p50 − real: above 0 is pessimistic.
    pub bias_s: f64,
    /// The share of jobs that started before p90.
    pub coverage: f64,
}

struct Seen {
    error_s: f64,
    covered: bool,
    waited: bool,
}

/// Replays `queue` and compares. The same input gives the same answer.
#[must_use]
pub fn estimates(mut queue: Queue, setting: &Setting, estimators: &[Estimator]) -> Vec<Quality> {
    let mut seen: Vec<Vec<Seen>> = estimators.iter().map(|_| Vec::new()).collect();
    let mut history: Vec<WaitPair> = Vec::new();
    for (i, &(width, limit_s, run_s)) in
        (0..u64::from(setting.probes)).zip(setting.shapes.iter().cycle())
    {
        queue.run_until(setting.from_s + i * setting.every_s);
        let Some(pair) = probe(&queue, (width, limit_s, run_s), setting.patience_s) else {
            continue;
        };
        let (usage, now) = (queue.usage(), wall(queue.now_s()));
        for (estimator, seen) in estimators.iter().zip(&mut seen) {
            let known = history.iter().filter(|pair| pair.at <= now).copied();
            let estimate = estimate(*estimator, pair.predicted, usage, known.collect(), now);
            seen.push(Seen {
                error_s: estimate.p50.as_secs_f64() - pair.real.as_secs_f64(),
                covered: pair.real <= estimate.p90,
                waited: pair.real > Duration::from_secs(60),
            });
        }
        history.push(pair);
    }
    estimators
        .iter()
        .zip(seen)
        .map(|(e, seen)| quality(*e, &seen))
        .collect()
}

/// What Slurm would say now, and what really comes of a job submitted now.
pub(crate) fn probe(queue: &Queue, shape: (u32, u64, u64), patience_s: u64) -> Option<WaitPair> {
    let (width, limit_s, run_s) = shape;
    let now_s = queue.now_s();
    let predicted_s = queue.test_only(width)?.saturating_sub(now_s);
    let mut world = queue.clone();
    let job = world.submit(width, limit_s, run_s);
    let start_s = world.until_started(job, now_s + patience_s)?;
    Some(WaitPair {
        predicted: Duration::from_secs(predicted_s),
        real: Duration::from_secs(start_s - now_s),
        at: wall(start_s),
    })
}

pub(crate) fn wall(now_s: u64) -> WallMs {
    WallMs(now_s.saturating_mul(1000))
}

pub(crate) fn said<T>(value: T, at: WallMs) -> Fact<T> {
    let source = Source::Probe {
        prober: "replay".to_owned(),
    };
    Fact { value, source, at }
}

fn estimate(
    estimator: Estimator,
    predicted: Duration,
    usage: Option<f64>,
    known: Vec<WaitPair>,
    now: WallMs,
) -> hansa_planner::Wait {
    let (strength, history) = match estimator {
        Estimator::Discount(strength) => (strength, Vec::new()),
        Estimator::Learned => (0.5, known),
    };
    let partition = PartitionState {
        usage: usage.map(|usage| said(usage, now)),
        history,
        walltime_max: None,
    };
    let policy = Policy {
        strength,
        ..Policy::default()
    };
    wait(said(predicted, now), &partition, &policy)
}

#[allow(clippy::cast_precision_loss)] // Hundreds of probes.
fn quality(estimator: Estimator, seen: &[Seen]) -> Quality {
    let median = |mut errors: Vec<f64>| {
        errors.sort_by(f64::total_cmp);
        errors.get(errors.len() / 2).copied().unwrap_or(0.0)
    };
    let count = seen.len().max(1) as f64;
    let waiting = seen.iter().filter(|seen| seen.waited);
    Quality {
        estimator,
        probes: seen.len(),
        waited: waiting.clone().count(),
        error_s: median(seen.iter().map(|seen| seen.error_s.abs()).collect()),
        error_of_waiting_s: median(waiting.map(|seen| seen.error_s.abs()).collect()),
        bias_s: seen.iter().map(|seen| seen.error_s).sum::<f64>() / count,
        coverage: seen.iter().filter(|seen| seen.covered).count() as f64 / count,
    }
}
