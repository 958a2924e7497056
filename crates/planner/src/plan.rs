//! A decision: made, kept or changed, and what would change it.
//!
//! Never here: submitting. Jobs that run are part of every plan and never touched; see the options for
//! those that wait.

use std::fmt;
use std::time::Duration;

use hansa_base::SiteName;

use crate::candidate::{Candidate, Excluded, usable};
use crate::cast::{Terms, Unplannable};
use crate::chain::Member;
use crate::options::{Choice, Options, Variant};
use crate::reasons::{Alternative, Trap, traps};
use crate::rounds::{Balance, Outcome, World};
use crate::run::{Quantile, Snapshot};
use crate::search::{Search, Tried};
use crate::site::{ChainPolicy, ShapeName};

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// The target, as early as can be.
    EarliestFinish,
    /// As much as can be trained until the deadline.
    MostTokens,
    /// The target before the deadline, for the fewest GPU-hours.
    FewestGpuHours,
}

/// What a plan is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// What is wanted.
    pub objective: Objective,
    /// The deadline; for [`Objective::EarliestFinish`] how far is looked ahead.
    pub deadline: Duration,
    /// How much worse a run of solo rounds alone is than a federated one, as a fraction: time and
    /// GPU-hours count `1 + w·share` times, tokens `1 − w·share` times, with `share` that of windows
    /// in solo rounds. 0 is indifference; at most 1.
    pub solo_penalty: f64,
    /// Replicas at a site, at most.
    pub replicas_max: u32,
    /// `A`, at most; the recipe's own is always allowed.
    pub accumulation_max: u32,
    /// How accumulation fills the barrier, where that is not to be chosen.
    pub balance: Option<Balance>,
    /// Whether a replica may also end with its job where its site lets it go on. Who plans again at the
    /// end of each job decides then.
    pub single: bool,
    /// Simulations, at most: where all ways to run are fewer, all are tried. Two more for each way to
    /// use a site are always made, to rank them and to tell why they lost.
    pub simulations_max: u32,
}

impl Ask {
    /// This objective within this time, with cautious bounds.
    #[must_use]
    pub const fn new(objective: Objective, deadline: Duration) -> Self {
        Self {
            objective,
            deadline,
            solo_penalty: 0.0,
            replicas_max: 4,
            accumulation_max: 8,
            balance: None,
            single: true,
            simulations_max: 2_000,
        }
    }

    /// The deadline with this share of the time before it to spare, at most half.
    fn spared(&self, margin: f64) -> Duration {
        self.deadline.mul_f64(1.0 - margin.clamp(0.0, 0.5))
    }
}

/// A decision as it is kept until the next: how each site shall be used, and nothing of what was known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Site by site.
    pub picks: Vec<HeldPick>,
    /// How accumulation fills the barrier.
    pub balance: Balance,
    /// Whether early jobs begin so late that all are ready together.
    pub together: bool,
}

/// How one site shall be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPick {
    /// The site.
    pub site: SiteName,
    /// The shape.
    pub shape: ShapeName,
    /// Replicas.
    pub replicas: u32,
    /// How they outlive their jobs.
    pub chain: ChainPolicy,
}

impl Held {
    /// Replicas that it has in this shape.
    pub(crate) fn replicas(&self, candidate: &Candidate) -> Option<u32> {
        let of = |pick: &&HeldPick| {
            (&pick.site, &pick.shape) == (&candidate.site, &candidate.shape.name)
        };
        Some(self.picks.iter().find(of)?.replicas)
    }
}

/// A decision and what it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What was asked.
    pub ask: Ask,
    /// How to use the sites, in their order; empty if nothing helps.
    pub picks: Vec<Pick>,
    /// How accumulation should fill the barrier.
    pub balance: Balance,
    /// Whether early jobs begin so late that all are ready together.
    pub together: bool,
    /// Everybody in the run, site by site: jobs that are there, and new ones.
    pub members: Vec<Member>,
    /// How the run would go.
    pub outcome: Outcome,
    /// What lost and why: every other usable shape of every site, and going without a picked site.
    pub alternatives: Vec<Alternative>,
    /// What a reader would not expect.
    pub traps: Vec<Trap>,
    /// Shapes that cannot be used, and jobs of ours that cannot be counted on.
    pub excluded: Vec<Excluded>,
    /// Runs that were simulated.
    pub simulations: u32,
    /// Whether every way to run was tried or ruled out.
    pub exact: bool,
}

/// Replicas at one site.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The shape, with every number that was used and its source.
    pub candidate: Candidate,
    /// How many, how chained and when.
    pub terms: Terms,
    /// Of these, so many have a job already.
    pub already: u32,
}

