//! One replica, from start to end.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use hansa_base::Hash;
use hansa_corpus::Corpus;
use hansa_protocol::EndReason;
use hansa_wire::Recipe;
use tokio::sync::Semaphore;

use crate::coordinator::Coordinator;
use crate::diary::Diary;
use crate::embedded::Embedded;
use crate::error::Error;
use crate::event::SessionEvent;
use crate::options::Options;
use crate::shell::{Shell, ShellParts};
use crate::signals::{Signals, Stops};
use crate::startup::{self, Contact};
use crate::state_dir::{StateDir, StateDirError};
use crate::trainer::{Trainer, TrainerError};

/// How often a locked state directory is tried again.
const LOCK_LOOK_EVERY: Duration = Duration::from_millis(500);
/// It is said after so many tries that this goes on.
const TELL_AFTER: u64 = 60;

/// Makes the trainer, once recipe and corpus are known.
pub type TrainerFactory =
    Box<dyn FnOnce(&Recipe, Arc<Corpus>) -> Result<Box<dyn Trainer>, TrainerError> + Send>;

/// How a session ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The run is over.
    RunComplete(EndReason),
    /// It was asked to stop; what was trained is contributed, and the coordinator knows.
    SaidGoodbye,
    /// It was asked to stop twice, or the coordinator could not be told in time. The state directory
    /// has the last checkpoint: started again within the lease's TTL, it goes on from there.
    StoppedWithoutGoodbye,
    /// It was told to leave; what was trained is contributed. Why it was told.
    Drained(String),
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::RunComplete(reason) => write!(f, "the run is complete: {reason}"),
            Self::SaidGoodbye => f.write_str("stopped, with a goodbye"),
            Self::Drained(why) => write!(f, "left, with what was trained contributed: {why}"),
            Self::StoppedWithoutGoodbye => f.write_str(
                "stopped without a goodbye; start it again soon to go on with what it has leased",
            ),
        }
    }
}

/// Asks a session to stop, from anywhere.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Semaphore>);

impl Handle {
    /// As a SIGTERM: the first call is a clean goodbye, a second one ends the session at once.
    pub fn stop(&self) {
        self.0.add_permits(1);
    }
}

/// A replica that is about to train.
pub struct Session {
    options: Options,
    trainer: TrainerFactory,
    stop: Arc<Semaphore>,
}

impl Session {
    /// With the embedded trainer.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let threads = options.threads;
        let embedded: TrainerFactory = Box::new(move |recipe, corpus| {
            let (model, adamw) = (recipe.model.clone(), recipe.inner.adamw());
            let batch = recipe.phase.batch as usize;
            Ok(Box::new(Embedded::new(
                model, adamw, corpus, batch, threads,
            )?))
        });
        Self::with_trainer(options, embedded)
    }

    /// With another trainer.
    #[must_use]
    pub fn with_trainer(options: Options, trainer: TrainerFactory) -> Self {
        Self {
            options,
            trainer,
            stop: Arc::new(Semaphore::new(0)),
        }
    }

    /// To stop it from elsewhere.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle(self.stop.clone())
    }

    /// Trains until the run is complete or a stop is asked for. Needs a multi-threaded tokio runtime.
    ///
    /// # Errors
    /// What keeps it from beginning or from going on. The state directory stays valid.
    pub async fn run(self) -> Result<Outcome, Error> {
        let diary = Arc::new(Diary::new(self.options.events.clone()));
        let outcome = self.run_telling(&diary).await;
        let said = match &outcome {
            Ok(outcome) => outcome.to_string(),
            Err(error) => error.to_string(),
        };
        diary.tell(&SessionEvent::Ended { outcome: said });
        outcome
    }

    async fn run_telling(self, diary: &Arc<Diary>) -> Result<Outcome, Error> {
        check(&self.options)?;
        let mut stops = Stops {
            signals: Signals::listen(self.options.handle_signals)?,
            handle: self.stop.clone(),
        };
        // Until there is something to contribute, stopping is simply ending.
        let started = tokio::select! {
            started = self.start(diary) => started?,
            () = stops.next() => return Ok(Outcome::StoppedWithoutGoodbye),
        };
        let parts = match started {
            Started::Parts(parts) => *parts,
            Started::Complete(reason) => return Ok(Outcome::RunComplete(reason)),
        };
        Shell::start(parts)?.run(&mut stops).await
    }

    async fn start(self, diary: &Arc<Diary>) -> Result<Started, Error> {
        let options = self.options;
        let entropy = entropy()?;
        let seed = u64::from_le_bytes(std::array::from_fn(|i| entropy.0[i]));
        let coordinator =
            Coordinator::new(&options.endpoint, &options.replica, &options.link, seed)?;
        let contact = startup::first_contact(&coordinator, &options, diary, seed).await?;
        let answer = match contact {
            Contact::Answer(answer) => *answer,
            Contact::Complete(reason) => return Ok(Started::Complete(reason)),
        };
        let state = open_state(&options, diary).await?;
        diary.log_to(&state.log());
        state.registration(answer.run, &options.replica)?;
        state.clear_complete()?;
        let run = startup::prepare(answer, &options, &state, diary).await?;
        let make = self.trainer;
        let begin = move || {
            let made = make(&run.recipe, run.corpus.clone());
            let mut trainer = made.map_err(|error| match error {
                TrainerError::Lost(why) => Error::TrainerLost(why),
                other => Error::Trainer(other),
            })?;
            let found = startup::find(&state, run.spec.run, &options, trainer.as_mut())?;
            Ok::<_, Error>((run, state, options, trainer, found))
        };
        let begun = tokio::task::spawn_blocking(begin).await;
        let (run, state, options, trainer, (found, payload)) =
            begun.map_err(|error| Error::Failed(error.to_string()))??;
        Ok(Started::Parts(Box::new(ShellParts {
            run,
            state: Arc::new(state),
            options,
            trainer,
            found,
            payload,
            coordinator,
            diary: diary.clone(),
            entropy,
        })))
    }
}

