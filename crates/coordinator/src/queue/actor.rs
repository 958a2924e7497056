//! The thread that decides about queues.
//!
//! It owns the queue's machine and journal. Whatever waits shares one transaction; no answer leaves
//! before the events are durable, and when they cannot be made so the coordinator ends. Never here:
//! HTTP, and what the decisions are.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hansa_base::{Hash, MonoMs};
use hansa_queue::{
    Adopted, Event, Handled, Machine, Now, QueueOrder, QueueRefusal, RunView, SyncReply,
    SyncRequest, Timing, UnixS,
};
use hansa_store::Record;
use hansa_wire::queue::view::{LogsView, QueueView};
use tokio::sync::oneshot;

use super::records::{Records, record};
use super::view;
use crate::actor::NotTaken;
use crate::error::Error;
use crate::setup::wall_ms;

/// Inputs that may wait; more are refused. There are a few sites, which call every few seconds.
const QUEUE: usize = 1024;
/// Inputs that share one transaction.
const TURN_MAX: usize = 64;
/// How long to wait for an input before looking at the clock.
const TICK: Duration = Duration::from_secs(1);

type Answer<T> = oneshot::Sender<Result<T, QueueRefusal>>;

/// A look at the machine.
/// Looks at once; what it returns gives the answer.
type Query = Box<dyn FnOnce(&Machine, MonoMs) -> Reply + Send>;
type Reply = Box<dyn FnOnce() + Send>;

// What waits is bounded, and moved once.
#[allow(clippy::large_enum_variant)]
enum Input {
    Sync(SyncRequest, Answer<SyncReply>),
    Operate(QueueOrder, Answer<()>),
    Run(RunView),
    RunOver,
    Quiet(oneshot::Sender<bool>),
    View(oneshot::Sender<QueueView>),
    Logs(oneshot::Sender<LogsView>),
    Query(Query),
    Adopt(Adopted, Answer<()>),
    Stop,
}

/// The way into the queue's thread. Cheap to clone.
#[derive(Clone)]
pub(crate) struct QueueMailbox(SyncSender<Input>);

/// How the thread's end reaches who waits for it.
pub(crate) type QueueEnd = oneshot::Receiver<Result<(), Error>>;

impl QueueMailbox {
    /// Hands over what a site process says; the answer comes when it is durable.
    pub async fn sync(
        &self,
        request: SyncRequest,
    ) -> Result<Result<SyncReply, QueueRefusal>, NotTaken> {
        self.ask(|answer| Input::Sync(request, answer)).await
    }

    /// Hands over an operator's order.
    pub async fn operate(&self, order: QueueOrder) -> Result<Result<(), QueueRefusal>, NotTaken> {
        self.ask(|answer| Input::Operate(order, answer)).await
    }

    /// Tells how the run stands.
    pub fn run(&self, run: RunView) {
        // A newer one follows.
        let _ = self.put(Input::Run(run));
    }

    /// The run is over, and its thread has ended.
    pub fn run_over(&self) {
        let _ = self.put(Input::RunOver);
    }

    /// Whether no site process has anything left to hear; true once the thread has ended.
    pub async fn is_quiet(&self) -> bool {
        self.ask(Input::Quiet).await != Ok(false)
    }

    /// Every queue.
    pub async fn view(&self) -> Result<QueueView, NotTaken> {
        self.ask(Input::View).await
    }

    /// The last lines of jobs.
    pub async fn logs(&self) -> Result<LogsView, NotTaken> {
        self.ask(Input::Logs).await
    }

    /// Looks at the machine, after everything before it is durable.
    pub async fn query<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Machine, MonoMs) -> T + Send + 'static,
    ) -> Result<T, NotTaken> {
        self.ask(|answer| {
            Input::Query(Box::new(move |machine, now| {
                let seen = look(machine, now);
                // Nobody waits any more: nothing is lost.
                Box::new(move || drop(answer.send(seen)))
            }))
        })
        .await
    }

    /// Hands over a plan to follow; the answer comes when it is durable.
    pub async fn adopt(&self, plan: Adopted) -> Result<Result<(), QueueRefusal>, NotTaken> {
        self.ask(|answer| Input::Adopt(plan, answer)).await
    }

    /// Asks the thread to end.
    pub fn stop(&self) {
        while self.put(Input::Stop) == Err(NotTaken::Full) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    async fn ask<T>(&self, input: impl FnOnce(oneshot::Sender<T>) -> Input) -> Result<T, NotTaken> {
        let (answer, receive) = oneshot::channel();
        self.put(input(answer))?;
        receive.await.map_err(|_| NotTaken::Gone)
    }

    fn put(&self, input: Input) -> Result<(), NotTaken> {
        self.0.try_send(input).map_err(|error| match error {
            TrySendError::Full(_) => NotTaken::Full,
            TrySendError::Disconnected(_) => NotTaken::Gone,
        })
    }
}

/// An open queue that nobody serves yet.
pub(crate) struct QueueParts {
    records: Records,
    machine: Machine,
    name: String,
    started: Instant,
}

impl QueueParts {
    /// Opens the queue's journal, if there is one.
    pub fn open(data_dir: &Path, run: Hash, name: &str, timing: Timing) -> Result<Self, Error> {
        let (records, state) = Records::open(data_dir, run)?;
        Ok(Self {
            records,
            machine: Machine::new(state, timing, MonoMs(0)),
            name: name.to_owned(),
            started: Instant::now(),
        })
    }
}