impl Plan {
    /// The decision alone.
    #[must_use]
    pub fn held(&self) -> Held {
        let pick = |pick: &Pick| HeldPick {
            site: pick.candidate.site.clone(),
            shape: pick.candidate.shape.name.clone(),
            replicas: pick.terms.replicas,
            chain: pick.terms.chain,
        };
        Held {
            picks: self.picks.iter().map(pick).collect(),
            balance: self.balance,
            together: self.together,
        }
    }
}

/// Decides.
///
/// # Errors
/// When rounds cannot be simulated at all.
pub fn plan(snapshot: &Snapshot, ask: &Ask) -> Result<Plan, Unplannable> {
    let desk = Desk::new(snapshot, ask, None)?;
    let mut search = desk.search();
    let (best, exact) = search.best();
    Ok(desk.written(search, best, exact))
}

/// What became of a plan when it was made again.
#[derive(Clone, Debug, PartialEq)]
pub struct Replan {
    /// The plan to follow, on what is known now.
    pub plan: Plan,
    /// Why this one.
    pub verdict: Verdict,
}

/// Why a plan is kept or changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Nothing is better, or not by enough.
    Kept {
        /// What the best plan gains over it, as a fraction of the objective.
        gain: f64,
        /// What it would have to gain.
        margin: f64,
    },
    /// The best plan is cheaper, but leaves too little time before the deadline.
    TooClose {
        /// What it gains over it, as a fraction of the objective.
        gain: f64,
    },
    /// The new plan is better by more than the margin.
    Changed {
        /// What it gains, as a fraction of the objective.
        gain: f64,
    },
    /// The new plan reaches the target in time; the old one does not any more.
    Rescued,
    /// A shape of the old plan cannot be used as planned any more.
    Gone {
        /// The site.
        site: SiteName,
        /// The shape.
        shape: ShapeName,
    },
}

impl Verdict {
    /// Whether the old plan stays in force.
    #[must_use]
    pub const fn keeps(&self) -> bool {
        matches!(self, Self::Kept { .. } | Self::TooClose { .. })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |x: &f64| x * 100.0;
        match self {
            Self::Kept { gain, margin } => {
                let (gain, margin) = (percent(gain), percent(margin));
                write!(
                    f,
                    "kept: the best plan gains {gain:.1} %, and {margin:.1} % are asked for"
                )
            }
            Self::TooClose { gain } => write!(
                f,
                "kept: the best plan gains {:.1} %, but has too little time to spare before the deadline",
                percent(gain)
            ),
            Self::Changed { gain } => write!(f, "changed: gains {:.1} %", percent(gain)),
            Self::Rescued => f.write_str("changed: the old plan misses the target now"),
            Self::Gone { site, shape } => {
                write!(
                    f,
                    "changed: {shape} at {site} cannot be used as planned any more"
                )
            }
        }
    }
}

/// Decides again: the plan changes only if the new one gains more than `margin`, a fraction of the
/// objective, so that noise in the queues does not move it to and fro; one that is cheaper must also have
/// `margin` of the time before the deadline to spare. What the old plan has at a site
/// that the new one does without stays where that costs nothing: a place in a queue is not given up for
/// a prediction.
///
/// # Errors
/// When rounds cannot be simulated at all.
pub fn replan(
    snapshot: &Snapshot,
    ask: &Ask,
    current: &Held,
    margin: f64,
) -> Result<Replan, Unplannable> {
    let desk = Desk::new(snapshot, ask, Some(current))?;
    let mut search = desk.search();
    let (best, exact) = search.best();
    let in_time = best.score.misses || desk.has_time_to_spare(&best, margin);
    let early = match in_time {
        true => None,
        false => desk.best_with_time_to_spare(&mut search, margin),
    };
    let (config, gone) = desk.config_of(&current.picks);
    if let Some(pick) = gone {
        let verdict = Verdict::Gone {
            site: pick.site.clone(),
            shape: pick.shape.clone(),
        };
        let best = search.with_what_costs_nothing(early.unwrap_or(best), &config);
        let plan = desk.written(search, best, exact);
        return Ok(Replan { plan, verdict });
    }
    let variant = Variant {
        balance: current.balance,
        together: current.together,
    };
    let held = search.given(&config, variant);
    let (tried, verdict) = match held.score.misses {
        true if !best.score.misses => (early.unwrap_or(best), Verdict::Rescued),
        true => better(held, best, margin),
        false if in_time => better(held, best, margin),
        false => in_time_or_held(held, &best, early, margin),
    };
    let tried = search.with_what_costs_nothing(tried, &config);
    let plan = desk.written(search, tried, exact);
    Ok(Replan { plan, verdict })
}

