//! One direction of a link, as arithmetic: when does a piece leave, when does it arrive? Pure.

use std::time::Duration;

/// A serial line of a fixed rate and delay. All connections of a direction share one.
#[derive(Debug, Clone)]
pub(crate) struct Wire {
    bytes_per_s: Option<u64>,
    delay: Duration,
    free_at: Duration,
}

impl Wire {
    pub fn new(bytes_per_s: Option<u64>, delay: Duration) -> Self {
        Self {
            bytes_per_s,
            delay,
            free_at: Duration::ZERO,
        }
    }

    /// A piece that is handed over `now`: when its last byte has left, and when that byte arrives.
    pub fn send(&mut self, now: Duration, bytes: usize) -> (Duration, Duration) {
        let takes = self.bytes_per_s.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64)
        });
        self.free_at = self.free_at.max(now) + takes;
        (self.free_at, self.free_at + self.delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_leave_one_after_another_and_arrive_a_delay_later() {
        let ms = Duration::from_millis;
        let mut wire = Wire::new(Some(1000), ms(50));
        assert_eq!(wire.send(ms(0), 100), (ms(100), ms(150)));
        assert_eq!(wire.send(ms(10), 100), (ms(200), ms(250)));
        assert_eq!(wire.send(ms(900), 100), (ms(1000), ms(1050)));
        let mut free = Wire::new(None, ms(50));
        assert_eq!(free.send(ms(7), usize::MAX), (ms(7), ms(57)));
    }
}
