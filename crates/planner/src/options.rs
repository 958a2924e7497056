//! What a site could do, and what a choice for every site means as members of a run.
//!
//! A choice says how a site shall be used: so many replicas in a shape. Jobs that are there already are
//! its first: a running one keeps its nodes to its end, whatever is chosen, and only what follows it is a
//! decision; a waiting one counts if it is of the chosen shape, and is taken back if not. Never here:
//! which choice is better.

use std::time::Duration;

use crate::candidate::{Candidate, Excluded, Exclusion};
use crate::cast::Terms;
use crate::chain::{FirstJob, Member};
use crate::plan::{Ask, Held};
use crate::rounds::Balance;
use crate::run::Snapshot;
use crate::site::{ChainPolicy, JobState, ShapeName, Site};

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

/// A job that a site has.
struct There {
    shape: ShapeName,
    running: bool,
    nodes: u32,
    /// As a member that nothing follows; `None` if too little is known of its shape.
    member: Option<Member>,
}

/// All that can be chosen from.
pub(crate) struct Options {
    pub candidates: Vec<Candidate>,
    /// For each site that has any, what it could do.
    pub sites: Vec<Vec<Choice>>,
    pub variants: Vec<Variant>,
    /// Jobs of each site of the snapshot, running ones first.
    there: Vec<Vec<There>>,
    /// Shapes, and jobs that are there, that rounds cannot be simulated with.
    pub excluded: Vec<Excluded>,
}

/// A choice's members, and how many of its replicas are new jobs.
struct Cast {
    members: Vec<Member>,
    fresh: u32,
}

impl Options {
    /// `held` is a decision whose numbers of replicas are among the options, too.
    pub(crate) fn new(
        snapshot: &Snapshot,
        ask: &Ask,
        candidates: Vec<Candidate>,
        held: Option<&Held>,
    ) -> Self {
        let (fit, unfit): (Vec<_>, Vec<_>) = candidates
            .into_iter()
            .partition(|c| c.speed.exchange.is_ok());
        let unfit = unfit
            .into_iter()
            .filter_map(|c| Some(excluded(&c, c.speed.exchange.clone().err()?)));
        let mut excluded_all: Vec<Excluded> = unfit.collect();
        let (mut sites, mut there) = (Vec::new(), Vec::new());
        for (index, site) in snapshot.sites.iter().enumerate() {
            let jobs = jobs_there(snapshot, index, &mut excluded_all);
            let mut choices = Vec::new();
            for (i, candidate) in fit.iter().enumerate() {
                if candidate.site_index != index {
                    continue;
                }
                match room(site, candidate, &jobs) {
                    Ok(most) => {
                        let most = most.min(ask.replicas_max);
                        let also = held.and_then(|held| held.replicas(candidate));
                        let running = jobs.iter().filter(|job| job.running).count();
                        let also = [also.unwrap_or(0), u32::try_from(running).unwrap_or(0)];
                        let counts = counts(most, &also).into_iter();
                        choices.extend(counts.flat_map(|n| chained(site, ask, i, n)));
                    }
                    Err(reason) => excluded_all.push(excluded(candidate, reason)),
                }
            }
            if !choices.is_empty() {
                sites.push(choices);
            }
            there.push(jobs);
        }
        Self {
            excluded: excluded_all,
            sites,
            variants: variants(snapshot, ask),
            there,
            candidates: fit,
        }
    }

    /// The terms under which the chosen replicas run, in the order of sites.
    pub(crate) fn terms(&self, chosen: &[Choice], variant: Variant) -> Vec<Terms> {
        let ready = |choice: &Choice| {
            let (taken, fresh) = self.taken(choice);
            let new = self.starts_in(choice).saturating_add(self.startup(choice));
            let there = taken.filter_map(|job| job.member.as_ref());
            let there = there.map(|member| member.first.ready_in);
            there.chain((fresh > 0).then_some(new)).max()
        };
        let last = chosen.iter().filter_map(ready).max().unwrap_or_default();
        let terms = |choice: &Choice| Terms {
            replicas: choice.replicas,
            chain: choice.chain,
            jobs_max: match choice.chain {
                ChainPolicy::Single => 1,
                ChainPolicy::AfterEnd | ChainPolicy::Ahead => u32::MAX,
            },
            begins_in: match variant.together {
                true => last.saturating_sub(self.startup(choice)),
                false => Duration::ZERO,
            },
        };
        chosen.iter().map(terms).collect()
    }

