//! The queue's journal: `queue.sqlite` in the data directory, made with the first record.

use std::path::{Path, PathBuf};

use hansa_base::Hash;
use hansa_queue::{Event, State, UnixS};
use hansa_store::{Journal, Record, Seq, StoreError};
use hansa_wire::queue::{
    QUEUE_JOURNAL_VERSION, QueueRecord, decode_queue_record, encode_queue_record,
};

use crate::error::Error;
use crate::replay::shown;

/// Where the queue's journal lies in a data directory.
fn queue_path(data_dir: &Path) -> PathBuf {
    data_dir.join("queue.sqlite")
}

/// The queue's journal, made when it is first needed.
pub(crate) struct Records {
    path: PathBuf,
    run: Hash,
    journal: Option<Journal>,
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
        let state = match &journal {
            Some(journal) => replay(journal, &path, run)?,
            None => State::new(),
        };
        Ok((Self { path, run, journal }, state))
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

/// The state that a journal stands for.
fn replay(journal: &Journal, path: &Path, run: Hash) -> Result<State, Error> {
    if journal.identity() != run.0 {
        return Err(Error::OtherQueue(path.to_owned()));
    }
    let mut state = State::new();
    for stored in journal.read_from(Seq(1))? {
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
    Ok(state)
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
