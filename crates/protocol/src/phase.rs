//! The phase plan: how much each replica trains before the next exchange, so that all finish
//! together.
//!
//! ```text
//!   slow    ├────────── A = 1 ──────────┤
//!   faster  ├─ A = 3: more per step ────┤   same number of steps, same time
//! ```
//!
//! The slowest member takes the recipe's base phase; the others take more micro-batches in each of
//! the same number of steps, in proportion to what was measured of them. A replica that was never
//! measured takes the base phase. Near an epoch's end each takes its rate's share of what is left.
//! Never here: who is a member, and what is leased.

use crate::{PhaseSpec, PhaseTimes, Plan, RunSpec};
use hansa_base::{Generation, ReplicaKey, Steps, Windows};

/// How fast a replica is, smoothed over its rounds. Whole numbers, so that a snapshot keeps them to
/// the last bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Millionths of a window per second spent training; waiting and exchange are not in it.
    pub microwindows_per_s: u64,
    /// Checkpoints, encoding and upload of a round: what a contribution costs beside training.
    pub exchange_ms: u64,
    /// Bytes per second of its uploads, at least 1; `None` until one was measured.
    pub upload_bytes_per_s: Option<u64>,
}

/// What an epoch has left is shared out over so many rounds, all alike: otherwise the very last round
/// might have a window or two.
const LAST_ROUNDS: u64 = 2;

/// Nobody takes more than so many times the base accumulation, whatever was measured.
const FASTER_MAX: f64 = 256.0;

impl Pace {
    /// What is known of a replica after one more round. A round in which it did not train says
    /// nothing.
    #[must_use]
    pub fn after(last: Option<Self>, times: &PhaseTimes) -> Option<Self> {
        if times.trained.0 == 0 || times.train_ms == 0 {
            return last;
        }
        // These numbers come from the network: no sum of them may overflow.
        let windows_per_s = times.trained.0 as f64 / (times.train_ms as f64 / 1e3);
        let newest = Self {
            microwindows_per_s: (windows_per_s * 1e6).clamp(1.0, 1e15) as u64,
            exchange_ms: times.checkpoint_ms.min(YEAR_MS) + times.upload_ms.min(YEAR_MS),
            upload_bytes_per_s: goodput(times),
        };
        // The newest round weighs as much as all before it.
        let smooth = |last: u64, newest: u64| last.midpoint(newest).max(1);
        Some(last.map_or(newest, |last| Self {
            microwindows_per_s: smooth(last.microwindows_per_s, newest.microwindows_per_s),
            exchange_ms: smooth(last.exchange_ms, newest.exchange_ms),
            upload_bytes_per_s: match (last.upload_bytes_per_s, newest.upload_bytes_per_s) {
                (Some(last), Some(newest)) => Some(smooth(last, newest)),
                (last, newest) => newest.or(last),
            },
        }))
    }

    /// An upload took too long for what was measured: half of that may be true.
    #[must_use]
    pub fn with_slower_link(self) -> Self {
        let upload_bytes_per_s = self.upload_bytes_per_s.map(|rate| (rate / 2).max(1));
        Self {
            upload_bytes_per_s,
            ..self
        }
    }

    /// Windows per second spent training.
    #[must_use]
    pub fn windows_per_s(&self) -> f64 {
        self.microwindows_per_s as f64 / 1e6
    }

    /// Seconds that a contribution costs beside training.
    #[must_use]
    pub fn exchange_s(&self) -> f64 {
        self.exchange_ms as f64 / 1e3
    }
}

fn goodput(times: &PhaseTimes) -> Option<u64> {
    let measured = times.uploaded.0 > 0 && times.upload_ms > 0;
    let rate = times.uploaded.0 as f64 * 1e3 / times.upload_ms.max(1) as f64;
    measured.then_some(rate.clamp(1.0, 1e15) as u64)
}

const YEAR_MS: u64 = 366 * 86_400_000;

/// One who takes part in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub key: ReplicaKey,
    /// `W`.
    pub ranks: u32,
    pub pace: Option<Pace>,
}

/// Orders members by the time that they need for the base phase, which goes with their ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slowness {
    ranks: u32,
    microwindows_per_s: u64,
}

impl Slowness {
    pub const fn of(member: &Member, pace: &Pace) -> Self {
        Self {
            ranks: member.ranks,
            microwindows_per_s: pace.microwindows_per_s,
        }
    }
}

