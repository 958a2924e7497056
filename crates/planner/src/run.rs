//! What is known of the run, and how a person wants it planned.
//!
//! Never here: anything about a site; that is a [`Site`].

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use hansa_base::{Steps, Windows};

use crate::fact::{Cost, Fact, WallMs};
use crate::site::Site;

/// Everything a plan is made from. Equal snapshots give equal plans.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// When it was taken: the zero of every "in" and "after" of a plan.
    pub now: WallMs,
    /// The run.
    pub run: RunState,
    /// The facilities, in the order in which ties are decided.
    pub sites: Vec<Site>,
    /// How to plan.
    pub policy: Policy,
}

/// The run as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct RunState {
    /// Windows until the target is reached.
    pub target: Windows,
    /// Windows that the corpus can still give, over all epochs the recipe allows.
    pub corpus: Windows,
    /// Target tokens of a window.
    pub seq_len: u32,
    /// The base phase of the recipe.
    pub phase: Phase,
    /// Reading all contributions and writing the next generation, per round.
    pub merge: Cost,
    /// Evaluation by every member in every round; `None` where there is none.
    pub evaluation: Option<Evaluation>,
}

/// `H`, `B` and `A` of a phase; the ranks are each shape's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// `H`: inner steps between two exchanges.
    pub steps: Steps,
    /// `B`: windows a rank takes per micro-batch.
    pub batch: Windows,
    /// `A`: micro-batches of a step.
    pub accumulation: u32,
}

/// An evaluation by every member, between download and the next phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Held-out windows.
    pub windows: Windows,
    /// How many times faster than training a window is evaluated (forward only: about 3).
    pub speedup: f64,
}

/// How the members' exchanges (transfer and evaluation) of one round lie in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// One member after the other, when the slowest has trained: `max(compute) + Σ exchange`.
    Series,
    /// Each as soon as it has trained: `max(compute + exchange)`.
    Overlapped,
}

/// Which quantile of a wait a plan counts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantile {
    /// The median: right half of the time.
    P50,
    /// The cautious one: right nine times of ten.
    P90,
}

/// How a person wants it planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// `s` of the discount `w·(1 − s·(1 − usage))`, 0 to 1.
    pub strength: f64,
    /// Pairs of prediction and reality from which on history replaces the discount.
    pub pairs_min: u32,
    /// Which quantile is counted on.
    pub quantile: Quantile,
    /// A probe older than this excludes its shape.
    pub probe_age_max: Duration,
    /// `ρ`: walltime a job asks for beyond what it needs, for others that start later.
    pub reserve: Duration,
    /// The fewest units that are worth a job.
    pub units_min: u64,
    /// How exchanges lie in time.
    pub exchange: Exchange,
}

impl Default for Policy {
    /// The published system's choices where it states them (`s` 0.5, probe age 6 h), cautious ones
    /// elsewhere.
    fn default() -> Self {
        Self {
            strength: 0.5,
            pairs_min: 20,
            quantile: Quantile::P50,
            probe_age_max: Duration::from_secs(6 * 3600),
            reserve: Duration::ZERO,
            units_min: 1,
            exchange: Exchange::Overlapped,
        }
    }
}

/// A snapshot that no plan can be made from.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("snapshot: {place} is {value}, but {rule}; correct it at its source ({origin})")]
pub struct Invalid {
    /// Which number.
    pub place: String,
    /// What it is.
    pub value: f64,
    /// What it must be.
    pub rule: &'static str,
    /// Who says so.
    pub origin: String,
}

