//! When a trainer that is lost again and again is given up: too often in a row with nothing that lasts between,
//! or too often within an hour, whatever it has done between.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

/// Within an hour it may be lost so many times as often as in a row.
const HOURLY: usize = 4;
const HOUR: Duration = Duration::from_secs(3600);
/// Pauses between two starts: 1 s, twice that, and so on up to this.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// How often it was too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooOften {
    /// Nothing that lasts was made between.
    InARow(u32),
    /// Something was.
    WithinAnHour(usize),
}

impl fmt::Display for TooOften {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InARow(times) => write!(f, "{times} times in a row"),
            Self::WithinAnHour(times) => write!(f, "{times} times within an hour"),
        }
    }
}

/// The losses of an agent's trainers.
pub(crate) struct Losses {
    in_a_row_max: u32,
    in_a_row: u32,
    /// Those of the last hour.
    recent: VecDeque<Instant>,
    lasting: u64,
}

impl Losses {
    pub fn new(in_a_row_max: u32) -> Self {
        Self {
            in_a_row_max: in_a_row_max.max(1),
            in_a_row: 0,
            recent: VecDeque::new(),
            lasting: 0,
        }
    }

    /// One more; `lasting` is how many checkpoints and contributions all trainers have made so far. How long
    /// to wait before the next start, or that there should be none.
    pub fn add(&mut self, now: Instant, lasting: u64) -> Result<Duration, TooOften> {
        if lasting > self.lasting {
            self.in_a_row = 0;
        }
        self.lasting = lasting;
        self.in_a_row += 1;
        if self.in_a_row >= self.in_a_row_max {
            return Err(TooOften::InARow(self.in_a_row));
        }
        let is_old = |then: &Instant| now.duration_since(*then) >= HOUR;
        while self.recent.front().is_some_and(is_old) {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        let times = self.recent.len();
        if times >= HOURLY * self.in_a_row_max as usize {
            return Err(TooOften::WithinAnHour(times));
        }
        Ok(Duration::from_secs(1 << (self.in_a_row - 1).min(6)).min(PAUSE_MAX))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_grow_and_only_what_lasts_starts_the_count_again() {
        let now = Instant::now();
        let mut losses = Losses::new(3);
        assert_eq!(losses.add(now, 0), Ok(S));
        assert_eq!(losses.add(now, 0), Ok(2 * S));
        assert_eq!(losses.add(now, 1), Ok(S));
        assert_eq!(losses.add(now, 1), Ok(2 * S));
        assert_eq!(losses.add(now, 1), Err(TooOften::InARow(3)));
        assert_eq!(Losses::new(0).add(now, 9), Err(TooOften::InARow(1)));
        let mut patient = Losses::new(10);
        let pauses: Vec<u64> = (0..8)
            .map(|_| patient.add(now, 0).unwrap().as_secs())
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn one_that_is_lost_every_few_minutes_is_given_up_whatever_it_does_between() {
        let start = Instant::now();
        let lost_every = |s: u32| {
            let mut losses = Losses::new(3);
            let mut lost = (1..=100).map(|n| (n, losses.add(start + n * s * S, u64::from(n))));
            lost.find(|(_, verdict)| verdict.is_err())
        };
        assert_eq!(lost_every(120), Some((12, Err(TooOften::WithinAnHour(12)))));
        assert_eq!(lost_every(600), None);
    }
}
