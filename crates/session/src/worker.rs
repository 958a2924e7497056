//! The trainer's own thread. Jobs go in one at a time, reports come out through a bounded queue, so a
//! trainer that hangs or computes for minutes never holds up heartbeats, transfers or signals.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hansa_protocol::replica::Input;
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;
use crate::shell::Msg;
use crate::trainer::Trainer;

/// How long the job under way at the end (a step, a checkpoint) is waited for.
const LAST_JOB_MAX: Duration = Duration::from_secs(20);

type Job = Box<dyn FnOnce(&mut dyn Trainer, &Reports) + Send>;

/// Where a job's reports go.
#[derive(Clone)]
pub(crate) struct Reports {
    messages: mpsc::Sender<Msg>,
    /// Set when nobody listens any more.
    over: Arc<AtomicBool>,
}

impl Reports {
    #[cfg(test)]
    pub fn to(messages: mpsc::Sender<Msg>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        Self { messages, over }
    }

    pub fn send(&self, message: Msg) {
        // An error means that the session is over; the job looks at `over`.
        let _ = self.messages.blocking_send(message);
    }

    pub fn input(&self, input: Input) {
        self.send(Msg::Input(input));
    }

    pub fn over(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.messages.is_closed()
    }
}

/// The thread, from outside.
pub(crate) struct Worker {
    jobs: std::sync::mpsc::Sender<Job>,
    over: Arc<AtomicBool>,
    ended: oneshot::Receiver<()>,
}

impl Worker {
    /// Starts the thread. The trainer lives and dies on it.
    pub fn start(
        mut trainer: Box<dyn Trainer>,
        messages: mpsc::Sender<Msg>,
    ) -> Result<Self, Error> {
        let (jobs, queue) = std::sync::mpsc::channel::<Job>();
        let over = Arc::new(AtomicBool::new(false));
        let (end, ended) = oneshot::channel();
        let reports = Reports {
            messages,
            over: over.clone(),
        };
        let work = move || {
            for job in queue {
                let run = AssertUnwindSafe(|| job(trainer.as_mut(), &reports));
                if catch_unwind(run).is_err() {
                    let why = "the trainer panicked; its message is above".to_owned();
                    reports.input(Input::Failed(why));
                    break;
                }
            }
            drop(trainer);
            let _ = end.send(());
        };
        std::thread::Builder::new()
            .name("trainer".to_owned())
            .spawn(work)
            .map_err(Error::system("start the trainer's thread"))?;
        Ok(Self { jobs, over, ended })
    }

    /// Hands over a job; it starts when those before it are done.
    pub fn run(&self, job: impl FnOnce(&mut dyn Trainer, &Reports) + Send + 'static) {
        // A thread that is gone has reported why.
        let _ = self.jobs.send(Box::new(job));
    }

    /// Ends the thread after the job under way.
    pub async fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        drop(self.jobs);
        if tokio::time::timeout(LAST_JOB_MAX, self.ended)
            .await
            .is_err()
        {
            tracing::warn!("the trainer does not end; leaving it behind");
        }
    }
}
