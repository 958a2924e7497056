//! The learning rate as a pure function of the run's position, so that every replica computes the same.

use serde::{Deserialize, Serialize};

use crate::{config::check, error::TrainError};

/// Linear warm-up over inner steps, then the peak, then a cosine over the last part of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Highest learning rate.
    pub peak_lr: f64,
    /// Inner steps of linear warm-up; step `i` gets `(i + 1) / warmup_steps` of the rate.
    pub warmup_steps: u64,
    /// Share of the run, counted from its end, over which the cosine falls; 1.0 is the whole run.
    pub decay_fraction: f64,
    /// Rate at the end of the run, as a fraction of the peak.
    pub floor: f64,
}

impl Schedule {
    /// Checks every setting.
    ///
    /// # Errors
    /// The first setting that cannot work, by name.
    pub fn validate(&self) -> Result<(), TrainError> {
        let rate_ok = self.peak_lr.is_finite() && self.peak_lr > 0.0;
        check(
            "peak_lr",
            self.peak_lr,
            rate_ok,
            "it must be a positive number",
        )?;
        for (field, value) in [
            ("decay_fraction", self.decay_fraction),
            ("floor", self.floor),
        ] {
            check(
                field,
                value,
                (0.0..=1.0).contains(&value),
                "it must lie between 0 and 1",
            )?;
        }
        Ok(())
    }

    /// The rate of inner step `inner_step` (0-based) at `progress` through the run (0 to 1; clamped).
    pub fn lr(&self, inner_step: u64, progress: f64) -> f64 {
        let warmup = if inner_step < self.warmup_steps {
            (inner_step + 1) as f64 / self.warmup_steps as f64
        } else {
            1.0
        };
        let left = 1.0 - progress.clamp(0.0, 1.0);
        let decay = if left >= self.decay_fraction {
            1.0
        } else {
            let fallen = 1.0 - left / self.decay_fraction;
            let cosine = 0.5 * (1.0 + libm::cos(std::f64::consts::PI * fallen));
            self.floor + (1.0 - self.floor) * cosine
        };
        self.peak_lr * warmup * decay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule() -> Schedule {
        Schedule {
            peak_lr: 1e-3,
            warmup_steps: 10,
            decay_fraction: 0.5,
            floor: 0.1,
        }
    }

    fn check(inner_step: u64, progress: f64, expected: f64) {
        let lr = schedule().lr(inner_step, progress);
        assert!(
            (lr - expected).abs() < 1e-12,
            "step {inner_step} at {progress}: {lr}"
        );
    }

    #[test]
    fn it_warms_up_holds_and_falls_to_the_floor() {
        check(0, 0.0, 1e-4);
        check(9, 0.0, 1e-3);
        check(50, 0.5, 1e-3);
        check(75, 0.75, 1e-3 * (0.1 + 0.9 * 0.5));
        check(100, 1.0, 1e-4);
        check(200, 7.0, 1e-4);
    }

    #[test]
    fn a_run_without_decay_or_warmup_keeps_its_peak() {
        let flat = Schedule {
            warmup_steps: 0,
            decay_fraction: 0.0,
            ..schedule()
        };
        assert_eq!(flat.lr(0, 0.0), 1e-3);
        assert_eq!(flat.lr(99, 1.0), 1e-3);
    }
}
