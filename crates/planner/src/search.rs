//! Which sites, in which shapes, how many replicas, chained how, beginning when.
//!
//! Each way to run is simulated round by round and judged by one objective. Where there are few ways
//! all are tried, and the answer is exact; otherwise each site's options are ranked by how it would do
//! alone, and one site at a time is changed to the best of its twelve first, from two starts (the best
//! single site; every site at its own best), until no single change helps; at the end all its options
//! are tried once. A way that could not win even if nobody ever waited for anybody is not simulated,
//! and one that falls behind is given up. The number of simulations is bounded, and the plan says how
//! many were made and whether it is exact.
//!
//! A site uses one shape at a time. Never here: randomness; ties go to fewer GPU-hours, then to what
//! the snapshot lists first.

use std::cmp::Ordering;
use std::time::Duration;

use hansa_base::Windows;

use crate::chain::Member;
use crate::options::{Choice, Options, Variant};
use crate::plan::{Ask, Objective};
use crate::reasons::{Alternative, Why};
use crate::rounds::{Outcome, World, simulate, simulate_until};
use crate::run::Snapshot;
use crate::score::{Score, hopeless, needed_by, score};

/// Options of a site that are tried in company.
const SHORTLIST: usize = 12;

/// One way to run, simulated. `config` holds, for each site with options, one of them or none.
pub(crate) struct Tried {
    pub config: Vec<Option<usize>>,
    pub variant: Variant,
    pub members: Vec<Member>,
    pub outcome: Outcome,
    pub score: Score,
    /// Some pick contributes nothing: then the same without it is the plan.
    pub idle: bool,
}

pub(crate) struct Search<'a> {
    snapshot: &'a Snapshot,
    ask: &'a Ask,
    world: &'a World,
    options: &'a Options,
    /// Each site's options, the most promising first.
    ranked: Vec<Vec<usize>>,
    pub simulations: u32,
}

impl<'a> Search<'a> {
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        ask: &'a Ask,
        world: &'a World,
        options: &'a Options,
    ) -> Self {
        let natural = |choices: &Vec<Choice>| (0..choices.len()).collect();
        Self {
            snapshot,
            ask,
            world,
            options,
            ranked: options.sites.iter().map(natural).collect(),
            simulations: 0,
        }
    }

    /// The best way to run, and whether it is exactly that.
    pub(crate) fn best(&mut self) -> (Tried, bool) {
        match self.ways() <= u64::from(self.ask.simulations_max) {
            true => (self.all(), true),
            false => (self.descend(), false),
        }
    }

    /// One given way, whatever comes of it.
    pub(crate) fn given(&mut self, config: &[Option<usize>], variant: Variant) -> Tried {
        let cast = self.members(config, variant);
        self.run(config, variant, cast, Duration::MAX)
    }

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

    pub(crate) fn chosen(&self, config: &[Option<usize>]) -> Vec<Choice> {
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
        let cast = self.members(config, variant);
        if best.is_some_and(|best| hopeless(self.ask, &self.world(variant), &cast.0, best)) {
            return None;
        }
        let needed_by = best.map_or(Duration::MAX, |best| needed_by(self.ask, self.world, best));
        Some(self.run(config, variant, cast, needed_by))
    }

    /// The members, and which of them are a choice's only ones and new.
    fn members(&self, config: &[Option<usize>], variant: Variant) -> (Vec<Member>, Vec<usize>) {
        let chosen = self.chosen(config);
        self.options.members(self.snapshot, &chosen, variant)
    }

    fn run(
        &mut self,
        config: &[Option<usize>],
        variant: Variant,
        (members, new): (Vec<Member>, Vec<usize>),
        needed_by: Duration,
    ) -> Tried {
        self.simulations += 1;
        let outcome = simulate_until(&self.world(variant), &members, needed_by);
        Tried {
            idle: new.iter().any(|&i| outcome.members[i].windows.0 == 0),
            config: config.to_vec(),
            variant,
            score: score(self.ask, &outcome, &members),
            members,
            outcome,
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
            let tried = self.given(&config, best.variant);
            scores.push((tried.idle, tried.score));
            keep_better(&mut best, Some(tried));
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

    /// The same with what `held` has at sites where this has nothing, as far as that makes nothing worse.
    pub(crate) fn with_what_costs_nothing(
        &mut self,
        mut at: Tried,
        held: &[Option<usize>],
    ) -> Tried {
        for (site, &held) in held.iter().enumerate() {
            if at.config[site].is_some() || held.is_none() {
                continue;
            }
            let mut config = at.config.clone();
            config[site] = held;
            let tried = self.given(&config, at.variant);
            if !tried.idle && tried.score.cmp(&at.score) != Ordering::Greater {
                at = tried;
            }
        }
        at
    }

    /// Only what runs already, to its end.
    fn nothing(&self) -> Tried {
        let variant = self.options.variants[0];
        let config = vec![None; self.options.sites.len()];
        let (members, _) = self.members(&config, variant);
        let outcome = simulate(&self.world(variant), &members);
        Tried {
            idle: false,
            config,
            variant,
            score: score(self.ask, &outcome, &members),
            members,
            outcome,
        }
    }

    /// What else each site could do with all others as chosen, and why that lost.
    pub(crate) fn alternatives(&mut self, best: &Tried, exact: bool) -> Vec<Alternative> {
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
            let cast = self.members(&config, best.variant);
            if !hopeless(self.ask, &self.world(best.variant), &cast.0, &best.score) {
                let tried = self.run(&config, best.variant, cast, Duration::MAX);
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
            _ if other.score.cmp(&best.score) == Ordering::Less => Why::NotEnough,
            _ if other.score.misses && !best.score.misses => Why::NotReached {
                missing: Windows(self.world.target.0 - lost.windows.0),
            },
            Objective::EarliestFinish if with && longer > period && !by.is_zero() => {
                Why::SlowsOthers {
                    period,
                    with: longer,
                    later_by: by,
                }
            }
            Objective::EarliestFinish if !by.is_zero() => Why::Later { by },
            Objective::MostTokens if less > 0 => Why::Less { by: Windows(less) },
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