/// The one to follow where the best has no time to spare, and why.
fn in_time_or_held(
    held: Tried,
    best: &Tried,
    early: Option<Tried>,
    margin: f64,
) -> (Tried, Verdict) {
    let close = gain(&held, best);
    match early.map(|early| (gain(&held, &early), early)) {
        Some((gain, early)) if gain > margin => (early, Verdict::Changed { gain }),
        _ if close > margin => (held, Verdict::TooClose { gain: close }),
        _ => {
            let gain = close;
            (held, Verdict::Kept { gain, margin })
        }
    }
}

/// The one of the two to follow, and why.
fn better(held: Tried, best: Tried, margin: f64) -> (Tried, Verdict) {
    let gain = gain(&held, &best);
    match gain > margin {
        true => (best, Verdict::Changed { gain }),
        false => (held, Verdict::Kept { gain, margin }),
    }
}

/// What the best gains, as a fraction of the objective. A descent may end beside the plan that is held: then
/// it gains nothing.
fn gain(held: &Tried, best: &Tried) -> f64 {
    if held.score.misses != best.score.misses {
        return 0.0;
    }
    let less = held.score.value - best.score.value;
    (less / held.score.value.abs().max(f64::MIN_POSITIVE)).max(0.0)
}

/// Something that may turn out different.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The discount has this strength.
    Strength(f64),
    /// Waits are counted at this quantile.
    Quantile(Quantile),
    /// All jobs take twice as long to start up.
    StartupDoubled,
    /// Weights travel twice as long.
    TransferDoubled,
    /// The site accepts no job any more; what runs there runs on.
    SiteLost(SiteName),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Strength(s) => write!(f, "discount of strength {s}"),
            Self::Quantile(Quantile::P50) => f.write_str("waits at p50"),
            Self::Quantile(Quantile::P90) => f.write_str("waits at p90"),
            Self::StartupDoubled => f.write_str("start-up twice as long"),
            Self::TransferDoubled => f.write_str("transfer twice as long"),
            Self::SiteLost(site) => write!(f, "without {site}"),
        }
    }
}

/// The plan under a change.
#[derive(Clone, Debug, PartialEq)]
pub struct Flip {
    /// What is different.
    pub change: Change,
    /// Whether the decision is another one.
    pub flips: bool,
    /// The plan then.
    pub plan: Plan,
}

/// What flips a plan: it is made again under each [`Change`], and under the loss of each site it
/// uses. Costs as many searches.
///
/// # Errors
/// When rounds cannot be simulated at all.
pub fn sensitivity(
    snapshot: &Snapshot,
    ask: &Ask,
    current: &Plan,
) -> Result<Vec<Flip>, Unplannable> {
    let strengths = [0.0, 0.5, 1.0].map(Change::Strength);
    let quantiles = [Quantile::P50, Quantile::P90].map(Change::Quantile);
    let costs = [Change::StartupDoubled, Change::TransferDoubled];
    let sites = current
        .picks
        .iter()
        .map(|p| Change::SiteLost(p.candidate.site.clone()));
    let changes = strengths
        .into_iter()
        .chain(quantiles)
        .chain(costs)
        .chain(sites);
    let policy = &snapshot.policy;
    let changes = changes.filter(|change| match change {
        Change::Strength(s) => *s != policy.strength,
        Change::Quantile(q) => *q != policy.quantile,
        _ => true,
    });
    let flip = |change: Change| {
        let plan = plan(&changed(snapshot, &change), ask)?;
        let flips = decision(&plan) != decision(current);
        Ok(Flip {
            change,
            flips,
            plan,
        })
    };
    changes.map(flip).collect()
}

fn changed(snapshot: &Snapshot, change: &Change) -> Snapshot {
    let mut snapshot = snapshot.clone();
    let double = |cost: &mut crate::fact::Cost| {
        for fact in [&mut cost.measured, &mut cost.stated].into_iter().flatten() {
            fact.value = fact.value.saturating_mul(2);
        }
    };
    match change {
        Change::Strength(s) => snapshot.policy.strength = *s,
        Change::Quantile(q) => snapshot.policy.quantile = *q,
        Change::StartupDoubled => snapshot
            .sites
            .iter_mut()
            .for_each(|s| double(&mut s.startup)),
        Change::TransferDoubled => snapshot
            .sites
            .iter_mut()
            .for_each(|s| double(&mut s.transfer)),
        Change::SiteLost(name) => {
            for site in snapshot.sites.iter_mut().filter(|s| s.name == *name) {
                for state in &mut site.shapes {
                    let refused = |fact: &mut crate::fact::Fact<_>| {
                        fact.value = crate::site::Answer::Refused("lost".to_owned());
                    };
                    state.probe.as_mut().map(refused);
                }
            }
        }
    }
    snapshot
}

