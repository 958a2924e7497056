//! The paper's waterfill: outstanding units to the soonest available sites.
//!
//! It answers which jobs to submit now so that the work is done earliest if nobody ever waits for
//! anybody: one job per site, in one of its shapes, no longer than the shape that was probed. It
//! knows nothing of rounds; that the sum of speeds is an illusion under a barrier is what the round
//! simulator is for. Never here: several jobs in a row at one site.

use std::fmt;
use std::time::Duration;

use hansa_base::{SiteName, Windows};

use crate::candidate::{Candidate, Excluded, Exclusion, candidates};
use crate::fact::Spell;
use crate::level::{Lane, pour};
use crate::run::Snapshot;
use crate::site::ShapeName;

/// The least that a batch system grants and bills by.
const MINUTE: Duration = Duration::from_secs(60);

/// Work to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Units outstanding.
    pub units: u64,
    /// Windows of a unit.
    pub windows_per_unit: Windows,
}

/// Which jobs to submit, and why no others.
#[derive(Clone, Debug, PartialEq)]
pub struct Waterfill {
    /// The water level: when arbitrarily fine work would be done. `None` if not all of it fits.
    pub level_in: Option<Duration>,
    /// When the last whole unit is done.
    pub done_in: Duration,
    /// The jobs, in the snapshot's order.
    pub shares: Vec<Share>,
    /// Units that fit into no job: for the next plan.
    pub left: u64,
    /// Shapes that would have done and were not needed.
    pub passed_over: Vec<PassedOver>,
    /// Shapes that cannot be used.
    pub excluded: Vec<Excluded>,
}

/// One job.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// The shape, with every number that was used and its source.
    pub candidate: Candidate,
    /// Units for it.
    pub units: u64,
    /// Its first unit starts.
    pub ready_in: Duration,
    /// Its last unit is done.
    pub done_in: Duration,
    /// What to ask for: start-up, work and reserve, in whole minutes; never more than the shape.
    pub walltime: Duration,
    /// What that costs.
    pub gpu_hours: f64,
}

/// A shape that a plan could have used.
#[derive(Clone, Debug, PartialEq)]
pub struct PassedOver {
    /// The site.
    pub site: SiteName,
    /// The shape.
    pub shape: ShapeName,
    /// Why not.
    pub reason: Lost,
}

/// Why a usable shape was not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Another shape of the site does at least as much by then.
    ToShape {
        /// Which.
        winner: ShapeName,
        /// Units that it gets.
        units: u64,
    },
    /// All is done before it would be ready.
    TooLate {
        /// It would be ready.
        ready_in: Duration,
        /// All is done.
        done_in: Duration,
    },
    /// By then it would not have the fewest units that are worth a job.
    TooLittle {
        /// All is done.
        done_in: Duration,
        /// Worth a job.
        min: u64,
    },
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ToShape { winner, units } => {
                write!(f, "{winner} does at least as much: {units} units")
            }
            Self::TooLate { ready_in, done_in } => {
                let (ready_in, done_in) = (Spell(*ready_in), Spell(*done_in));
                write!(f, "ready in {ready_in}; all is done in {done_in}")
            }
            Self::TooLittle { done_in, min } => {
                let done_in = Spell(*done_in);
                write!(
                    f,
                    "all is done in {done_in}, before {min} units are worth a job here"
                )
            }
        }
    }
}

