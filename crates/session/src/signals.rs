//! The signals that ask a job to end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use tokio::sync::Semaphore;

use crate::error::Error;

/// SIGTERM (a system that shuts down), SIGUSR1 (Slurm's `--signal`), SIGINT (Ctrl-C).
pub struct Signals {
    streams: Option<[Signal; 3]>,
    last: Option<Instant>,
}

/// Signals so close to each other are one: `timeout` and `scancel` signal a process and its group.
const ONE_SIGNAL: Duration = Duration::from_millis(500);

impl Signals {
    /// Listens, if that is wanted; if not, none ever comes.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn listen(wanted: bool) -> Result<Self, Error> {
        if !wanted {
            return Ok(Self {
                streams: None,
                last: None,
            });
        }
        let on = |kind| signal(kind).map_err(Error::system("listen for signals"));
        let streams = [
            on(SignalKind::terminate())?,
            on(SignalKind::user_defined1())?,
            on(SignalKind::interrupt())?,
        ];
        Ok(Self {
            streams: Some(streams),
            last: None,
        })
    }

    /// The next one; never, if none are listened for. Several within half a second are one. Nothing is
    /// lost if the future is dropped.
    pub async fn next(&mut self) {
        let Some([terminate, user, interrupt]) = &mut self.streams else {
            return std::future::pending().await;
        };
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = user.recv() => {}
                _ = interrupt.recv() => {}
            }
            if !is_again(&mut self.last, Instant::now()) {
                return;
            }
        }
    }
}

/// True if a signal at this moment is one with the last; else it is the last from now on.
fn is_again(last: &mut Option<Instant>, now: Instant) -> bool {
    let again = last.is_some_and(|last| now.saturating_duration_since(last) < ONE_SIGNAL);
    if !again {
        *last = Some(now);
    }
    again
}

/// Every way in which a session is asked to stop.
pub(crate) struct Stops {
    pub signals: Signals,
    /// One permit for each time that [`crate::Handle::stop`] was called.
    pub handle: Arc<Semaphore>,
}

impl Stops {
    /// The next request to stop. Nothing is lost if the future is dropped.
    pub async fn next(&mut self) {
        tokio::select! {
            () = self.signals.next() => {}
            permit = self.handle.acquire() => {
                // The semaphore is never closed.
                if let Ok(permit) = permit {
                    permit.forget();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_to_a_process_and_its_group_are_one_and_a_later_one_is_another() {
        let (mut last, first) = (None, Instant::now());
        assert!(!is_again(&mut last, first));
        assert!(is_again(&mut last, first + Duration::from_millis(2)));
        assert!(!is_again(&mut last, first + Duration::from_secs(1)));
    }
}
