//! How long a job of a shape will wait.
//!
//! Slurm answers as if every job ran to its full walltime, and most give theirs back early, so its
//! answer is discounted; once enough of our own jobs have started, what really came of such answers
//! is better than any formula. Never here: a guess without a probe behind it.
//!
//! **Discount** (the paper's §3.3): `w_eff = w·(1 − s·(1 − usage))`, with `w` the probe's wait, `s`
//! the policy's strength, and usage the realised over requested walltime of the partition. It yields
//! one number: it stands for the median, and the undiscounted wait for p90. Without a usage nothing
//! is discounted, and [`Basis::Undiscounted`] says so.
//!
//! **History.** From pairs (predicted `pᵢ`, real `rᵢ`) of the partition, those count whose prediction
//! was alike: `½ ≤ (pᵢ + c)/(w + c) ≤ 2`, `c` = 5 minutes, the newest 200 of them. Each is scaled to
//! the wait at hand, `r = (rᵢ + c)·(w + c)/(pᵢ + c) − c`, not below 0, and the quantile `q` is the
//! `⌈q·(n + 1)⌉`-th smallest: the split-conformal rule, under which a new wait from the same queue
//! stays below the quantile with probability at least `q`. `c` keeps predictions of 0 meaningful.
//!
//! **While history is short**, that is, fewer than `pairs_min` alike pairs (never fewer than 9, below
//! which p90 would lie beyond the largest), the discount is used.

use std::time::Duration;

use crate::fact::{Fact, WallMs};
use crate::run::{Policy, Quantile};
use crate::site::{PartitionState, WaitPair};

/// `c`: waits shorter than this are alike.
const ALIKE_S: f64 = 300.0;
/// Predictions are alike within this factor.
const ALIKE_FACTOR: f64 = 2.0;
/// Older pairs than the newest so many say little about today's queue.
const PAIRS_MAX: usize = 200;
/// The fewest pairs with which `⌈0.9·(n + 1)⌉ ≤ n`.
const PAIRS_MIN: usize = 9;

/// How long a job will wait, and what that rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    /// What the probe said, taken as a wait from when it was asked; its age does not shorten it.
    pub raw: Fact<Duration>,
    /// Half of such jobs start earlier.
    pub p50: Duration,
    /// Nine of ten such jobs start earlier.
    pub p90: Duration,
    /// What was used.
    pub basis: Basis,
}

/// What a wait rests on.
#[derive(Clone, Debug, PartialEq)]
pub enum Basis {
    /// The discount; history is short.
    Discounted {
        /// `s`.
        strength: f64,
        /// Of the partition.
        usage: Fact<f64>,
        /// Pairs that are alike; too few.
        pairs: u32,
    },
    /// The probe as it is: no usage is known, and history is short.
    Undiscounted {
        /// Pairs that are alike; too few.
        pairs: u32,
    },
    /// Predictions alike, and what came of them.
    Learned {
        /// Pairs that are alike.
        pairs: u32,
        /// When the newest of them became known.
        newest: WallMs,
    },
}

impl Wait {
    /// The wait that a plan counts on.
    #[must_use]
    pub const fn at(&self, quantile: Quantile) -> Duration {
        match quantile {
            Quantile::P50 => self.p50,
            Quantile::P90 => self.p90,
        }
    }
}

/// The wait behind a probe's answer; see the module's head for the rules.
#[must_use]
pub fn wait(raw: Fact<Duration>, queue: &PartitionState, policy: &Policy) -> Wait {
    let alike = alike(raw.value, &queue.history);
    let enough = PAIRS_MIN.max(policy.pairs_min as usize);
    let pairs = u32::try_from(alike.len()).unwrap_or(u32::MAX);
    if alike.len() >= enough {
        let mut waits: Vec<Duration> = alike.iter().map(|p| scaled(p, raw.value)).collect();
        waits.sort_unstable();
        let newest = alike.iter().map(|p| p.at).max().unwrap_or_default();
        return Wait {
            p50: conformal(&waits, 1, 2),
            p90: conformal(&waits, 9, 10),
            raw,
            basis: Basis::Learned { pairs, newest },
        };
    }
    let strength = policy.strength;
    let (p50, basis) = match &queue.usage {
        Some(usage) => {
            let factor = 1.0 - strength * (1.0 - usage.value);
            let usage = usage.clone();
            let basis = Basis::Discounted {
                strength,
                usage,
                pairs,
            };
            (raw.value.mul_f64(factor.clamp(0.0, 1.0)), basis)
        }
        None => (raw.value, Basis::Undiscounted { pairs }),
    };
    Wait {
        p50,
        p90: raw.value,
        raw,
        basis,
    }
}

/// The newest pairs whose prediction was like this one.
fn alike(predicted: Duration, history: &[WaitPair]) -> Vec<WaitPair> {
    let near = |pair: &&WaitPair| {
        let ratio = shifted(pair.predicted) / shifted(predicted);
        (1.0 / ALIKE_FACTOR..=ALIKE_FACTOR).contains(&ratio)
    };
    let mut alike: Vec<WaitPair> = history.iter().filter(near).copied().collect();
    // Fully ordered, so that the order of the input never matters.
    alike.sort_unstable_by_key(|p| (std::cmp::Reverse(p.at), p.predicted, p.real));
    alike.truncate(PAIRS_MAX);
    alike
}