    fn starts_in(&self, choice: &Choice) -> Duration {
        self.candidates[choice.candidate].starts_in
    }

    fn startup(&self, choice: &Choice) -> Duration {
        self.candidates[choice.candidate].speed.startup.value
    }

    /// The jobs that are a choice's first replicas, and how many are new. Of running ones as many as are
    /// chosen, in any shape; then waiting ones of its shape.
    fn taken(&self, choice: &Choice) -> (impl Iterator<Item = &There>, u32) {
        let candidate = &self.candidates[choice.candidate];
        let name = &candidate.shape.name;
        let jobs = self.there[candidate.site_index].iter();
        let fits = move |job: &&There| job.running || job.shape == *name;
        let taken = jobs.filter(fits).take(choice.replicas as usize);
        let fresh = choice.replicas - u32::try_from(taken.clone().count()).unwrap_or(u32::MAX);
        (taken, fresh)
    }

    /// How many of a choice's replicas have a job already.
    pub(crate) fn already(&self, choice: &Choice) -> u32 {
        choice.replicas - self.taken(choice).1
    }

    /// The members of the run, in the order of sites, and for each choice whether new jobs of its own
    /// are all that it is, and where they are.
    pub(crate) fn members(
        &self,
        snapshot: &Snapshot,
        chosen: &[Choice],
        variant: Variant,
    ) -> (Vec<Member>, Vec<usize>) {
        let terms = self.terms(chosen, variant);
        let (mut members, mut all_new) = (Vec::new(), Vec::new());
        for site in 0..self.there.len() {
            let of_site = |(choice, _): &(&Choice, &Terms)| {
                self.candidates[choice.candidate].site_index == site
            };
            let choice = chosen.iter().zip(&terms).find(of_site);
            let kept = choice.map_or(0, |(choice, _)| choice.replicas as usize);
            // Running ones that nothing follows.
            let running = self.there[site].iter().filter(|job| job.running);
            members.extend(running.skip(kept).filter_map(|job| job.member.clone()));
            let Some((choice, terms)) = choice else {
                continue;
            };
            let cast = self.cast(snapshot, choice, *terms);
            if cast.fresh == choice.replicas && !cast.members.is_empty() {
                all_new.push(members.len());
            }
            members.extend(cast.members);
        }
        (members, all_new)
    }

    fn cast(&self, snapshot: &Snapshot, choice: &Choice, terms: Terms) -> Cast {
        let candidate = &self.candidates[choice.candidate];
        let (taken, fresh) = self.taken(choice);
        let mut members = Vec::new();
        let new = |replicas, begins_in| {
            let terms = Terms {
                replicas,
                begins_in,
                ..terms
            };
            Member::of(snapshot, candidate, terms).ok()
        };
        for job in taken {
            let Some(there) = &job.member else { continue };
            let Some(alike) = new(1, terms.begins_in) else {
                continue;
            };
            if job.shape == candidate.shape.name {
                members.push(Member {
                    first: there.first,
                    ..alike
                });
                continue;
            }
            // Nothing but the place is taken over: the successor has another shape.
            members.push(there.clone());
            let first = successor(there, &alike, terms.chain);
            members.extend(first.map(|first| Member { first, ..alike }));
        }
        if fresh > 0 {
            members.extend(new(fresh, terms.begins_in));
        }
        Cast { members, fresh }
    }
}

/// When the job after one that is there begins, in another shape.
fn successor(there: &Member, alike: &Member, chain: ChainPolicy) -> Option<FirstJob> {
    let wait = alike.first.starts_in;
    let starts_in = match chain {
        ChainPolicy::Single => return None,
        ChainPolicy::AfterEnd => there.first.ends_in.saturating_add(wait),
        ChainPolicy::Ahead => there.first.ends_in.max(wait),
    };
    Some(FirstJob {
        starts_in,
        ready_in: starts_in.saturating_add(alike.startup),
        ends_in: starts_in.saturating_add(alike.walltime),
        paid: false,
    })
}

