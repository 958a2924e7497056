//! When to give up a connection of one's own accord. Pure: ages and bytes are arguments.
//!
//! Proxies and firewalls cut connections by age or by bytes, and do not say so. Behind a proxy, connections
//! retire before the usual minute and 64 MiB; elsewhere they live on, as a new one starts slowly on a long
//! way, until one is cut: then all retire a little before that. After a quiet while the limits are tried
//! again, as networks also have accidents.

use std::time::Duration;

const AGE_BEHIND_PROXY: Duration = Duration::from_secs(40);
const BYTES_BEHIND_PROXY: u64 = 50 << 20;
/// Who was cut so early was not cut by a limit, or by one that shrinking would not pass.
const AGE_MIN: Duration = Duration::from_secs(5);
const BYTES_MIN: u64 = 1 << 20;
/// Connections that retire uncut before the limits are doubled.
const QUIET: u32 = 16;

/// The limits of a transfer's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retirement {
    age_max: Duration,
    bytes_max: u64,
    quiet: u32,
}

impl Retirement {
    pub(crate) fn new(behind_proxy: bool) -> Self {
        let (age_max, bytes_max) = match behind_proxy {
            true => (AGE_BEHIND_PROXY, BYTES_BEHIND_PROXY),
            false => (Duration::MAX, u64::MAX),
        };
        Self {
            age_max,
            bytes_max,
            quiet: 0,
        }
    }

    /// Whether a connection that has carried so much should not be asked for `wanted_bytes` more.
    pub(crate) fn is_due(&self, age: Duration, carried_bytes: u64, wanted_bytes: u64) -> bool {
        let is_new = carried_bytes == 0;
        !is_new
            && (age >= self.age_max || carried_bytes.saturating_add(wanted_bytes) > self.bytes_max)
    }

    /// A connection retired in time.
    pub(crate) fn retired(&mut self) {
        self.quiet += 1;
        if self.quiet >= QUIET {
            self.age_max = self.age_max.saturating_mul(2);
            self.bytes_max = self.bytes_max.saturating_mul(2);
            self.quiet = 0;
        }
    }

    /// A connection was cut.
    pub(crate) fn cut(&mut self, age: Duration, carried_bytes: u64) {
        if age < AGE_MIN && carried_bytes < BYTES_MIN {
            return;
        }
        self.age_max = self.age_max.min((age * 3 / 4).max(AGE_MIN));
        self.bytes_max = self.bytes_max.min((carried_bytes / 4 * 3).max(BYTES_MIN));
        self.quiet = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MIB: u64 = 1 << 20;

    #[test]
    fn behind_a_proxy_connections_retire_before_a_minute_and_64_mib() {
        let limits = Retirement::new(true);
        assert!(!limits.is_due(39 * SECOND, 34 * MIB, 16 * MIB));
        assert!(limits.is_due(40 * SECOND, 1, 1));
        assert!(limits.is_due(SECOND, 40 * MIB, 16 * MIB));
        assert!(!limits.is_due(100 * SECOND, 0, u64::MAX), "it is new");
    }

    #[test]
    fn a_cut_is_learned_from_and_forgotten_after_a_quiet_while() {
        let mut limits = Retirement::new(false);
        assert!(!limits.is_due(9999 * SECOND, u64::MAX - 1, u64::MAX));
        limits.cut(SECOND, MIB / 2);
        assert_eq!(limits, Retirement::new(false), "an accident");
        limits.cut(60 * SECOND, 400 * MIB);
        assert!(limits.is_due(45 * SECOND, MIB, MIB) && !limits.is_due(44 * SECOND, MIB, MIB));
        for _ in 0..QUIET {
            limits.retired();
        }
        assert!(!limits.is_due(80 * SECOND, 300 * MIB, 16 * MIB));
        limits.cut(SECOND, 64 * MIB);
        assert!(limits.is_due(SECOND, 40 * MIB, 16 * MIB));
    }
}
