//! A cap on bandwidth: a bucket that fills at the capped rate, and pays for every byte.
//!
//! Bytes are taken first and waited for afterwards, so that large and small takers are served in the order
//! in which they ask, and the debt is never larger than what they have in their hands.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A bucket holds what flows into it in this time.
const BURST: Duration = Duration::from_millis(250);

/// The pure part: time is an argument.
#[derive(Debug, Clone)]
struct Bucket {
    bytes_per_s: f64,
    /// Bytes that may go at once; negative: those that have been promised.
    level: f64,
    at: Duration,
}

impl Bucket {
    fn new(bytes_per_s: f64) -> Self {
        Self {
            bytes_per_s,
            level: bytes_per_s * BURST.as_secs_f64(),
            at: Duration::ZERO,
        }
    }

    /// Takes bytes out; they may go after the returned time.
    fn take(&mut self, now: Duration, bytes: u64) -> Duration {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let most = self.bytes_per_s * BURST.as_secs_f64();
        self.level = (self.level + passed.as_secs_f64() * self.bytes_per_s).min(most);
        self.level -= bytes as f64;
        Duration::from_secs_f64((-self.level / self.bytes_per_s).max(0.0))
    }
}

/// A cap that many transfers share; cheap to clone. The default caps nothing.
#[derive(Debug, Clone, Default)]
pub struct Bandwidth(Option<Arc<(Mutex<Bucket>, Instant)>>);

impl Bandwidth {
    /// At most so many bytes per second; 0 is taken for 1.
    #[must_use]
    pub fn capped(bytes_per_s: u64) -> Self {
        let bucket = Bucket::new(bytes_per_s.max(1) as f64);
        Self(Some(Arc::new((Mutex::new(bucket), Instant::now()))))
    }

    /// As [`Bandwidth::capped`], in the unit that links are sold in; `None` caps nothing.
    #[must_use]
    pub fn capped_mbit(mbit_per_s: Option<f64>) -> Self {
        mbit_per_s.map_or_else(Self::default, |rate| {
            Self::capped((rate * 125_000.0) as u64)
        })
    }

    /// Whether it caps anything.
    pub(crate) fn is_capped(&self) -> bool {
        self.0.is_some()
    }

    /// Waits until so many bytes more may go.
    pub async fn pass(&self, bytes: usize) {
        let Some(shared) = &self.0 else { return };
        let (bucket, began) = &**shared;
        let wait = {
            let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.take(began.elapsed(), bytes as u64)
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_as_told_keeps_the_rate_and_idling_saves_up_little() {
        let mut bucket = Bucket::new(1_000_000.0);
        let mut now = Duration::ZERO;
        for _ in 0..400 {
            now += bucket.take(now, 50_000);
        }
        // 20 MB at 1 MB/s, but for the burst.
        assert!((now.as_secs_f64() - 19.75).abs() < 0.01, "{now:?}");
        now += Duration::from_secs(3600);
        assert_eq!(bucket.take(now, 250_000), Duration::ZERO);
        assert!(bucket.take(now, 1_000_000) > Duration::from_millis(990));
    }
}
