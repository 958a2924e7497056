//! The queue's journal: `queue.sqlite` in the data directory, made with the first record.

use std::path::{Path, PathBuf};

use hansa_base::Hash;
use hansa_queue::{Event, State, UnixS};
use hansa_store::{Journal, Record, Seq, Snapshot, StoreError};
use hansa_wire::queue::{
    QUEUE_JOURNAL_VERSION, QueueRecord, decode_queue_record, decode_queue_snapshot,
    encode_queue_record, encode_queue_snapshot,
};

use crate::error::Error;
use crate::replay::shown;
use crate::snapshots::Snapshots;

/// Where the queue's journal lies in a data directory.
fn queue_path(data_dir: &Path) -> PathBuf {
    data_dir.join("queue.sqlite")
}

/// The queue's journal, made when it is first needed.
pub(crate) struct Records {
    path: PathBuf,
    run: Hash,
    journal: Option<Journal>,
    snapshots: Snapshots,
}

impl Records {
    /// Opens the journal of a data directory, and the state that it stands for.
    pub fn open(data_dir: &Path, run: Hash) -> Result<(Self, State), Error> {
        let path = queue_path(data_dir);
        let journal = match Journal::open(&path) {
            Ok(journal) => Some(journal),
            Err(StoreError::NoJournal(_)) => None,
            Err(error) => return Err(error.into()),
        };
        let (state, at) = match &journal {
            Some(journal) => replay(journal, &path, run)?,
            None => (State::new(), Seq(0)),
        };
        let records = Self {
            path,
            run,
            journal,
            snapshots: Snapshots::new(at),
        };
        Ok((records, state))
    }

    /// Makes events durable, in one transaction.
    pub fn append(&mut self, records: &[Record]) -> Result<(), Error> {
        if records.is_empty() {
            return Ok(());
        }
        let journal = match self.journal.take() {
            Some(journal) => self.journal.insert(journal),
            None => self
                .journal
                .insert(Journal::create(&self.path, &self.run.0)?),
        };
        journal.append_batch(records)?;
        self.snapshots.appended(records);
        Ok(())
    }

    /// Writes a snapshot of the state after the last record, if one is due or `now`: the next start then
    /// reads from there. A queue's state is small, so this needs no thread of its own.
    pub fn snapshot(&mut self, state: &State, now: bool) -> Result<(), Error> {
        let Some(journal) = &mut self.journal else {
            return Ok(());
        };
        let seq = journal.last_seq();
        if seq == self.snapshots.at() || !(now || self.snapshots.is_due(seq)) {
            return Ok(());
        }
        self.snapshots.begun();
        let snapshot = Snapshot {
            seq,
            version: QUEUE_JOURNAL_VERSION,
            bytes: encode_queue_snapshot(state),
        };
        journal.put_snapshot(&snapshot)?;
        self.snapshots.kept(&snapshot);
        Ok(())
    }
}

/// A record of events of one moment.
pub(crate) fn record(at: UnixS, events: Vec<Event>) -> Record {
    Record {
        wall_ms: at.0.saturating_mul(1000),
        version: QUEUE_JOURNAL_VERSION,
        payload: encode_queue_record(&QueueRecord { at, events }),
    }
}

/// The state that a journal stands for, and the record of the snapshot that it was read from.
fn replay(journal: &Journal, path: &Path, run: Hash) -> Result<(State, Seq), Error> {
    if journal.identity() != run.0 {
        return Err(Error::OtherQueue(path.to_owned()));
    }
    let (mut state, at) = begin(journal);
    apply(journal, &mut state, at)?;
    Ok((state, at))
}

