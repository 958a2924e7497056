//! Executes what the replica's machine decides, and feeds back what came of it.
//!
//! ```text
//!   signals, timers ──┐                        ┌──► calls and transfers (tasks)
//!   answers ──────────┼─► one input ─► machine ─┼──► the trainer's thread
//!   trainer's reports ┘                        └──► state directory, people
//! ```
//!
//! One loop, one input at a time. Nothing here waits for the trainer or the network, so a heartbeat
//! leaves on time whatever hangs; it then shows no progress, which is the truth. Nothing is decided
//! here.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hansa_base::{Epoch, Hash, MonoMs};
use hansa_outer::Dither;
use hansa_protocol::replica::{
    Action, Call, CallNo, ExitReason, Found, Input, Moments, Options as MachineOptions,
    ReplicaMachine, TrainOrder, WhenBusy,
};
use hansa_protocol::{BlockSpace, GenerationInfo, Refusal, Reply};
use hansa_store::Manifest;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use crate::coordinator::{CallError, Coordinator};
use crate::diary::Diary;
use crate::error::Error;
use crate::event::SessionEvent;
use crate::fetch;
use crate::jobs::{self, Encoding, Phase, StepDone};
use crate::options::Options;
use crate::session::Outcome;
use crate::signals::Stops;
use crate::startup::{Run, retry_for};
use crate::state_dir::{StateDir, StateDirError};
use crate::telling::Telling;
use crate::trainer::Trainer;
use crate::worker::Worker;

/// Reports that may wait for the loop; a faster trainer is slowed down to it.
const QUEUE: usize = 256;

/// What reaches the loop.
pub(crate) enum Msg {
    /// For the machine.
    Input(Input),
    /// A step was taken.
    Step(StepDone),
    /// The contribution is durable.
    Encoded(Manifest),
    /// A call ended.
    Answered {
        no: CallNo,
        result: Result<Reply, CallError>,
    },
    /// A model is here.
    Fetched(Wanted),
    /// The coordinator did not answer a transfer.
    Away(String),
    /// For people.
    Tell(SessionEvent),
    /// The session cannot go on.
    Fatal(Error),
}

/// What a model file is fetched for.
pub(crate) enum Wanted {
    /// To be loaded.
    Load { model: PathBuf, moments: Moments },
    /// To be subtracted from, and how the difference is rounded.
    Encode { base: PathBuf, dither: Dither },
}

/// Everything that a session has found out before it starts.
pub(crate) struct ShellParts {
    pub run: Run,
    pub state: Arc<StateDir>,
    pub options: Options,
    pub trainer: Box<dyn Trainer>,
    pub found: Found,
    pub payload: Option<Manifest>,
    pub coordinator: Coordinator,
    pub diary: Arc<Diary>,
    pub entropy: Hash,
}

pub(crate) struct Shell {
    machine: ReplicaMachine,
    run: Run,
    state: Arc<StateDir>,
    options: Options,
    coordinator: Coordinator,
    telling: Telling,
    worker: Worker,
    ranks: u32,
    messages: mpsc::Receiver<Msg>,
    sender: mpsc::Sender<Msg>,
    tasks: JoinSet<()>,
    /// The call under way beside heartbeats.
    call: Option<AbortHandle>,
    /// Actions that the machine gave before its first input, and inputs that are due at once.
    first: Vec<Action>,
    ready: VecDeque<Input>,
    /// Ends the phase that is being trained.
    halt: Option<Arc<AtomicBool>>,
    space: Option<(Epoch, Arc<BlockSpace>)>,
    /// The manifest of the last contribution.
    payload: Option<Manifest>,
    began: Instant,
}

