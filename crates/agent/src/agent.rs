//! Sessions one after another, each with a trainer of its own, until one ends for another reason than
//! that its trainer was lost.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hansa_corpus::Corpus;
use hansa_session::embedded::layout_of;
use hansa_session::{
    Error as SessionError, Handle, Outcome, Session, SessionEvent, Signals, Trainer, TrainerError,
    TrainerFactory,
};
use hansa_wire::Recipe;

use crate::child::{Child, UNFIT};
use crate::error::{Error, LinkError};
use crate::exchange::Places;
use crate::foreign::Foreign;
use crate::link::{Door, Patience};
use crate::losses::Losses;
use crate::run_file::{RunFile, first_difference};

/// The socket's name in its folder.
const SOCKET: &str = "agent.sock";
const RUN_FILE: &str = "run.json";
/// Ranks that a trainer may say it has.
const RANKS_MAX: u32 = 1 << 20;
/// How long a trainer that was told that it is over may take to end.
const END_GRACE: Duration = Duration::from_secs(10);

/// Where the trainer comes from.
#[derive(Clone, Debug)]
pub enum TrainerSource {
    /// The agent starts this command, and starts it again if it is lost.
    Command(Vec<String>),
    /// Somebody else in the job starts it; the agent waits for it.
    Elsewhere,
}

/// How to run a foreign trainer as one replica.
#[derive(Clone)]
pub struct Options {
    /// The session's own options; signals are the agent's business.
    pub session: hansa_session::Options,
    /// The trainer.
    pub trainer: TrainerSource,
    /// The socket; `None`: in a new folder that only this user can enter if the agent starts the
    /// trainer, else `agent.sock` in the state directory.
    pub socket: Option<PathBuf>,
    /// The folder for exported weights; `None`: `/dev/shm` while it has room. The state directory if that is full.
    pub exchange: Option<PathBuf>,
    /// So often in a row a trainer may be lost without a checkpoint or a contribution between, and four times as
    /// often within an hour.
    pub losses_max: u32,
    /// From a trainer's start to its hello.
    pub start_within: Duration,
    /// How long a trainer may show no sign of life while it is asked for something.
    pub hang_after: Duration,
}

impl Options {
    /// Three losses in a row, a quarter of an hour to start, ten minutes without a sign of life.
    #[must_use]
    pub fn new(session: hansa_session::Options, trainer: TrainerSource) -> Self {
        Self {
            session,
            trainer,
            socket: None,
            exchange: None,
            losses_max: 3,
            start_within: Duration::from_secs(15 * 60),
            hang_after: Duration::from_secs(10 * 60),
        }
    }
}

/// One replica with a foreign trainer.
pub struct Agent {
    options: Options,
    /// Checkpoints and contributions that trainers have made.
    lasting: Arc<AtomicU64>,
}

/// What belongs to one session's trainer, seen from both threads.
#[derive(Clone, Default)]
struct Life {
    child: Arc<Mutex<Child>>,
    over: Arc<AtomicBool>,
}

impl Life {
    fn child(&self) -> Child {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.clone()
    }
}

impl Agent {
    /// An agent that has not started yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let lasting = Arc::default();
        Self { options, lasting }
    }

    /// Trains until the run is complete or a signal asks for a goodbye; a second signal ends it at once.
    /// Needs a multi-threaded tokio runtime.
    ///
    /// # Errors
    /// As [`Session::run`], and a trainer that is lost again and again.
    pub async fn run(self) -> Result<Outcome, Error> {
        let mut signals = Signals::listen(true)?;
        let mut losses = Losses::new(self.options.losses_max);
        loop {
            let (outcome, asked_to_stop, status) = self.session(&mut signals).await?;
            let why = match outcome {
                Err(SessionError::TrainerLost(why)) => why,
                other => return Ok(other?),
            };
            if status == Some(UNFIT) {
                return Err(Error::TrainerUnfit { status: UNFIT });
            }
            if asked_to_stop {
                tracing::warn!(why, "lost the trainer while leaving");
                return Ok(Outcome::StoppedWithoutGoodbye);
            }
            let lasting = self.lasting.load(Ordering::Relaxed);
            let pause = match losses.add(Instant::now(), lasting) {
                Ok(pause) => pause,
                Err(lost) => return Err(Error::TrainerKeepsFailing { lost, why }),
            };
            (self.options.session.events)(&SessionEvent::TrainerLost {
                reason: why,
                again_in_s: pause.as_secs_f64(),
            });
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = signals.next() => return Ok(Outcome::StoppedWithoutGoodbye),
            }
        }
    }

    /// One session: its outcome, whether it was asked to stop, and the trainer's exit status.
    async fn session(
        &self,
        signals: &mut Signals,
    ) -> Result<(Result<Outcome, SessionError>, bool, Option<i32>), Error> {
        let life = Life::default();
        let mut options = self.options.session.clone();
        options.handle_signals = false;
        let session = Session::with_trainer(options, self.factory(life.clone()));
        let handle: Handle = session.handle();
        let mut running = Box::pin(session.run());
        let mut asked_to_stop = false;
        let outcome = loop {
            tokio::select! {
                outcome = &mut running => break outcome,
                () = signals.next() => {
                    asked_to_stop = true;
                    handle.stop();
                }
            }
        };
        life.over.store(true, Ordering::Relaxed);
        let child = life.child();
        let lost = matches!(outcome, Err(SessionError::TrainerLost(_)));
        let status = child.ended().and_then(|status| status.code());
        let clear = move || {
            if lost {
                child.end()
            } else {
                child.finish(END_GRACE)
            }
        };
        // A panic of it could only leave a process behind.
        let _ = tokio::task::spawn_blocking(clear).await;
        Ok((outcome, asked_to_stop, status))
    }

    fn factory(&self, life: Life) -> TrainerFactory {
        let (options, lasting) = (self.options.clone(), self.lasting.clone());
        Box::new(move |recipe, corpus| {
            let lost = |error: LinkError| match error {
                LinkError::Unfit(_)
                | LinkError::OtherModel(_)
                | LinkError::OtherVersion { .. }
                | LinkError::SetUp { .. }
                | LinkError::NeverCame { .. } => TrainerError::failed(error),
                other => TrainerError::Lost(other.to_string()),
            };
            let start = Start {
                options: &options,
                life: &life,
            };
            let foreign = start.trainer(recipe, &corpus, lasting);
            Ok(Box::new(foreign.map_err(lost)?) as Box<dyn Trainer>)
        })
    }
}

