//! The journal: what was decided, in order, on disk before anybody hears of it.
//!
//! One SQLite file in WAL mode, synchronous=FULL. Each record's chain hash covers the one before it,
//! so a changed, missing or foreign record shows at its number. Two things guard the end, which no
//! chain can: the head (last number and chain hash) is updated in the appending transaction, and
//! copied to `journal.head` after it. A write-ahead log that lost its tail, which SQLite takes for a
//! shorter log, is thereby noticed. Never here: what a payload means, and clocks: times are given.

mod head;
mod read;

use std::path::{Path, PathBuf};

use hansa_base::Hash;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};

use crate::error::{Damage, StoreError};
use crate::files;
use head::{Head, HeadFile};
pub use read::Records;

/// The layout's version, in the file's `user_version`.
const FORMAT_VERSION: u32 = 1;
/// "HANS" in the file's `application_id`.
const APPLICATION_ID: i64 = 0x4841_4e53;
/// Older snapshots than these go when a new one is put.
const SNAPSHOTS_KEPT: u32 = 2;
/// Records of one transaction, when a journal is copied.
const COPIED_AT_ONCE: usize = 512;

const SCHEMA: &str = "
    CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE records (
        seq INTEGER PRIMARY KEY, wall_ms INTEGER NOT NULL, version INTEGER NOT NULL,
        payload BLOB NOT NULL, chain BLOB NOT NULL) STRICT;
    CREATE TABLE snapshots (
        seq INTEGER PRIMARY KEY, version INTEGER NOT NULL, bytes BLOB NOT NULL,
        hash BLOB NOT NULL) STRICT;";

/// The number of a record, from 1 without gaps; 0 stands before the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl std::fmt::Display for Seq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A record to append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Wall-clock milliseconds since 1970, for people; nothing is decided by it.
    pub wall_ms: u64,
    /// The version of the payload's format.
    pub version: u32,
    /// Opaque bytes.
    pub payload: Vec<u8>,
}

/// A record with its place in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// Its number.
    pub seq: Seq,
    /// As appended.
    pub record: Record,
    /// BLAKE3(chain hash of the record before ‖ seq: u64 ‖ wall_ms: u64 ‖ version: u32 ‖ payload),
    /// numbers in little-endian; before the first stands a hash of the run's identity.
    pub chain: Hash,
}

/// The state after record `seq`, so that replay can begin there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The last record that it contains.
    pub seq: Seq,
    /// The version of its format.
    pub version: u32,
    /// Opaque bytes.
    pub bytes: Vec<u8>,
}

/// An open journal. Writers hold the [`DataDir`](crate::DataDir)'s lock; readers need none.
#[derive(Debug)]
pub struct Journal {
    connection: Connection,
    path: PathBuf,
    identity: Vec<u8>,
    head: Head,
    // None: opened for reading only.
    head_file: Option<HeadFile>,
}

impl Journal {
    /// Makes the journal of a new run. It appears at `path` complete or not at all.
    pub fn create(path: &Path, identity: &[u8]) -> Result<Self, StoreError> {
        if path.exists() {
            return Err(StoreError::JournalExists(path.to_owned()));
        }
        let draft = with_suffix(path, ".creating");
        for leftover in ["", "-wal", "-shm", "-journal"] {
            files::remove_if_there(&with_suffix(&draft, leftover))?;
        }
        let genesis = Head {
            seq: Seq(0),
            chain: genesis_chain(identity),
        };
        write_draft(&draft, identity, genesis).map_err(sqlite_error(path))?;
        HeadFile::create(&head_path(path), genesis)?;
        files::rename_synced(&draft, path)?;
        Self::open(path)
    }

    /// Removes a journal without records.
    pub fn discard_empty(path: &Path) -> Result<(), StoreError> {
        let journal = Self::open_read_only(path)?;
        if journal.last_seq() > Seq(0) {
            return Err(StoreError::JournalExists(path.to_owned()));
        }
        drop(journal);
        for part in ["-wal", "-shm", ""] {
            files::remove_if_there(&with_suffix(path, part))?;
        }
        files::remove_synced(&head_path(path))
    }