impl Shell {
    pub fn start(parts: ShellParts) -> Result<Self, Error> {
        let (sender, messages) = mpsc::channel(QUEUE);
        let ranks = parts.trainer.ranks();
        let worker = Worker::start(parts.trainer, sender.clone())?;
        let options = MachineOptions {
            entropy: parts.entropy,
            checkpoint_every: parts.run.recipe.checkpoint.every(),
            retry: retry_for(parts.options.give_up_after),
            when_busy: if parts.options.wait_if_busy {
                WhenBusy::Wait
            } else {
                WhenBusy::Exit
            },
            leave_within: parts.options.leave_within,
        };
        let telling = Telling::new(parts.diary, &parts.run.spec, &parts.found);
        let (spec, replica) = (parts.run.spec.clone(), parts.options.replica.clone());
        let (machine, first) =
            ReplicaMachine::start(spec, replica, ranks, options, parts.found, MonoMs(0));
        Ok(Self {
            machine,
            telling,
            run: parts.run,
            state: parts.state,
            options: parts.options,
            coordinator: parts.coordinator,
            worker,
            ranks,
            messages,
            sender,
            tasks: JoinSet::new(),
            call: None,
            first,
            ready: VecDeque::new(),
            halt: None,
            space: None,
            payload: parts.payload,
            began: Instant::now(),
        })
    }

    /// Runs until the machine says that it is over.
    pub async fn run(mut self, stops: &mut Stops) -> Result<Outcome, Error> {
        let ended = self.turn(stops).await;
        if let Ok(ExitReason::RunComplete(reason)) = ended {
            self.on_disk(move |state| state.save_complete(reason))
                .await?;
        }
        let Self {
            worker,
            messages,
            sender,
            mut tasks,
            options,
            ..
        } = self;
        // The trainer's last report must find nobody who could hold it up.
        drop((messages, sender));
        tasks.shutdown().await;
        worker.end().await;
        outcome(ended?, &options)
    }

    async fn turn(&mut self, stops: &mut Stops) -> Result<ExitReason, Error> {
        let mut actions = std::mem::take(&mut self.first);
        loop {
            for action in actions {
                if let Action::Exit(reason) = action {
                    return Ok(reason);
                }
                self.execute(action).await?;
            }
            while self.tasks.try_join_next().is_some() {}
            let input = self.next_input(stops).await?;
            actions = self.machine.handle(self.now(), input);
        }
    }

    fn now(&self) -> MonoMs {
        MonoMs::default().after(self.began.elapsed())
    }

    async fn next_input(&mut self, stops: &mut Stops) -> Result<Input, Error> {
        loop {
            if let Some(input) = self.ready.pop_front() {
                return Ok(input);
            }
            let wake = self.machine.wake_at();
            let wake = wake.map(|at| self.began + at.since(MonoMs::default()));
            let timer = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let message = tokio::select! {
                biased;
                () = stops.next() => {
                    self.telling.leaving(&self.machine);
                    return Ok(Input::Stop);
                }
                message = self.messages.recv() => message,
                () = timer => {
                    self.telling.still_waiting(&self.machine);
                    return Ok(Input::Wake);
                }
            };
            // `None` cannot come: this end holds a sender.
            if let Some(input) = message.map(|m| self.receive(m)).transpose()?.flatten() {
                return Ok(input);
            }
        }
    }

    /// What a message means for the machine, if anything.
    fn receive(&mut self, message: Msg) -> Result<Option<Input>, Error> {
        Ok(match message {
            Msg::Input(input) => {
                if input == Input::Loaded {
                    self.clean_up();
                }
                self.telling.input(&input);
                Some(input)
            }
            Msg::Step(step) => {
                self.telling.step(&step, &self.machine);
                Some(Input::Stepped {
                    windows: step.windows,
                    duration: step.duration,
                    loss: step.loss,
                })
            }
            Msg::Encoded(manifest) => {
                let (payload, bytes) = (manifest.hash(), manifest.total_bytes());
                self.payload = Some(manifest);
                Some(Input::Encoded {
                    payload,
                    bytes: hansa_base::Bytes(bytes),
                })
            }
            Msg::Answered { no, result } => {
                let answer = match result {
                    Ok(reply) => Ok(reply),
                    Err(CallError::Failed(failed)) => Err(failed),
                    Err(CallError::Fatal(error)) => return Err(error),
                };
                self.telling.answered(&answer);
                Some(Input::Answered { no, answer })
            }
            Msg::Fetched(wanted) => {
                self.use_model(wanted);
                None
            }
            Msg::Away(why) => {
                self.telling.away(&why);
                None
            }
            Msg::Tell(event) => {
                self.telling.tell(&event);
                None
            }
            Msg::Fatal(error) => return Err(error),
        })
    }