/// What somebody who follows the plan would do.
fn decision(plan: &Plan) -> Vec<(&SiteName, &ShapeName, Terms)> {
    // When jobs begin follows from the waits; only whether they are held back is decided.
    let terms = |pick: &Pick| Terms {
        begins_in: Duration::ZERO,
        ..pick.terms
    };
    let picks = plan.picks.iter();
    picks
        .map(|p| (&p.candidate.site, &p.candidate.shape.name, terms(p)))
        .collect()
}

/// All that a search needs, from one snapshot.
struct Desk<'a> {
    snapshot: &'a Snapshot,
    ask: &'a Ask,
    world: World,
    options: Options,
    excluded: Vec<Excluded>,
}

impl<'a> Desk<'a> {
    fn new(snapshot: &'a Snapshot, ask: &'a Ask, held: Option<&Held>) -> Result<Self, Unplannable> {
        let world = World::of(snapshot, ask.deadline)?;
        let (fit, mut excluded) = usable(snapshot);
        let options = Options::new(snapshot, ask, fit, held);
        // A shape and a job in it may be excluded for the same reason: that is said once.
        for also in &options.excluded {
            if !excluded.contains(also) {
                excluded.push(also.clone());
            }
        }
        Ok(Self {
            snapshot,
            ask,
            world,
            options,
            excluded,
        })
    }

    fn search(&self) -> Search<'_> {
        Search::new(self.snapshot, self.ask, &self.world, &self.options)
    }

    /// A cheaper plan that has no time to spare before the deadline would be given up again at the next
    /// delay, for the one that it replaced: to and fro.
    fn has_time_to_spare(&self, tried: &Tried, margin: f64) -> bool {
        self.ask.objective != Objective::FewestGpuHours
            || !tried.score.misses && tried.outcome.ends_in <= self.ask.spared(margin)
    }

    /// The best that reaches the target with a share of the time before the deadline to spare, if any does.
    fn best_with_time_to_spare(&self, search: &mut Search<'_>, margin: f64) -> Option<Tried> {
        let ask = Ask {
            deadline: self.ask.spared(margin),
            ..*self.ask
        };
        let world = World {
            horizon: ask.deadline,
            ..self.world.clone()
        };
        let mut early = Search::new(self.snapshot, &ask, &world, &self.options);
        let (best, _) = early.best();
        search.simulations += early.simulations;
        let best = search.given(&best.config, best.variant);
        self.has_time_to_spare(&best, margin).then_some(best)
    }

    /// The options that these picks are, and the first pick that is none any more.
    fn config_of<'p>(&self, picks: &'p [HeldPick]) -> (Vec<Option<usize>>, Option<&'p HeldPick>) {
        let (mut config, mut gone) = (vec![None; self.options.sites.len()], None);
        for pick in picks {
            let same = |choice: &Choice| {
                let candidate = &self.options.candidates[choice.candidate];
                candidate.site == pick.site
                    && candidate.shape.name == pick.shape
                    && (choice.replicas, choice.chain) == (pick.replicas, pick.chain)
            };
            let mut sites = self.options.sites.iter().enumerate();
            let found = sites.find_map(|(i, choices)| Some((i, choices.iter().position(same)?)));
            match found {
                Some((site, option)) => config[site] = Some(option),
                None => gone = gone.or(Some(pick)),
            }
        }
        (config, gone)
    }

    fn written(&self, mut search: Search<'_>, tried: Tried, exact: bool) -> Plan {
        let alternatives = search.alternatives(&tried, exact);
        let chosen = search.chosen(&tried.config);
        let terms = self.options.terms(&chosen, tried.variant);
        let pick = |(choice, terms): (&Choice, Terms)| Pick {
            candidate: self.options.candidates[choice.candidate].clone(),
            terms,
            already: self.options.already(choice),
        };
        let sites: Vec<SiteName> = self.snapshot.sites.iter().map(|s| s.name.clone()).collect();
        Plan {
            ask: *self.ask,
            picks: chosen.iter().zip(terms).map(pick).collect(),
            traps: traps(&sites, &tried.members, &tried.outcome, self.world.target),
            balance: tried.variant.balance,
            together: tried.variant.together,
            members: tried.members,
            outcome: tried.outcome,
            alternatives,
            excluded: self.excluded.clone(),
            simulations: search.simulations,
            exact,
        }
    }
}