fn excluded(candidate: &Candidate, reason: Exclusion) -> Excluded {
    Excluded {
        site: candidate.site.clone(),
        shape: candidate.shape.name.clone(),
        reason,
    }
}

fn jobs_there(snapshot: &Snapshot, index: usize, excluded: &mut Vec<Excluded>) -> Vec<There> {
    let site = &snapshot.sites[index];
    let mut there = Vec::new();
    for job in &site.jobs {
        let running = matches!(job.state, JobState::Running { .. });
        let member = match Member::of_job(snapshot, index, job) {
            Ok(member) => Some(member),
            Err(reason) => {
                // It is there all the same, but a plan cannot count on it.
                excluded.push(Excluded {
                    site: site.name.clone(),
                    shape: job.shape.clone(),
                    reason,
                });
                None
            }
        };
        there.push(There {
            nodes: site.shape(&job.shape).map_or(0, |s| s.shape.nodes),
            shape: job.shape.clone(),
            running,
            member,
        });
    }
    there.sort_by_key(|job| !job.running);
    there
}

fn variants(snapshot: &Snapshot, ask: &Ask) -> Vec<Variant> {
    let balances = match ask.balance {
        Some(balance) => vec![balance],
        None if ask.accumulation_max > snapshot.run.phase.accumulation => {
            vec![Balance::Nearest, Balance::Within, Balance::Off]
        }
        None => vec![Balance::Off],
    };
    let both = |balance: Balance| [false, true].map(|together| Variant { balance, together });
    balances.into_iter().flat_map(both).collect()
}

/// The most replicas of a shape under a site's limits. Running jobs keep their nodes until they end, and
/// are the first replicas; what waits can be taken back.
fn room(site: &Site, candidate: &Candidate, jobs: &[There]) -> Result<u32, Exclusion> {
    let running = || jobs.iter().filter(|job| job.running);
    let count = u32::try_from(running().count()).unwrap_or(u32::MAX);
    let nodes = candidate.shape.nodes.max(1);
    let mut most = u32::MAX;
    if let Some(limit) = &site.limits.nodes {
        let limit = limit.value;
        let free = limit.saturating_sub(running().map(|job| job.nodes).sum());
        most = (limit / nodes).min(count.saturating_add(free / nodes));
        if most == 0 {
            return Err(Exclusion::OverNodeLimit { nodes, free, limit });
        }
    }
    if let Some(limit) = &site.limits.jobs {
        most = most.min(limit.value);
        if most == 0 {
            let limit = limit.value;
            return Err(Exclusion::OverJobLimit { limit });
        }
    }
    match &site.limits.replicas {
        Some(limit) if limit.value == 0 => Err(Exclusion::NotWanted),
        Some(limit) => Ok(most.min(limit.value)),
        None => Ok(most),
    }
}

/// Powers of two, the most, and these.
fn counts(most: u32, also: &[u32]) -> Vec<u32> {
    let mut counts: Vec<u32> = (0..32).map(|i| 1 << i).take_while(|&n| n < most).collect();
    counts.extend((most > 0).then_some(most));
    counts.extend(also.iter().filter(|n| (1..=most).contains(*n)));
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn chained(
    site: &Site,
    ask: &Ask,
    candidate: usize,
    replicas: u32,
) -> impl Iterator<Item = Choice> + use<> {
    // A successor that waits ahead is never later than one that starts waiting at the end, but takes a
    // place in the queue.
    let jobs = site.limits.jobs.as_ref().map_or(u32::MAX, |f| f.value);
    let room = jobs / 2 >= replicas;
    let chain = match site.chain.value {
        ChainPolicy::Ahead if !room => ChainPolicy::AfterEnd,
        most => most,
    };
    let single = ask.single || chain == ChainPolicy::Single;
    let chain = (chain != ChainPolicy::Single).then_some(chain);
    let chains = chain
        .into_iter()
        .chain(single.then_some(ChainPolicy::Single));
    chains.map(move |chain| Choice {
        candidate,
        replicas,
        chain,
    })
}
