//! The one thread that decides.
//!
//! ```text
//! requests ──► bounded queue ──► handle each ──► append all events, one fsync ──► answers, effects
//!                   tick ──────────► last
//! ```
//!
//! It owns machine and journal, so nothing is decided twice or out of order. Whatever waits in the queue
//! shares one transaction. No answer leaves and no effect starts before the events are durable; when
//! they cannot be made so, the process ends. Never here: HTTP, and reading or writing of weights.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hansa_base::{Generation, MonoMs, WallS};
use hansa_protocol::{
    CloseRecord, Command, Effect, Event, Machine, Merged, Outcome, Refusal, Reply,
};
use hansa_store::{DataDir, Journal, Record, Seq, Snapshot, UploadId};
use hansa_wire::journal::{Entry, Events, GenerationFiles};
use hansa_wire::status::Status;
use tokio::sync::oneshot;

use crate::error::Error;
use crate::export::export;
use crate::farewell::Farewell;
use crate::log::log;
use crate::merging::{
    MergeDone, STATES_AT_REST, STATES_WHILE_MERGING, drop_stale_uploads, merge, prune,
};
use crate::news::{Bell, Ear, is_news};
use crate::refused::{LookedAt, Refused};
use crate::report;
use crate::setup::{Run, record, wall_ms};
use crate::shell::{SharedShell, lock};
use crate::snapshots::{Snapshots, snapshot};

/// Inputs that may wait; more are refused. As many replicas may ask at once when a generation is out.
const QUEUE: usize = 16_384;
/// Inputs that share one transaction: the first of them waits for all.
const TURN_MAX: usize = 1024;

/// An answer's way back.
type Answer = oneshot::Sender<Result<Reply, Refusal>>;

/// A look at the machine.
type Query = Box<dyn FnOnce(&Machine, MonoMs) + Send>;

// What waits is bounded, and moved once.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Input {
    Command { command: Command, answer: Answer },
    Query(Query),
    Merged(Result<MergeDone, Error>),
    Exported(Result<(), Error>),
    Snapshot(Snapshot),
    Stop,
}

/// What the thread leaves behind.
pub(crate) struct Ended {
    pub finish: Finish,
    pub status: Status,
}

/// How the thread's end reaches who waits for it.
pub(crate) type Finished = oneshot::Receiver<Result<Ended, Error>>;

/// How the thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The run is over and everybody has left.
    RunOver,
    /// It was asked to stop, or nobody can reach it any more.
    Stopped,
}

/// Why an input was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// The queue is full.
    Full,
    /// The thread has ended, or is ending.
    Gone,
}

/// The way into the queue. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Mailbox {
    inbox: SyncSender<Input>,
    ear: Ear,
}

impl Mailbox {
    /// Hears when what a waiting replica is told may have changed, and when the thread ends.
    pub fn ear(&self) -> Ear {
        self.ear.clone()
    }

    /// Hands a command to the machine; the answer comes when it is durable.
    pub async fn command(&self, command: Command) -> Result<Result<Reply, Refusal>, NotTaken> {
        let (answer, receive) = oneshot::channel();
        self.put(Input::Command { command, answer })?;
        receive.await.map_err(|_| NotTaken::Gone)
    }

    /// Looks at the machine, after everything before it is durable.
    pub async fn query<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Machine, MonoMs) -> T + Send + 'static,
    ) -> Result<T, NotTaken> {
        let (answer, receive) = oneshot::channel();
        self.put(Input::Query(Box::new(move |machine, now| {
            // Nobody waits any more: nothing is lost.
            let _ = answer.send(look(machine, now));
        })))?;
        receive.await.map_err(|_| NotTaken::Gone)
    }

    /// Asks the thread to end.
    pub fn stop(&self) {
        while self.put(Input::Stop) == Err(NotTaken::Full) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn put(&self, input: Input) -> Result<(), NotTaken> {
        self.inbox.try_send(input).map_err(|error| match error {
            TrySendError::Full(_) => NotTaken::Full,
            TrySendError::Disconnected(_) => NotTaken::Gone,
        })
    }
}

pub(crate) struct Actor {
    shell: SharedShell,
    machine: Machine,
    journal: Journal,
    files: BTreeMap<Generation, GenerationFiles>,
    inbox: Option<Receiver<Input>>,
    outbox: SyncSender<Input>,
    bell: Bell,
    worker: Option<JoinHandle<()>>,
    exporting: bool,
    stopping: bool,
    snapshots: Snapshots,
    refused: Refused,
    farewell: Farewell,
    // Held until the thread ends: the lock of the data directory.
    _dir: DataDir,
}