/// Places `request` on the snapshot's sites.
#[must_use]
pub fn waterfill(snapshot: &Snapshot, request: Request) -> Waterfill {
    let (fit, mut excluded) = candidates(snapshot);
    let min = snapshot.policy.units_min.min(request.units);
    let reserve = snapshot.policy.reserve;
    let mut used: Vec<Candidate> = Vec::new();
    let mut lanes: Vec<Lane> = Vec::new();
    for candidate in fit {
        match lane(&candidate, request, reserve, min) {
            Ok(lane) => {
                lanes.push(lane);
                used.push(candidate);
            }
            Err(reason) => excluded.push(Excluded {
                site: candidate.site,
                shape: candidate.shape.name,
                reason,
            }),
        }
    }
    let poured = pour(&lanes, request.units, min);
    let done_in = seconds(poured.finish_s);
    let lots = || used.iter().zip(&lanes).zip(&poured.units);
    let winner = |site: usize| {
        let mut lots = lots().filter(|((_, lane), units)| lane.site == site && **units > 0);
        lots.next()
            .map(|((c, _), units)| (c.shape.name.clone(), *units))
    };
    let lost = |((candidate, lane), units): ((&Candidate, &Lane), &u64)| {
        let ready_in = seconds(lane.ready_s);
        let reason = match winner(lane.site) {
            _ if *units > 0 => return None,
            Some((winner, units)) => Lost::ToShape { winner, units },
            None if ready_in >= done_in => Lost::TooLate { ready_in, done_in },
            None => Lost::TooLittle { done_in, min },
        };
        Some(PassedOver {
            site: candidate.site.clone(),
            shape: candidate.shape.name.clone(),
            reason,
        })
    };
    let placed = lots().filter(|(_, units)| **units > 0);
    Waterfill {
        level_in: poured.level_s.map(seconds),
        done_in,
        shares: placed
            .map(|((c, lane), &units)| share(c, lane, units, reserve))
            .collect(),
        left: poured.left,
        passed_over: lots().filter_map(lost).collect(),
        excluded,
    }
}

/// What one job of the shape could do under walltime, reserve and budget.
fn lane(
    candidate: &Candidate,
    request: Request,
    reserve: Duration,
    min: u64,
) -> Result<Lane, Exclusion> {
    let startup = candidate.speed.startup.value;
    let paid = match candidate.spendable_gpu_s {
        Some(gpu_s) => seconds(gpu_s / f64::from(candidate.shape.gpus())),
        None => Duration::MAX,
    };
    // Whole minutes, because the request will be: rounding it up may not leave the budget.
    let walltime = whole_minutes(candidate.walltime.min(paid));
    let overhead = startup.saturating_add(reserve);
    #[allow(clippy::cast_precision_loss)] // Windows are far below 2^53.
    let unit_s = request.windows_per_unit.0.max(1) as f64 / candidate.windows_per_s();
    let work_s = walltime.saturating_sub(overhead).as_secs_f64();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Not negative.
    let cap = (work_s / unit_s) as u64;
    if cap == 0 && paid < candidate.walltime {
        let gpu_hours_left = candidate.spendable_gpu_s.unwrap_or_default() / 3600.0;
        return Err(Exclusion::BudgetSpent { gpu_hours_left });
    }
    if walltime <= overhead {
        return Err(Exclusion::TooShort { walltime, overhead });
    }
    if cap < min.max(1) {
        return Err(Exclusion::TooFewUnits { units: cap, min });
    }
    Ok(Lane {
        site: candidate.site_index,
        ready_s: candidate.starts_in.saturating_add(startup).as_secs_f64(),
        unit_s,
        cap,
    })
}

fn share(candidate: &Candidate, lane: &Lane, units: u64, reserve: Duration) -> Share {
    #[allow(clippy::cast_precision_loss)] // At most the cap.
    let work_s = units as f64 * lane.unit_s;
    let needed = candidate.speed.startup.value.saturating_add(reserve);
    let needed = needed.saturating_add(seconds(work_s));
    // In milliseconds: a nanosecond of rounding must not ask for a minute more than is paid for.
    let minutes = needed.as_millis().div_ceil(MINUTE.as_millis());
    let minutes = u32::try_from(minutes).unwrap_or(u32::MAX);
    let walltime = MINUTE.saturating_mul(minutes).min(candidate.walltime);
    Share {
        units,
        ready_in: seconds(lane.ready_s),
        done_in: seconds(lane.ready_s + work_s),
        walltime,
        gpu_hours: walltime.as_secs_f64() * f64::from(candidate.shape.gpus()) / 3600.0,
        candidate: candidate.clone(),
    }
}

fn whole_minutes(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() / 60 * 60)
}

fn seconds(s: f64) -> Duration {
    Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX)
}
