//! What can go wrong between agent and trainer, each with what to do about it.

use std::path::PathBuf;
use std::time::Duration;

use crate::losses::TooOften;

/// Why an agent ends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The session's own reasons.
    #[error(transparent)]
    Session(#[from] hansa_session::Error),
    /// The trainer was lost too often.
    #[error(
        "the trainer was lost {lost}, the last time because: {why}; look at what it \
         printed above. What it has trained is kept: once it is mended, start this replica again"
    )]
    TrainerKeepsFailing {
        /// How often.
        lost: TooOften,
        /// The last reason.
        why: String,
    },
    /// The trainer says that it can never work here.
    #[error("the trainer cannot run here (exit status {status}); it says why above")]
    TrainerUnfit {
        /// Its exit status.
        status: i32,
    },
}

/// Why the trainer cannot be spoken to any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// It ended.
    #[error("the trainer ended ({0})")]
    Ended(String),
    /// It closed the connection, or another process did.
    #[error("the trainer closed its connection")]
    Closed,
    /// It says nothing.
    #[error(
        "the trainer has shown no progress for {} s while asked to {ask}, and was given up; \
         --hang-after-min says how long it may", waited.as_secs()
    )]
    Hangs {
        /// What was asked.
        ask: &'static str,
        /// How long it was waited for.
        waited: Duration,
    },
    /// It did not connect.
    #[error(
        "the trainer has not connected to {} within {} s; does it call hansa.Session or \
         hansa.torchtitan, and does rank 0 run on this node?", socket.display(), waited.as_secs()
    )]
    NeverCame {
        /// The socket.
        socket: PathBuf,
        /// How long it was waited for.
        waited: Duration,
    },
    /// It speaks another language.
    #[error("the trainer said what is not of the protocol: {0}")]
    Nonsense(String),
    /// It speaks another version.
    #[error(
        "the trainer speaks version {theirs} of the agent's protocol, this hansa speaks {ours}; \
         install the hansa Python package of the same release as this binary"
    )]
    OtherVersion {
        /// Its version.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// It says that it can never work here.
    #[error("the trainer cannot run here: {0}")]
    Unfit(String),
    /// It has another model.
    #[error("the trainer's model is not the run's: {0}")]
    OtherModel(String),
    /// What it needs cannot be made.
    #[error("{what}: {source}")]
    SetUp {
        /// A bare verb phrase.
        what: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The socket fails.
    #[error("{what}: {source}")]
    Io {
        /// A bare verb phrase.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}