/// Applies the records after one.
fn apply(journal: &Journal, state: &mut State, after: Seq) -> Result<(), Error> {
    for stored in journal.read_from(after.next())? {
        let stored = stored?;
        let (seq, payload) = (stored.seq, &stored.record.payload);
        let unusable = |why: String| Error::QueueRecord {
            seq,
            why,
            record: shown(payload),
        };
        let record = decode_queue_record(stored.record.version, payload);
        let QueueRecord { at, events } = record.map_err(|error| unusable(error.to_string()))?;
        for event in &events {
            let applied = state.apply(at, event);
            applied.map_err(|misfit| unusable(misfit.to_string()))?;
        }
    }
    Ok(())
}

/// The newest snapshot. One that cannot be read costs time only: the records are all there.
fn begin(journal: &Journal) -> (State, Seq) {
    let warn = |why: &dyn std::fmt::Display| {
        tracing::warn!(%why, "cannot use the queue's snapshot: replaying all records");
    };
    match journal.latest_snapshot() {
        Ok(None) => {}
        Ok(Some(snapshot)) => match decode_queue_snapshot(snapshot.version, &snapshot.bytes) {
            Ok(state) => return (state, snapshot.seq),
            Err(error) => warn(&error),
        },
        Err(error) => warn(&error),
    }
    (State::new(), Seq(0))
}

/// Copies the queue's journal of a data directory beside a served or dead coordinator; `to` gets its
/// place from the number of records. `None` if there is none.
pub(crate) fn copy_queue(
    data_dir: &Path,
    to: impl Fn(u64) -> PathBuf,
) -> Result<Option<(u64, String)>, Error> {
    let journal = match Journal::open_read_only(&queue_path(data_dir)) {
        Ok(journal) => journal,
        Err(StoreError::NoJournal(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let records = journal.last_seq().0;
    journal.copy_to(&to(records))?;
    Ok(Some((records, journal.chain().to_string())))
}

/// The queue of a restored run: that of the backup, if it had one, and a record that skips the intents
/// which the lost history may have made since: their jobs may still be in some queue.
pub(crate) fn restore_queue(
    from: Option<(&Path, &str)>,
    data_dir: &Path,
    run: Hash,
    at: UnixS,
) -> Result<(), Error> {
    let path = queue_path(data_dir);
    if let Some((from, chain)) = from {
        let source = Journal::open_read_only(from)?;
        if source.chain().to_string() != chain {
            return Err(Error::BackupList {
                path: from.to_owned(),
                why: "it is not the queue's journal that is listed".to_owned(),
            });
        }
        source.copy_to(&path)?;
    }
    let (mut records, state) = Records::open(data_dir, run)?;
    let event = Event::Restored {
        next_intent: state.after_a_restore(),
    };
    records.append(&[record(at, vec![event])])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use hansa_queue::{Report, Stamped};

    /// What a site process says of a controller that comes and goes.
    fn said(seq: u64) -> Event {
        let what = "squeue".into();
        let report = match seq % 3 {
            0 => Report::Recovered { what },
            _ => Report::Trouble {
                what,
                text: format!("outage {seq}").as_str().into(),
            },
        };
        let at = UnixS(1_764_000_000 + seq);
        Event::Reported {
            site: "lumi".parse().unwrap(),
            spool: "spool".into(),
            stamped: Stamped { seq, at, report },
        }
    }

    #[test]
    fn a_start_from_a_snapshot_is_a_start_from_the_first_record() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Records::open(folder.path(), Hash([7; 32])).unwrap();
        let (mut records, mut state) = open();
        for seq in 1..=400 {
            let (at, event) = (UnixS(1_764_000_000 + seq), said(seq));
            state.apply(at, &event).unwrap();
            records.append(&[record(at, vec![event])]).unwrap();
            records.snapshot(&state, false).unwrap();
        }
        // Killed here: no snapshot of the end.
        drop(records);
        let (records, loaded) = open();
        let at = records.snapshots.at();
        assert!(Seq(0) < at && at < Seq(400), "{at}");
        assert_eq!(loaded, state);
        let mut replayed = State::new();
        apply(records.journal.as_ref().unwrap(), &mut replayed, Seq(0)).unwrap();
        assert_eq!(replayed, state);
    }
}
