//! Reading records: every field is checked, and nothing that is missing passes for the end.

use hansa_base::Hash;
use rusqlite::types::ValueRef;
use rusqlite::{OptionalExtension, Row, params};

use super::{Head, Journal, Record, Seq, Snapshot, StoredRecord, sqlite_error};
use crate::error::{Damage, StoreError};

/// Records in order, up to the last one known when the iterator was made; ends after an error.
pub struct Records<'a> {
    journal: &'a Journal,
    done: Head,
    failed: bool,
}

impl<'a> Records<'a> {
    pub(super) fn new(journal: &'a Journal, done: Head) -> Self {
        Self {
            journal,
            done,
            failed: false,
        }
    }

    fn read_next(&mut self) -> Result<StoredRecord, StoreError> {
        let seq = self.done.seq.next();
        let (record, chain) = read_record(self.journal, seq)?
            .ok_or_else(|| self.journal.damaged(Damage::Gap(seq)))?;
        let head = self.done.after(&record);
        let last = self.journal.head;
        if head.chain != chain || (seq == last.seq && chain != last.chain) {
            return Err(self.journal.damaged(Damage::Chain(seq)));
        }
        self.done = head;
        Ok(StoredRecord { seq, record, chain })
    }
}

impl Iterator for Records<'_> {
    type Item = Result<StoredRecord, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.done.seq >= self.journal.head.seq {
            return None;
        }
        let next = self.read_next();
        self.failed = next.is_err();
        Some(next)
    }
}

/// The largest number in the table; 0 if it is empty.
pub(super) fn last_seq(journal: &Journal) -> Result<Seq, StoreError> {
    let sql = "SELECT coalesce(max(seq), 0) FROM records";
    let last = journal
        .connection
        .query_row(sql, [], |row| row.get::<_, i64>(0));
    Ok(Seq(last.map_err(sqlite_error(&journal.path))? as u64))
}

pub(super) fn chain_at(journal: &Journal, seq: Seq) -> Result<Hash, StoreError> {
    let found = read_record(journal, seq)?;
    found
        .map(|(_, chain)| chain)
        .ok_or_else(|| journal.damaged(Damage::Gap(seq)))
}

fn read_record(journal: &Journal, seq: Seq) -> Result<Option<(Record, Hash)>, StoreError> {
    let sql = "SELECT wall_ms, version, payload, chain FROM records WHERE seq = ?1";
    let query = || {
        let mut select = journal.connection.prepare_cached(sql)?;
        select
            .query_row(params![seq.0 as i64], |row| Ok(parse_record(row)))
            .optional()
    };
    match query().map_err(sqlite_error(&journal.path))? {
        None => Ok(None),
        Some(None) => Err(journal.damaged(Damage::Record(seq))),
        Some(found) => Ok(found),
    }
}

/// `None` if a column does not hold what was written: damage, not an error of SQLite's.
fn parse_record(row: &Row<'_>) -> Option<(Record, Hash)> {
    let wall_ms = integer(row, 0)?;
    let version = u32::try_from(integer(row, 1)?).ok()?;
    let payload = blob(row, 2)?.to_vec();
    Some((
        Record {
            wall_ms,
            version,
            payload,
        },
        hash(row, 3)?,
    ))
}

/// The newest snapshot and the hash stored with it, unchecked.
pub(super) fn newest_snapshot(journal: &Journal) -> Result<Option<(Snapshot, Hash)>, StoreError> {
    let sql = "SELECT seq, version, bytes, hash FROM snapshots ORDER BY seq DESC LIMIT 1";
    let parse = |row: &Row<'_>| {
        let seq = Seq(integer(row, 0)?);
        let version = u32::try_from(integer(row, 1)?).ok()?;
        let bytes = blob(row, 2)?.to_vec();
        Some((
            Snapshot {
                seq,
                version,
                bytes,
            },
            hash(row, 3)?,
        ))
    };
    let found = journal
        .connection
        .query_row(sql, [], |row| Ok(parse(row)))
        .optional();
    match found.map_err(sqlite_error(&journal.path))? {
        None => Ok(None),
        Some(None) => Err(journal.damaged(Damage::Snapshot(journal.head.seq))),
        Some(found) => Ok(found),
    }
}

// Times and numbers are stored as i64 with the bits of a u64.
fn integer(row: &Row<'_>, column: usize) -> Option<u64> {
    match row.get_ref(column) {
        Ok(ValueRef::Integer(value)) => Some(value as u64),
        _ => None,
    }
}

fn blob<'a>(row: &'a Row<'_>, column: usize) -> Option<&'a [u8]> {
    match row.get_ref(column) {
        Ok(ValueRef::Blob(bytes)) => Some(bytes),
        _ => None,
    }
}

fn hash(row: &Row<'_>, column: usize) -> Option<Hash> {
    blob(row, column)?.try_into().ok().map(Hash)
}
