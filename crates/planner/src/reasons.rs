//! Why a plan is as it is: what lost and why, and what would surprise its reader.
//!
//! Never here: a decision; these are read off finished simulations.

use std::fmt;
use std::time::Duration;

use hansa_base::{SiteName, Windows};

use crate::chain::Member;
use crate::fact::Spell;
use crate::rounds::{Ended, Outcome};
use crate::site::ShapeName;

/// A plan that differs from the chosen one at one site, and lost.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// The site.
    pub site: SiteName,
    /// The shape; `None` means without the site.
    pub shape: Option<ShapeName>,
    /// The best number of replicas in it.
    pub replicas: u32,
    /// Why it lost.
    pub why: Why,
}

/// Why an alternative lost.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// It does not reach the target in time, and the chosen plan does.
    NotReached {
        /// Windows missing.
        missing: Windows,
    },
    /// Everything is over before its first job trains.
    TooLate {
        /// Everything is over.
        ends_in: Duration,
    },
    /// Rounds with it last longer than what it adds is worth.
    SlowsOthers {
        /// The longest round of the chosen plan.
        period: Duration,
        /// The longest with it.
        with: Duration,
        /// How much later it all ends.
        later_by: Duration,
    },
    /// It ends later.
    Later {
        /// By so much.
        by: Duration,
    },
    /// It trains less until the deadline.
    Less {
        /// By so much.
        by: Windows,
    },
    /// It costs more.
    Dearer {
        /// By so many GPU-hours.
        by: f64,
    },
    /// More of it would be trained by one site alone, which the policy counts as worth less.
    MoreSolo {
        /// Windows of solo rounds.
        windows: Windows,
    },
    /// It is better, but not by what a change must gain, or with too little time before the deadline.
    NotEnough,
    /// It comes to the same; the one that is listed first was taken.
    Same,
    /// Even if nobody ever waited for anybody it would be worse; it was not simulated.
    CannotBeBetter,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReached { missing } => {
                write!(f, "misses the target by {missing} windows")
            }
            Self::TooLate { ends_in } => {
                write!(f, "comes when all is over, in {}", Spell(*ends_in))
            }
            Self::SlowsOthers {
                period,
                with,
                later_by,
            } => {
                let (period, with, by) = (Spell(*period), Spell(*with), Spell(*later_by));
                write!(
                    f,
                    "slows the others: rounds of {with} for {period}; ends {by} later"
                )
            }
            Self::Later { by } => write!(f, "ends {} later", Spell(*by)),
            Self::Less { by } => write!(f, "trains {by} windows less"),
            Self::Dearer { by } => write!(f, "costs {by:.1} GPU-hours more"),
            Self::MoreSolo { windows } => write!(f, "trains {windows} windows at one site alone"),
            Self::NotEnough => f.write_str(
                "is better, but by too little for a change, or too close to the deadline",
            ),
            Self::Same => f.write_str("comes to the same"),
            Self::CannotBeBetter => f.write_str("would be worse even if nobody waited for anybody"),
        }
    }
}

/// Something in a plan that a reader would not expect.
#[derive(Clone, Debug, PartialEq)]
pub enum Trap {
    /// The two train, and never in the same round: nothing is averaged.
    NeverTogether {
        /// One site.
        a: SiteName,
        /// The other.
        b: SiteName,
    },
    /// The corpus is exhausted, or the target reached, before the site arrives.
    ArrivesAfterTheEnd {
        /// The site.
        site: SiteName,
        /// Its first replica would be ready.
        ready_in: Duration,
        /// All is over.
        ends_in: Duration,
    },
    /// Its jobs are billed, and nothing they train is ever committed.
    BilledForNothing {
        /// The site.
        site: SiteName,
        /// So many GPU-hours.
        gpu_hours: f64,
    },
    /// Its last job has much walltime left when all is over: who keeps it pays for nothing.
    BilledAfterTheEnd {
        /// The site.
        site: SiteName,
        /// So many GPU-hours, if the job is not let go.
        gpu_hours: f64,
    },
    /// The corpus ends before the target is reached.
    CorpusTooSmall {
        /// Windows missing.
        missing: Windows,
    },
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverTogether { a, b } => write!(
                f,
                "{a} and {b} both train but never in the same round: they do not federate"
            ),
            Self::ArrivesAfterTheEnd {
                site,
                ready_in,
                ends_in,
            } => {
                let (ready_in, ends_in) = (Spell(*ready_in), Spell(*ends_in));
                write!(f, "{site} is ready in {ready_in}, all is over in {ends_in}")
            }
            Self::BilledForNothing { site, gpu_hours } => {
                write!(
                    f,
                    "{site} is billed {gpu_hours:.1} GPU-hours and contributes nothing"
                )
            }
            Self::BilledAfterTheEnd { site, gpu_hours } => write!(
                f,
                "{site} is billed {gpu_hours:.1} GPU-hours after the end, unless its jobs are let go"
            ),
            Self::CorpusTooSmall { missing } => {
                write!(f, "the corpus ends {missing} windows before the target")
            }
        }
    }
}

