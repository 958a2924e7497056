//! The run, round by round, as it would go.
//!
//! A round is a barrier: it lasts as long as its slowest member, so adding a slow site slows all
//! others, and sites that never overlap never federate. This simulator walks forward from the
//! snapshot's now through jobs that start, end and follow one another, until the target is reached or
//! nothing is left to go on with. Never here: which members to have; that is the search's question.
//!
//! **A round.** Every replica that is ready when it opens takes `H` steps, or as many as fit into its
//! job with the exchange after them (a job that cannot fit one is let go). Then
//!
//! ```text
//! in series:   period = max(steps·A·t) + Σ exchange + merge     (the published system)
//! overlapped:  period = max(steps·A·t + exchange) + merge       (each sends as soon as it has trained)
//! ```
//!
//! with `t` the time of a micro-batch. Where the run balances, `A` of a faster member is as many times
//! the recipe's as fit into the slowest present member's step, round by round. A replica that becomes ready in the middle joins if a step, and
//! where exchanges overlap its own exchange too, fits before the close that was predicted; a slower
//! close than that is never forced on the others. When less data is left than a round wants, each
//! member gets its speed's share of it, so that all finish together. What a round trained counts when
//! it closes, not before.
//!
//! **Speed.** Rounds that cannot differ (no replica comes, none goes, data and time last) are taken in
//! one stride, so the cost is that of events, not of rounds.
//!
//! **Against measurement** (H = 100, two sites of the published system; see the tests for the
//! arithmetic): 111.6 s for 113 s measured with one site, 347.0 s for 353 s measured with two. The
//! components are theirs: step times from throughput, transfer per site, merge, and evaluation as a
//! fixed part plus 512 windows at three times the training speed.

use std::time::Duration;

use hansa_base::{Steps, Windows};

use crate::chain::{Bounds, Member, Seat, Seats, Tally, ratio, steps_until, times};
use crate::run::Exchange;

/// What the members share.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    /// `H`.
    pub steps: Steps,
    /// Windows until the target is reached.
    pub target: Windows,
    /// Windows that the corpus can still give.
    pub corpus: Windows,
    /// Merging, per round.
    pub merge: Duration,
    /// How exchanges lie in time.
    pub exchange: Exchange,
    /// How accumulation fills the barrier.
    pub balance: Balance,
    /// `A` at most, when balancing.
    pub accumulation_max: u32,
    /// Nothing is simulated beyond this.
    pub horizon: Duration,
    /// What bounds the jobs of each site, in the snapshot's order.
    pub sites: Vec<Bounds>,
}

/// How accumulation fills the barrier: what faster members do while the slowest takes its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// Wait.
    Off,
    /// More micro-batches, as many as fit: nobody waits longer.
    Within,
    /// More, to the nearest: the barrier may move a little, and more is trained.
    Nearest,
}

/// Why a simulated run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The target is reached.
    Target,
    /// The corpus has no more windows.
    Corpus,
    /// No job is left that could train: chains and budgets are used up.
    Nobody,
    /// The horizon came first.
    Horizon,
}

/// How a run went.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Why it ended.
    pub ended: Ended,
    /// When its last round closed; for [`Ended::Horizon`] the horizon.
    pub ends_in: Duration,
    /// Windows committed.
    pub windows: Windows,
    /// Of these, in rounds of one replica.
    pub solo_windows: Windows,
    /// Its rounds, like ones together, in order.
    pub stretches: Vec<Stretch>,
    /// What became of each member, in the order given.
    pub members: Vec<Tally>,
}

impl Outcome {
    /// Rounds closed.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.stretches.iter().map(|s| s.rounds).sum()
    }

    /// GPU-hours billed to all members.
    #[must_use]
    pub fn gpu_hours(&self, members: &[Member]) -> f64 {
        self.gpu_hours_of(members, |tally| tally.billed)
    }

    /// The share of billed time in which accelerators did not train; 0 if nothing was billed.
    #[must_use]
    pub fn idle_share(&self, members: &[Member]) -> f64 {
        let billed = self.gpu_hours(members);
        if billed <= 0.0 {
            return 0.0;
        }
        1.0 - self.gpu_hours_of(members, |tally| tally.computing) / billed
    }

    fn gpu_hours_of(&self, members: &[Member], time: impl Fn(&Tally) -> Duration) -> f64 {
        let each = members.iter().zip(&self.members);
        let gpu_s = each.map(|(m, tally)| m.all_gpus() * time(tally).as_secs_f64());
        // An empty sum is −0.
        gpu_s.fold(0.0, |sum, gpu_s| sum + gpu_s) / 3600.0
    }
}