/// What one turn of the loop came to.
#[derive(Default)]
struct Turn {
    records: Vec<Record>,
    answers: Vec<(Answer, Result<Reply, Refusal>)>,
    queries: Vec<Query>,
    effects: Vec<Effect>,
    snapshot: Option<Snapshot>,
    /// What the gate looked at, and what was decided of it.
    looked_at: Vec<(LookedAt, Vec<Event>)>,
    published: bool,
    /// Something happened that replicas may wait for.
    news: bool,
    fatal: Option<Error>,
}

impl Actor {
    /// Starts the thread. The receiver gets its end.
    pub fn start(
        shell: SharedShell,
        run: RunParts,
    ) -> Result<(Mailbox, Finished, JoinHandle<()>), Error> {
        let (outbox, inbox) = sync_channel(QUEUE);
        let (done, finished) = oneshot::channel();
        let (bell, ear) = Bell::new();
        let mailbox = Mailbox {
            inbox: outbox.clone(),
            ear,
        };
        let RunParts {
            dir,
            journal,
            machine,
            files,
        } = run;
        let newest = journal.latest_snapshot().ok().flatten();
        let snapshots = Snapshots::new(newest.map_or(Seq(0), |snapshot| snapshot.seq));
        let farewell = Farewell::new(&shell, machine.state());
        let refused = Refused::load(&shell.data_dir);
        let actor = Self {
            shell,
            machine,
            journal,
            files,
            inbox: Some(inbox),
            outbox,
            bell,
            worker: None,
            exporting: false,
            stopping: false,
            snapshots,
            refused,
            farewell,
            _dir: dir,
        };
        let body = move || {
            // The service may be gone; then nobody needs to know.
            let _ = done.send(actor.run());
        };
        let builder = std::thread::Builder::new().name("coordinator".to_owned());
        let thread = builder.spawn(body);
        let thread = thread.map_err(Error::io("start a thread in", "this process"))?;
        Ok((mailbox, finished, thread))
    }

    fn run(mut self) -> Result<Ended, Error> {
        let finish = self.serve();
        // Whoever works for this thread must not wait for it, nor outlive it.
        self.inbox = None;
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
        let finish = finish?;
        self.snapshot()?;
        let status = report::status(&self.shell, &self.machine, self.now());
        Ok(Ended { finish, status })
    }

    fn serve(&mut self) -> Result<Finish, Error> {
        self.tidy_up()?;
        if let Some(due) = self.machine.merge_due().cloned() {
            self.start_merge(due)?;
        }
        let timing = self.shell.spec.timing;
        let every = timing.ttl_min.min(timing.session_ttl) / 20;
        let every = every.clamp(Duration::from_millis(10), Duration::from_millis(250));
        let mut next_tick = Instant::now();
        loop {
            let mut turn = Turn::default();
            for input in self.receive(next_tick.saturating_duration_since(Instant::now())) {
                self.take(input, &mut turn);
            }
            if Instant::now() >= next_tick && turn.fatal.is_none() {
                // After the input that came before it, so that nobody is given up unheard.
                let outcome = self.machine.handle(self.now(), Command::Tick);
                self.note(outcome, None, None, &mut turn);
                self.end_drains(&mut turn);
                next_tick = Instant::now() + every;
            }
            self.finish_turn(turn)?;
            if self.stopping {
                return Ok(Finish::Stopped);
            }
            if self.machine.state().ended && self.is_all_done()? {
                return Ok(Finish::RunOver);
            }
        }
    }

    /// What operators said ends by itself at a time.
    fn end_drains(&mut self, turn: &mut Turn) {
        let state = self.machine.state();
        if state.ended {
            return;
        }
        for order in state.orders.lapsed(WallS(wall_ms() / 1000)) {
            if turn.fatal.is_none() {
                let outcome = self.machine.handle(self.now(), Command::Operate(order));
                self.note(outcome, None, None, turn);
            }
        }
    }

    /// What a killed process left behind, and what may be fetched.
    fn tidy_up(&mut self) -> Result<(), Error> {
        let state = self.machine.state();
        drop_stale_uploads(&self.shell, state)?;
        self.prune(STATES_AT_REST)?;
        self.serve_models()
    }

    /// Lets replicas fetch the newest models, and no others.
    fn serve_models(&self) -> Result<(), Error> {
        let shell = &self.shell;
        let keep = shell.options.models_kept();
        Ok(shell.served.set(&shell.store, &self.files, keep)?)
    }

    /// Deletes what nothing needs; no merge is running.
    fn prune(&self, states: usize) -> Result<(), Error> {
        let spared = self.refused.payloads();
        let state = self.machine.state();
        Ok(prune(&self.shell, state, &self.files, spared, states)?)
    }

