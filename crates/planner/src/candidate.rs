//! Which shapes a plan may use, and why it may not use the others.
//!
//! A shape becomes a [`Candidate`] only if every number a plan needs is there and fresh; otherwise it
//! is [`Excluded`] with a typed reason and the line of the site's profile that would change it. Never
//! here: a number made up for a missing one, or a choice between candidates.

use std::fmt;
use std::time::Duration;

use hansa_base::{SiteName, Windows};

use crate::fact::{Fact, Spell, WallMs};
use crate::run::Snapshot;
use crate::site::{Answer, Closed, Shape, ShapeName, ShapeState, Site, WindowsPerGpuS};
use crate::wait::{Wait, wait};

/// A shape with everything that a plan needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The site.
    pub site: SiteName,
    /// Its index in the snapshot.
    pub site_index: usize,
    /// The shape.
    pub shape: Shape,
    /// How long a job will wait, and what that rests on.
    pub wait: Wait,
    /// When a job submitted now is counted on to start: the wait at the policy's quantile, later
    /// where the site is closed.
    pub starts_in: Duration,
    /// The closed time that moved the start.
    pub moved_by: Option<Fact<Closed>>,
    /// How fast a job starts up, trains and exchanges.
    pub speed: Speed,
    /// The shape's walltime until its replica leaves, or what is left of it until the allocation ends.
    pub walltime: Duration,
    /// GPU-seconds that the site's budget has left; `None` where nobody counts.
    pub spendable_gpu_s: Option<f64>,
}

/// How fast a job of a shape starts up, trains and exchanges.
#[derive(Clone, Debug, PartialEq)]
pub struct Speed {
    /// From a job's start until its replica can train.
    pub startup: Fact<Duration>,
    /// Of one of its accelerators.
    pub rate: Fact<WindowsPerGpuS>,
    /// Whether the rate was measured in this shape, or is the site's per accelerator.
    pub rate_of: RateOf,
    /// Ranks of a replica in it.
    pub ranks: u32,
    /// Accelerators of a job.
    gpus: u32,
    /// What a round costs beyond training; the reason, where that is not known. The waterfill does
    /// not need it, the round simulator does.
    pub exchange: Result<ExchangeCost, Exclusion>,
}

/// What a speed was measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateOf {
    /// This very shape.
    ThisShape,
    /// One accelerator of the site, in whatever shape: multi-node losses are not in it.
    AnyShape,
}

/// What one member's part of a round costs beyond training.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeCost {
    /// Weights there and back.
    pub transfer: Fact<Duration>,
    /// The fixed part of an evaluation, if the run has one.
    pub evaluation: Option<Fact<Duration>>,
    /// The part that depends on windows and speed.
    pub evaluating: Duration,
}

impl ExchangeCost {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> Duration {
        let fixed = self.evaluation.as_ref().map_or(Duration::ZERO, |f| f.value);
        let total = self.transfer.value.saturating_add(fixed);
        total.saturating_add(self.evaluating)
    }
}

impl Candidate {
    /// Windows per second of a whole job.
    #[must_use]
    pub fn windows_per_s(&self) -> f64 {
        self.speed.rate.value.0 * f64::from(self.shape.gpus())
    }
}

impl Speed {
    /// What is known of a shape.
    ///
    /// # Errors
    /// What is not: rate or start-up.
    pub(crate) fn of(
        snapshot: &Snapshot,
        site: &Site,
        state: &ShapeState,
    ) -> Result<Self, Exclusion> {
        let gpus = state.shape.gpus();
        let (rate, rate_of) = match (&state.rate, &site.rate) {
            (Some(rate), _) => (rate.clone(), RateOf::ThisShape),
            (None, Some(rate)) => (rate.clone(), RateOf::AnyShape),
            (None, None) => return Err(Exclusion::NoRate),
        };
        Ok(Self {
            startup: site.startup.best().ok_or(Exclusion::NoStartup)?.clone(),
            exchange: exchange(snapshot, site, rate.value, gpus),
            rate,
            rate_of,
            ranks: state.ranks.as_ref().map_or(gpus, |ranks| ranks.value),
            gpus,
        })
    }

    /// Windows of one micro-batch over all ranks.
    #[must_use]
    pub fn micro_windows(&self, batch: Windows) -> Windows {
        Windows(batch.0.saturating_mul(self.ranks.into()))
    }

