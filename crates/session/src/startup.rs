//! From nothing to a machine that can start: coordinator, recipe, corpus, state directory, trainer.
//!
//! Everything that a user can have got wrong shows here, before anything is leased.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hansa_base::{Hash, RetryPolicy};
use hansa_corpus::{Corpus, Tick};
use hansa_protocol::replica::{Found, LocalState};
use hansa_protocol::{DigestFields, EndReason, RunSpec};
use hansa_store::Manifest;
use hansa_transfer::TransferError;
use hansa_wire::http::RecipeAnswer;
use hansa_wire::{Recipe, WIRE_VERSION};

use crate::checkpoint;
use crate::coordinator::Coordinator;
use crate::corpus;
use crate::diary::Diary;
use crate::error::Error;
use crate::event::SessionEvent;
use crate::options::Options;
use crate::state_dir::{StateDir, StateDirError};
use crate::trainer::{Trainer, TrainerError};

/// The run, as this site is to train it.
pub(crate) struct Run {
    pub recipe: Recipe,
    pub spec: RunSpec,
    pub corpus: Arc<Corpus>,
}

/// Back-off of calls: from 0.2 s to 10 s, for as long as it takes.
pub(crate) const RETRY: RetryPolicy = RetryPolicy {
    first: std::time::Duration::from_millis(200),
    longest: std::time::Duration::from_secs(10),
    retries_max: None,
};

/// What came of looking for the coordinator.
pub(crate) enum Contact {
    /// It answers.
    Answer(Box<RecipeAnswer>),
    /// It does not, and has said before that the run is over.
    Complete(EndReason),
}

/// Back-off for as long as a replica goes on without a coordinator: half and whole delays take three
/// quarters of the longest, once they have grown.
pub(crate) fn retry_for(give_up_after: Duration) -> RetryPolicy {
    let retries = give_up_after.as_secs_f64() / (0.75 * RETRY.longest.as_secs_f64());
    RetryPolicy {
        retries_max: Some(5 + retries.min(1e6) as u32),
        ..RETRY
    }
}

/// Asks until the coordinator answers, and checks that it is one of this version. A replica that was in
/// the run before asks for longer: its address is right, and its job may have waited for days.
pub(crate) async fn first_contact(
    coordinator: &Coordinator,
    options: &Options,
    diary: &Diary,
    seed: u64,
) -> Result<Contact, Error> {
    let began = Instant::now();
    let was_there = StateDir::has_identity(&options.state_dir);
    let complete = StateDir::complete(&options.state_dir);
    let limit = match (was_there, complete) {
        (true, None) => options.give_up_after,
        _ => options.first_contact_within,
    };
    let mut attempt = 0;
    loop {
        let error = match introduce(coordinator).await {
            Ok(recipe) => return Ok(Contact::Answer(Box::new(recipe))),
            Err(Error::Transfer(error)) if error.is_transient() => error,
            Err(error) => return Err(error),
        };
        let waited = began.elapsed();
        let delay = RETRY.delay(attempt, seed.rotate_left(attempt));
        let Some(delay) = delay.filter(|delay| waited + *delay < limit) else {
            return match (complete, was_there) {
                (Some(reason), _) => Ok(Contact::Complete(reason)),
                (None, true) => {
                    let why = error.to_string();
                    Err(Error::Away { waited, why })
                }
                (None, false) => Err(Error::Unreachable { waited, why: error }),
            };
        };
        if attempt % 8 == 0 {
            diary.tell(&SessionEvent::CoordinatorAway {
                for_s: waited.as_secs_f64(),
                reason: error.to_string(),
            });
        }
        tokio::time::sleep(delay).await;
        attempt += 1;
    }
}

async fn introduce(coordinator: &Coordinator) -> Result<RecipeAnswer, Error> {
    let hello = coordinator.hello().await.map_err(|error| match error {
        TransferError::Refused { code, .. } if code == "status" => Error::NotACoordinator {
            url: coordinator.url().to_owned(),
            service: String::new(),
        },
        other => other.into(),
    })?;
    if hello.service != "hansa" {
        return Err(Error::NotACoordinator {
            url: coordinator.url().to_owned(),
            service: hello.service.chars().take(40).collect(),
        });
    }
    if hello.wire != WIRE_VERSION {
        return Err(Error::OtherVersion {
            theirs: hello.hansa.chars().take(40).collect(),
            their_wire: hello.wire,
            ours: env!("CARGO_PKG_VERSION"),
            our_wire: WIRE_VERSION,
        });
    }
    Ok(coordinator.recipe().await?)
}

