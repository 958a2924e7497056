//! When the controller may be asked again: after an outage or a rate limit, later and later. Pure.

use std::time::Duration;

use hansa_base::{MonoMs, RetryPolicy};

/// How patient we are with a controller.
const POLICY: RetryPolicy = RetryPolicy {
    first: Duration::from_secs(2),
    longest: Duration::from_secs(60),
    retries_max: None,
};

/// The pace of one controller.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    failures: u32,
    not_before: MonoMs,
    answering_since: Option<MonoMs>,
}

impl Pace {
    /// How long to wait before the next command.
    #[must_use]
    pub fn wait(&self, now: MonoMs) -> Duration {
        self.not_before.since(now)
    }

    /// It answered. True if it did not before.
    pub fn answered(&mut self, now: MonoMs) -> bool {
        let recovered = self.failures > 0;
        self.failures = 0;
        self.not_before = MonoMs(0);
        self.answering_since.get_or_insert(now);
        recovered
    }

    /// It did not, or wants us to ask less. True if it is the first time.
    pub fn failed(&mut self, now: MonoMs, entropy: u64) -> bool {
        let delay = POLICY
            .delay(self.failures, entropy)
            .unwrap_or(POLICY.longest);
        self.failures = self.failures.saturating_add(1);
        self.not_before = now.after(delay);
        self.answering_since = None;
        self.failures == 1
    }

    /// Whether it has answered all along since some time that lies at least `settle` back, and so has
    /// whatever was asked for at `asked_at`.
    ///
    /// A controller that hung still has the requests that nobody waits for any more, and takes them once
    /// it goes on: the time counts from the later of the request and the end of the outage.
    #[must_use]
    pub fn settled(&self, asked_at: MonoMs, settle: Duration, now: MonoMs) -> bool {
        let since = self.answering_since.map(|since| since.max(asked_at));
        since.is_some_and(|since| now.since(since) > settle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLE: Duration = Duration::from_secs(25);

    #[test]
    fn outages_are_waited_out_longer_and_longer() {
        let mut pace = Pace::default();
        assert!(pace.failed(MonoMs(0), u64::MAX));
        let first = pace.wait(MonoMs(0));
        assert!(!pace.failed(MonoMs(5_000), u64::MAX));
        assert!(pace.wait(MonoMs(5_000)) > first);
        for _ in 0..100 {
            pace.failed(MonoMs(5_000), u64::MAX);
        }
        assert!(pace.wait(MonoMs(5_000)) <= POLICY.longest);
        assert!(pace.answered(MonoMs(6_000)) && !pace.answered(MonoMs(7_000)));
        assert_eq!(pace.wait(MonoMs(7_000)), Duration::ZERO);
    }

    #[test]
    fn a_request_has_settled_only_under_a_controller_that_kept_answering() {
        let mut pace = Pace::default();
        assert!(
            !pace.settled(MonoMs(0), SETTLE, MonoMs(100_000)),
            "nobody has answered"
        );
        pace.answered(MonoMs(1_000));
        assert!(!pace.settled(MonoMs(10_000), SETTLE, MonoMs(35_000)));
        assert!(pace.settled(MonoMs(10_000), SETTLE, MonoMs(35_001)));
        // It hangs for a minute, with the request in its socket.
        pace.failed(MonoMs(36_000), 0);
        pace.answered(MonoMs(96_000));
        assert!(!pace.settled(MonoMs(10_000), SETTLE, MonoMs(97_000)));
        assert!(pace.settled(MonoMs(10_000), SETTLE, MonoMs(121_001)));
    }
}