    /// How long one micro-batch of every rank takes: a step without accumulation.
    #[must_use]
    pub fn micro_step(&self, batch: Windows) -> Duration {
        match self.ranks == self.gpus {
            true => duration(batch.0, self.rate.value.0),
            false => {
                let per_s = self.rate.value.0 * f64::from(self.gpus);
                duration(self.micro_windows(batch).0, per_s)
            }
        }
    }
}

/// The time that `windows` take at `per_s`; as long as time goes if that is no number.
#[allow(clippy::cast_precision_loss)] // Windows are far below 2^53.
pub(crate) fn duration(windows: u64, per_s: f64) -> Duration {
    Duration::try_from_secs_f64(windows as f64 / per_s).unwrap_or(Duration::MAX)
}

/// A shape that a plan does not use.
#[derive(Clone, Debug, PartialEq)]
pub struct Excluded {
    /// The site.
    pub site: SiteName,
    /// The shape.
    pub shape: ShapeName,
    /// Why not.
    pub reason: Exclusion,
}

/// Why a shape cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub enum Exclusion {
    /// The profile has no shape of this name (any more), so nothing is known of a job in it.
    UnknownShape,
    /// Nothing may be submitted in it now.
    Shut {
        /// Why.
        why: String,
    },
    /// The site's operator wants no replica there.
    NotWanted,
    /// Nobody has asked the batch system yet.
    NeverProbed,
    /// The newest answer is too old to plan with.
    ProbeTooOld {
        /// How old.
        age: Duration,
        /// How old it may be.
        max: Duration,
    },
    /// The batch system would not take the job. One refusal is provisional: the next probe decides.
    Refused {
        /// In its own words.
        words: String,
    },
    /// The partition grants less walltime.
    OverWalltimeCap {
        /// Asked for.
        walltime: Duration,
        /// Granted.
        cap: Duration,
    },
    /// More nodes than one user may have, what runs already included.
    OverNodeLimit {
        /// Asked for.
        nodes: u32,
        /// Still free.
        free: u32,
        /// In all.
        limit: u32,
    },
    /// As many jobs as one user may have are there.
    OverJobLimit {
        /// In all.
        limit: u32,
    },
    /// Nobody knows how fast it trains.
    NoRate,
    /// Nobody knows how long a job takes to start up.
    NoStartup,
    /// Nobody knows how long weights travel.
    NoTransfer,
    /// Nobody knows how long an evaluation takes.
    NoEvaluation,
    /// The allocation ends before a job could train.
    AllocationEnds {
        /// In so long.
        ends_in: Duration,
    },
    /// Walltime is used up by starting, the reserve and the exchange.
    TooShort {
        /// What a job has.
        walltime: Duration,
        /// What it needs before the first step counts.
        overhead: Duration,
    },
    /// The budget does not pay for a job worth having.
    BudgetSpent {
        /// GPU-hours that may be spent.
        gpu_hours_left: f64,
    },
    /// A job would hold fewer units than are worth one.
    TooFewUnits {
        /// It could hold.
        units: u64,
        /// Are worth a job.
        min: u64,
    },
}

impl Exclusion {
    /// The line of the site's profile that would let the shape in, where one would.
    #[must_use]
    pub fn fix(&self, shape: &ShapeName) -> Option<String> {
        let of_shape = |line: String| Some(format!("[[shape]] name = \"{shape}\", {line}"));
        let walltime = |time: Duration| of_shape(format!("walltime = \"{}\"", walltime(time)));
        match self {
            Self::UnknownShape => Some(format!("[[shape]] name = \"{shape}\"")),
            // The site process probes every shape of its profile.
            Self::NeverProbed => Some(format!("[watch] probe_every_s = {PROBE_EVERY_S}")),
            Self::NotWanted => Some("[jobs] wanted = 1".into()),
            Self::ProbeTooOld { max, .. } => {
                let every = (max.as_secs() / 36).max(60);
                Some(format!("[watch] probe_every_s = {every}"))
            }
            Self::OverWalltimeCap { cap, .. } => walltime(*cap),
            Self::OverNodeLimit { free, .. } if *free > 0 => of_shape(format!("nodes = {free}")),
            Self::NoRate => of_shape("windows_per_gpu_s = MEASURED".into()),
            Self::NoStartup => Some("[costs] startup_s = MEASURED".into()),
            Self::NoTransfer => Some("[costs] transfer_s = MEASURED".into()),
            Self::TooShort { overhead, .. } => walltime(*overhead * 2 + MINUTE),
            // The recipe's evaluation is known to a snapshot that a person wrote only.
            Self::NoEvaluation
            | Self::Shut { .. }
            | Self::Refused { .. }
            | Self::OverNodeLimit { .. }
            | Self::OverJobLimit { .. }
            | Self::AllocationEnds { .. }
            | Self::BudgetSpent { .. }
            | Self::TooFewUnits { .. } => None,
        }
    }
}