fn scaled(pair: &WaitPair, predicted: Duration) -> Duration {
    let seconds = shifted(pair.real) * shifted(predicted) / shifted(pair.predicted) - ALIKE_S;
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

fn shifted(wait: Duration) -> f64 {
    wait.as_secs_f64() + ALIKE_S
}

/// The `⌈q·(n + 1)⌉`-th smallest, `q = numerator/denominator`; `sorted` has enough values for it.
fn conformal(sorted: &[Duration], numerator: usize, denominator: usize) -> Duration {
    let rank = ((sorted.len() + 1) * numerator).div_ceil(denominator);
    let index = rank.min(sorted.len()).saturating_sub(1);
    sorted.get(index).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::Source;

    const HOUR: Duration = Duration::from_secs(3600);

    fn probe(wait: Duration) -> Fact<Duration> {
        Fact {
            value: wait,
            source: Source::Probe {
                prober: "anna".into(),
            },
            at: WallMs(5),
        }
    }

    fn queue(usage: Option<f64>, pairs: &[(u64, u64)]) -> PartitionState {
        let usage = usage.map(|value| Fact {
            value,
            source: Source::Operator,
            at: WallMs(0),
        });
        let pair = |(at, &(predicted, real)): (usize, &(u64, u64))| WaitPair {
            predicted: Duration::from_secs(predicted),
            real: Duration::from_secs(real),
            at: WallMs(at as u64),
        };
        PartitionState {
            usage,
            history: pairs.iter().enumerate().map(pair).collect(),
            walltime_max: None,
        }
    }

    fn policy() -> Policy {
        Policy {
            pairs_min: 10,
            ..Policy::default()
        }
    }

    #[test]
    fn short_of_history_the_published_discount_is_used_and_said() {
        // gpu_h100: 1 − 0.5·(1 − 0.16) = 0.58; LUMI standard-g: 1 − 0.5·(1 − 0.19) = 0.595.
        for (usage, expected_s) in [(0.16, 2088), (0.19, 2142), (1.0, 3600)] {
            let wait = wait(probe(HOUR), &queue(Some(usage), &[(0, 0)]), &policy());
            assert_eq!(wait.p50.as_millis(), expected_s * 1000);
            assert_eq!(wait.at(Quantile::P90), HOUR, "Slurm's own answer");
            assert!(
                matches!(wait.basis, Basis::Discounted { strength, pairs: 0, .. }
                if strength == 0.5)
            );
        }
    }

    #[test]
    fn a_missing_usage_is_never_silently_no_discount() {
        let wait = wait(probe(HOUR), &queue(None, &[]), &policy());
        assert_eq!((wait.p50, wait.p90), (HOUR, HOUR));
        assert_eq!(wait.basis, Basis::Undiscounted { pairs: 0 });
    }

    #[test]
    fn enough_alike_pairs_replace_the_discount() {
        // Ten jobs predicted at an hour waited 10, 20 … 100 minutes; one predicted at two days is
        // not alike and says nothing.
        let mut pairs: Vec<(u64, u64)> = (1..=10).map(|i| (3600, 600 * i)).collect();
        pairs.push((172_800, 1));
        let queue = queue(Some(0.16), &pairs);
        let learned = wait(probe(HOUR), &queue, &policy());
        // ⌈0.5·11⌉ = 6th, ⌈0.9·11⌉ = 10th.
        assert_eq!((learned.p50.as_secs(), learned.p90.as_secs()), (3600, 6000));
        let newest = WallMs(9);
        assert_eq!(learned.basis, Basis::Learned { pairs: 10, newest });

        let patient = Policy {
            pairs_min: 11,
            ..policy()
        };
        let basis = wait(probe(HOUR), &queue, &patient).basis;
        assert!(matches!(basis, Basis::Discounted { pairs: 10, .. }));
    }

    #[test]
    fn pairs_are_scaled_to_the_wait_at_hand() {
        // Predicted half an hour, waited double that: (3600 + 300)·(3600 + 300)/(1800 + 300) − 300.
        let queue = queue(None, &[(1800, 3600); 12]);
        let wait = wait(probe(HOUR), &queue, &policy());
        assert_eq!((wait.p50.as_secs(), wait.p90.as_secs()), (6942, 6942));
    }

    #[test]
    fn the_order_of_history_does_not_matter_and_only_the_newest_count() {
        let mut queue = queue(None, &[(3600, 60); 50]);
        for (i, pair) in queue.history.iter_mut().enumerate() {
            pair.at = WallMs(1000 + i as u64);
        }
        let old = WaitPair {
            predicted: HOUR,
            real: 9 * HOUR,
            at: WallMs(1),
        };
        queue.history.extend([old; 300]);
        let forward = wait(probe(HOUR), &queue, &policy());
        queue.history.reverse();
        assert_eq!(forward, wait(probe(HOUR), &queue, &policy()));
        assert_eq!(forward.p50, 9 * HOUR, "150 of the newest 200 are old ones");
        assert!(matches!(
            forward.basis,
            Basis::Learned { pairs: 200, newest } if newest == WallMs(1049)
        ));
    }
}
