//! The signals that ask a job to end.

use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};

use tokio::sync::Semaphore;

use crate::error::Error;

/// SIGTERM (a system that shuts down), SIGUSR1 (Slurm's `--signal`), SIGINT (Ctrl-C).
pub(crate) struct Signals(Option<[Signal; 3]>);

impl Signals {
    pub fn listen(wanted: bool) -> Result<Self, Error> {
        if !wanted {
            return Ok(Self(None));
        }
        let on = |kind| signal(kind).map_err(Error::system("listen for signals"));
        Ok(Self(Some([
            on(SignalKind::terminate())?,
            on(SignalKind::user_defined1())?,
            on(SignalKind::interrupt())?,
        ])))
    }

    /// The next one; never, if none are listened for.
    pub async fn next(&mut self) {
        let Some([terminate, user, interrupt]) = &mut self.0 else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = user.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
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