    async fn execute(&mut self, action: Action) -> Result<(), Error> {
        match action {
            Action::Save(record) => {
                self.on_disk(move |state| state.save_registration(&record))
                    .await?;
                self.ready.push_back(Input::Saved);
            }
            Action::Call { no, call } => self.start_call(no, call),
            Action::Load {
                generation,
                moments,
            } => {
                self.telling.loading(generation);
                let model = self.state.model(generation.manifest)?;
                self.fetch(generation, Wanted::Load { model, moments });
            }
            Action::Restore => {
                let latest = self.state.latest();
                self.worker
                    .run(move |trainer, reports| jobs::restore(trainer, reports, &latest));
            }
            Action::Train(order) => self.train(order),
            Action::Halt => {
                if let Some(halt) = &self.halt {
                    halt.store(true, Ordering::Relaxed);
                }
            }
            Action::Evaluate(generation) => self.evaluate(generation.0),
            Action::Encode { base } => {
                let file = self.state.model(base.manifest)?;
                let is_here = file.exists();
                let dither = jobs::dither_of(&self.options.replica, base.manifest);
                let wanted = Wanted::Encode { base: file, dither };
                if is_here {
                    self.use_model(wanted);
                } else {
                    self.fetch(base, wanted);
                }
            }
            Action::Checkpoint(local) => {
                let (state, payload) = (self.state.clone(), self.payload.clone());
                self.worker.run(move |trainer, reports| {
                    jobs::checkpoint(trainer, reports, &state, &local, payload.as_ref());
                });
            }
            Action::Promote => self.on_disk(StateDir::accept_latest).await?,
            Action::Forget => self.on_disk(StateDir::forget).await?,
            Action::Tell(notice) => self.telling.notice(&notice),
            // `turn` takes it.
            Action::Exit(_) => {}
        }
        Ok(())
    }

    async fn on_disk(
        &self,
        work: impl FnOnce(&StateDir) -> Result<(), StateDirError> + Send + 'static,
    ) -> Result<(), Error> {
        let state = self.state.clone();
        let done = tokio::task::spawn_blocking(move || work(&state)).await;
        done.map_err(|error| Error::Failed(error.to_string()))??;
        Ok(())
    }

    fn start_call(&mut self, no: CallNo, call: Call) {
        let beside_others = matches!(call, Call::Heartbeat(_));
        let (coordinator, sender) = (self.coordinator.clone(), self.sender.clone());
        let who = (self.run.spec.digest.clone(), self.ranks);
        let payload = self.payload.clone();
        let state = self.state.clone();
        let make = async move {
            let made = fetch::call(&coordinator, &sender, call, who, payload, &state);
            let began = Instant::now();
            let result = made.await;
            if beside_others && result.is_ok() {
                let took_ms = began.elapsed().as_secs_f64() * 1e3;
                let told = Msg::Tell(SessionEvent::HeartbeatAnswered { took_ms });
                let _ = sender.try_send(told);
            }
            // An error means that the session is over.
            let _ = sender.send(Msg::Answered { no, result }).await;
        };
        let handle = self.tasks.spawn(make);
        if beside_others {
            return;
        }
        // Whatever call was under way is of no interest to the machine any more.
        if let Some(before) = self.call.replace(handle) {
            before.abort();
        }
    }