/// What a job has left at the end is worth a word beyond this share of all that is billed.
const AFTER_THE_END: f64 = 0.1;

/// Names what a reader of this outcome would not expect. `sites` are the snapshot's, `target` its
/// run's.
#[must_use]
pub fn traps(
    sites: &[SiteName],
    members: &[Member],
    outcome: &Outcome,
    target: Windows,
) -> Vec<Trap> {
    let mut traps = Vec::new();
    if outcome.ended == Ended::Corpus {
        let missing = Windows(target.0.saturating_sub(outcome.windows.0));
        traps.push(Trap::CorpusTooSmall { missing });
    }
    let trained = |i: usize| outcome.members[i].windows.0 > 0;
    for (i, member) in members.iter().enumerate() {
        let (tally, site) = (&outcome.members[i], &sites[member.site]);
        let gpu_hours = tally.billed.as_secs_f64() * member.all_gpus() / 3600.0;
        let over = matches!(outcome.ended, Ended::Target | Ended::Corpus);
        if over && member.first.ready_in >= outcome.ends_in {
            traps.push(Trap::ArrivesAfterTheEnd {
                site: site.clone(),
                ready_in: member.first.ready_in,
                ends_in: outcome.ends_in,
            });
        }
        if !trained(i) && gpu_hours > 0.0 {
            let site = site.clone();
            traps.push(Trap::BilledForNothing { site, gpu_hours });
        }
    }
    if matches!(outcome.ended, Ended::Target | Ended::Corpus) {
        traps.extend(after_the_end(sites, members, outcome));
    }
    let met = |a: usize, b: usize| {
        let here = |i: usize, s: &crate::rounds::Stretch| s.parts.iter().any(|p| p.member == i);
        outcome.stretches.iter().any(|s| here(a, s) && here(b, s))
    };
    for a in 0..members.len() {
        for b in a + 1..members.len() {
            let apart = members[a].site != members[b].site;
            if apart && trained(a) && trained(b) && !met(a, b) {
                traps.push(Trap::NeverTogether {
                    a: sites[members[a].site].clone(),
                    b: sites[members[b].site].clone(),
                });
            }
        }
    }
    traps
}

/// Sites whose jobs have much walltime left when all is over.
fn after_the_end(sites: &[SiteName], members: &[Member], outcome: &Outcome) -> Vec<Trap> {
    let mut traps = Vec::new();
    for (i, site) in sites.iter().enumerate() {
        let both = members.iter().zip(&outcome.members);
        let here = both.filter(|(member, _)| member.site == i);
        let hours =
            |member: &Member, time: Duration| time.as_secs_f64() * member.all_gpus() / 3600.0;
        let (after, billed) = here.fold((0.0, 0.0), |(after, billed), (m, tally)| {
            let (over, spent) = (hours(m, tally.over), hours(m, tally.billed));
            (after + over, billed + spent)
        });
        if after > AFTER_THE_END * billed {
            traps.push(Trap::BilledAfterTheEnd {
                site: site.clone(),
                gpu_hours: after,
            });
        }
    }
    traps
}
