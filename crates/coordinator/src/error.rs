//! Every way in which a coordinator cannot start or go on, with what to do about it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use hansa_protocol::{ApplyError, Mismatch, Violation};
use hansa_store::{Seq, StoreError};
use hansa_transfer::tls::TlsError;
use hansa_wire::RecipeError;
use hansa_wire::journal::JournalError;

use crate::auth::AuthError;
use crate::merge::MergeFailure;

/// An error of the coordinator.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call to the operating system failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// A bare verb phrase: "read".
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Journal, blobs or data directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The recipe, or recipe and corpus.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// The corpus.
    #[error(transparent)]
    Corpus(#[from] hansa_corpus::Error),
    /// The weights to begin with.
    #[error("make generation 0: {0}")]
    FirstWeights(#[source] hansa_train::TrainError),
    /// Generation 0 as it travels, or its layout.
    #[error("prepare the model: {0}")]
    Model(#[source] MergeFailure),
    /// The recipe is not the one that the run began with.
    #[error(
        "the recipe was changed since the run began; a run keeps its recipe, so undo the change, or \
         serve another data directory:\n{diff}"
    )]
    RecipeChanged {
        /// A unified diff.
        diff: String,
    },
    /// The corpus is not the one that the run began with.
    #[error(
        "the corpus is not the one that the run began with: {} differs: the run has {}, the recipe's \
         corpus {}; name the run's corpus, or serve another data directory",
        .0.field, .0.ours, .0.theirs
    )]
    CorpusChanged(Mismatch),
    /// A record cannot be used.
    #[error("record {seq} of the journal: {source}")]
    Record {
        /// Its number.
        seq: Seq,
        /// Why.
        source: JournalError,
    },
    /// A record does not fit those before it.
    #[error(
        "record {seq} of the journal does not fit those before it: {source}; restore the last backup \
         of the whole data directory; the event is {event}"
    )]
    Replay {
        /// Its number.
        seq: Seq,
        /// The event that does not fit.
        event: String,
        /// Why.
        source: ApplyError,
    },
    /// The queue's journal is another run's.
    #[error(
        "{} is the queue journal of another run: move it away, or serve that run", .0.display()
    )]
    OtherQueue(PathBuf),
    /// A record of the queue's journal cannot be used.
    #[error(
        "record {seq} of the queue journal: {why}; restore the last backup of the whole data directory; \
         the record is {record}"
    )]
    QueueRecord {
        /// Its number.
        seq: Seq,
        /// Why.
        why: String,
        /// What it says.
        record: String,
    },
    /// The queue machine found its own state broken.
    #[error("the state of the queues is broken, which is a defect of hansa: {0}")]
    QueueBroken(String),
    /// A name that never registered.
    #[error("no replica {name} is in this journal: {hint}")]
    NoSuchReplica {
        /// The name.
        name: String,
        /// What to do.
        hint: String,
    },
    /// A block, window or position that the corpus does not have.
    #[error("there is no {what} {at}: the run's corpus has {what}s 0 to {last}")]
    OutOfRange {
        /// `block`.
        what: &'static str,
        /// Its number.
        at: u64,
        /// The last one.
        last: u64,
    },
    /// The journal does not begin as a run's journal does.
    #[error("record {0} of the journal is not the kind of record that belongs there")]
    Misplaced(Seq),
    /// The journal's state contradicts itself.
    #[error("after record {seq} of the journal: {source}; the record is {record}")]
    Invariant {
        /// Its number.
        seq: Seq,
        /// What it says.
        record: String,
        /// What is broken.
        source: Violation,
    },
    /// A snapshot is not the state that the records give.
    #[error("the snapshot at record {0} is not the state that the records before it give")]
    OtherSnapshot(Seq),
    /// The journal names files of a generation that are not there.
    #[error(
        "the journal names no files for generation {0}; restore the last backup of the whole data \
         directory"
    )]
    NoFiles(hansa_base::Generation),
    /// The list of tokens.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The server's identity.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Another process listens there.
    #[error(
        "port {} of {} is in use by another process: stop that one, or listen on another port",
        .0.port(), .0.ip()
    )]
    PortInUse(SocketAddr),
    /// The address cannot be listened on.
    #[error("listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Plain HTTP beyond this machine.
    #[error(
        "{0} can be reached from other machines, and plain HTTP would show tokens and weights to the \
         network: use TLS, or listen on 127.0.0.1"
    )]
    PlainNotLoopback(SocketAddr),
    /// A replica knows more than the journal.
    #[error(
        "this coordinator is running on an old copy of its journal: a replica proves that {0} was issued, \
         which is not in it; serve the newest data directory, or make a copy that replicas follow, with \
         `hansa backup` of this one and `hansa restore`"
    )]
    OldJournal(String),
    /// A backup's list, or what it names, cannot be used.
    #[error("the backup's {}: {why}", path.display())]
    BackupList {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is no whole backup.
    #[error("{} holds no backup, or one that was broken off: make it with `hansa backup`", .0.display())]
    NoBackup(PathBuf),
    /// The directory for a backup holds something else.
    #[error(
        "{} holds {found:?}, which is no part of a backup: name an empty or new directory, or one with an \
         earlier backup of this run", path.display()
    )]
    NotABackup {
        /// The directory.
        path: PathBuf,
        /// What was found.
        found: String,
    },
    /// The directory holds the backup of another run.
    #[error("{} holds a backup of another run ({run}): name another directory", path.display())]
    OtherBackup {
        /// The directory.
        path: PathBuf,
        /// The other run's name.
        run: String,
    },
    /// A restore would overwrite something.
    #[error("{} is not empty (it has {found}): restore to a new or empty directory", path.display())]
    TargetNotEmpty {
        /// The directory.
        path: PathBuf,
        /// What was found.
        found: String,
    },
    /// The directory is not complete.
    #[error(
        "{} holds a restore that was broken off: run the same `hansa restore` again", .0.display()
    )]
    HalfRestored(PathBuf),
    /// What was restored does not prove itself.
    #[error("the restored journal is not good: {0}; do not serve it, and restore another backup")]
    BadRestore(String),
    /// The machine found its own state broken.
    #[error("an invariant is broken: {0}; run `hansa ledger verify` on the data directory")]
    Broken(String),
    /// A round cannot be merged.
    #[error(
        "merge round {round}: {source}; the round stays closed and is merged at the next start"
    )]
    Merge {
        /// The round.
        round: hansa_base::Generation,
        /// Why.
        source: MergeFailure,
    },
    /// A merge or an export broke off.
    #[error(
        "the {0} thread ended unexpectedly; its last log lines say why; the next start does its work again"
    )]
    WorkerGone(&'static str),
    /// The thread that decides is gone.
    #[error("the deciding thread ended unexpectedly; its last log lines say why")]
    ActorGone,
}

impl Error {
    pub(crate) fn io(
        what: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Io { what, path, source }
    }
}