    fn now(&self) -> MonoMs {
        MonoMs(0).after(self.shell.started.elapsed())
    }

    /// Waits for an input, and takes what else is there.
    fn receive(&mut self, wait: Duration) -> Vec<Input> {
        let Some(inbox) = &self.inbox else {
            return Vec::new();
        };
        match inbox.recv_timeout(wait) {
            Ok(first) => {
                let more = inbox.try_iter().take(TURN_MAX - 1);
                std::iter::once(first).chain(more).collect()
            }
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => vec![Input::Stop],
        }
    }

    fn take(&mut self, input: Input, turn: &mut Turn) {
        if turn.fatal.is_some() {
            return;
        }
        match input {
            Input::Command { command, answer } => {
                let looked_at = LookedAt::new(&self.machine, &command);
                let newcomer = match &command {
                    Command::Register(register) => Some(register.replica.clone()),
                    _ => None,
                };
                let outcome = self.machine.handle(self.now(), command);
                if let Some(looked_at) = looked_at {
                    turn.looked_at.push((looked_at, outcome.events.clone()));
                }
                if let (Some(replica), Err(Refusal::RunOver(_))) = (newcomer, &outcome.reply) {
                    self.farewell.told(replica);
                }
                self.note(outcome, Some(answer), None, turn);
            }
            Input::Query(query) => turn.queries.push(query),
            Input::Merged(Ok(done)) => {
                let merged = Merged {
                    generation: done.files.generation,
                    manifest: done.files.model,
                    merge_ms: done.merge_ms,
                };
                let outcome = self.machine.handle(self.now(), Command::Merged(merged));
                self.note(outcome, None, Some(done.files), turn);
            }
            Input::Merged(Err(error)) | Input::Exported(Err(error)) => turn.fatal = Some(error),
            Input::Exported(Ok(())) => self.exporting = false,
            Input::Snapshot(snapshot) => turn.snapshot = Some(snapshot),
            Input::Stop => self.stopping = true,
        }
    }

    /// Puts what came of a command into the turn; nothing has left this thread yet.
    fn note(
        &mut self,
        outcome: Outcome,
        answer: Option<Answer>,
        files: Option<GenerationFiles>,
        turn: &mut Turn,
    ) {
        let Outcome {
            events,
            reply,
            effects,
        } = outcome;
        match &reply {
            Err(Refusal::Broken(what)) => {
                turn.fatal = Some(Error::Broken(what.clone()));
                // The state is of no use any more, and its last events must not be journaled.
                return;
            }
            Err(Refusal::NeverIssued { what }) => {
                tracing::error!(
                    %what,
                    "a replica names what was never issued here, and proves that a copy of this data \
                     directory has: this one is old, and its coordinator stops"
                );
                turn.fatal = Some(Error::OldJournal(what.clone()));
            }
            _ => {}
        }
        for event in &events {
            log(&self.machine, event);
        }
        turn.published |= events
            .iter()
            .any(|event| matches!(event, Event::Published { .. }));
        turn.news |= events.iter().any(is_news);
        if !events.is_empty() {
            let files = files.filter(|_| turn.published);
            turn.records
                .push(record(&Entry::Events(Events { events, files })));
            self.files
                .extend(files.map(|files| (files.generation, files)));
        }
        turn.answers.extend(answer.map(|answer| (answer, reply)));
        turn.effects.extend(effects);
    }

    fn finish_turn(&mut self, turn: Turn) -> Result<(), Error> {
        self.journal.append_batch(&turn.records)?;
        self.snapshots.appended(&turn.records);
        for (looked_at, events) in &turn.looked_at {
            self.refused.keep(&self.shell, looked_at, events);
        }
        for (answer, reply) in turn.answers {
            // Who asked may have gone; it will ask again.
            let _ = answer.send(reply);
        }
        let now = self.now();
        for query in turn.queries {
            query(&self.machine, now);
        }
        if let Some(error) = turn.fatal {
            return Err(error);
        }
        if turn.published {
            self.serve_models()?;
        }
        // Before there is time to tidy up: who waits can begin to fetch.
        if turn.news {
            self.bell.ring();
        }
        if turn.published {
            // No merge is running: its result was what was published, and the next one starts below.
            self.prune(STATES_AT_REST)?;
            // A refused announcement whose caller hung up leaves its place behind. One that is still in
            // the queue gets its place again when it is accepted.
            drop_stale_uploads(&self.shell, self.machine.state())?;
        }
        for effect in turn.effects {
            match effect {
                Effect::Merge(record) => self.start_merge(record)?,
                Effect::DropUpload(id) => {
                    self.shell.store.abort_upload(&UploadId::from(id))?;
                }
            }
        }
        if let Some(snapshot) = turn.snapshot {
            self.journal.put_snapshot(&snapshot)?;
            self.snapshots.kept(&snapshot);
        }
        if self.snapshots.is_due(self.journal.last_seq()) && !self.stopping {
            self.start_snapshot()?;
        }
        Ok(())
    }

