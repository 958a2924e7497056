//! How wrong the probes' promises were.
//!
//! The discount of an estimate takes into account that jobs give back walltime:
//! `w_eff = w_raw · (1 − s · (1 − usage))`, with strength `s` from 0 (believe the probe) to 1.

use crate::event::Joined;

/// Strengths that people are shown.
pub const STRENGTHS: [f64; 3] = [0.0, 0.5, 1.0];

/// What a number of comparisons say at one strength.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accuracy {
    /// Strength of the discount.
    pub strength: f64,
    /// Jobs that were compared.
    pub jobs: u64,
    /// The median of real less predicted wait, in seconds; negative when jobs started earlier.
    pub median_error_s: f64,
    /// The median of its size.
    pub median_size_s: f64,
    /// The share of jobs that started no later than predicted.
    pub coverage: f64,
}

/// A wait after the discount. Where no usage is known there is none: that is not "all is used".
#[must_use]
pub fn discounted_s(wait_s: u64, usage_permille: Option<u64>, strength: f64) -> f64 {
    let usage = usage_permille.map_or(1.0, |permille| permille as f64 / 1000.0);
    wait_s as f64 * (1.0 - strength * (1.0 - usage))
}

/// The accuracy over jobs whose wait says something about the queue; `None` if there is none. Where no
/// usage was known there was no discounted promise to compare with.
#[must_use]
pub fn accuracy<'a>(joined: impl Iterator<Item = &'a Joined>, strength: f64) -> Option<Accuracy> {
    let tells = |joined: &&Joined| {
        let promised = strength == 0.0 || joined.usage_permille.is_some();
        promised && !joined.deferred
    };
    let errors = joined.filter(tells).map(|joined| {
        let predicted = discounted_s(joined.predicted_wait_s(), joined.usage_permille, strength);
        joined.real_wait_s() as f64 - predicted
    });
    let mut errors: Vec<f64> = errors.collect();
    let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
    let covered = errors.iter().filter(|error| **error <= 0.0).count();
    Some(Accuracy {
        strength,
        jobs: errors.len() as u64,
        coverage: covered as f64 / errors.len().max(1) as f64,
        median_error_s: median(&mut errors)?,
        median_size_s: median(&mut sizes)?,
    })
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some((values[middle - 1] + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{IntentId, UnixS};

    fn joined(predicted: u64, real: u64, usage: Option<u64>) -> Joined {
        Joined {
            intent: IntentId(1),
            probed: UnixS(0),
            predicted: UnixS(1000 + predicted),
            submitted: UnixS(1000),
            started: UnixS(1000 + real),
            usage_permille: usage,
            deferred: false,
        }
    }

    #[test]
    fn a_discount_moves_the_promise_towards_what_jobs_really_use() {
        // Jobs use a quarter of what they ask for, and promises are four times too long.
        let all = [
            joined(400, 100, Some(250)),
            joined(800, 200, Some(250)),
            joined(1200, 310, Some(250)),
        ];
        let at = |strength| accuracy(all.iter(), strength).unwrap();
        assert_eq!((at(0.0).median_error_s, at(0.0).coverage), (-600.0, 1.0));
        assert_eq!(at(0.5).median_error_s, -300.0);
        assert_eq!((at(1.0).median_error_s, at(1.0).median_size_s), (0.0, 0.0));
        assert!((at(1.0).coverage - 2.0 / 3.0).abs() < 1e-9);
        // Without usage there is no discounted promise, and what was deferred says nothing.
        assert_eq!(discounted_s(100, None, 1.0), 100.0);
        let blind = [joined(400, 100, None)];
        assert_eq!(accuracy(blind.iter(), 0.0).map(|all| all.jobs), Some(1));
        assert_eq!(accuracy(blind.iter(), 1.0), None);
        let late = Joined {
            deferred: true,
            ..joined(1, 1, None)
        };
        assert_eq!(accuracy([late].iter(), 0.0), None);
    }
}