    /// Opens a run's journal to continue it, after checking that its end is the acknowledged one. The
    /// records before are checked as they are read.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut journal = Self::open_with(path, flags)?;
        let set_up = |connection: &Connection| {
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "FULL")
        };
        set_up(&journal.connection).map_err(sqlite_error(path))?;
        journal.head_file = Some(HeadFile::open_or_create(&head_path(path), journal.head)?);
        Ok(journal)
    }

    /// Opens for reading, beside a living writer or after a dead one; changes nothing in the journal.
    pub fn open_read_only(path: &Path) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        Self::open_with(path, flags)
    }

    fn open_with(path: &Path, flags: OpenFlags) -> Result<Self, StoreError> {
        if !path.exists() {
            return Err(StoreError::NoJournal(path.to_owned()));
        }
        // Read first: the journal may grow at any time, but must never be behind this.
        let acknowledged = HeadFile::read(&head_path(path))?;
        let connection = Connection::open_with_flags(path, flags).map_err(sqlite_error(path))?;
        let configured = connection
            .busy_timeout(std::time::Duration::from_secs(10))
            .and_then(|()| {
                let read_only = flags.contains(OpenFlags::SQLITE_OPEN_READ_ONLY);
                connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, read_only)
            });
        configured.map_err(sqlite_error(path))?;
        check_format(&connection, path)?;
        let identity = read_meta(&connection, path, "identity")?;
        let head = read_head(&connection, path)?;
        let path = path.to_owned();
        let journal = Self {
            connection,
            path,
            identity,
            head,
            head_file: None,
        };
        journal.check_end(acknowledged)?;
        Ok(journal)
    }

    /// The bytes given to [`Self::create`].
    #[must_use]
    pub fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// The last record's number; 0 if there is none. For a reader: when it opened the journal.
    #[must_use]
    pub fn last_seq(&self) -> Seq {
        self.head.seq
    }

    /// The last record's chain hash; it stands for the whole history.
    #[must_use]
    pub fn chain(&self) -> Hash {
        self.head.chain
    }

    /// Appends in one transaction, durable when this returns, and gives the records' numbers in
    /// order. All or nothing. After an error the process should end: what is on disk is then settled
    /// by opening the journal anew.
    pub fn append_batch(&mut self, records: &[Record]) -> Result<Vec<Seq>, StoreError> {
        let Some(head_file) = &self.head_file else {
            return Err(StoreError::ReadOnly(self.path.clone()));
        };
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let old = self.head;
        let write = |connection: &mut Connection| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut head = old;
            let mut seqs = Vec::with_capacity(records.len());
            for record in records {
                head = head.after(record);
                insert_record(&transaction, head, record)?;
                seqs.push(head.seq);
            }
            let moved = transaction.execute(
                "UPDATE meta SET value = ?1 WHERE key = 'head' AND value = ?2",
                params![head.to_bytes(), old.to_bytes()],
            )?;
            if moved == 1 {
                transaction.commit()?;
                return Ok(Some((head, seqs)));
            }
            Ok(None)
        };
        let written = write(&mut self.connection).map_err(sqlite_error(&self.path))?;
        let Some((head, seqs)) = written else {
            return Err(StoreError::AnotherWriter(self.path.clone()));
        };
        self.head = head;
        head_file.store(head)?;
        Ok(seqs)
    }

    /// Makes a journal of the same history at `path`, up to the last record known here; what a copy that
    /// was broken off has left there is replaced. Chain hashes, and so [`Self::chain`], are the same.
    /// Snapshots are not copied: replay makes them.
    pub fn copy_to(&self, path: &Path) -> Result<Self, StoreError> {
        for leftover in ["", "-wal", "-shm"] {
            files::remove_if_there(&with_suffix(path, leftover))?;
        }
        files::remove_if_there(&head_path(path))?;
        let mut copy = Self::create(path, &self.identity)?;
        let mut batch = Vec::with_capacity(COPIED_AT_ONCE);
        for record in self.read_from(Seq(1))? {
            batch.push(record?.record);
            if batch.len() == COPIED_AT_ONCE {
                copy.append_batch(&batch)?;
                batch.clear();
            }
        }
        copy.append_batch(&batch)?;
        match copy.chain() == self.chain() {
            true => Ok(copy),
            false => Err(copy.damaged(Damage::Chain(copy.last_seq()))),
        }
    }

    /// The records from `seq` on to the end, each checked against its chain hash. `seq` may be the one
    /// after the last. A whole check is `read_from(Seq(1))` to the end.
    pub fn read_from(&self, seq: Seq) -> Result<Records<'_>, StoreError> {
        if seq.0 == 0 || seq > self.head.seq.next() {
            return Err(StoreError::NoSuchRecord(seq));
        }
        let before = Seq(seq.0 - 1);
        let chain = self.chain_at(before)?;
        Ok(Records::new(self, Head { seq: before, chain }))
    }

    /// Keeps a snapshot of the state after a record; the newest two are kept. Removes no records.
    pub fn put_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), StoreError> {
        if self.head_file.is_none() {
            return Err(StoreError::ReadOnly(self.path.clone()));
        }
        if snapshot.seq > self.head.seq {
            return Err(StoreError::NoSuchRecord(snapshot.seq));
        }
        let hash = snapshot_hash(snapshot, self.chain_at(snapshot.seq)?);
        let write = |connection: &mut Connection| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute(
                "INSERT OR REPLACE INTO snapshots (seq, version, bytes, hash)
                 VALUES (?1, ?2, ?3, ?4)",
                params![
                    snapshot.seq.0 as i64,
                    snapshot.version,
                    snapshot.bytes,
                    hash.0
                ],
            )?;
            transaction.execute(
                "DELETE FROM snapshots WHERE seq NOT IN
                 (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?1)",
                [SNAPSHOTS_KEPT],
            )?;
            transaction.commit()
        };
        write(&mut self.connection).map_err(sqlite_error(&self.path))
    }

    /// The newest snapshot. One that is damaged is an error; replaying from record 1 gives the same
    /// state, as records are never removed.
    pub fn latest_snapshot(&self) -> Result<Option<Snapshot>, StoreError> {
        let Some((snapshot, hash)) = read::newest_snapshot(self)? else {
            return Ok(None);
        };
        let seq = snapshot.seq;
        let known = seq <= self.head.seq;
        if !known || snapshot_hash(&snapshot, self.chain_at(seq)?) != hash {
            return Err(self.damaged(Damage::Snapshot(seq)));
        }
        Ok(Some(snapshot))
    }

    /// The last record must be the head's, and the acknowledged one must be there.
    fn check_end(&self, acknowledged: Option<Head>) -> Result<(), StoreError> {
        let last = read::last_seq(self)?;
        let promised = acknowledged
            .map_or(Seq(0), |head| head.seq)
            .max(self.head.seq);
        if last < promised {
            return Err(self.damaged(Damage::Shorter {
                last,
                acknowledged: promised,
            }));
        }
        if self.head.seq.0 > 0 {
            self.read_from(self.head.seq)?
                .try_for_each(|record| record.map(drop))?;
        }
        match acknowledged {
            Some(head) if self.chain_at(head.seq)? != head.chain => {
                Err(self.damaged(Damage::Chain(head.seq)))
            }
            _ => Ok(()),
        }
    }

    fn chain_at(&self, seq: Seq) -> Result<Hash, StoreError> {
        if seq.0 == 0 {
            return Ok(genesis_chain(&self.identity));
        }
        read::chain_at(self, seq)
    }

    fn damaged(&self, damage: Damage) -> StoreError {
        StoreError::Damaged {
            path: self.path.clone(),
            damage,
        }
    }
}

