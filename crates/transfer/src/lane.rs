//! One lane of a transfer: a connection of its own, which retires before a middlebox cuts it, and the
//! size of its next request.
//!
//! Proxies cut tunnels by age and by bytes, and some do both within a minute. A cut costs what is on its
//! way, so a lane asks for no more than it can get in a few seconds, and takes a new connection in time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::error::TransferError;
use crate::retire::Retirement;

/// A request should take about so long.
const REQUEST_GOAL: Duration = Duration::from_secs(8);
const UNIT_BYTES_FIRST: u64 = 4 << 20;
const UNIT_BYTES_MIN: u64 = 64 << 10;
const UNIT_BYTES_MAX: u64 = 16 << 20;

/// The number of bytes to ask for at once, from how long earlier requests took. Pure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unit(u64);

impl Unit {
    fn after_success(self, bytes: u64, took: Duration) -> Self {
        let rate = bytes as f64 / took.as_secs_f64().max(1e-3);
        let goal = (rate * REQUEST_GOAL.as_secs_f64()) as u64;
        Self(goal.clamp(self.0 / 2, self.0.saturating_mul(2))).bounded()
    }

    fn after_cut(self) -> Self {
        Self(self.0 / 2).bounded()
    }

    fn bounded(self) -> Self {
        Self(self.0.clamp(UNIT_BYTES_MIN, UNIT_BYTES_MAX))
    }
}

/// A lane. Its requests come one after another.
pub(crate) struct Lane {
    client: Client,
    retirement: Arc<Mutex<Retirement>>,
    connection: Option<Connection>,
    unit: Unit,
    /// Of the last request.
    bytes_per_s: Option<f64>,
}

struct Connection {
    http: reqwest::Client,
    began: Instant,
    carried_bytes: u64,
}

impl Lane {
    /// `retirement` is what all lanes of a transfer learn together.
    pub(crate) fn new(client: Client, retirement: Arc<Mutex<Retirement>>) -> Self {
        Self {
            client,
            retirement,
            connection: None,
            unit: Unit(UNIT_BYTES_FIRST),
            bytes_per_s: None,
        }
    }

    /// How fast its last request was; `None` before the first.
    pub(crate) fn bytes_per_s(&self) -> Option<f64> {
        self.bytes_per_s
    }

    /// Whether its requests are as large as any.
    pub(crate) fn is_fast(&self) -> bool {
        self.unit.0 == UNIT_BYTES_MAX
    }

    /// How much of so many bytes to ask for now.
    pub(crate) fn unit_bytes(&self, left_bytes: u64) -> u64 {
        // No crumbs: what is left after this request should be worth one.
        match self.unit.0 {
            unit if left_bytes <= unit + unit / 2 => left_bytes.min(UNIT_BYTES_MAX + (1 << 20)),
            unit => unit,
        }
    }

    /// The connection for a request of so many bytes: that of the last one, unless it is to retire.
    pub(crate) fn connection(&mut self, bytes: u64) -> Result<reqwest::Client, TransferError> {
        let is_due = self.connection.as_ref().is_some_and(|c| {
            let retirement = lock(&self.retirement);
            retirement.is_due(c.began.elapsed(), c.carried_bytes, bytes)
        });
        if is_due {
            self.connection = None;
            lock(&self.retirement).retired();
        }
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection {
                http: self.client.new_connection()?,
                began: Instant::now(),
                carried_bytes: 0,
            },
        };
        let connection = self.connection.insert(connection);
        connection.carried_bytes += bytes;
        Ok(connection.http.clone())
    }

    pub(crate) fn succeeded(&mut self, bytes: u64, took: Duration) {
        self.unit = self.unit.after_success(bytes, took);
        self.bytes_per_s = Some(bytes as f64 / took.as_secs_f64().max(1e-3));
    }

    /// The next request is smaller, and on a new connection.
    pub(crate) fn failed(&mut self, error: &TransferError) {
        let connection = self.connection.take();
        if let (Some(c), TransferError::Cut { .. }) = (connection, error) {
            lock(&self.retirement).cut(c.began.elapsed(), c.carried_bytes);
        }
        self.unit = self.unit.after_cut();
    }

    /// The connection cannot be used again.
    pub(crate) fn drop_connection(&mut self) {
        self.connection = None;
    }
}

fn lock(retirement: &Mutex<Retirement>) -> MutexGuard<'_, Retirement> {
    retirement.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_follow_the_speed_and_shrink_with_every_cut() {
        let mut unit = Unit(UNIT_BYTES_FIRST);
        for _ in 0..10 {
            unit = unit.after_success(unit.0, Duration::from_millis(200));
        }
        assert_eq!(unit.0, UNIT_BYTES_MAX);
        // 100 kB/s: about 800 kB at once.
        for _ in 0..10 {
            unit = unit.after_success(unit.0, Duration::from_secs_f64(unit.0 as f64 / 100e3));
        }
        assert!((700_000..900_000).contains(&unit.0), "{unit:?}");
        for _ in 0..10 {
            unit = unit.after_cut();
        }
        assert_eq!(unit.0, UNIT_BYTES_MIN);
    }
}
