//! Which sites, in which shapes, how many replicas, chained how, beginning when.
//!
//! Each way to run is simulated round by round and judged by one objective. Where there are few ways
//! all are tried, and the answer is exact; otherwise each site's options are ranked by how it would do
//! alone, and one site at a time is changed to the best of its twelve first, from two starts (the best
//! single site; every site at its own best), until no single change helps; at the end all its options
//! are tried once. A way that could not win
//! even if nobody ever waited for anybody is not simulated, and one that falls behind is given up. The
//! number of simulations is bounded, and [`Plan`] says how many were made and whether it is exact.
//!
//! A site uses one shape at a time. Never here: randomness; ties go to fewer GPU-hours, then to what
//! the snapshot lists first.

use std::cmp::Ordering;
use std::time::Duration;

use hansa_base::SiteName;

use crate::candidate::{Candidate, Excluded, candidates};
use crate::cast::{Terms, Unplannable};
use crate::chain::Member;
use crate::options::{Choice, Options, Variant};
use crate::reasons::{Alternative, Trap, Why, traps};
use crate::rounds::{Balance, Ended, Outcome, World, simulate, simulate_until};
use crate::run::Snapshot;

/// Options of a site that are tried in company.
const SHORTLIST: usize = 12;

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
    /// Simulations of the search, at most; where all ways to run are fewer, all are tried. Telling
    /// why alternatives lost takes one more for each way to use a site, at most.
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
            simulations_max: 2_000,
        }
    }
}

/// A decision and what it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What was asked.
    pub ask: Ask,
    /// What to submit, site by site; empty if nothing helps.
    pub picks: Vec<Pick>,
    /// How accumulation should fill the barrier.
    pub balance: Balance,
    /// Everybody in the run: jobs that are there already, then the picks.
    pub members: Vec<Member>,
    /// How the run would go.
    pub outcome: Outcome,
    /// What lost and why: every other usable shape of every site, and going without a picked site.
    pub alternatives: Vec<Alternative>,
    /// What a reader would not expect.
    pub traps: Vec<Trap>,
    /// Shapes that cannot be used.
    pub excluded: Vec<Excluded>,
    /// Runs that were simulated.
    pub simulations: u32,
    /// Whether every way to run was tried or ruled out.
    pub exact: bool,
}

/// Replicas to submit at one site.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The shape, with every number that was used and its source.
    pub candidate: Candidate,
    /// How many, how chained and when.
    pub terms: Terms,
}

/// Decides.
///
/// # Errors
/// When rounds cannot be simulated at all.
pub fn plan(snapshot: &Snapshot, ask: &Ask) -> Result<Plan, Unplannable> {
    let world = World::of(snapshot, ask.deadline)?;
    let (fit, mut excluded) = candidates(snapshot);
    let options = Options::new(snapshot, ask, fit);
    excluded.extend(options.excluded.iter().cloned());
    let mut search = Search {
        snapshot,
        ask,
        world: &world,
        options: &options,
        ranked: options
            .sites
            .iter()
            .map(|c| (0..c.len()).collect())
            .collect(),
        simulations: 0,
    };
    let exact = search.ways() <= u64::from(ask.simulations_max);
    let best = match exact {
        true => search.all(),
        false => search.descend(),
    };
    let alternatives = search.alternatives(&best, exact);
    let chosen = search.chosen(&best.config);
    let terms = options.terms(&chosen, best.variant);
    let pick = |(choice, terms): (&Choice, Terms)| Pick {
        candidate: options.candidates[choice.candidate].clone(),
        terms,
    };
    let sites: Vec<SiteName> = snapshot.sites.iter().map(|s| s.name.clone()).collect();
    Ok(Plan {
        ask: *ask,
        picks: chosen.iter().zip(terms).map(pick).collect(),
        traps: traps(&sites, &best.members, &best.outcome, world.target),
        balance: best.variant.balance,
        members: best.members,
        outcome: best.outcome,
        alternatives,
        excluded,
        simulations: search.simulations,
        exact,
    })
}

/// How good a run is: less is better, in this order.
#[derive(Clone, Copy, Debug)]
struct Score {
    misses: bool,
    value: f64,
    gpu_hours: f64,
}

impl Score {
    fn cmp(&self, other: &Self) -> Ordering {
        let tier = self.misses.cmp(&other.misses);
        let value = tier.then(self.value.total_cmp(&other.value));
        value.then(self.gpu_hours.total_cmp(&other.gpu_hours))
    }
}