/// Rounds that are all alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// When the first opens.
    pub opens_in: Duration,
    /// How many.
    pub rounds: u64,
    /// How long each lasts.
    pub period: Duration,
    /// Of it, until the slowest has trained.
    pub compute: Duration,
    /// Of it, merging; what remains is exchange.
    pub merge: Duration,
    /// Windows of each round.
    pub windows: Windows,
    /// Who takes part.
    pub parts: Vec<Part>,
}

/// One member's part of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the member.
    pub member: usize,
    /// How long after the opening it joins; zero unless it comes late.
    pub joins_after: Duration,
    /// `A` of its steps.
    pub accumulation: u32,
    /// Steps it takes.
    pub steps: Steps,
    /// Windows it trains; the last step may be short.
    pub windows: Windows,
}

/// Walks through the run. The same input gives the same outcome.
#[must_use]
pub fn simulate(world: &World, members: &[Member]) -> Outcome {
    walk(world, members, u64::MAX, Duration::MAX)
}

/// The same, but ends at the horizon as soon as it is certain that the target is not reached by
/// `needed_by`, even if all members trained all the time.
pub(crate) fn simulate_until(world: &World, members: &[Member], needed_by: Duration) -> Outcome {
    walk(world, members, u64::MAX, needed_by)
}

fn walk(world: &World, members: &[Member], stride_max: u64, needed_by: Duration) -> Outcome {
    let mut walk = Walk {
        world,
        stride_max,
        needed_by,
        windows_per_s: members.iter().map(|m| speed_at_best(world, m)).sum(),
        seats: Seats::new(members, &world.sites),
        now: Duration::ZERO,
        windows: 0,
        solo_windows: 0,
        stretches: Vec::new(),
    };
    let ended = loop {
        if let Some(ended) = walk.step() {
            break ended;
        }
    };
    Outcome {
        ended,
        ends_in: walk.now,
        windows: Windows(walk.windows),
        solo_windows: Windows(walk.solo_windows),
        stretches: walk.stretches,
        members: walk.seats.finish(walk.now),
    }
}

struct Walk<'a> {
    world: &'a World,
    /// Rounds taken at once, at most. The outcome is the same for any value.
    stride_max: u64,
    /// Later than this the target is of no interest.
    needed_by: Duration,
    /// Of all members at once, at best.
    windows_per_s: f64,
    seats: Seats<'a>,
    now: Duration,
    windows: u64,
    solo_windows: u64,
    stretches: Vec<Stretch>,
}