pub(crate) struct QueueActor {
    parts: QueueParts,
    inbox: Receiver<Input>,
    /// How the run stood last; nothing is decided before that is known.
    run: Option<RunView>,
}

/// What one turn came to.
#[derive(Default)]
struct Turn {
    records: Vec<Record>,
    /// Answers that leave once the records are durable.
    answers: Vec<Box<dyn FnOnce() + Send>>,
    broken: Option<String>,
    stop: bool,
}

impl QueueActor {
    /// Starts the thread. The receiver gets its end.
    pub fn start(parts: QueueParts) -> Result<(QueueMailbox, QueueEnd, JoinHandle<()>), Error> {
        let (outbox, inbox) = sync_channel(QUEUE);
        let (done, ended) = oneshot::channel();
        let actor = Self {
            parts,
            inbox,
            run: None,
        };
        let body = move || {
            // The service may be gone; then nobody needs to know.
            let _ = done.send(actor.serve());
        };
        let builder = std::thread::Builder::new().name("queue".to_owned());
        let thread = builder.spawn(body);
        let thread = thread.map_err(Error::io("start a thread in", "this process"))?;
        Ok((QueueMailbox(outbox), ended, thread))
    }

    fn serve(mut self) -> Result<(), Error> {
        loop {
            let mut turn = Turn::default();
            for input in self.receive() {
                self.take(input, &mut turn);
            }
            if let Some(run) = self.run.clone().filter(|_| turn.broken.is_none()) {
                let handled = self.parts.machine.tick(&run, self.now());
                self.note(handled, None, &mut turn);
            }
            self.parts.records.append(&turn.records)?;
            turn.answers.into_iter().for_each(|answer| answer());
            if let Some(what) = turn.broken {
                return Err(Error::QueueBroken(what));
            }
            let state = self.parts.machine.state();
            self.parts.records.snapshot(state, turn.stop)?;
            if turn.stop {
                return Ok(());
            }
        }
    }

    fn now(&self) -> Now {
        Now {
            wall: UnixS(wall_ms() / 1000),
            mono: MonoMs(0).after(self.parts.started.elapsed()),
        }
    }

    fn receive(&self) -> Vec<Input> {
        match self.inbox.recv_timeout(TICK) {
            Ok(first) => {
                let more = self.inbox.try_iter().take(TURN_MAX - 1);
                std::iter::once(first).chain(more).collect()
            }
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => vec![Input::Stop],
        }
    }

    fn take(&mut self, input: Input, turn: &mut Turn) {
        if turn.broken.is_some() {
            return;
        }
        let now = self.now();
        match input {
            Input::Sync(request, answer) => {
                // Without a word of the run nothing is decided; the caller comes again.
                let Some(run) = &self.run else {
                    return;
                };
                let handled = self.parts.machine.sync(request, run, now);
                self.note(handled, Some(answer), turn);
            }
            Input::Operate(order, answer) => {
                let Some(run) = &self.run else {
                    return;
                };
                tracing::info!(%order, "an operator's order to a queue");
                let handled = self.parts.machine.operate(order, run, now);
                self.note(handled, Some(answer), turn);
            }
            Input::Run(run) => self.run = Some(run),
            Input::RunOver => {
                if let Some(run) = &mut self.run {
                    run.ended = true;
                }
            }
            Input::Quiet(answer) => {
                let quiet = self.parts.machine.is_quiet(now.mono);
                turn.answers.push(Box::new(move || {
                    let _ = answer.send(quiet);
                }));
            }
            Input::View(answer) => {
                let run = self.run.clone().unwrap_or_default();
                let view = view::queue(&self.parts.name, &self.parts.machine, &run, now);
                turn.answers.push(Box::new(move || drop(answer.send(view))));
            }
            Input::Logs(answer) => {
                let logs = view::logs(self.parts.machine.state());
                turn.answers.push(Box::new(move || drop(answer.send(logs))));
            }
            Input::Query(look) => turn.answers.push(look(&self.parts.machine, now.mono)),
            Input::Adopt(plan, answer) => {
                let Some(run) = &self.run else {
                    return;
                };
                let handled = self.parts.machine.adopt(plan, run, now);
                self.note(handled, Some(answer), turn);
            }
            Input::Stop => turn.stop = true,
        }
    }

    /// Puts what came of a command into the turn; nothing has left this thread yet.
    fn note<T: Send + 'static>(
        &self,
        handled: Handled<T>,
        answer: Option<Answer<T>>,
        turn: &mut Turn,
    ) {
        let Handled { events, reply } = handled;
        if let Err(QueueRefusal::Broken(what)) = &reply {
            // The events of this command do not fit, and must not be journaled.
            turn.broken = Some(what.clone());
            return;
        }
        events.iter().for_each(log);
        if !events.is_empty() {
            turn.records.push(record(self.now().wall, events));
        }
        if let Some(answer) = answer {
            // Who asked may have gone; it will ask again.
            turn.answers
                .push(Box::new(move || drop(answer.send(reply))));
        }
    }
}

/// One line for each decision.
fn log(event: &Event) {
    let Some(decision) = event.decision() else {
        return;
    };
    let site = event.site().map(ToString::to_string).unwrap_or_default();
    match event {
        Event::Doubled { .. } => tracing::error!(site, "queue: {decision}"),
        Event::SitePaused { .. } | Event::Late { .. } | Event::Stray { .. } | Event::Gap { .. } => {
            tracing::warn!(site, "queue: {decision}");
        }
        _ => tracing::info!(site, "queue: {decision}"),
    }
}