/// One way to run, simulated. `config` holds, for each site with options, one of them or none.
struct Tried {
    config: Vec<Option<usize>>,
    variant: Variant,
    members: Vec<Member>,
    outcome: Outcome,
    score: Score,
    /// Some pick contributes nothing: then the same without it is the plan.
    idle: bool,
}

struct Search<'a> {
    snapshot: &'a Snapshot,
    ask: &'a Ask,
    world: &'a World,
    options: &'a Options,
    /// Each site's options, the most promising first.
    ranked: Vec<Vec<usize>>,
    simulations: u32,
}

impl Search<'_> {
    /// The number of ways to run.
    fn ways(&self) -> u64 {
        let sites = self
            .options
            .sites
            .iter()
            .map(|choices| choices.len() as u64 + 1);
        let variants = self.options.variants.len() as u64;
        sites.fold(variants, u64::saturating_mul)
    }

    fn world(&self, variant: Variant) -> World {
        World {
            balance: variant.balance,
            accumulation_max: self.ask.accumulation_max,
            ..self.world.clone()
        }
    }

    fn chosen(&self, config: &[Option<usize>]) -> Vec<Choice> {
        let sites = self.options.sites.iter().zip(config);
        sites
            .filter_map(|(choices, picked)| picked.map(|i| choices[i]))
            .collect()
    }

    /// Simulates one way, unless it cannot beat `best`.
    fn attempt(
        &mut self,
        config: &[Option<usize>],
        variant: Variant,
        best: Option<&Score>,
    ) -> Option<Tried> {
        let members = self.members(config, variant);
        if best.is_some_and(|best| self.hopeless(&members, best)) {
            return None;
        }
        let needed_by = best.map_or(Duration::MAX, |best| self.needed_by(best));
        Some(self.run(config, variant, members, needed_by))
    }

    fn members(&self, config: &[Option<usize>], variant: Variant) -> Vec<Member> {
        let chosen = self.chosen(config);
        self.options.members(self.snapshot, &chosen, variant)
    }

    fn run(
        &mut self,
        config: &[Option<usize>],
        variant: Variant,
        members: Vec<Member>,
        needed_by: Duration,
    ) -> Tried {
        self.simulations += 1;
        let outcome = simulate_until(&self.world(variant), &members, needed_by);
        let picks = &outcome.members[self.options.fixed.len()..];
        Tried {
            idle: picks.iter().any(|tally| tally.windows.0 == 0),
            config: config.to_vec(),
            variant,
            score: self.score(&outcome, &members),
            members,
            outcome,
        }
    }

    #[allow(clippy::cast_precision_loss)] // Windows are far below 2^53.
    fn score(&self, outcome: &Outcome, members: &[Member]) -> Score {
        let windows = outcome.windows.0 as f64;
        let solo = outcome.solo_windows.0 as f64 / windows.max(1.0);
        let penalty = self.ask.solo_penalty.clamp(0.0, 1.0) * solo;
        let gpu_hours = outcome.gpu_hours(members);
        let misses = outcome.ended != Ended::Target && self.ask.objective != Objective::MostTokens;
        let value = match self.ask.objective {
            _ if misses => -windows * (1.0 - penalty),
            Objective::EarliestFinish => outcome.ends_in.as_secs_f64() * (1.0 + penalty),
            Objective::MostTokens => -windows * (1.0 - penalty),
            Objective::FewestGpuHours => gpu_hours * (1.0 + penalty),
        };
        Score {
            misses,
            value,
            gpu_hours,
        }
    }

    /// Whether these members could not beat `best` even if nobody waited for anybody.
    fn hopeless(&self, members: &[Member], best: &Score) -> bool {
        let soonest_s = soonest_s(self.world, members, self.ask.accumulation_max);
        let deadline_s = self.world.horizon.as_secs_f64();
        match self.ask.objective {
            // Fractions of a second are left to rounding.
            Objective::EarliestFinish if !best.misses => soonest_s > best.value + 1.0,
            Objective::FewestGpuHours if !best.misses => soonest_s > deadline_s + 1.0,
            _ => false,
        }
    }

    /// By when a run must reach the target, to be better than `best`.
    fn needed_by(&self, best: &Score) -> Duration {
        let value = || Duration::try_from_secs_f64(best.value + 1.0);
        match self.ask.objective {
            Objective::EarliestFinish if !best.misses => value().unwrap_or(Duration::MAX),
            Objective::FewestGpuHours if !best.misses => self.world.horizon,
            _ => Duration::MAX,
        }
    }

    /// Tries all ways.
    fn all(&mut self) -> Tried {
        let mut best = self.nothing();
        let mut config: Vec<Option<usize>> = vec![None; self.options.sites.len()];
        loop {
            for variant in self.options.variants.clone() {
                let tried = self.attempt(&config, variant, Some(&best.score));
                keep_better(&mut best, tried);
            }
            // The next in the mixed radix of the sites' options.
            let next = |(picked, choices): (&mut Option<usize>, &Vec<Choice>)| {
                *picked = match *picked {
                    None => Some(0),
                    Some(i) if i + 1 < choices.len() => Some(i + 1),
                    Some(_) => None,
                };
                picked.is_some()
            };
            if !config.iter_mut().zip(&self.options.sites).any(next) {
                return best;
            }
        }
    }

    /// Improves one site at a time until no single change helps.
    fn descend(&mut self) -> Tried {
        let nothing = self.nothing();
        let mut each = Vec::new();
        let mut single = self.nothing();
        for site in 0..self.options.sites.len() {
            let alone = self.rank(site);
            each.push(alone.config[site]);
            keep_better(&mut single, Some(alone));
        }
        let mut best = single;
        let everybody = self.attempt(&each, nothing.variant, None);
        for start in [self.attempt(&best.config, best.variant, None), everybody] {
            let Some(mut at) = start else { continue };
            loop {
                let before = at.score;
                for variant in self.options.variants.clone() {
                    let tried = self.attempt(&at.config, variant, Some(&at.score));
                    keep_better(&mut at, tried);
                }
                for site in 0..at.config.len() {
                    self.improve(&mut at, site, SHORTLIST);
                }
                let spent = self.simulations >= self.ask.simulations_max;
                if spent || at.score.cmp(&before) != Ordering::Less {
                    break;
                }
            }
            keep_better(&mut best, Some(at));
        }
        for site in 0..best.config.len() {
            self.improve(&mut best, site, usize::MAX);
        }
        best
    }

    /// Ranks a site's options by how it would do alone; the best way to have it alone, or not at all.
    fn rank(&mut self, site: usize) -> Tried {
        let mut best = self.nothing();
        let mut scores = Vec::new();
        for option in 0..self.options.sites[site].len() {
            let mut config = vec![None; self.options.sites.len()];
            config[site] = Some(option);
            if let Some(tried) = self.attempt(&config, best.variant, None) {
                scores.push((tried.idle, tried.score));
                keep_better(&mut best, Some(tried));
            }
        }
        let key = |&option: &usize| scores[option];
        self.ranked[site].sort_by(|a, b| {
            let (a, b) = (key(a), key(b));
            a.0.cmp(&b.0).then(a.1.cmp(&b.1))
        });
        best
    }

    /// Gives one site the option that is best with all others as they are.
    fn improve(&mut self, at: &mut Tried, site: usize, options: usize) {
        let mut config = at.config.clone();
        let shortlist = self.ranked[site].iter().take(options).copied();
        let choices: Vec<Option<usize>> = shortlist.map(Some).chain([None]).collect();
        for choice in choices {
            if self.simulations >= self.ask.simulations_max {
                return;
            }
            config[site] = choice;
            let tried = self.attempt(&config, at.variant, Some(&at.score));
            keep_better(at, tried);
        }
    }

    /// Only what is there already.
    fn nothing(&mut self) -> Tried {
        let members = self.options.fixed.clone();
        let variant = self.options.variants[0];
        let outcome = simulate(&self.world(variant), &members);
        Tried {
            idle: false,
            config: vec![None; self.options.sites.len()],
            variant,
            score: self.score(&outcome, &members),
            members,
            outcome,
        }
    }

    /// What else each site could do with all others as chosen, and why that lost.
    fn alternatives(&mut self, best: &Tried, exact: bool) -> Vec<Alternative> {
        let mut lost = Vec::new();
        for site in 0..best.config.len() {
            let picked = best.config[site];
            let choices = &self.options.sites[site];
            let picked_candidate = picked.map(|i| choices[i].candidate);
            let mut shapes: Vec<usize> = choices.iter().map(|c| c.candidate).collect();
            shapes.dedup();
            for shape in shapes.into_iter().filter(|&c| Some(c) != picked_candidate) {
                let same = |i: &&usize| choices[**i].candidate == shape;
                let ways = self.ranked[site].iter().filter(same).copied().map(Some);
                let ways = ways.take(if exact { usize::MAX } else { 1 }).collect();
                lost.extend(self.best_of(best, site, ways));
            }
            if picked.is_some() {
                lost.extend(self.best_of(best, site, vec![None]));
            }
        }
        lost
    }

    /// The best of these options for a site, as an alternative to what was chosen.
    fn best_of(
        &mut self,
        best: &Tried,
        site: usize,
        ways: Vec<Option<usize>>,
    ) -> Option<Alternative> {
        let choices = &self.options.sites[site];
        let (mut config, mut found) = (best.config.clone(), None::<Tried>);
        for &way in &ways {
            config[site] = way;
            // To the end, however late: the reader wants to know by how much.
            let members = self.members(&config, best.variant);
            if !self.hopeless(&members, &best.score) {
                let tried = self.run(&config, best.variant, members, Duration::MAX);
                let better = |found: &Tried| tried.score.cmp(&found.score) == Ordering::Less;
                if found.as_ref().is_none_or(better) {
                    found = Some(tried);
                }
            }
        }
        let way = found
            .as_ref()
            .map_or(*ways.first()?, |tried| tried.config[site]);
        let any = way.or(best.config[site])?;
        let candidate = &self.options.candidates[choices[any].candidate];
        Some(Alternative {
            site: candidate.site.clone(),
            shape: way.map(|_| candidate.shape.name.clone()),
            replicas: way.map_or(0, |i| choices[i].replicas),
            why: found.map_or(Why::CannotBeBetter, |tried| {
                self.why(best, &tried, candidate.site_index, way.is_some())
            }),
        })
    }

    fn why(&self, best: &Tried, other: &Tried, site: usize, with: bool) -> Why {
        let (chosen, lost) = (&best.outcome, &other.outcome);
        let new = other
            .members
            .iter()
            .rposition(|m| m.site == site)
            .filter(|_| with);
        let idle = new.is_some_and(|i| lost.members[i].windows.0 == 0);
        let less = chosen.windows.0.saturating_sub(lost.windows.0);
        let longest = |o: &Outcome| {
            o.stretches
                .iter()
                .map(|s| s.period)
                .max()
                .unwrap_or_default()
        };
        let (period, longer) = (longest(chosen), longest(lost));
        let by = lost.ends_in.saturating_sub(chosen.ends_in);
        let dearer = other.score.gpu_hours - best.score.gpu_hours;
        match self.ask.objective {
            _ if idle => Why::TooLate {
                ends_in: lost.ends_in,
            },
            _ if other.score.cmp(&best.score) == Ordering::Equal => Why::Same,
            _ if other.score.misses && !best.score.misses => Why::NotReached {
                missing: hansa_base::Windows(self.world.target.0 - lost.windows.0),
            },
            Objective::EarliestFinish if with && longer > period && !by.is_zero() => {
                Why::SlowsOthers {
                    period,
                    with: longer,
                    later_by: by,
                }
            }
            Objective::EarliestFinish if !by.is_zero() => Why::Later { by },
            Objective::MostTokens if less > 0 => Why::Less {
                by: hansa_base::Windows(less),
            },
            _ if dearer > 0.0 => Why::Dearer { by: dearer },
            _ => Why::MoreSolo {
                windows: lost.solo_windows,
            },
        }
    }
}