    fn fetch(&mut self, generation: GenerationInfo, wanted: Wanted) {
        let (coordinator, sender) = (self.coordinator.clone(), self.sender.clone());
        let give_up_after = self.options.give_up_after;
        let make = async move {
            let fetched = fetch::model(&coordinator, &sender, generation, wanted, give_up_after);
            let message = fetched.await;
            let _ = sender.send(message).await;
        };
        self.tasks.spawn(make);
    }

    fn use_model(&self, wanted: Wanted) {
        match wanted {
            Wanted::Load { model, moments } => {
                let accepted = self.state.accepted();
                self.worker.run(move |trainer, reports| {
                    jobs::load(trainer, reports, &model, moments, &accepted);
                });
            }
            Wanted::Encode { base, dither } => {
                let state = self.state.clone();
                let encoding = Encoding {
                    codec: self.run.recipe.exchange.contribution,
                    dither,
                    chunk_bytes: self.run.recipe.exchange.chunk_bytes(),
                };
                self.worker.run(move |trainer, reports| {
                    jobs::encode(trainer, reports, &state, &base, encoding);
                });
            }
        }
    }

    fn train(&mut self, order: TrainOrder) {
        self.telling.phase(&order, &self.machine);
        let halt = Arc::new(AtomicBool::new(false));
        self.halt = Some(halt.clone());
        let phase = Phase {
            space: self.space(order.epoch),
            order,
            schedule: self.run.recipe.inner.schedule(),
            pace: self.options.pace,
            halt,
        };
        self.worker
            .run(move |trainer, reports| jobs::train(trainer, reports, &phase));
    }

    /// The order of an epoch, computed once.
    fn space(&mut self, epoch: Epoch) -> Arc<BlockSpace> {
        match &self.space {
            Some((known, space)) if *known == epoch => space.clone(),
            _ => {
                let space = Arc::new(self.run.spec.space(epoch));
                self.space = Some((epoch, space.clone()));
                space
            }
        }
    }

    fn evaluate(&mut self, generation: u64) {
        self.telling.evaluating(generation);
        let held_out = self.run.corpus.windows(hansa_corpus::Split::HeldOut).0;
        let windows_max = self.run.recipe.evaluation.windows_max;
        let windows = windows_max.map_or(held_out, |max| max.min(held_out));
        let batch = self.run.recipe.phase.batch;
        self.worker.run(move |trainer, reports| {
            jobs::evaluate(trainer, reports, generation, windows, batch);
        });
    }

    /// A generation is loaded: older ones are of no use any more.
    fn clean_up(&mut self) {
        let Some(loaded) = self.telling.loaded() else {
            return;
        };
        if let Err(error) = self.state.keep_only_model(loaded.manifest) {
            tracing::warn!(%error, "cannot remove old models");
        }
    }
}

fn outcome(reason: ExitReason, options: &Options) -> Result<Outcome, Error> {
    match reason {
        ExitReason::RunComplete(reason) => Ok(Outcome::RunComplete(reason)),
        ExitReason::Stopped { goodbye: true } => Ok(Outcome::SaidGoodbye),
        ExitReason::Stopped { goodbye: false } => Ok(Outcome::StoppedWithoutGoodbye),
        ExitReason::Drained(why) => Ok(Outcome::Drained(why)),
        ExitReason::Fenced => Err(Error::Fenced(options.replica.clone())),
        ExitReason::Busy(Refusal::Busy { replica, retry }) => Err(Error::Busy { replica, retry }),
        ExitReason::OtherData(mismatch) => Err(Error::OtherData(mismatch)),
        ExitReason::OlderCopy { ours, theirs } => Err(Error::OlderCopy { ours, theirs }),
        ExitReason::Refused(refusal) if refusal.is_of_another_history() => {
            Err(Error::OtherHistory(refusal))
        }
        ExitReason::Refused(refusal) | ExitReason::Busy(refusal) | ExitReason::Evicted(refusal) => {
            Err(Error::Refused(refusal))
        }
        ExitReason::Unreachable(why) => Err(Error::Away {
            waited: options.give_up_after,
            why,
        }),
        other => Err(Error::Failed(other.to_string())),
    }
}
