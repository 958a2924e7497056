//! Medians, and the peak memory of the own process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often memory is looked at.
const SAMPLE_EVERY: Duration = Duration::from_millis(5);

/// The middle of some figures, or the mean of the two in the middle; zero for none.
#[must_use]
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// A number of kibibytes in `/proc/self/status`, in bytes; zero where the system does not say.
#[must_use]
pub fn status_bytes(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|kib| kib.parse().ok()).unwrap_or(0_u64) << 10
}

/// Looks at this process's anonymous and shared memory every few milliseconds.
pub struct MemoryWatch {
    stop: Arc<AtomicBool>,
    peak: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl MemoryWatch {
    /// Begins to look.
    #[must_use]
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let peak = Arc::new(AtomicU64::new(0));
        let (stopped, seen) = (stop.clone(), peak.clone());
        let thread = std::thread::spawn(move || {
            loop {
                let now = status_bytes("RssAnon") + status_bytes("RssShmem");
                seen.fetch_max(now, Ordering::Relaxed);
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::park_timeout(SAMPLE_EVERY);
            }
        });
        Self { stop, peak, thread }
    }

    /// The largest amount seen, in bytes.
    #[must_use]
    pub fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        // It does not panic, and if it did, what it saw would still be true.
        let _ = self.thread.join();
        self.peak.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_does_not_mind_one_outlier() {
        assert_eq!(median(&[3.0, 1e9, 1.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 1e9]), 3.0);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn what_was_used_for_a_moment_is_seen() {
        let watch = MemoryWatch::start();
        let before = status_bytes("RssAnon");
        let used = vec![1_u8; 64 << 20];
        let now = status_bytes("RssAnon");
        std::thread::sleep(SAMPLE_EVERY * 20);
        drop(std::hint::black_box(used));
        let peak = watch.finish();
        // Zero where the system does not tell.
        assert!(peak >= now.min(before + (32 << 20)));
    }
}
