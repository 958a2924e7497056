//! Where a number comes from.
//!
//! A plan is only as good as the oldest guess in it, so nothing enters the planner as a bare number:
//! each one travels with its source and the time it was taken, and every result can print both. Never
//! here: a default. What nobody measured or wrote down is absent, and its absence is a reason.

use std::fmt;
use std::time::Duration;

/// Milliseconds since the Unix epoch, as the clocks of batch systems tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallMs(pub u64);

impl WallMs {
    /// The time that has passed since `earlier`; zero if it lies ahead.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// This time plus a duration; stays at the end of time instead of wrapping.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(ms))
    }
}

/// Who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `sbatch --test-only`, asked by this user and account.
    Probe {
        /// Whose priority the answer was conditioned on.
        prober: String,
    },
    /// The site's accounting (`sacct`) over a trailing window.
    Accounting {
        /// The length of the window.
        window: Duration,
        /// Jobs in it.
        jobs: u32,
    },
    /// This run's own round records.
    RunRecords {
        /// Rounds that the number was taken from.
        rounds: u32,
    },
    /// Logs of earlier jobs of the same shape.
    JobLogs {
        /// Jobs that the number was taken from.
        jobs: u32,
    },
    /// A line of the site's profile.
    Profile {
        /// The key in it.
        key: String,
    },
    /// The run's recipe.
    Recipe {
        /// The key in it.
        key: String,
    },
    /// A person at the command line.
    Operator,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Probe { prober } => write!(f, "probe by {prober}"),
            Self::Accounting { window, jobs } => {
                write!(f, "sacct, {jobs} jobs in {}", Spell(*window))
            }
            Self::RunRecords { rounds } => write!(f, "this run, {rounds} rounds"),
            Self::JobLogs { jobs } => write!(f, "logs of {jobs} jobs"),
            Self::Profile { key } => write!(f, "site profile, {key}"),
            Self::Recipe { key } => write!(f, "recipe, {key}"),
            Self::Operator => f.write_str("operator"),
        }
    }
}

/// A value, who says so, and since when.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact<T> {
    /// What is said.
    pub value: T,
    /// Who says it.
    pub source: Source,
    /// When it was measured or written down.
    pub at: WallMs,
}

impl<T> Fact<T> {
    /// How old the fact is.
    #[must_use]
    pub fn age(&self, now: WallMs) -> Duration {
        now.since(self.at)
    }

    /// The same provenance on a value derived from this one.
    #[must_use]
    pub fn map<U>(&self, f: impl FnOnce(&T) -> U) -> Fact<U> {
        Fact {
            value: f(&self.value),
            source: self.source.clone(),
            at: self.at,
        }
    }

    /// "sacct, 4169 jobs in 48 h; 3 h old", for printing behind the value.
    #[must_use]
    pub fn provenance(&self, now: WallMs) -> String {
        format!("{}; {} old", self.source, Spell(self.age(now)))
    }
}

/// A cost that a run measures itself, and that a site's profile states until it has.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// From this run's round records.
    pub measured: Option<Fact<Duration>>,
    /// From the site's profile.
    pub stated: Option<Fact<Duration>>,
}

impl Cost {
    /// A cost nobody knows.
    pub const UNKNOWN: Self = Self {
        measured: None,
        stated: None,
    };

    /// What the run measured or, failing that, what the profile states.
    #[must_use]
    pub fn best(&self) -> Option<&Fact<Duration>> {
        self.measured.as_ref().or(self.stated.as_ref())
    }
}

/// Writes a duration as people say it, two units at most: "12 h 24 min", "90 s".
pub struct Spell(
    /// How long.
    pub Duration,
);

impl fmt::Display for Spell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600, seconds / 60);
        let pair = |f: &mut fmt::Formatter<'_>, large, name, small, unit| match small {
            0 => write!(f, "{large} {name}"),
            _ => write!(f, "{large} {name} {small} {unit}"),
        };
        match seconds {
            0..120 => write!(f, "{seconds} s"),
            120..7_200 => pair(f, minutes, "min", seconds % 60, "s"),
            7_200..172_800 => pair(f, hours, "h", minutes % 60, "min"),
            _ => pair(f, days, "d", hours % 24, "h"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_says_where_it_comes_from_and_how_old_it_is() {
        let usage = Fact {
            value: 0.16,
            source: Source::Accounting {
                window: Duration::from_secs(48 * 3600),
                jobs: 4169,
            },
            at: WallMs(1_000),
        };
        let now = WallMs(1_000 + 3 * 3_600_000 + 60_000);
        assert_eq!(
            usage.provenance(now),
            "sacct, 4169 jobs in 2 d; 3 h 1 min old"
        );
    }

    #[test]
    fn what_the_run_measured_goes_before_what_the_profile_states() {
        let fact = |seconds, source| Fact {
            value: Duration::from_secs(seconds),
            source,
            at: WallMs(0),
        };
        let stated = fact(
            90,
            Source::Profile {
                key: "transfer_s".into(),
            },
        );
        let mut cost = Cost {
            measured: None,
            stated: Some(stated),
        };
        assert_eq!(cost.best().map(|f| f.value.as_secs()), Some(90));
        cost.measured = Some(fact(33, Source::RunRecords { rounds: 12 }));
        assert_eq!(cost.best().map(|f| f.value.as_secs()), Some(33));
        assert_eq!(Cost::UNKNOWN.best(), None);
    }
}