/// From nothing to a trainer that has been welcomed.
struct Start<'a> {
    options: &'a Options,
    life: &'a Life,
}

impl Start<'_> {
    fn trainer(
        &self,
        recipe: &Recipe,
        corpus: &Corpus,
        lasting: Arc<AtomicU64>,
    ) -> Result<Foreign, LinkError> {
        let session = &self.options.session;
        let layout = layout_of(&recipe.model);
        let layout = layout.map_err(|error| LinkError::OtherModel(error.to_string()))?;
        let corpus_dir = absolute(&session.corpus_dir)?;
        let state_dir = absolute(&session.state_dir)?;
        let replica = session.replica.to_string();
        let places = Places::new(
            self.options.exchange.clone(),
            &state_dir,
            &recipe.name,
            &replica,
        );
        let run = RunFile::new(recipe, corpus, &corpus_dir, &layout, replica);
        let run = run
            .and_then(serde_json::to_value)
            .map_err(|error| LinkError::Nonsense(error.to_string()))?;
        let run_file = state_dir.join(RUN_FILE);
        write_whole(&run_file, &run)?;

        // Kept until the trainer has connected: nobody else has business there.
        let (socket, _folder) = self.socket(&state_dir)?;
        let door = Door::open(&socket)?;
        let began = Instant::now();
        let child = self.start_child(&socket, &run_file)?;
        let patience = Patience {
            start: self.options.start_within,
            hang: self.options.hang_after,
        };
        let (mut link, hello) = door.meet(&child, patience, &self.life.over)?;
        link.check_version(&hello)?;
        let wrong = first_difference(&layout, &hello.tensors).or_else(|| {
            let ranks = hello.ranks;
            (!(1..=RANKS_MAX).contains(&ranks))
                .then(|| format!("it says that it has {ranks} ranks"))
        });
        if let Some(wrong) = wrong {
            return Err(link.refuse(LinkError::OtherModel(wrong)));
        }
        link.welcome(&run)?;
        let took_s = began.elapsed().as_secs_f64().round();
        tracing::info!(
            software = hello.software,
            ranks = hello.ranks,
            took_s,
            "the trainer is here"
        );
        let (ttl_s, foreign) = (recipe.lease.ttl_min_s, !child.is_none());
        if foreign && took_s > ttl_s {
            tracing::warn!(
                took_s,
                ttl_s,
                "the trainer took longer to start than a lease may last: if it is lost, others may train its \
                 windows before it is back; raise lease.ttl_min_s and session_ttl_s of the recipe"
            );
        }
        Ok(Foreign::new(link, layout, hello.ranks, places, lasting))
    }

    fn socket(&self, state_dir: &Path) -> Result<(PathBuf, Option<tempfile::TempDir>), LinkError> {
        match (&self.options.socket, &self.options.trainer) {
            (Some(socket), _) => Ok((absolute(socket)?, None)),
            (None, TrainerSource::Elsewhere) => Ok((state_dir.join(SOCKET), None)),
            (None, TrainerSource::Command(_)) => {
                // Made with mode 0700.
                let folder = tempfile::Builder::new().prefix("hansa-agent-").tempdir();
                let folder = folder.map_err(set_up("make a folder for the agent's socket"))?;
                Ok((folder.path().join(SOCKET), Some(folder)))
            }
        }
    }

    fn start_child(&self, socket: &Path, run_file: &Path) -> Result<Child, LinkError> {
        let mut slot = self
            .life
            .child
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Looked at under the slot's lock: who ends this life looks into the slot afterwards.
        if self.life.over.load(Ordering::Relaxed) {
            return Err(LinkError::Closed);
        }
        let child = match &self.options.trainer {
            TrainerSource::Elsewhere => {
                (self.options.session.events)(&SessionEvent::Waiting {
                    reason: format!("a trainer to connect to {}", socket.display()),
                });
                Child::default()
            }
            TrainerSource::Command(words) => {
                let program = words.first().map_or("", String::as_str);
                let what = format!("start the trainer's command {program:?}");
                Child::start(words, socket, run_file).map_err(set_up(what))?
            }
        };
        *slot = child.clone();
        Ok(child)
    }
}

fn set_up(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> LinkError {
    let what = what.into();
    move |source| LinkError::SetUp { what, source }
}

/// The trainer may work in another directory.
fn absolute(path: &Path) -> Result<PathBuf, LinkError> {
    std::path::absolute(path).map_err(set_up("find the working directory"))
}

fn write_whole(path: &Path, value: &serde_json::Value) -> Result<(), LinkError> {
    let temporary = path.with_file_name(format!(".{RUN_FILE}.tmp"));
    let written = std::fs::write(&temporary, format!("{value:#}\n"));
    written
        .and_then(|()| std::fs::rename(&temporary, path))
        .map_err(set_up(format!("write {}", path.display())))
}