fn keep_better(best: &mut Tried, tried: Option<Tried>) {
    if let Some(tried) = tried
        && !tried.idle
        && tried.score.cmp(&best.score) == Ordering::Less
    {
        *best = tried;
    }
}

/// When the target is reached if every member, from its first job on, closed rounds of its own for
/// ever: no run with these members is earlier. Seconds; infinite if never.
#[allow(clippy::cast_precision_loss)] // Windows are far below 2^53.
fn soonest_s(world: &World, members: &[Member], accumulation_max: u32) -> f64 {
    let speed = |m: &Member| {
        // The longer the phase, the less its exchange weighs.
        let accumulation = m.accumulation.max(accumulation_max);
        let phase_s = m.step(accumulation).as_secs_f64() * world.steps.0 as f64;
        let round_s = phase_s + m.exchange.as_secs_f64() + world.merge.as_secs_f64();
        let windows = m.step_windows(accumulation) as f64 * world.steps.0 as f64;
        (m.first.ready_in.as_secs_f64(), windows / round_s)
    };
    let mut members: Vec<(f64, f64)> = members.iter().map(speed).collect();
    members.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut now_s, mut left, mut total) = (0.0, world.target.0 as f64, 0.0);
    for (ready_s, speed) in members {
        if left <= total * (ready_s - now_s) {
            break;
        }
        left -= total * (ready_s - now_s);
        (now_s, total) = (ready_s, total + speed);
    }
    if left <= 0.0 {
        now_s
    } else {
        now_s + left / total
    }
}
