//! Every way in which the store can fail, with what to do about it.

use std::path::{Path, PathBuf};

use hansa_base::Hash;

use crate::journal::Seq;
use crate::manifest::ManifestError;
use crate::upload::UploadId;

/// What is wrong with a journal that is damaged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A record's bytes do not give its chain hash: it, or one before it, was changed.
    #[error("record {0} does not match its chain hash")]
    Chain(Seq),
    /// A record between others is missing.
    #[error("record {0} is missing")]
    Gap(Seq),
    /// Acknowledged records at the end are missing.
    #[error("the journal ends at record {last}, but record {acknowledged} was acknowledged")]
    Shorter {
        /// The last record that is there.
        last: Seq,
        /// The last record that was acknowledged.
        acknowledged: Seq,
    },
    /// A field of a record cannot be what was written.
    #[error("record {0} is unreadable")]
    Record(Seq),
    /// A snapshot does not match its hash.
    #[error("the snapshot at record {0} does not match its hash")]
    Snapshot(Seq),
    /// The table of journal facts is incomplete or wrong.
    #[error("its entry {0:?} is missing or unreadable")]
    Meta(&'static str),
    /// `journal.head` does not match its check value.
    #[error("the file of the last acknowledged record is unreadable")]
    Head,
    /// SQLite itself found its file inconsistent.
    #[error("SQLite reports: {0}")]
    Sqlite(String),
}

/// An error of journal, blobs or uploads.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A call to the operating system failed.
    #[error("{what} {path}: {source}")]
    Io {
        /// A bare verb phrase: "write".
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Another process writes to this data directory.
    #[error(
        "{path} is in use by another hansa process{holder}; stop that one first, or choose another \
         data directory"
    )]
    AlreadyOpen {
        /// The data directory.
        path: PathBuf,
        /// " (process N)", or nothing if unknown.
        holder: String,
    },
    /// `create` found a journal.
    #[error("{0} holds a journal already; open it, or choose another data directory")]
    JournalExists(PathBuf),
    /// There is no journal at this path.
    #[error("{0} does not exist; is this the data directory of a run?")]
    NoJournal(PathBuf),
    /// The file is no Hansa journal.
    #[error("{0} is not a Hansa journal")]
    NotAJournal(PathBuf),
    /// The journal or manifest was written by another format version.
    #[error(
        "{path} has format version {found}, this hansa reads version {supported}; use the hansa that \
         wrote it"
    )]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version that this build reads.
        supported: u32,
    },
    /// The journal is damaged.
    #[error(
        "the journal {path} is damaged: {damage}; keep a copy of it and restore the last backup of \
         the whole data directory"
    )]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// What is wrong.
        damage: Damage,
    },
    /// The journal was opened for reading only.
    #[error("{0} was opened for reading only")]
    ReadOnly(PathBuf),
    /// Another writer appended behind this one's back.
    #[error(
        "{0} was written by another process while open here; only one may serve a data directory"
    )]
    AnotherWriter(PathBuf),
    /// A number, record or snapshot position that the journal cannot hold or does not have.
    #[error("record {0} is not in this journal")]
    NoSuchRecord(Seq),
    /// SQLite refused for a reason other than damage.
    #[error("journal {path}: {source}")]
    Sqlite {
        /// The journal.
        path: PathBuf,
        /// SQLite's reason.
        source: rusqlite::Error,
    },
    /// A manifest is malformed.
    #[error("manifest {path}: {source}")]
    Manifest {
        /// The manifest's file.
        path: PathBuf,
        /// What is wrong with it.
        source: ManifestError,
    },
    /// No blob has this hash.
    #[error("blob {0} is not in the store")]
    NoBlob(Hash),
    /// Content does not have the hash that it should have.
    #[error("{path} has the content {got}, expected {expected}; remove it and bring it in again")]
    WrongContent {
        /// The file.
        path: PathBuf,
        /// The hash that it should have.
        expected: Hash,
        /// The hash of what is there.
        got: Hash,
    },
    /// A blob's file does not have the size that its manifest names.
    #[error(
        "{path} has {got_bytes} bytes, expected {expected_bytes}; remove the blob and bring it in again"
    )]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// The size that it should have.
        expected_bytes: u64,
        /// The size that it has.
        got_bytes: u64,
    },
    /// A blob's bytes changed after it was stored.
    #[error("{path} is damaged in chunk {chunk}; remove the blob and bring it in again")]
    DamagedBlob {
        /// The file.
        path: PathBuf,
        /// The first chunk that does not match.
        chunk: u32,
    },
    /// A chunk index that the manifest does not have.
    #[error("there is no chunk {index}; the manifest has {chunks}")]
    NoChunk {
        /// The index asked for.
        index: u32,
        /// The number of chunks.
        chunks: u32,
    },
    /// A chunk's bytes do not have the hash or length that the manifest names.
    #[error("chunk {0} does not match its hash; send it again")]
    ChunkMismatch(u32),
    /// Another request brings the same chunk, and began later.
    #[error("a later request brings chunk {0}; ask what is missing and go on from there")]
    ChunkTakenOver(u32),
    /// A part of a chunk does not begin where the bytes that are there end.
    #[error(
        "a part of chunk {index} begins at byte {from}, but {held} bytes of it are here; go on from there"
    )]
    WrongOffset {
        /// The chunk.
        index: u32,
        /// Where the part begins.
        from: u64,
        /// Where it should.
        held: u64,
    },
    /// The upload is not complete.
    #[error("upload {id} still misses {} of its chunks; send them, then complete it", missing.len())]
    UploadIncomplete {
        /// The upload.
        id: UploadId,
        /// The chunks that are not there.
        missing: Vec<u32>,
    },
    /// An upload of this id was begun with another manifest.
    #[error("upload {0} was begun with another manifest; use another id")]
    UploadConflict(UploadId),
    /// The text cannot be an upload id.
    #[error("{0:?} cannot be an upload id: use 1 to 100 letters, digits, '-' or '_'")]
    BadUploadId(String),
}

impl StoreError {
    /// Whether the disk, or this user's share of it, is full.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }

    pub(crate) fn io(
        what: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Io { what, path, source }
    }
}