/// What a profile has where it says nothing else.
const PROBE_EVERY_S: u64 = 600;
const MINUTE: Duration = Duration::from_secs(60);

/// A walltime as profiles write it, in whole minutes.
fn walltime(time: Duration) -> String {
    let minutes = time.as_secs() / 60;
    let (days, hours, minutes) = (minutes / 1440, minutes / 60 % 24, minutes % 60);
    match days {
        0 => format!("{hours:02}:{minutes:02}:00"),
        _ => format!("{days}-{hours:02}:{minutes:02}:00"),
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownShape => f.write_str("the site's profile has no such shape"),
            Self::Shut { why } => f.write_str(why),
            Self::NotWanted => f.write_str("the site's profile wants no job"),
            Self::NeverProbed => f.write_str("never probed"),
            Self::ProbeTooOld { age, max } => {
                let (age, max) = (Spell(*age), Spell(*max));
                write!(f, "its newest probe is {age} old; at most {max} is used")
            }
            Self::Refused { words } => write!(f, "the batch system refuses it: {words}"),
            Self::OverWalltimeCap { walltime, cap } => {
                let (walltime, cap) = (Spell(*walltime), Spell(*cap));
                write!(f, "it asks for {walltime}; the partition grants {cap}")
            }
            Self::OverNodeLimit { nodes, free, limit } => write!(
                f,
                "it asks for {nodes} nodes; {free} of the {limit} we may have are free"
            ),
            Self::OverJobLimit { limit } => {
                write!(f, "all {limit} jobs that we may have are there already")
            }
            Self::NoRate => f.write_str("nobody has measured how fast it trains"),
            Self::NoStartup => f.write_str("nobody knows how long a job takes to start up"),
            Self::NoTransfer => f.write_str("nobody knows how long weights travel"),
            Self::NoEvaluation => f.write_str("nobody knows how long an evaluation takes"),
            Self::AllocationEnds { ends_in } => {
                write!(f, "the allocation ends in {}", Spell(*ends_in))
            }
            Self::TooShort { walltime, overhead } => {
                let (walltime, overhead) = (Spell(*walltime), Spell(*overhead));
                write!(f, "of {walltime} walltime {overhead} pass without training")
            }
            Self::BudgetSpent { gpu_hours_left } => {
                write!(f, "the budget has {gpu_hours_left:.1} GPU-hours left")
            }
            Self::TooFewUnits { units, min } => {
                write!(f, "a job would hold {units} units; {min} are worth one")
            }
        }
    }
}

/// Sorts all shapes of all sites into those a plan may use and those it may not, in the snapshot's
/// order.
#[must_use]
pub fn candidates(snapshot: &Snapshot) -> (Vec<Candidate>, Vec<Excluded>) {
    sorted(snapshot, within_limits)
}

/// The same for jobs that may take the places of those that are there: limits are left to the caller.
pub(crate) fn usable(snapshot: &Snapshot) -> (Vec<Candidate>, Vec<Excluded>) {
    sorted(snapshot, |_, _| Ok(()))
}

fn sorted(
    snapshot: &Snapshot,
    admit: impl Fn(&Site, &Shape) -> Result<(), Exclusion>,
) -> (Vec<Candidate>, Vec<Excluded>) {
    let (mut fit, mut excluded) = (Vec::new(), Vec::new());
    for (index, site) in snapshot.sites.iter().enumerate() {
        for state in &site.shapes {
            let admitted = within_cap(site, &state.shape).and_then(|()| admit(site, &state.shape));
            match admitted.and_then(|()| candidate(snapshot, index, site, state)) {
                Ok(candidate) => fit.push(candidate),
                Err(reason) => excluded.push(Excluded {
                    site: site.name.clone(),
                    shape: state.shape.name.clone(),
                    reason,
                }),
            }
        }
    }
    (fit, excluded)
}