impl Ord for Slowness {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let product = |ranks: u32, rate: u64| u128::from(ranks) * u128::from(rate);
        let ours = product(self.ranks, other.microwindows_per_s);
        ours.cmp(&product(other.ranks, self.microwindows_per_s))
    }
}

impl PartialOrd for Slowness {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Slowness {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Slowness {}

/// What the phase plan needs to know of all members together. Whole numbers: the order in which they
/// came does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Crowd {
    /// Ranks of all members.
    ranks: u64,
    /// Ranks of those that were never measured.
    ranks_unmeasured: u64,
    /// Millionths of a window per second of all that were measured.
    microwindows_per_s: u128,
    /// The slowest of those that were measured.
    pub slowest: Option<Slowness>,
    /// The longest exchange.
    pub exchange_ms: u64,
}

impl Crowd {
    /// All of these.
    pub fn of(members: impl IntoIterator<Item = Member>) -> Self {
        let crowd = Self::default();
        members.into_iter().fold(crowd, |all, one| all.with(&one))
    }

    /// One more.
    #[must_use]
    pub fn with(mut self, member: &Member) -> Self {
        self.add(member);
        if let Some(pace) = &member.pace {
            self.slowest = self.slowest.max(Some(Slowness::of(member, pace)));
            self.exchange_ms = self.exchange_ms.max(pace.exchange_ms);
        }
        self
    }

    /// To the sums alone.
    pub fn add(&mut self, member: &Member) {
        self.ranks += u64::from(member.ranks);
        match member.pace {
            Some(pace) => self.microwindows_per_s += u128::from(pace.microwindows_per_s),
            None => self.ranks_unmeasured += u64::from(member.ranks),
        }
    }

    /// From the sums alone.
    pub fn subtract(&mut self, member: &Member) {
        self.ranks -= u64::from(member.ranks);
        match member.pace {
            Some(pace) => self.microwindows_per_s -= u128::from(pace.microwindows_per_s),
            None => self.ranks_unmeasured -= u64::from(member.ranks),
        }
    }
}

/// How a round's members share it, and what the epoch has for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PhasePlan<'a> {
    spec: &'a RunSpec,
    crowd: Crowd,
    /// Windows that were not committed when the round began.
    left: Windows,
    /// What is left is shared out over so many rounds; none while it is more than they take.
    rounds: Option<u64>,
}

/// What a replica is to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub accumulation: u32,
    pub windows: Windows,
    /// It is a share of what is left of the epoch: a lease is not to take more.
    pub last: bool,
}

impl<'a> PhasePlan<'a> {
    /// The plan for these members, who are the crowd. They are looked at one by one only near the
    /// end of an epoch.
    pub fn new(
        spec: &'a RunSpec,
        crowd: Crowd,
        left: Windows,
        members: impl Iterator<Item = Member> + Clone,
    ) -> Self {
        let mut plan = Self {
            spec,
            crowd,
            left,
            rounds: None,
        };
        if plan.most_windows() * LAST_ROUNDS as f64 >= left.0 as f64 {
            plan.rounds = (1..=LAST_ROUNDS).find(|rounds| plan.suffice(*rounds, members.clone()));
        }
        plan
    }

    /// Seconds that the slowest of the measured members trains for its base phase; `None` while
    /// nobody is measured.
    pub fn period_s(&self) -> Option<f64> {
        let slowest = self.crowd.slowest?;
        let base = self.base(slowest.ranks.into()).0 as f64;
        Some(base / (slowest.microwindows_per_s as f64 / 1e6))
    }

    /// What a member is to train in the round.
    pub fn wanted(&self, member: &Member) -> Wanted {
        let share = self.rounds.map(|rounds| self.share(member, rounds));
        Wanted {
            accumulation: self.accumulation(member),
            windows: share.unwrap_or_else(|| self.phase(member)),
            last: self.rounds.is_some(),
        }
    }

    /// More than all phases together can be: rounding adds at most half to an accumulation.
    fn most_windows(&self) -> f64 {
        let base = self.base(self.crowd.ranks).0 as f64;
        let measured = self.crowd.microwindows_per_s as f64 / 1e6;
        1.5 * (base + self.period_s().unwrap_or_default() * measured) + 1.0
    }

    /// True if so many rounds with the members' shares take all that is left.
    fn suffice(&self, rounds: u64, members: impl Iterator<Item = Member>) -> bool {
        let shares = members.map(|member| self.share(&member, rounds).0);
        shares.sum::<u64>().saturating_mul(rounds) >= self.left.0
    }