fn write_draft(draft: &Path, identity: &[u8], genesis: Head) -> rusqlite::Result<()> {
    let mut connection = Connection::open(draft)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    let transaction = connection.transaction()?;
    transaction.execute_batch(SCHEMA)?;
    let put = "INSERT INTO meta (key, value) VALUES (?1, ?2)";
    transaction.execute(put, params!["identity", identity])?;
    transaction.execute(put, params!["head", genesis.to_bytes()])?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", FORMAT_VERSION)?;
    transaction.commit()?;
    // Closing moves the write-ahead log into the file, which can then be renamed alone.
    connection.close().map_err(|(_, error)| error)
}

fn insert_record(
    transaction: &rusqlite::Transaction<'_>,
    head: Head,
    record: &Record,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO records (seq, wall_ms, version, payload, chain)
               VALUES (?1, ?2, ?3, ?4, ?5)";
    let mut insert = transaction.prepare_cached(sql)?;
    let (seq, chain) = (head.seq.0 as i64, head.chain.0);
    insert.execute(params![
        seq,
        record.wall_ms as i64,
        record.version,
        record.payload,
        chain
    ])?;
    Ok(())
}

fn check_format(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let not_ours = |_| StoreError::NotAJournal(path.to_owned());
    match pragma("application_id") {
        Ok(APPLICATION_ID) => {}
        Err(error) if error.sqlite_error_code() != Some(rusqlite::ErrorCode::NotADatabase) => {
            return Err(sqlite_error(path)(error));
        }
        _ => return Err(StoreError::NotAJournal(path.to_owned())),
    }
    let version = pragma("user_version").map_err(sqlite_error(path))?;
    let found = u32::try_from(version).map_err(not_ours)?;
    if found == FORMAT_VERSION {
        return Ok(());
    }
    Err(StoreError::OtherVersion {
        path: path.to_owned(),
        found,
        supported: FORMAT_VERSION,
    })
}

