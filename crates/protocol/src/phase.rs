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

use crate::{PhaseTimes, Plan, RunSpec};
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Member {
    pub key: ReplicaKey,
    /// `W`.
    pub ranks: u32,
    pub pace: Option<Pace>,
}

impl Member {
    fn windows_per_s(&self) -> Option<f64> {
        self.pace.map(|pace| pace.windows_per_s())
    }
}

/// The members of a round, and what the epoch has for it.
#[derive(Clone, Debug)]
pub(crate) struct PhasePlan<'a> {
    pub spec: &'a RunSpec,
    pub members: Vec<Member>,
    /// Windows that were not committed when the round began.
    pub left: Windows,
}

/// What a replica is to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub accumulation: u32,
    pub windows: Windows,
    /// It is a share of what is left of the epoch: a lease is not to take more.
    pub last: bool,
}

impl PhasePlan<'_> {
    /// Seconds that the slowest of the measured members trains for its base phase; `None` while
    /// nobody is measured.
    pub fn period_s(&self) -> Option<f64> {
        let base_s = |member: &Member| Some(self.base(member).0 as f64 / member.windows_per_s()?);
        let times = self.members.iter().filter_map(base_s);
        times.reduce(f64::max)
    }

    /// What a member is to train in the round. `key` is that of a member.
    pub fn wanted(&self, key: ReplicaKey) -> Wanted {
        let nothing = Wanted {
            accumulation: self.spec.phase.accumulation,
            windows: Windows(0),
            last: true,
        };
        let Some(member) = self.members.iter().find(|member| member.key == key) else {
            return nothing;
        };
        let rounds = (1..=LAST_ROUNDS).find(|rounds| self.suffice(*rounds));
        let share = rounds.map(|rounds| self.share(member, rounds));
        Wanted {
            accumulation: self.accumulation(member),
            windows: share.unwrap_or_else(|| self.phase(member)),
            last: rounds.is_some(),
        }
    }

    /// True if so many rounds with the members' shares take all that is left.
    fn suffice(&self, rounds: u64) -> bool {
        let shares = self.members.iter().map(|m| self.share(m, rounds).0);
        shares.sum::<u64>().saturating_mul(rounds) >= self.left.0
    }

    /// A member's part, by its rate, of what is left for each of so many rounds; a phase at most.
    fn share(&self, member: &Member, rounds: u64) -> Windows {
        let weights: f64 = self.members.iter().map(|m| self.weight(m)).sum();
        let part = self.weight(member) / weights.max(1e-9) / rounds as f64;
        let share = (self.left.0 as f64 * part).ceil() as u64;
        self.phase(member).min(Windows(share))
    }

    /// Who takes part.
    pub fn keys(&self) -> impl Iterator<Item = ReplicaKey> {
        self.members.iter().map(|member| member.key)
    }

    /// Seconds that a whole round takes: its longest phase and its longest exchange. `None` while
    /// nobody is measured.
    pub fn round_s(&self) -> Option<f64> {
        Some(self.period_s()? + self.longest_exchange_s())
    }

    /// Seconds that a member needs from the end of training until its contribution is in; that of
    /// the slowest if it was never measured.
    pub fn exchange_s(&self, key: ReplicaKey) -> f64 {
        let pace = self.members.iter().find(|m| m.key == key);
        let pace = pace.and_then(|member| member.pace);
        pace.map_or_else(|| self.longest_exchange_s(), |pace| pace.exchange_s())
    }

    /// Seconds that a member needs to train so many windows and contribute them; `None` while
    /// nobody is measured.
    pub fn takes_s(&self, key: ReplicaKey, windows: Windows) -> Option<f64> {
        self.period_s()?;
        let member = self.members.iter().find(|member| member.key == key)?;
        Some(windows.0 as f64 / self.weight(member) + self.exchange_s(key))
    }

    /// What is wanted, cut to whole steps that fit into so many seconds; half a step over is on
    /// time.
    pub fn fitting(&self, key: ReplicaKey, wanted: Wanted, seconds: f64) -> Windows {
        let Some(member) = self.members.iter().find(|member| member.key == key) else {
            return Windows(0);
        };
        let micro_batch = self.spec.micro_batch(member.ranks).0;
        let step = micro_batch * u64::from(wanted.accumulation);
        let steps = (seconds * self.weight(member) / step as f64).round();
        let fits = (steps.max(0.0) as u64).saturating_mul(step);
        wanted.windows.min(Windows(fits))
    }

    fn longest_exchange_s(&self) -> f64 {
        let paces = self.members.iter().filter_map(|member| member.pace);
        paces.map(|pace| pace.exchange_s()).fold(0.0, f64::max)
    }

    /// `H·B·W·A` of the recipe.
    fn base(&self, member: &Member) -> Windows {
        let steps = self.spec.phase.steps.0;
        Windows(steps.saturating_mul(self.spec.step_windows(member.ranks).0))
    }

    /// `H·B·W·A` with the member's own `A`.
    fn phase(&self, member: &Member) -> Windows {
        let micro_batches = u64::from(self.accumulation(member));
        let base = self.base(member).0 / u64::from(self.spec.phase.accumulation);
        Windows(base.saturating_mul(micro_batches))
    }

    fn accumulation(&self, member: &Member) -> u32 {
        let base = self.spec.phase.accumulation;
        let faster = match (self.period_s(), member.windows_per_s()) {
            (Some(period_s), Some(rate)) if self.spec.phase.balance => {
                period_s * rate / self.base(member).0 as f64
            }
            _ => 1.0,
        };
        let micro_batches = f64::from(base) * faster.clamp(1.0, FASTER_MAX);
        (micro_batches.round() as u32).max(base)
    }

    /// Windows per second; one who was never measured counts as slow as the slowest.
    fn weight(&self, member: &Member) -> f64 {
        let as_slow = || self.base(member).0 as f64 / self.period_s().unwrap_or(1.0);
        member.windows_per_s().unwrap_or_else(as_slow)
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
