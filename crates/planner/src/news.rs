//! What has happened between two snapshots that a plan should be made again for.
//!
//! Everything else (a probe that moved a little, one round more) waits for the next regular plan. Never
//! here: whether the plan changes.

use std::fmt;
use std::time::Duration;

use hansa_base::SiteName;

use crate::fact::{Cost, Fact, Spell};
use crate::run::Snapshot;
use crate::site::{Answer, JobState, ShapeName, ShapeState, Site, WindowsPerGpuS};

/// A wait that changed by less is the same one.
const WAIT_S: f64 = 30.0;
/// A cost that changed by less is the same one.
const COST_S: f64 = 1.0;
/// The same as a share of the larger.
const SHARE: f64 = 0.25;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A job has started.
    Started {
        /// The site.
        site: SiteName,
        /// Its shape.
        shape: ShapeName,
    },
    /// A job that ran is there no more: its walltime is over, or it ended before.
    Ended {
        /// The site.
        site: SiteName,
        /// Its shape.
        shape: ShapeName,
    },
    /// A shape that could be submitted cannot, or the other way round.
    Usable {
        /// The site.
        site: SiteName,
        /// The shape.
        shape: ShapeName,
        /// Why not now; `None` if it can be.
        why_not: Option<String>,
    },
    /// A probe says something else.
    Wait {
        /// The site.
        site: SiteName,
        /// The shape.
        shape: ShapeName,
        /// What it said before.
        was: Duration,
        /// What it says.
        is: Duration,
    },
    /// Maintenance or a reservation was announced or lifted.
    Closed {
        /// The site.
        site: SiteName,
    },
    /// Rounds cost something else.
    RoundCost {
        /// Where; `None` is the merge.
        site: Option<SiteName>,
    },
    /// A site's shapes, limits, budget or chaining are others.
    Rules {
        /// The site.
        site: SiteName,
    },
    /// A site is new, or has left.
    Sites,
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { site, shape } => write!(f, "a job in {shape} at {site} has started"),
            Self::Ended { site, shape } => write!(f, "a job in {shape} at {site} has ended"),
            Self::Usable {
                site,
                shape,
                why_not: Some(why),
            } => write!(f, "{shape} at {site} cannot be used: {why}"),
            Self::Usable { site, shape, .. } => write!(f, "{shape} at {site} can be used now"),
            Self::Wait {
                site,
                shape,
                was,
                is,
            } => {
                let (was, is) = (Spell(*was), Spell(*is));
                write!(f, "{shape} at {site} would wait {is}, not {was}")
            }
            Self::Closed { site } => write!(f, "the closed times of {site} have changed"),
            Self::RoundCost { site: Some(site) } => {
                write!(f, "speed, start-up or transfer at {site} have changed")
            }
            Self::RoundCost { site: None } => f.write_str("merges take another time"),
            Self::Rules { site } => write!(f, "shapes or limits of {site} have changed"),
            Self::Sites => f.write_str("the sites are others"),
        }
    }
}

/// What happened from `before` to `after`, in the order of the sites.
#[must_use]
pub fn news(before: &Snapshot, after: &Snapshot) -> Vec<News> {
    let names = |snapshot: &Snapshot| -> Vec<SiteName> {
        let sites = snapshot.sites.iter();
        sites.map(|site| site.name.clone()).collect()
    };
    if names(before) != names(after) {
        return vec![News::Sites];
    }
    let mut news = Vec::new();
    if differs_cost(&before.run.merge, &after.run.merge) {
        news.push(News::RoundCost { site: None });
    }
    for (old, new) in before.sites.iter().zip(&after.sites) {
        jobs(old, new, &mut news);
        for state in &new.shapes {
            let known = old.shape(&state.shape.name);
            news.extend(known.and_then(|old| shape(&new.name, old, state)));
        }
        if rules(old) != rules(new) {
            let site = new.name.clone();
            news.push(News::Rules { site });
        }
        let closed = |site: &Site| -> Vec<_> { site.closed.iter().map(|f| f.value).collect() };
        if closed(old) != closed(new) {
            let site = new.name.clone();
            news.push(News::Closed { site });
        }
        if costs_differ(old, new) {
            let site = Some(new.name.clone());
            news.push(News::RoundCost { site });
        }
    }
    news
}

