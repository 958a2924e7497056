//! How good a run is, and when one cannot be good enough.
//!
//! Never here: the walk through the ways to run.

use std::cmp::Ordering;
use std::time::Duration;

use crate::chain::Member;
use crate::plan::{Ask, Objective};
use crate::rounds::{Ended, Outcome, World, speed_at_best};

/// How good a run is: less is better, in this order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Score {
    pub misses: bool,
    pub value: f64,
    pub gpu_hours: f64,
}

impl Score {
    pub(crate) fn cmp(&self, other: &Self) -> Ordering {
        let tier = self.misses.cmp(&other.misses);
        let value = tier.then(self.value.total_cmp(&other.value));
        value.then(self.gpu_hours.total_cmp(&other.gpu_hours))
    }
}

#[allow(clippy::cast_precision_loss)] // Windows are far below 2^53.
pub(crate) fn score(ask: &Ask, outcome: &Outcome, members: &[Member]) -> Score {
    let windows = outcome.windows.0 as f64;
    let solo = outcome.solo_windows.0 as f64 / windows.max(1.0);
    let penalty = ask.solo_penalty.clamp(0.0, 1.0) * solo;
    let gpu_hours = outcome.gpu_hours(members);
    let misses = outcome.ended != Ended::Target && ask.objective != Objective::MostTokens;
    let value = match ask.objective {
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
pub(crate) fn hopeless(ask: &Ask, world: &World, members: &[Member], best: &Score) -> bool {
    let soonest_s = soonest_s(world, members);
    let deadline_s = world.horizon.as_secs_f64();
    match ask.objective {
        // Fractions of a second are left to rounding.
        Objective::EarliestFinish if !best.misses => soonest_s > best.value + 1.0,
        Objective::FewestGpuHours if !best.misses => soonest_s > deadline_s + 1.0,
        _ => false,
    }
}

/// By when a run must reach the target, to be better than `best`.
pub(crate) fn needed_by(ask: &Ask, world: &World, best: &Score) -> Duration {
    let value = || Duration::try_from_secs_f64(best.value + 1.0);
    match ask.objective {
        Objective::EarliestFinish if !best.misses => value().unwrap_or(Duration::MAX),
        Objective::FewestGpuHours if !best.misses => world.horizon,
        _ => Duration::MAX,
    }
}

/// When the target is reached if every member, from its first job on, closed rounds of its own for
/// ever: no run with these members is earlier. Seconds; infinite if never.
#[allow(clippy::cast_precision_loss)] // Windows are far below 2^53.
fn soonest_s(world: &World, members: &[Member]) -> f64 {
    let speed = |m: &Member| (m.first.ready_in.as_secs_f64(), speed_at_best(world, m));
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
