//! What a site could do, and what a choice for every site means as members of a run.
//!
//! Never here: which choice is better.

use std::time::Duration;

use crate::candidate::{Candidate, Excluded};
use crate::cast::Terms;
use crate::chain::Member;
use crate::plan::Ask;
use crate::rounds::Balance;
use crate::run::Snapshot;
use crate::site::ChainPolicy;

/// One way to use one site.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    /// Index into the candidates.
    pub candidate: usize,
    pub replicas: u32,
    pub chain: ChainPolicy,
}

/// How choices become members, the same for all sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    pub balance: Balance,
    /// Jobs that would be ready before the last one begin so late that all are ready together.
    pub together: bool,
}

/// All that can be chosen from.
pub(crate) struct Options {
    pub candidates: Vec<Candidate>,
    /// For each site that has any, what it could do.
    pub sites: Vec<Vec<Choice>>,
    pub variants: Vec<Variant>,
    /// Jobs that are there already, whatever is chosen.
    pub fixed: Vec<Member>,
    /// Shapes, and jobs that are there, that rounds cannot be simulated with.
    pub excluded: Vec<Excluded>,
}

impl Options {
    pub(crate) fn new(snapshot: &Snapshot, ask: &Ask, candidates: Vec<Candidate>) -> Self {
        let (fit, unfit): (Vec<_>, Vec<_>) = candidates
            .into_iter()
            .partition(|c| c.speed.exchange.is_ok());
        let excluded = unfit.into_iter().filter_map(|c| {
            Some(Excluded {
                site: c.site,
                shape: c.shape.name,
                reason: c.speed.exchange.err()?,
            })
        });
        let mut sites = Vec::new();
        for site in 0..snapshot.sites.len() {
            let here = fit.iter().enumerate().filter(|(_, c)| c.site_index == site);
            let choices = here.flat_map(|(i, c)| choices(snapshot, ask, i, c));
            let choices: Vec<Choice> = choices.collect();
            if !choices.is_empty() {
                sites.push(choices);
            }
        }
        let (mut fixed, mut excluded) = (Vec::new(), excluded.collect::<Vec<_>>());
        for (i, site) in snapshot.sites.iter().enumerate() {
            for job in &site.jobs {
                match Member::of_job(snapshot, i, job) {
                    Ok(member) => fixed.push(member),
                    // It runs all the same, but a plan cannot count on it.
                    Err(reason) => excluded.push(Excluded {
                        site: site.name.clone(),
                        shape: job.shape.clone(),
                        reason,
                    }),
                }
            }
        }
        Self {
            excluded,
            sites,
            variants: variants(snapshot, ask),
            fixed,
            candidates: fit,
        }
    }

    /// The terms under which the chosen replicas run, in the order of sites.
    pub(crate) fn terms(&self, chosen: &[Choice], variant: Variant) -> Vec<Terms> {
        let of = |choice: &Choice| &self.candidates[choice.candidate];
        let fixed = || self.fixed.iter();
        let ready = |c: &Candidate| c.starts_in.saturating_add(c.speed.startup.value);
        let readies = fixed().map(|m| m.first.ready_in);
        let last = readies.chain(chosen.iter().map(|c| ready(of(c)))).max();
        let last = last.unwrap_or_default();
        let terms = |choice: &Choice| {
            let candidate = of(choice);
            Terms {
                replicas: choice.replicas,
                chain: choice.chain,
                jobs_max: match choice.chain {
                    ChainPolicy::Single => 1,
                    ChainPolicy::AfterEnd | ChainPolicy::Ahead => u32::MAX,
                },
                begins_in: match variant.together {
                    true => last.saturating_sub(candidate.speed.startup.value),
                    false => Duration::ZERO,
                },
            }
        };
        chosen.iter().map(terms).collect()
    }

    /// The members of the run: the jobs that are there, then the chosen replicas.
    pub(crate) fn members(
        &self,
        snapshot: &Snapshot,
        chosen: &[Choice],
        variant: Variant,
    ) -> Vec<Member> {
        let terms = self.terms(chosen, variant);
        let cast = chosen.iter().zip(terms).filter_map(|(choice, terms)| {
            Member::of(snapshot, &self.candidates[choice.candidate], terms).ok()
        });
        self.fixed.iter().cloned().chain(cast).collect()
    }
}

fn variants(snapshot: &Snapshot, ask: &Ask) -> Vec<Variant> {
    let balances: &[Balance] = match ask.accumulation_max > snapshot.run.phase.accumulation {
        true => &[Balance::Nearest, Balance::Within, Balance::Off],
        false => &[Balance::Off],
    };
    let both = |&balance: &Balance| [false, true].map(|together| Variant { balance, together });
    balances.iter().flat_map(both).collect()
}

/// Numbers of replicas are powers of two and the most that limits allow.
fn choices(snapshot: &Snapshot, ask: &Ask, index: usize, candidate: &Candidate) -> Vec<Choice> {
    let site = &snapshot.sites[candidate.site_index];
    let (nodes_taken, jobs_taken) = site.taken();
    let free = |limit: &Option<crate::fact::Fact<u32>>, taken: u32| {
        limit
            .as_ref()
            .map_or(u32::MAX, |fact| fact.value.saturating_sub(taken))
    };
    let by_nodes = free(&site.limits.nodes, nodes_taken) / candidate.shape.nodes.max(1);
    let jobs = free(&site.limits.jobs, jobs_taken);
    let most = by_nodes.min(jobs).min(ask.replicas_max);
    let mut counts: Vec<u32> = (0..32).map(|i| 1 << i).take_while(|&n| n < most).collect();
    counts.extend((most > 0).then_some(most));
    let chains = |replicas: u32| {
        // A successor that waits ahead is never later than one that starts waiting at the end, but
        // takes a place in the queue.
        let room = jobs / 2 >= replicas;
        let chain = match site.chain.value {
            ChainPolicy::Ahead if !room => ChainPolicy::AfterEnd,
            most => most,
        };
        let chain = (chain != ChainPolicy::Single).then_some(chain);
        chain.into_iter().chain([ChainPolicy::Single])
    };
    let choice = |(replicas, chain)| Choice {
        candidate: index,
        replicas,
        chain,
    };
    let pairs = counts
        .into_iter()
        .flat_map(|n| chains(n).map(move |chain| (n, chain)));
    pairs.map(choice).collect()
}