    /// Encodes a snapshot beside this thread: with thousands of replicas that takes long.
    fn start_snapshot(&mut self) -> Result<(), Error> {
        let (seq, state) = (self.journal.last_seq(), self.machine.state().clone());
        let (files, outbox) = (self.files.clone(), self.outbox.clone());
        self.snapshots.begun();
        let body = move || {
            // The receiver is gone only when this coordinator ends, with a snapshot of its own.
            let _ = outbox.send(Input::Snapshot(snapshot(seq, state, files)));
        };
        let builder = std::thread::Builder::new().name("snapshot".to_owned());
        let started = builder.spawn(body).map(drop);
        started.map_err(Error::io("start a thread in", "this process"))
    }

    /// The last one, so that the next start has little to replay.
    fn snapshot(&mut self) -> Result<(), Error> {
        let seq = self.journal.last_seq();
        if seq == self.snapshots.at() {
            return Ok(());
        }
        let last = snapshot(seq, self.machine.state().clone(), self.files.clone());
        self.journal.put_snapshot(&last)?;
        Ok(())
    }

    fn start_merge(&mut self, record: CloseRecord) -> Result<(), Error> {
        let base = self.files.get(&record.base).copied();
        let base = base.ok_or(Error::NoFiles(record.base))?;
        // The generation before the base goes only when the base is there.
        for hash in [Some(base.theta), base.momentum].into_iter().flatten() {
            self.shell.store.open_blob(hash)?;
        }
        self.prune(STATES_WHILE_MERGING)?;
        let shell = self.shell.clone();
        self.work("merge", move || Input::Merged(merge(&shell, &record, base)))
    }

    /// True once the model is exported and nobody is left.
    fn is_all_done(&mut self) -> Result<bool, Error> {
        if self.exporting {
            return Ok(false);
        }
        if self.shell.exported().is_none() {
            let current = self.machine.state().current.generation;
            let files = self.files.get(&current).copied();
            let theta = files.ok_or(Error::NoFiles(current))?.theta;
            let shell = self.shell.clone();
            self.exporting = true;
            self.work("export", move || {
                let exported = export(&shell, theta);
                Input::Exported(exported.map(|path| *lock(&shell.export) = Some(path)))
            })?;
            return Ok(false);
        }
        Ok(self.farewell.is_over(self.machine.state()))
    }

    /// Runs blocking work beside this thread; there is one piece at a time.
    fn work(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Input + Send + 'static,
    ) -> Result<(), Error> {
        if let Some(last) = self.worker.take() {
            // It has delivered its result, or this would not be the next piece.
            let _ = last.join();
        }
        let outbox = self.outbox.clone();
        let body = move || {
            // The receiver is gone only when this coordinator ends.
            let _ = outbox.send(outcome_of(name, work));
        };
        let builder = std::thread::Builder::new().name(name.to_owned());
        let started = builder.spawn(body);
        self.worker = Some(started.map_err(Error::io("start a thread in", "this process"))?);
        Ok(())
    }
}

/// What became of a piece of work. A panic is a result, too: nobody must wait for one for ever.
fn outcome_of(name: &'static str, work: impl FnOnce() -> Input) -> Input {
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    done.unwrap_or_else(|_| Input::Merged(Err(Error::WorkerGone(name))))
}

/// What the thread takes over from the set-up.
pub(crate) struct RunParts {
    pub dir: DataDir,
    pub journal: Journal,
    pub machine: Machine,
    pub files: BTreeMap<Generation, GenerationFiles>,
}

impl RunParts {
    /// The machine over what the journal says; all deadlines start now.
    pub fn new(
        run: Run,
        now: MonoMs,
    ) -> (Self, Option<std::path::PathBuf>, hansa_store::BlobStore) {
        let Run {
            dir,
            store,
            journal,
            replayed,
            tokenizer,
        } = run;
        let machine = Machine::new(replayed.spec, replayed.state, now);
        let files = replayed.files;
        let parts = Self {
            dir,
            journal,
            machine,
            files,
        };
        (parts, tokenizer, store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_panics_ends_the_coordinator_instead_of_hanging_it() {
        let outcome = outcome_of("merge", || panic!("for the test"));
        let Input::Merged(Err(error)) = outcome else {
            panic!("not an error");
        };
        assert!(error.to_string().starts_with("the merge thread"), "{error}");
    }
}
