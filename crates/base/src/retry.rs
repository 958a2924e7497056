//! How long to wait before trying again.

use std::time::Duration;

/// Exponential back-off with jitter, bounded. Pure: the caller passes attempt number and entropy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The delay before the first retry.
    pub first: Duration,
    /// The longest delay.
    pub longest: Duration,
    /// Retries before giving up; `None` means never.
    pub retries_max: Option<u32>,
}

impl RetryPolicy {
    /// The delay before retry `attempt` (from 0), between half and the whole of
    /// `first · 2^attempt`, spread by `entropy`; `None` when it is time to give up.
    #[must_use]
    pub fn delay(&self, attempt: u32, entropy: u64) -> Option<Duration> {
        if self.retries_max.is_some_and(|max| attempt >= max) {
            return None;
        }
        let full = self
            .first
            .saturating_mul(1 << attempt.min(20))
            .min(self.longest);
        let share = 0.5 + 0.5 * (entropy >> 11) as f64 / (1u64 << 53) as f64;
        Some(full.mul_f64(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_stay_bounded_and_end() {
        let policy = RetryPolicy {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(5),
            retries_max: Some(40),
        };
        let delays: Vec<_> = (0..40).map(|n| policy.delay(n, u64::MAX)).collect();
        assert!(delays.windows(2).all(|pair| pair[0] <= pair[1]));
        assert!(delays.iter().flatten().all(|d| *d <= policy.longest));
        assert!(policy.delay(3, 0) < policy.delay(3, u64::MAX));
        assert_eq!(policy.delay(40, 0), None);
    }
}