impl Walk<'_> {
    /// The next stretch of rounds, or the next wait for somebody to be ready.
    fn step(&mut self) -> Option<Ended> {
        let world = self.world;
        match self.windows {
            done if done >= world.target.0 => return Some(Ended::Target),
            done if done >= world.corpus.0 => return Some(Ended::Corpus),
            _ => {}
        }
        if self.hopeless() {
            self.now = world.horizon;
            return Some(Ended::Horizon);
        }
        self.seats.advance(self.now);
        let mut parts = self.present();
        if parts.is_empty() {
            let Some(ready) = self.seats.next_ready(self.now) else {
                return Some(Ended::Nobody);
            };
            self.now = ready.min(world.horizon);
            return (ready >= world.horizon).then_some(Ended::Horizon);
        }
        self.share_what_is_left(&mut parts);
        let mut stretch = self.stretch(parts);
        stretch.rounds = self.alike(&stretch);
        if stretch.rounds == 0 {
            self.let_join(&mut stretch.parts, stretch.compute, stretch.period);
            stretch = self.stretch(stretch.parts);
            stretch.rounds = 1;
        }
        let closes = self
            .now
            .saturating_add(times(stretch.period, stretch.rounds));
        if closes > world.horizon {
            self.now = world.horizon;
            return Some(Ended::Horizon);
        }
        self.book(stretch);
        self.now = closes;
        None
    }

    /// Who is ready now, with the steps that fit into its job. Lets go of jobs that can do no more.
    fn present(&mut self) -> Vec<Part> {
        let now = self.now;
        let here = |seat: &Seat| seat.run.filter(|run| run.ready <= now);
        for i in 0..self.seats.seats.len() {
            let seat = &self.seats.seats[i];
            let base = seat.member.accumulation;
            if here(seat).is_some_and(|run| steps_until(seat.member, base, now, run.end) == 0) {
                self.seats.release(i, now);
            }
        }
        // A successor may be there at once; it is able, or it would not have taken the seat.
        let seats = || self.seats.seats.iter().enumerate();
        let seats = || seats().filter_map(|(i, seat)| Some((i, seat.member, here(seat)?.end)));
        let slowest = seats().map(|(_, m, _)| m.step(m.accumulation)).max();
        let slowest = slowest.unwrap_or_default();
        seats()
            .map(|(i, member, end)| self.part(i, member, now, end, slowest))
            .collect()
    }

    /// What a member does from `from` on, if it is to have exchanged by `end`.
    fn part(
        &self,
        i: usize,
        member: &Member,
        from: Duration,
        end: Duration,
        slowest: Duration,
    ) -> Part {
        let base = member.accumulation.max(1);
        let mut accumulation = self.accumulation(member, slowest);
        let mut steps = steps_until(member, accumulation, from, end);
        if steps == 0 {
            // A smaller step may still fit.
            accumulation = base;
            steps = steps_until(member, base, from, end);
        }
        let steps = steps.min(self.world.steps.0);
        let windows = steps.saturating_mul(member.step_windows(accumulation));
        Part {
            member: i,
            joins_after: from.saturating_sub(self.now),
            accumulation,
            steps: Steps(steps),
            windows: Windows(windows),
        }
    }

    fn accumulation(&self, member: &Member, slowest: Duration) -> u32 {
        let base = member.accumulation.max(1);
        let most = (self.world.accumulation_max / base).max(1);
        let own = member.step(base);
        let times = match self.world.balance {
            Balance::Off => 1,
            Balance::Within => ratio(slowest, own),
            Balance::Nearest => ratio(slowest.saturating_add(own / 2), own),
        };
        let times = u32::try_from(times).unwrap_or(u32::MAX).clamp(1, most);
        base.saturating_mul(times)
    }

    /// When less is left than the members want, each gets its speed's share.
    fn share_what_is_left(&self, parts: &mut Vec<Part>) {
        let mut left = self.left();
        if wanted(parts) <= left {
            return;
        }
        let members = |part: &Part| self.seats.seats[part.member].member;
        let speed: f64 = parts.iter().map(|p| members(p).windows_per_s()).sum();
        #[allow(clippy::cast_precision_loss)] // Windows are far below 2^53.
        let left_of = left as f64 / speed;
        for part in &mut *parts {
            let member = members(part);
            let share = left_of * member.windows_per_s();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Not negative.
            let share = (share.ceil() as u64).min(left);
            let step = member.step_windows(part.accumulation);
            part.windows = Windows(share.min(part.windows.0));
            part.steps = Steps(part.windows.0.div_ceil(step));
            left -= part.windows.0;
        }
        parts.retain(|part| part.windows.0 > 0);
    }

    /// Adds who becomes ready in time to take a step before the close that was predicted.
    fn let_join(&self, parts: &mut Vec<Part>, compute: Duration, period: Duration) {
        let trained = self.now.saturating_add(compute);
        let merging = self
            .now
            .saturating_add(period)
            .saturating_sub(self.world.merge);
        let mut left = self.left().saturating_sub(wanted(parts));
        let members = parts.iter().map(|p| self.seats.seats[p.member].member);
        let slowest = members
            .map(|m| m.step(m.accumulation))
            .max()
            .unwrap_or_default();
        let seats = self.seats.seats.iter().enumerate();
        let ready = |seat: &Seat| seat.run.filter(|run| run.ready > self.now);
        let mut late: Vec<_> = seats
            .filter_map(|(i, seat)| Some((ready(seat)?, i, seat.member)))
            .filter(|(run, ..)| run.ready < trained)
            .collect();
        late.sort_by_key(|(run, i, _)| (run.ready, *i));
        for (run, i, member) in late {
            let close = match self.world.exchange {
                Exchange::Series => trained.saturating_add(member.exchange),
                Exchange::Overlapped => merging,
            };
            let mut part = self.part(i, member, run.ready, close.min(run.end), slowest);
            part.windows = part.windows.min(Windows(left));
            let step = member.step_windows(part.accumulation);
            part.steps = Steps(part.windows.0.div_ceil(step));
            left -= part.windows.0;
            if part.windows.0 > 0 {
                parts.push(part);
            }
        }
    }

    /// The round that these parts make.
    fn stretch(&self, parts: Vec<Part>) -> Stretch {
        let (mut compute, mut exchanged, mut series) =
            (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        for part in &parts {
            let member = self.seats.seats[part.member].member;
            let trained = part
                .joins_after
                .saturating_add(times(member.step(part.accumulation), part.steps.0));
            compute = compute.max(trained);
            exchanged = exchanged.max(trained.saturating_add(member.exchange));
            let each = member.exchange.saturating_mul(member.replicas.max(1));
            series = series.saturating_add(each);
        }
        let exchanged = match self.world.exchange {
            Exchange::Series => compute.saturating_add(series),
            Exchange::Overlapped => exchanged,
        };
        Stretch {
            opens_in: self.now,
            rounds: 0,
            period: exchanged.saturating_add(self.world.merge),
            compute,
            merge: self.world.merge,
            windows: Windows(wanted(&parts)),
            parts,
        }
    }

    /// How many rounds from now on are certain to be like this one; 0 if it needs a closer look.
    fn alike(&self, stretch: &Stretch) -> u64 {
        let full = |part: &Part| {
            let member = self.seats.seats[part.member].member;
            let windows = member.step_windows(part.accumulation);
            part.steps == self.world.steps && part.windows.0 == windows.saturating_mul(part.steps.0)
        };
        if !stretch.parts.iter().all(full) {
            return 0;
        }
        let until = |end: Duration| ratio(end.saturating_sub(self.now), stretch.period);
        let runs = stretch
            .parts
            .iter()
            .filter_map(|p| self.seats.seats[p.member].run);
        let jobs = runs.map(|run| until(run.end)).min().unwrap_or(0);
        let nobody_comes = self.seats.next_ready(self.now).map_or(u64::MAX, until);
        let data = self.left() / stretch.windows.0.max(1);
        let sure = jobs.min(nobody_comes).min(data);
        sure.min(until(self.world.horizon)).min(self.stride_max)
    }

    fn book(&mut self, stretch: Stretch) {
        for part in &stretch.parts {
            let seat = &mut self.seats.seats[part.member];
            let step = seat.member.step(part.accumulation);
            let tally = &mut seat.tally;
            tally.rounds += stretch.rounds;
            tally.windows += Windows(part.windows.0 * stretch.rounds);
            tally.computing += times(times(step, part.steps.0), stretch.rounds);
        }
        let windows = stretch.windows.0 * stretch.rounds;
        self.windows += windows;
        let solo = |part: &Part| self.seats.seats[part.member].member.replicas <= 1;
        if stretch.parts.len() == 1 && stretch.parts.iter().all(solo) {
            self.solo_windows += windows;
        }
        self.stretches.push(stretch);
    }

    #[allow(clippy::cast_precision_loss)] // Windows are far below 2^53.
    fn hopeless(&self) -> bool {
        if self.needed_by == Duration::MAX {
            return false;
        }
        let time_s = self.needed_by.saturating_sub(self.now).as_secs_f64();
        let missing = self.world.target.0.saturating_sub(self.windows);
        self.windows_per_s * time_s < missing as f64
    }

    fn left(&self) -> u64 {
        let all = self.world.target.0.min(self.world.corpus.0);
        all.saturating_sub(self.windows)
    }
}

/// Windows per second of a member that always closes full rounds of its own. In company, late or
/// with fewer steps it cannot be faster: the exchange weighs more.
#[allow(clippy::cast_precision_loss)] // Windows are far below 2^53.
pub(crate) fn speed_at_best(world: &World, member: &Member) -> f64 {
    // The longer the phase, the less its exchange weighs.
    let accumulation = match world.balance {
        Balance::Off => member.accumulation,
        Balance::Within | Balance::Nearest => member.accumulation.max(world.accumulation_max),
    };
    let phase_s = member.step(accumulation).as_secs_f64() * world.steps.0 as f64;
    let round_s = phase_s + member.exchange.as_secs_f64() + world.merge.as_secs_f64();
    member.step_windows(accumulation) as f64 * world.steps.0 as f64 / round_s
}

fn wanted(parts: &[Part]) -> u64 {
    parts
        .iter()
        .map(|part| part.windows.0)
        .fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests;
