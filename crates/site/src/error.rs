//! Why the site process cannot go on.

use std::path::{Path, PathBuf};

use hansa_store::StoreError;
use hansa_transfer::TransferError;

use crate::commands::SlurmError;
use crate::runner::RunError;

/// An error of the site process.
#[derive(Debug, thiserror::Error)]
pub enum SiteError {
    /// A file operation failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// A bare verb phrase.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file of ours holds something else.
    #[error("{}: {why}; it is not what was written there: move it away, and the process finds its jobs again by their names", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Something could not be made durable, or another process is here.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The coordinator cannot be spoken to, for good.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// Slurm does not answer.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    /// A command cannot be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Nothing could be done at once, because the coordinator is away.
    #[error("the coordinator did not answer, so that nothing was done; the next call goes on")]
    Away,
    /// Another process runs this site.
    #[error("{message}; `--take-over` ends its turn")]
    Busy {
        /// Who, since when, until when.
        message: String,
    },
    /// Another process has lost its turn, and does not let go of the home.
    #[error(
        "{} is still in use{holder}, which has lost its turn and does not notice: kill it there, or give --home \
         another folder; the jobs are found again",
        path.display()
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// Who, in brackets; nothing if unknown.
        holder: String,
    },
    /// Another process has the home, on a machine that does not see our lock.
    #[error(
        "{} is another process's by now{holder}: this one has lost its turn, and ends",
        path.display()
    )]
    Overtaken {
        /// The folder.
        path: PathBuf,
        /// Who, in brackets; nothing if unknown.
        holder: String,
    },
    /// This home belongs to another run.
    #[error(
        "{} belongs to run {had}, and the coordinator serves run {has}: give --home another folder",
        home.display()
    )]
    OtherRun {
        /// The folder.
        home: PathBuf,
        /// Whose it is.
        had: String,
        /// The run of the coordinator.
        has: String,
    },
    /// A rehearsal needs files and a coordinator where the jobs are.
    #[error(
        "a rehearsal runs where the commands are: log in to {host} and run it there, without slurm.ssh"
    )]
    NotHere {
        /// The host that the profile names.
        host: String,
    },
    /// The stage of a rehearsal cannot be set.
    #[error("{what}: {why}")]
    Stage {
        /// A bare verb phrase.
        what: &'static str,
        /// Why not.
        why: String,
    },
    /// The relay cannot listen.
    #[error("listen on {address} for the relay: {source}; set relay.listen in the profile")]
    Relay {
        /// The address.
        address: String,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl SiteError {
    pub(crate) fn io(
        what: &'static str,
        path: &Path,
    ) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }
}