type Rules<'a> = (
    Vec<&'a crate::site::Shape>,
    [Option<u32>; 3],
    bool,
    crate::site::ChainPolicy,
);

fn rules(site: &Site) -> Rules<'_> {
    let limits = &site.limits;
    let limits = [&limits.nodes, &limits.jobs, &limits.replicas];
    (
        site.shapes.iter().map(|state| &state.shape).collect(),
        limits.map(|limit| limit.as_ref().map(|fact| fact.value)),
        site.budget.is_some(),
        site.chain.value,
    )
}

fn jobs(old: &Site, new: &Site, news: &mut Vec<News>) {
    let running = |state: &JobState| matches!(state, JobState::Running { .. });
    let site = || new.name.clone();
    for job in new.jobs.iter().filter(|job| running(&job.state)) {
        if !old.jobs.contains(job) {
            let shape = job.shape.clone();
            news.push(News::Started {
                site: site(),
                shape,
            });
        }
    }
    for job in old.jobs.iter().filter(|job| running(&job.state)) {
        if !new.jobs.contains(job) {
            let shape = job.shape.clone();
            news.push(News::Ended {
                site: site(),
                shape,
            });
        }
    }
}

/// Why a shape cannot be used; whether it never could is no news.
fn why_not(state: &ShapeState) -> Option<String> {
    if let Some(shut) = &state.shut {
        return Some(shut.value.clone());
    }
    match state.probe.as_ref().map(|probe| &probe.value) {
        Some(Answer::StartsAt(_)) => None,
        Some(Answer::Refused(words)) => Some(words.clone()),
        None => Some("it was never probed".to_owned()),
    }
}

fn shape(site: &SiteName, old: &ShapeState, new: &ShapeState) -> Option<News> {
    let (was, is) = (why_not(old), why_not(new));
    let (site, shape) = (site.clone(), new.shape.name.clone());
    if was.is_some() != is.is_some() {
        let why_not = is;
        return Some(News::Usable {
            site,
            shape,
            why_not,
        });
    }
    let (was, is) = (wait(old)?, wait(new)?);
    differs(was.as_secs_f64(), is.as_secs_f64(), WAIT_S).then_some(News::Wait {
        site,
        shape,
        was,
        is,
    })
}

fn wait(state: &ShapeState) -> Option<Duration> {
    let probe = state.probe.as_ref()?;
    match probe.value {
        Answer::StartsAt(at) => Some(at.since(probe.at)),
        Answer::Refused(_) => None,
    }
}

fn costs_differ(old: &Site, new: &Site) -> bool {
    let rates = |site: &Site| -> Vec<Option<f64>> {
        let of = |rate: &Option<Fact<WindowsPerGpuS>>| rate.as_ref().map(|fact| fact.value.0);
        let shapes = site.shapes.iter().map(|state| of(&state.rate));
        shapes.chain([of(&site.rate)]).collect()
    };
    let faster = |(old, new): (&Option<f64>, &Option<f64>)| match (old, new) {
        (Some(old), Some(new)) => differs(*old, *new, 0.0),
        (old, new) => old.is_some() != new.is_some(),
    };
    rates(old).iter().zip(&rates(new)).any(faster)
        || differs_cost(&old.startup, &new.startup)
        || differs_cost(&old.transfer, &new.transfer)
        || differs_cost(&old.evaluation, &new.evaluation)
}

fn differs_cost(old: &Cost, new: &Cost) -> bool {
    match (old.best(), new.best()) {
        (Some(old), Some(new)) => differs(old.value.as_secs_f64(), new.value.as_secs_f64(), COST_S),
        (old, new) => old.is_some() != new.is_some(),
    }
}

/// By more than `least`, and by more than a quarter of the larger.
fn differs(old: f64, new: f64, least: f64) -> bool {
    let by = (old - new).abs();
    by > least && by > SHARE * old.max(new)
}
