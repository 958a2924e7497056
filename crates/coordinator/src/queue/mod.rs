//! The sites' queues: a second machine with a thread and a journal of its own, beside the run's.
//!
//! ```text
//!   run's thread ── how the run stands, every second ──► queue's thread ── queue.sqlite
//!   site process ── reports ──► (the API) ──────────────►      │
//!                ◄─ orders, once they are durable ─────────────┘
//! ```
//!
//! The queue looks at the run and never touches it; a run without site processes has no queue journal.

mod actor;
mod look;
mod records;
mod view;

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actor::{QueueActor, QueueEnd};
use hansa_queue::Planning;

use crate::actor::Mailbox;
use crate::error::Error;

pub(crate) use actor::{QueueMailbox, QueueParts};
pub(crate) use look::run_view;
pub(crate) use records::{copy_queue, restore_queue};

/// How often the queue is told how the run stands, should nobody call.
const INFORM_EVERY: Duration = Duration::from_secs(1);
/// How often to ask whether everybody has heard.
const QUIET_EVERY: Duration = Duration::from_millis(50);

/// The queue's thread, from the side of who serves it.
pub(crate) struct QueueService {
    pub mailbox: QueueMailbox,
    end: QueueEnd,
    ended: Option<Result<(), Error>>,
    thread: Option<JoinHandle<()>>,
    lease_ttl: Duration,
}

impl QueueService {
    pub fn start(parts: QueueParts, lease_ttl: Duration) -> Result<Self, Error> {
        let (mailbox, end, thread) = QueueActor::start(parts)?;
        Ok(Self {
            mailbox,
            end,
            ended: None,
            thread: Some(thread),
            lease_ttl,
        })
    }

    /// Keeps the queue informed of the run for as long as that is served.
    pub fn inform(&self, run: Mailbox, planning: Planning) -> tokio::task::JoinHandle<()> {
        let queue = self.mailbox.clone();
        tokio::spawn(async move {
            let look = move |machine: &_, _| run_view(machine, planning);
            while let Ok(view) = run.query(look).await {
                queue.run(view);
                tokio::time::sleep(INFORM_EVERY).await;
            }
        })
    }

    /// Resolves when the thread has ended before it was asked to.
    pub async fn failed(&mut self) {
        let end = (&mut self.end).await;
        self.ended = Some(end.unwrap_or(Err(Error::ActorGone)));
    }

    /// After the run's end: waits until no site process has anything left to do, or they are gone.
    pub async fn farewell(&self) {
        self.mailbox.run_over();
        let began = Instant::now();
        while began.elapsed() < self.lease_ttl * 2 && !self.mailbox.is_quiet().await {
            tokio::time::sleep(QUIET_EVERY).await;
        }
    }

    /// Ends the thread, and says how it ended.
    pub async fn stop(mut self) -> Result<(), Error> {
        if self.ended.is_none() {
            let mailbox = self.mailbox.clone();
            // May wait for a place in the queue.
            let _ = tokio::task::spawn_blocking(move || mailbox.stop()).await;
            self.failed().await;
        }
        if let Some(thread) = self.thread.take() {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        self.ended.unwrap_or(Ok(()))
    }
}