    /// A member's part, by its rate, of what is left for each of so many rounds; a phase at most.
    fn share(&self, member: &Member, rounds: u64) -> Windows {
        let part = self.weight(member) / self.weights().max(1e-9) / rounds as f64;
        let share = (self.left.0 as f64 * part).ceil() as u64;
        self.phase(member).min(Windows(share))
    }

    /// Seconds that a whole round takes: its longest phase and its longest exchange. `None` while
    /// nobody is measured.
    pub fn round_s(&self) -> Option<f64> {
        Some(self.period_s()? + self.longest_exchange_s())
    }

    /// Seconds that a member needs from the end of training until its contribution is in; that of
    /// the slowest if it was never measured.
    pub fn exchange_s(&self, member: &Member) -> f64 {
        let pace = member.pace;
        pace.map_or_else(|| self.longest_exchange_s(), |pace| pace.exchange_s())
    }

    /// Seconds that a member needs to train so many windows and contribute them; `None` while
    /// nobody is measured.
    pub fn takes_s(&self, member: &Member, windows: Windows) -> Option<f64> {
        self.period_s()?;
        Some(windows.0 as f64 / self.weight(member) + self.exchange_s(member))
    }

    /// What is wanted, cut to whole steps that fit into so many seconds; half a step over is on
    /// time.
    pub fn fitting(&self, member: &Member, wanted: Wanted, seconds: f64) -> Windows {
        let micro_batch = self.spec.micro_batch(member.ranks).0;
        let step = micro_batch * u64::from(wanted.accumulation);
        let steps = (seconds * self.weight(member) / step as f64).round();
        let fits = (steps.max(0.0) as u64).saturating_mul(step);
        wanted.windows.min(Windows(fits))
    }

    fn longest_exchange_s(&self) -> f64 {
        self.crowd.exchange_ms as f64 / 1e3
    }

    /// `H·B·W·A` of the recipe, for so many accelerators.
    fn base(&self, ranks: u64) -> Windows {
        let PhaseSpec {
            steps,
            batch,
            accumulation,
            ..
        } = self.spec.phase;
        let of_a_rank = steps.0.saturating_mul(batch.0 * u64::from(accumulation));
        Windows(of_a_rank.saturating_mul(ranks))
    }

    /// `H·B·W·A` with the member's own `A`.
    fn phase(&self, member: &Member) -> Windows {
        let micro_batches = u64::from(self.accumulation(member));
        let base = self.base(member.ranks.into()).0 / u64::from(self.spec.phase.accumulation);
        Windows(base.saturating_mul(micro_batches))
    }

    fn accumulation(&self, member: &Member) -> u32 {
        let base = self.spec.phase.accumulation;
        let faster = match (self.period_s(), member.pace) {
            (Some(period_s), Some(pace)) if self.spec.phase.balance => {
                period_s * pace.windows_per_s() / self.base(member.ranks.into()).0 as f64
            }
            _ => 1.0,
        };
        let micro_batches = f64::from(base) * faster.clamp(1.0, FASTER_MAX);
        (micro_batches.round() as u32).max(base)
    }

    /// Windows per second; one who was never measured counts as slow as the slowest.
    fn weight(&self, member: &Member) -> f64 {
        let pace = member.pace;
        pace.map_or_else(
            || self.as_slow(member.ranks.into()),
            |pace| pace.windows_per_s(),
        )
    }

    /// That of all members.
    fn weights(&self) -> f64 {
        let measured = self.crowd.microwindows_per_s as f64 / 1e6;
        measured + self.as_slow(self.crowd.ranks_unmeasured)
    }

    fn as_slow(&self, ranks: u64) -> f64 {
        self.base(ranks).0 as f64 / self.period_s().unwrap_or(1.0)
    }
}

impl RunSpec {
    /// The plan for so many windows with this accumulation.
    pub(crate) fn plan(
        &self,
        generation: Generation,
        ranks: u32,
        accumulation: u32,
        windows: Windows,
    ) -> Plan {
        let step = self.micro_batch(ranks).0 * u64::from(accumulation);
        Plan {
            generation,
            steps: Steps(windows.0.div_ceil(step.max(1))),
            accumulation,
            windows,
        }
    }

    /// `B·W`: the windows of one micro-batch of a replica with `ranks` accelerators.
    #[must_use]
    pub fn micro_batch(&self, ranks: u32) -> Windows {
        Windows(self.phase.batch.0 * u64::from(ranks))
    }
}
