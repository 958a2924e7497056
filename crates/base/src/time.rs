//! The coordinator's monotonic time. Pure code gets it as an argument.

use std::time::Duration;

/// Milliseconds on one process's monotonic clock; means nothing to another process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonoMs(pub u64);

/// Seconds since 1970, by a clock on the wall: for what people name, and what outlives a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallS(pub u64);

impl MonoMs {
    /// This time plus a duration; stays at the end of time instead of wrapping.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(ms))
    }

    /// The time that has passed since `earlier`; zero if it lies ahead.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}