/// Opens the corpus, and checks that it is the run's: cheaply by its manifest first, then all of it.
pub(crate) async fn prepare(
    answer: RecipeAnswer,
    options: &Options,
    state: &StateDir,
    diary: &Arc<Diary>,
) -> Result<Run, Error> {
    let recipe = Recipe::parse(&answer.recipe, Path::new("recipe"))?;
    let manifest = Corpus::open(&options.corpus_dir)?.manifest().clone();
    let ours: DigestFields = corpus::digest(&manifest, answer.digest.block, answer.digest.seed);
    if let Some(mismatch) = answer.digest.first_difference(&ours) {
        return Err(Error::OtherData(mismatch));
    }
    recipe.digest_fields(&manifest)?;
    let spec = recipe.run_spec_with(ours)?;
    if spec.run != answer.run {
        return Err(Error::OtherRunId {
            named: answer.run.short(),
            computed: spec.run.short(),
        });
    }
    let (dir, marker) = (options.corpus_dir.clone(), state.corpus_marker());
    let diary = diary.clone();
    let check = move || {
        let watch = |tick: &Tick| {
            diary.tell(&SessionEvent::CheckingCorpus {
                done_bytes: tick.done,
                total_bytes: tick.total,
            });
        };
        corpus::open_checked(&dir, &marker, &watch)
    };
    let corpus = tokio::task::spawn_blocking(check)
        .await
        .map_err(|error| Error::Failed(error.to_string()))??;
    Ok(Run {
        recipe,
        spec,
        corpus: Arc::new(corpus),
    })
}

/// What the state directory holds of this replica. The trainer's weights are touched by it.
pub(crate) fn find(
    state: &StateDir,
    run: Hash,
    options: &Options,
    trainer: &mut dyn Trainer,
) -> Result<(Found, Option<Manifest>), Error> {
    let registration = state.registration(run, &options.replica)?;
    let (latest, payload) = match read_latest(state, trainer)? {
        Some((latest, payload)) => (Some(latest), payload),
        None => (None, None),
    };
    let found = Found {
        registration,
        latest,
        accepted: state.accepted().exists(),
    };
    Ok((found, payload))
}

fn read_latest(
    state: &StateDir,
    trainer: &mut dyn Trainer,
) -> Result<Option<(LocalState, Option<Manifest>)>, Error> {
    let path = state.latest();
    if !path.exists() {
        return Ok(None);
    }
    let meta = match trainer.load_checkpoint(&path) {
        Err(TrainerError::Lost(why)) => return Err(Error::TrainerLost(why)),
        other => other.map_err(|error| error.to_string()),
    };
    let read = meta.and_then(checkpoint::from_meta);
    let damaged = |why| Error::State(StateDirError::Damaged { path, why });
    read.map(Some).map_err(damaged)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::options::LinkOptions;
    use hansa_transfer::{Endpoint, Token, Trust};
    use std::io::{Read as _, Write as _};

    /// A coordinator that breaks the first connection off, and refuses the token on the next.
    fn away_once() -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            let answer = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer).unwrap();
        });
        format!("http://{address}")
    }

    async fn first_error(state_dir: &Path) -> Error {
        let endpoint = Endpoint {
            base_url: away_once(),
            token: Token::new("t"),
            trust: Trust::LoopbackPlain,
        };
        let replica = "lumi/r0".parse().unwrap();
        let coordinator =
            Coordinator::new(&endpoint, &replica, &LinkOptions::default(), 1).unwrap();
        let mut options = Options::new(endpoint, replica, "corpus".into(), state_dir.into());
        options.first_contact_within = Duration::ZERO;
        let diary = Diary::new(Arc::new(|_| {}));
        let contact = first_contact(&coordinator, &options, &diary, 1).await;
        contact.err().unwrap()
    }

    #[tokio::test]
    async fn who_was_told_of_the_end_needs_no_coordinator_and_who_was_not_is_told_to_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = Endpoint {
            base_url: "http://127.0.0.1:1".to_owned(),
            token: Token::new("t"),
            trust: Trust::LoopbackPlain,
        };
        let replica = "lumi/r0".parse().unwrap();
        let coordinator =
            Coordinator::new(&endpoint, &replica, &LinkOptions::default(), 1).unwrap();
        let mut options = Options::new(endpoint, replica, "corpus".into(), dir.path().into());
        (options.first_contact_within, options.give_up_after) = (Duration::ZERO, Duration::ZERO);
        let diary = Diary::new(Arc::new(|_| {}));
        std::fs::write(dir.path().join("identity.json"), b"{}").unwrap();
        let away = first_contact(&coordinator, &options, &diary, 1).await;
        let error = away.err().unwrap();
        assert!(matches!(error, Error::Away { .. }), "{error}");
        assert!(error.to_string().contains("start this replica again"));
        let state = StateDir::open(dir.path()).unwrap();
        state.save_complete(EndReason::Tokens).unwrap();
        let contact = first_contact(&coordinator, &options, &diary, 1).await;
        assert!(matches!(contact, Ok(Contact::Complete(EndReason::Tokens))));
    }

    #[tokio::test]
    async fn only_a_newcomer_gives_up_when_the_coordinator_is_away() {
        let dir = tempfile::tempdir().unwrap();
        let error = first_error(dir.path()).await;
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        std::fs::write(dir.path().join("identity.json"), b"{}").unwrap();
        let error = first_error(dir.path()).await;
        assert!(matches!(error, Error::Unauthorized(_)), "{error}");
    }
}
