//! Why a session cannot begin or go on, each with what to do about it.

use std::path::PathBuf;
use std::time::Duration;

use hansa_base::{Generation, ReplicaId};
use hansa_protocol::{Mismatch, Refusal};
use hansa_transfer::TransferError;
use hansa_wire::RecipeError;

use crate::state_dir::StateDirError;
use crate::trainer::TrainerError;

/// An error of a session. What is in the state directory stays valid after any of them.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option cannot work.
    #[error("{option} is {value}: {problem}")]
    Option {
        /// The option, as on the command line.
        option: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        problem: &'static str,
    },
    /// No answer within the time for the first contact.
    #[error("no answer within {} s: {why}", waited.as_secs())]
    Unreachable {
        /// How long was tried.
        waited: Duration,
        /// The last attempt's error.
        why: TransferError,
    },
    /// The coordinator of a run that this replica was in does not answer any more.
    #[error(
        "the coordinator has not answered for {} min: {why}; if the run is not over, start this replica \
         again when it is back: what it has trained is kept", waited.as_secs().div_ceil(60)
    )]
    Away {
        /// How long was tried.
        waited: Duration,
        /// The last attempt's error.
        why: String,
    },
    /// Somebody answers, but not a Hansa coordinator.
    #[error("{url} is no Hansa coordinator (it calls itself {service:?}); check the address")]
    NotACoordinator {
        /// The address.
        url: String,
        /// What answered.
        service: String,
    },
    /// The coordinator is of another version.
    #[error(
        "the coordinator is hansa {theirs} (wire version {their_wire}), this is hansa {ours} (wire \
         version {our_wire}); install the same version here"
    )]
    OtherVersion {
        /// Its version.
        theirs: String,
        /// Its wire version.
        their_wire: u32,
        /// This version.
        ours: &'static str,
        /// This wire version.
        our_wire: u32,
    },
    /// The recipe that the coordinator sent cannot be used.
    #[error("the coordinator's recipe cannot be used: {0}; are both sides the same version?")]
    Recipe(#[from] RecipeError),
    /// The recipe is not that of the run that the coordinator names.
    #[error(
        "the coordinator's recipe gives run {computed}, but it names run {named}; are both sides the \
         same version?"
    )]
    OtherRunId {
        /// What the coordinator says, short.
        named: String,
        /// What follows from its recipe, short.
        computed: String,
    },
    /// The corpus here is not that of the run.
    #[error(
        "the corpus here is not the run's: {0}; copy the run's corpus, or build it from the same text \
         with the same tokenizer and options"
    )]
    OtherData(Mismatch),
    /// The corpus here is damaged or missing.
    #[error(transparent)]
    Corpus(#[from] hansa_corpus::Error),
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateDirError),
    /// Another process has the replica's name.
    #[error(
        "another process trains as {replica}; stop that one, choose another name, or try again in \
         {} s, when it counts as gone if it is not heard of", retry.as_secs_f64().ceil()
    )]
    Busy {
        /// The name.
        replica: ReplicaId,
        /// When it counts as gone.
        retry: Duration,
    },
    /// A newer process took over.
    #[error(
        "a newer process trains as {0}; this one has stopped, and nothing of what it contributed is \
         lost"
    )]
    Fenced(ReplicaId),
    /// The token is not accepted, or only for another site.
    #[error("{0}")]
    Unauthorized(String),
    /// The server is not the one whose certificate is pinned.
    #[error(transparent)]
    WrongFingerprint(TransferError),
    /// A call or a transfer failed for good.
    #[error(transparent)]
    Transfer(TransferError),
    /// The coordinator serves another copy of the run, or another run.
    #[error("{0}")]
    OtherHistory(Refusal),
    /// The coordinator serves an older copy of the run than it did.
    #[error(
        "the coordinator is at generation {theirs}, and has given this replica generation {ours}: it serves \
         an old copy of its data; serve the newest data directory, or one that `hansa restore` made, \
         which replicas follow"
    )]
    OlderCopy {
        /// The newest generation that this replica has.
        ours: Generation,
        /// The coordinator's.
        theirs: Generation,
    },
    /// The coordinator refuses, and nothing can be done from here.
    #[error("the coordinator refuses: {0}; look at its log")]
    Refused(Refusal),
    /// The file of an announced contribution is not what the checkpoint says.
    #[error(
        "the contribution {} is damaged or gone ({why}); delete {} and start again: the phase that it \
         was made of is trained anew", path.display(), latest.display()
    )]
    ContributionLost {
        /// The contribution's file.
        path: PathBuf,
        /// The checkpoint that names it.
        latest: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The trainer could not be set up.
    #[error("set up the trainer: {0}")]
    Trainer(TrainerError),
    /// The trainer is gone. The coordinator was not told: a new session takes over what is leased.
    #[error("{0}")]
    TrainerLost(String),
    /// The trainer or the local disk failed in mid-run. The coordinator was told, if possible.
    #[error("{0}")]
    Failed(String),
    /// The operating system refuses something basic.
    #[error("{what}: {source}")]
    System {
        /// A bare verb phrase.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

impl From<TransferError> for Error {
    fn from(error: TransferError) -> Self {
        match &error {
            TransferError::WrongFingerprint { .. } => Self::WrongFingerprint(error),
            TransferError::Unauthorized { .. } => Self::Unauthorized(error.to_string()),
            TransferError::Refused { code, message, .. } if code == "forbidden" => {
                Self::Unauthorized(message.clone())
            }
            _ => Self::Transfer(error),
        }
    }
}
