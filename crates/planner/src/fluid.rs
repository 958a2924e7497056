//! The run as it would go if nobody ever waited for anybody.
//!
//! Every member trains at its own speed whenever it is ready: no rounds, no exchange, no merge. That
//! is what the published system's Table 4 assumes ("0% barrier awaits for simplicity"). Beside the
//! round simulator's answer it shows what the barrier costs. Never here: a plan; none can be as good.

use std::time::Duration;

use hansa_base::Windows;

use crate::chain::{Member, Seats, Tally};
use crate::rounds::{Ended, World};

/// How a run without a barrier goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Fluid {
    /// Why it ended.
    pub ended: Ended,
    /// When.
    pub ends_in: Duration,
    /// Windows trained.
    pub windows: Windows,
    /// What became of each member, in the order given; rounds are always 0.
    pub members: Vec<Tally>,
}

/// Trains without a barrier. The same input gives the same outcome.
#[must_use]
#[allow(clippy::cast_precision_loss)] // Windows are far below 2^53.
pub fn without_barrier(world: &World, members: &[Member]) -> Fluid {
    let all = world.target.min(world.corpus).0;
    let mut seats = Seats::new(members, &world.sites);
    let (mut now, mut trained) = (Duration::ZERO, vec![0.0_f64; members.len()]);
    let ended = loop {
        let left = all as f64 - trained.iter().sum::<f64>();
        // Less than a window is left by rounding only.
        if left < 0.5 {
            break full(world);
        }
        seats.advance(now);
        let here = |seat: &crate::chain::Seat| seat.run.is_some_and(|run| run.ready <= now);
        let seated = || {
            seats
                .seats
                .iter()
                .enumerate()
                .filter(|(_, seat)| here(seat))
        };
        let speed: f64 = seated().map(|(_, seat)| seat.member.windows_per_s()).sum();
        let done = Duration::try_from_secs_f64(left / speed).unwrap_or(Duration::MAX);
        let ends = seated().filter_map(|(_, seat)| seat.run).map(|run| run.end);
        let change = ends.chain(seats.next_ready(now)).min();
        let Some(next) = change.map(|at| at.min(now.saturating_add(done))) else {
            break Ended::Nobody;
        };
        // A nanosecond at least, so that rounding never stops time.
        let next = next.max(now + Duration::from_nanos(1)).min(world.horizon);
        let elapsed = next.saturating_sub(now);
        let part = |seat: &crate::chain::Seat| elapsed.as_secs_f64() * seat.member.windows_per_s();
        let gains: Vec<(usize, f64)> = seated().map(|(i, seat)| (i, part(seat))).collect();
        for (i, gain) in gains {
            trained[i] += gain;
            seats.seats[i].tally.computing += elapsed;
        }
        now = next;
        if now >= world.horizon {
            break Ended::Horizon;
        }
    };
    let whole = whole(&trained, all);
    let mut tallies = seats.finish(now);
    for (tally, &windows) in tallies.iter_mut().zip(&whole) {
        tally.windows = Windows(windows);
    }
    Fluid {
        ended,
        ends_in: now,
        windows: whole.iter().copied().map(Windows).sum(),
        members: tallies,
    }
}

fn full(world: &World) -> Ended {
    match world.target <= world.corpus {
        true => Ended::Target,
        false => Ended::Corpus,
    }
}

/// Whole windows by largest remainder; their sum is the rounded sum, at most `all`.
fn whole(trained: &[f64], all: u64) -> Vec<u64> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Not negative.
    let floor = |x: f64| x as u64;
    let mut whole: Vec<u64> = trained.iter().map(|&x| floor(x)).collect();
    let sum = floor(trained.iter().sum::<f64>().round()).min(all);
    let mut order: Vec<usize> = (0..whole.len()).collect();
    order.sort_by(|&a, &b| {
        trained[b]
            .fract()
            .total_cmp(&trained[a].fract())
            .then(a.cmp(&b))
    });
    let missing = sum.saturating_sub(whole.iter().sum());
    for (&i, _) in order.iter().zip(0..missing) {
        whole[i] += 1;
    }
    whole
}