fn candidate(
    snapshot: &Snapshot,
    site_index: usize,
    site: &Site,
    state: &ShapeState,
) -> Result<Candidate, Exclusion> {
    let (now, policy, shape) = (snapshot.now, &snapshot.policy, &state.shape);
    if let Some(shut) = &state.shut {
        let why = shut.value.clone();
        return Err(Exclusion::Shut { why });
    }
    let wait = shape_wait(snapshot, site, state)?;
    let speed = Speed::of(snapshot, site, state)?;
    let startup = speed.startup.value;
    let bounds = site.bounds(now);
    let (starts_in, moved_by) = bounds.open_start(wait.at(policy.quantile), shape.walltime);
    let moved_by = moved_by.map(|i| site.closed[i].clone());
    let ends_in = bounds.ends_in.unwrap_or(Duration::MAX);
    let usable = site.usable(shape.walltime);
    let walltime = usable.min(ends_in.saturating_sub(starts_in));
    if walltime < usable && walltime <= startup {
        return Err(Exclusion::AllocationEnds { ends_in });
    }
    if walltime <= startup {
        let overhead = startup + (shape.walltime - usable);
        let walltime = shape.walltime;
        return Err(Exclusion::TooShort { walltime, overhead });
    }
    let spendable_gpu_s = bounds.budget_gpu_s;
    if let Some(left) = spendable_gpu_s
        && left <= startup.as_secs_f64() * f64::from(shape.gpus())
    {
        let gpu_hours_left = left / 3600.0;
        return Err(Exclusion::BudgetSpent { gpu_hours_left });
    }
    Ok(Candidate {
        site: site.name.clone(),
        site_index,
        shape: shape.clone(),
        wait,
        starts_in,
        moved_by,
        speed,
        walltime,
        spendable_gpu_s,
    })
}

/// The wait behind a shape's probe.
pub(crate) fn shape_wait(
    snapshot: &Snapshot,
    site: &Site,
    state: &ShapeState,
) -> Result<Wait, Exclusion> {
    let policy = &snapshot.policy;
    let raw = probed_wait(state, snapshot.now, policy.probe_age_max)?;
    let queue = site.partition(&state.shape.partition).cloned();
    Ok(wait(raw, &queue.unwrap_or_default(), policy))
}

fn within_cap(site: &Site, shape: &Shape) -> Result<(), Exclusion> {
    let cap = site.partition(&shape.partition);
    if let Some(cap) = cap.and_then(|queue| queue.walltime_max.as_ref())
        && shape.walltime > cap.value
    {
        let (walltime, cap) = (shape.walltime, cap.value);
        return Err(Exclusion::OverWalltimeCap { walltime, cap });
    }
    Ok(())
}

/// What is there already counts.
fn within_limits(site: &Site, shape: &Shape) -> Result<(), Exclusion> {
    let (nodes_taken, jobs_taken) = site.taken();
    if let Some(limit) = &site.limits.nodes {
        let (nodes, limit) = (shape.nodes, limit.value);
        let free = limit.saturating_sub(nodes_taken);
        if nodes > free {
            return Err(Exclusion::OverNodeLimit { nodes, free, limit });
        }
    }
    match &site.limits.jobs {
        Some(limit) if jobs_taken >= limit.value => {
            let limit = limit.value;
            Err(Exclusion::OverJobLimit { limit })
        }
        _ => Ok(()),
    }
}

fn probed_wait(
    state: &ShapeState,
    now: WallMs,
    age_max: Duration,
) -> Result<Fact<Duration>, Exclusion> {
    let probe = state.probe.as_ref().ok_or(Exclusion::NeverProbed)?;
    let age = probe.age(now);
    if age > age_max {
        return Err(Exclusion::ProbeTooOld { age, max: age_max });
    }
    match &probe.value {
        Answer::Refused(words) => Err(Exclusion::Refused {
            words: words.clone(),
        }),
        Answer::StartsAt(start) => Ok(probe.map(|_| start.since(probe.at))),
    }
}

fn exchange(
    snapshot: &Snapshot,
    site: &Site,
    rate: WindowsPerGpuS,
    gpus: u32,
) -> Result<ExchangeCost, Exclusion> {
    let transfer = site.transfer.best().ok_or(Exclusion::NoTransfer)?.clone();
    let Some(evaluation) = snapshot.run.evaluation else {
        return Ok(ExchangeCost {
            transfer,
            evaluation: None,
            evaluating: Duration::ZERO,
        });
    };
    let fixed = site.evaluation.best().ok_or(Exclusion::NoEvaluation)?;
    let per_s = rate.0 * f64::from(gpus) * evaluation.speedup;
    Ok(ExchangeCost {
        transfer,
        evaluation: Some(fixed.clone()),
        evaluating: duration(evaluation.windows.0, per_s),
    })
}