/// What a start came to.
enum Started {
    /// There is something to do.
    Parts(Box<ShellParts>),
    /// The run is over, as the state directory knows.
    Complete(EndReason),
}

/// Takes the lock of the state directory. The process before this one may be on its way out, as jobs in
/// a chain are: whoever waits for the name waits for its directory, too.
async fn open_state(options: &Options, diary: &Diary) -> Result<StateDir, Error> {
    for attempt in 0u64.. {
        match StateDir::open(&options.state_dir) {
            Err(locked @ StateDirError::Locked { .. }) if options.wait_if_busy => {
                if attempt.is_multiple_of(TELL_AFTER) {
                    let reason = format!("waiting: {locked}");
                    diary.tell(&SessionEvent::Waiting { reason });
                }
            }
            opened => return Ok(opened?),
        }
        tokio::time::sleep(LOCK_LOOK_EVERY).await;
    }
    Err(Error::Failed("the state directory stays locked".to_owned()))
}

fn check(options: &Options) -> Result<(), Error> {
    let wrong = |option, value: String, problem| Error::Option {
        option,
        value,
        problem,
    };
    match (options.threads, options.pace) {
        (Some(0), _) => Err(wrong("--threads", "0".into(), "it must be at least 1")),
        (_, Some(pace)) if !(1e-6..=1e12).contains(&pace) => {
            let problem = "it must be a positive number of windows per second";
            Err(wrong("--pace", pace.to_string(), problem))
        }
        _ => Ok(()),
    }
}

/// For nonces and jitter.
fn entropy() -> Result<Hash, Error> {
    let mut bytes = [0; 32];
    let source = std::fs::File::open("/dev/urandom");
    source
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(Error::system("read /dev/urandom"))?;
    Ok(Hash(bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hansa_transfer::{Endpoint, Token, Trust};

    #[tokio::test]
    async fn who_waits_for_the_name_waits_for_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = Endpoint {
            base_url: "http://127.0.0.1:1".to_owned(),
            token: Token::new("t"),
            trust: Trust::LoopbackPlain,
        };
        let replica = "lumi/r0".parse().unwrap();
        let state_dir = dir.path().join("state");
        let mut options = Options::new(endpoint, replica, dir.path().into(), state_dir.clone());
        let before = std::sync::Mutex::new(Some(StateDir::open(&state_dir).unwrap()));
        let diary = Diary::new(Arc::new(|_| {}));
        let refused = open_state(&options, &diary).await.unwrap_err();
        assert!(
            matches!(refused, Error::State(StateDirError::Locked { .. })),
            "{refused}"
        );

        options.wait_if_busy = true;
        let told_to_wait = Diary::new(Arc::new(move |event| {
            assert!(matches!(event, SessionEvent::Waiting { .. }), "{event:?}");
            // The process before ends.
            before.lock().unwrap().take();
        }));
        open_state(&options, &told_to_wait).await.unwrap();
    }
}
