//! The gate's bound on norms, and what is remembered of refused contributions.
//!
//! A pseudo-gradient far larger than all before it is a sign of training that went wrong. "Far" is an
//! outlier test on logarithms, Hampel's identifier (Hampel 1974, "The influence curve and its role in
//! robust estimation"): with `m` the median of the recent logarithms and `MAD` the median distance
//! from it,
//!
//! ```text
//!   refuse if  ln norm > m + max(k · 1.4826 · MAD, ln 8)          k = 6
//! ```
//!
//! 1.4826 makes MAD a standard deviation where values are normal. The least factor of 8 leaves room
//! for warm-up and for the fresh moments of who joins late. A phase of `s` steps moves weights by
//! something between `√s` (steps that know nothing of each other) and `s` (all in one direction), so a
//! recent norm of `r` steps counts as `norm · max(√(s/r), s/r)`: the largest that any law between the
//! two allows. Nothing is refused in the first rounds. Never here: how a norm is computed.

use crate::{Problem, RefusedBecause};
use hansa_base::{Generation, Steps};
use std::cmp::Ordering;

/// Accepted norms that the bound looks back on.
const RECENT_MAX: usize = 64;
/// Nothing is refused before so many norms were accepted, and so many rounds are over.
const RECENT_MIN: usize = 8;
const ROUNDS_MIN: usize = 4;
/// `k`, and MAD as a standard deviation.
const SPREADS: f64 = 6.0 * 1.4826;
/// The bound is at least so many times the median.
const FACTOR_MIN: f64 = 8.0;
/// Resuming a run that refused norms paused raises the bound to so many times the largest of them.
const RAISED_BY: f64 = 2.0;

/// The Euclidean norm of a pseudo-gradient: finite, not negative.
#[derive(Clone, Copy, Debug, Default)]
pub struct Norm(f64);

impl Norm {
    /// A norm; `None` if it is not finite, or negative.
    #[must_use]
    pub fn new(value: f64) -> Option<Self> {
        (value.is_finite() && value >= 0.0).then_some(Self(value.abs()))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl PartialEq for Norm {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Norm {}

impl PartialOrd for Norm {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Norm {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl std::fmt::Display for Norm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3e}", self.0)
    }
}

/// Recently accepted norms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Norms {
    /// Steps and norm of each, oldest first.
    pub recent: Vec<(Steps, Norm)>,
    /// What the bound is multiplied with, and for how many more accepted norms.
    pub raised: Option<(Norm, u32)>,
}

impl Norms {
    /// The largest norm that a contribution of so many steps may have after so many rounds; `None`
    /// while any may pass.
    #[must_use]
    pub fn bound(&self, rounds: usize, steps: Steps) -> Option<Norm> {
        if rounds < ROUNDS_MIN || self.recent.len() < RECENT_MIN {
            return None;
        }
        let grown = |(taken, norm): &(Steps, Norm)| {
            let longer = steps.0.max(1) as f64 / taken.0.max(1) as f64;
            (norm.0 * longer.max(longer.sqrt())).ln()
        };
        let logs: Vec<f64> = self.recent.iter().map(grown).collect();
        let middle = median(logs.clone());
        let off = logs.iter().map(|log| (log - middle).abs()).collect();
        let room = (SPREADS * median(off)).max(FACTOR_MIN.ln());
        let raised = self.raised.map_or(1.0, |(by, _)| by.0);
        Norm::new((middle + room).exp() * raised)
    }

    pub(crate) fn accept(&mut self, steps: Steps, norm: Norm) {
        // Weights that did not move say nothing of how far others may.
        if norm.0 > 0.0 {
            self.recent.push((steps, norm));
        }
        if self.recent.len() > RECENT_MAX {
            self.recent.remove(0);
        }
        self.raised = self
            .raised
            .and_then(|(by, left)| Some((by, left.checked_sub(1)?)));
    }

    /// Norms that were so many times too large pass from now on, until those accepted tell.
    pub(crate) fn raise(&mut self, excess: Norm) {
        let before = self.raised.map_or(1.0, |(by, _)| by.0);
        let by = Norm::new(excess.0 * before * RAISED_BY);
        self.raised = by.map(|by| (by, RECENT_MAX as u32));
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// After so many refusals in a row a replica sits rounds out.
const PATIENCE: u32 = 2;
/// Numbers that are not finite are the data's fault first: halving finds a window among billions with
/// fewer refusals in a row than this.
const PATIENCE_NOT_FINITE: u32 = 40;
/// It sits out so many rounds at most.
const ROUNDS_OUT_MAX: u64 = 16;

/// What the gate refused of a replica since it last accepted something of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setback {
    /// Refusals for form.
    pub form: u32,
    /// Refusals for norm.
    pub norm: u32,
    /// Refusals for values that are not finite.
    pub not_finite: u32,
    /// How many times too large the largest of the refused norms was.
    pub excess: Norm,
    /// The round of the last one.
    pub last: Generation,
    /// It takes no part in rounds before this.
    pub until: Generation,
}

impl Setback {
    /// One more refusal, in round `round`.
    pub(crate) fn add(&mut self, because: RefusedBecause, round: Generation) {
        match because {
            RefusedBecause::Gate => self.form += 1,
            RefusedBecause::NotFinite => self.not_finite += 1,
            RefusedBecause::Norm { norm, bound } => {
                self.norm += 1;
                let excess = Norm::new(norm.0 / bound.0.max(f64::MIN_POSITIVE));
                self.excess = self.excess.max(excess.unwrap_or_default());
            }
            _ => return,
        }
        self.last = round;
        if let Some(again) = self.repeats().checked_sub(PATIENCE) {
            let out = (1 << again.min(8)).min(ROUNDS_OUT_MAX);
            self.until = Generation(round.0 + out);
        }
    }

    /// Refusals that a replica itself is to blame for.
    #[must_use]
    pub const fn repeats(&self) -> u32 {
        self.form.saturating_add(self.norm)
    }

    /// True if it has been refused so often that trying again at once is of no use.
    #[must_use]
    pub const fn is_lasting(&self) -> bool {
        self.repeats() >= PATIENCE || self.not_finite >= PATIENCE_NOT_FINITE
    }
}

impl Problem {
    /// As the reason of a refusal.
    #[must_use]
    pub const fn because(&self) -> RefusedBecause {
        match self {
            Self::Form(_) => RefusedBecause::Gate,
            Self::NotFinite(_) => RefusedBecause::NotFinite,
        }
    }
}