impl Snapshot {
    /// Checks what every calculation relies on: fractions within 0 to 1, speeds and counts above 0.
    ///
    /// # Errors
    /// The first number that breaks its rule, with its place and source.
    pub fn validate(&self) -> Result<(), Invalid> {
        let (run, policy) = (&self.run, &self.policy);
        let recipe = "recipe";
        fraction("policy.strength", policy.strength, "policy")?;
        at_least_one("policy.pairs_min", policy.pairs_min.into(), "policy")?;
        at_least_one("policy.units_min", policy.units_min, "policy")?;
        at_least_one("run.seq_len", run.seq_len.into(), recipe)?;
        at_least_one("run.phase.steps", run.phase.steps.0, recipe)?;
        at_least_one("run.phase.batch", run.phase.batch.0, recipe)?;
        at_least_one(
            "run.phase.accumulation",
            run.phase.accumulation.into(),
            recipe,
        )?;
        if let Some(evaluation) = run.evaluation {
            positive("run.evaluation.speedup", evaluation.speedup, recipe)?;
        }
        once("site", self.sites.iter().map(|site| &site.name))?;
        self.sites.iter().try_for_each(validate_site)
    }
}

/// Whatever is there twice would be counted twice.
fn once<T: Ord + fmt::Display>(what: &str, names: impl Iterator<Item = T>) -> Result<(), Invalid> {
    let mut seen = BTreeSet::new();
    for name in names {
        let place = format!("the number of entries of {what} {name}");
        rule(!seen.contains(&name), &place, 2.0, "must be 1", "snapshot")?;
        seen.insert(name);
    }
    Ok(())
}

fn validate_site(site: &Site) -> Result<(), Invalid> {
    let place = |what: &str| format!("site {}: {what}", site.name);
    for (partition, state) in &site.partitions {
        if let Some(usage) = &state.usage {
            let what = place(&format!("usage of {partition}"));
            fraction(&what, usage.value, &usage.source.to_string())?;
        }
    }
    let rates = site.shapes.iter().map(|s| (&s.shape.name.0[..], &s.rate));
    for (what, rate) in rates.chain([("any shape", &site.rate)]) {
        if let Some(Fact { value, source, .. }) = rate {
            positive(
                &place(&format!("rate of {what}")),
                value.0,
                &source.to_string(),
            )?;
        }
    }
    let names = site.shapes.iter().map(|state| &state.shape.name);
    once(&place("shape"), names)?;
    for state in &site.shapes {
        let shape = &state.shape;
        let counts = [
            ("nodes", shape.nodes.into()),
            ("GPUs per node", shape.gpus_per_node.into()),
            ("walltime in minutes", shape.walltime.as_secs() / 60),
        ];
        for (what, count) in counts {
            let what = place(&format!("{what} of {}", shape.name));
            at_least_one(&what, count, "site profile")?;
        }
        if let Some(ranks) = &state.ranks {
            let (value, source) = (ranks.value.into(), ranks.source.to_string());
            at_least_one(&place(&format!("ranks of {}", shape.name)), value, &source)?;
        }
    }
    if let Some(budget) = &site.budget {
        let source = budget.gpu_hours.source.to_string();
        finite(&place("budget"), budget.gpu_hours.value, &source)?;
        finite(&place("budget to keep"), budget.keep_gpu_hours, &source)?;
    }
    Ok(())
}

fn rule(
    holds: bool,
    place: &str,
    value: f64,
    rule: &'static str,
    origin: &str,
) -> Result<(), Invalid> {
    if holds {
        return Ok(());
    }
    Err(Invalid {
        place: place.to_owned(),
        value,
        rule,
        origin: origin.to_owned(),
    })
}

fn fraction(place: &str, value: f64, origin: &str) -> Result<(), Invalid> {
    let holds = (0.0..=1.0).contains(&value);
    rule(holds, place, value, "must lie between 0 and 1", origin)
}

fn positive(place: &str, value: f64, origin: &str) -> Result<(), Invalid> {
    let holds = value.is_finite() && value > 0.0;
    rule(holds, place, value, "must be above 0", origin)
}

fn finite(place: &str, value: f64, origin: &str) -> Result<(), Invalid> {
    rule(value.is_finite(), place, value, "must be a number", origin)
}

fn at_least_one(place: &str, value: u64, origin: &str) -> Result<(), Invalid> {
    #[allow(clippy::cast_precision_loss)] // Only printed.
    let shown = value as f64;
    rule(value > 0, place, shown, "must be at least 1", origin)
}
