//! Whether our own bytes make others wait: a small request now and then, and how long its answer takes.
//!
//! A link that is full queues: each further connection adds nothing but delay, in which heartbeats wait,
//! and losses, which they wait for even longer. A link that loses packets does not queue, and there each
//! connection counts. Goodput alone cannot tell the two apart; the delay of a small request can. Pure but
//! for [`Prober`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use crate::client::Client;

/// Delay that nobody minds, whatever the path: less than a busy server takes.
const DELAY_MIN: Duration = Duration::from_millis(200);
/// How often to ask. A request that is under way is not doubled.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// An answer that takes longer tells nothing new.
const ASK_MAX: Duration = Duration::from_secs(5);
/// An answer says so long how the path is.
const FRESH: Duration = Duration::from_secs(3);

/// What round trips say. Times are since the transfer's start.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Delays {
    least: Option<Duration>,
    /// The last round trip, and when it was known.
    last: Option<(Duration, Duration)>,
    /// When the question under way was asked.
    asked: Option<Duration>,
}

impl Delays {
    pub(crate) fn ask(&mut self, now: Duration) {
        self.asked = Some(now);
    }

    /// The question under way is answered.
    pub(crate) fn answered(&mut self, now: Duration) {
        let Some(asked) = self.asked.take() else {
            return;
        };
        let took = now.saturating_sub(asked);
        self.least = Some(self.least.map_or(took, |least| least.min(took)));
        self.last = Some((took, now));
    }

    /// It is not, and will not be.
    pub(crate) fn lost(&mut self) {
        self.asked = None;
    }

    /// Whether round trips take much longer than they might. What is under way counts with the time
    /// that it has taken so far.
    pub(crate) fn is_queueing(&self, now: Duration) -> bool {
        let Some(least) = self.least else {
            return false;
        };
        let long = |took: Duration| took > least + DELAY_MIN.max(least);
        let under_way = self
            .asked
            .is_some_and(|asked| long(now.saturating_sub(asked)));
        let fresh = |(took, at): (Duration, Duration)| long(took) && now.saturating_sub(at) < FRESH;
        under_way || self.last.is_some_and(fresh)
    }
}

/// Asks, again and again, over the connection of control calls. Dropped, it stops.
pub(crate) struct Prober {
    delays: Arc<Mutex<Delays>>,
    began: Instant,
    task: AbortHandle,
}

impl Prober {
    pub(crate) fn start(client: Client) -> Self {
        let delays = Arc::new(Mutex::new(Delays::default()));
        let began = Instant::now();
        let shared = delays.clone();
        let ask = async move {
            // The first answer is for the connection to be there, and the second is the first that counts.
            client.nudge(ASK_MAX).await;
            loop {
                lock(&shared).ask(began.elapsed());
                match client.nudge(ASK_MAX).await {
                    true => lock(&shared).answered(began.elapsed()),
                    false => lock(&shared).lost(),
                }
                tokio::time::sleep(ASK_EVERY).await;
            }
        };
        let task = tokio::spawn(ask).abort_handle();
        Self {
            delays,
            began,
            task,
        }
    }

    pub(crate) fn is_queueing(&self) -> bool {
        lock(&self.delays).is_queueing(self.began.elapsed())
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(delays: &Mutex<Delays>) -> MutexGuard<'_, Delays> {
    delays.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn what_takes_much_longer_than_before_has_queued() {
        let mut delays = Delays::default();
        delays.ask(ms(0));
        assert!(!delays.is_queueing(ms(4000)), "nothing to compare with");
        delays.answered(ms(50));
        assert!(!delays.is_queueing(ms(60)));

        delays.ask(ms(1000));
        assert!(!delays.is_queueing(ms(1200)));
        assert!(delays.is_queueing(ms(1300)), "before the answer is there");
        delays.answered(ms(1800));
        assert!(delays.is_queueing(ms(2000)));

        delays.ask(ms(2300));
        delays.answered(ms(2400));
        assert!(!delays.is_queueing(ms(2400)), "the queue is gone");
    }

    #[test]
    fn a_long_path_may_take_its_time_and_what_is_lost_says_nothing() {
        let mut delays = Delays::default();
        for start in [0, 2000] {
            delays.ask(ms(start));
            delays.answered(ms(start + 347 + start / 8));
            assert!(!delays.is_queueing(ms(start + 700)));
        }
        delays.ask(ms(4000));
        delays.lost();
        assert!(!delays.is_queueing(ms(9000)));
    }
}