fn read_meta(
    connection: &Connection,
    path: &Path,
    key: &'static str,
) -> Result<Vec<u8>, StoreError> {
    let sql = "SELECT value FROM meta WHERE key = ?1";
    match connection.query_row(sql, [key], |row| row.get(0)) {
        Ok(value) => Ok(value),
        Err(rusqlite::Error::QueryReturnedNoRows | rusqlite::Error::InvalidColumnType(..)) => {
            Err(StoreError::Damaged {
                path: path.to_owned(),
                damage: Damage::Meta(key),
            })
        }
        Err(error) => Err(sqlite_error(path)(error)),
    }
}

fn read_head(connection: &Connection, path: &Path) -> Result<Head, StoreError> {
    let bytes = read_meta(connection, path, "head")?;
    let damaged = || StoreError::Damaged {
        path: path.to_owned(),
        damage: Damage::Meta("head"),
    };
    Head::from_bytes(&bytes).ok_or_else(damaged)
}

fn genesis_chain(identity: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(b"hansa journal\0")
        .update(&FORMAT_VERSION.to_le_bytes())
        .update(identity);
    Hash(*hasher.finalize().as_bytes())
}

/// Covers the chain, so that a snapshot of another history does not pass for one of this.
fn snapshot_hash(snapshot: &Snapshot, chain: Hash) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(b"hansa snapshot\0")
        .update(&snapshot.seq.0.to_le_bytes());
    hasher
        .update(&snapshot.version.to_le_bytes())
        .update(&chain.0)
        .update(&snapshot.bytes);
    Hash(*hasher.finalize().as_bytes())
}

fn sqlite_error(path: &Path) -> impl Fn(rusqlite::Error) -> StoreError {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    let path = path.to_owned();
    move |source| match source.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => {
            let damage = Damage::Sqlite(source.to_string());
            StoreError::Damaged {
                path: path.clone(),
                damage,
            }
        }
        _ => StoreError::Sqlite {
            path: path.clone(),
            source,
        },
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn head_path(journal: &Path) -> PathBuf {
    journal.with_extension("head")
}
