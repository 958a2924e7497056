//! When a snapshot is due, and what is in one.
//!
//! A snapshot costs as much as the state is large, the journal as much as happens. So one is made when
//! a few times as many bytes were appended as the last one had: snapshots then cost a small part of what
//! the journal costs, and a start reads a few times a snapshot at the most. Never here: writing.

use std::collections::BTreeMap;

use hansa_base::Generation;
use hansa_protocol::State;
use hansa_store::{Record, Seq, Snapshot};
use hansa_wire::journal::{GenerationFiles, JOURNAL_VERSION, SnapshotState, encode_snapshot};

/// The fewest records between two snapshots.
const RECORDS_MIN: u64 = 256;
/// Bytes of records between two snapshots, in sizes of a snapshot.
const SIZES: u64 = 4;

pub(crate) struct Snapshots {
    /// The last record of the newest snapshot.
    at: Seq,
    /// Its size; 0 if this process has made none yet.
    bytes: u64,
    /// What was appended since it was begun.
    appended: u64,
    encoding: bool,
}

impl Snapshots {
    /// After a start from the snapshot at record `at`, 0 if there was none.
    pub const fn new(at: Seq) -> Self {
        Self {
            at,
            bytes: 0,
            appended: 0,
            encoding: false,
        }
    }

    pub const fn at(&self) -> Seq {
        self.at
    }

    pub fn appended(&mut self, records: &[Record]) {
        let bytes = records.iter().map(|record| record.payload.len() as u64);
        self.appended += bytes.sum::<u64>();
    }

    pub const fn is_due(&self, last: Seq) -> bool {
        let records = last.0 - self.at.0;
        let large = self.appended >= self.bytes.saturating_mul(SIZES);
        records >= RECORDS_MIN && large && !self.encoding
    }

    /// One is being encoded.
    pub const fn begun(&mut self) {
        (self.encoding, self.appended) = (true, 0);
    }

    /// One is in the journal.
    pub const fn kept(&mut self, snapshot: &Snapshot) {
        self.at = snapshot.seq;
        self.bytes = snapshot.bytes.len() as u64;
        self.encoding = false;
    }
}

pub(crate) fn snapshot(
    seq: Seq,
    state: State,
    files: BTreeMap<Generation, GenerationFiles>,
) -> Snapshot {
    Snapshot {
        seq,
        version: JOURNAL_VERSION,
        bytes: encode_snapshot(&SnapshotState { state, files }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(count: usize, bytes: usize) -> Vec<Record> {
        let record = Record {
            wall_ms: 0,
            version: JOURNAL_VERSION,
            payload: vec![0; bytes],
        };
        vec![record; count]
    }

    #[test]
    fn a_large_state_is_written_again_only_after_much_has_happened() {
        let mut snapshots = Snapshots::new(Seq(10));
        snapshots.appended(&records(256, 10));
        assert!(!snapshots.is_due(Seq(265)));
        assert!(snapshots.is_due(Seq(266)), "the first is due by number");
        snapshots.begun();
        assert!(!snapshots.is_due(Seq(9999)), "one at a time");
        let bytes = vec![0; 1000];
        let (seq, version) = (Seq(266), JOURNAL_VERSION);
        snapshots.kept(&Snapshot {
            seq,
            version,
            bytes,
        });
        snapshots.appended(&records(300, 10));
        assert!(!snapshots.is_due(Seq(566)), "3000 bytes are few");
        snapshots.appended(&records(100, 10));
        assert!(snapshots.is_due(Seq(666)));
    }
}
