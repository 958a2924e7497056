//! From a journal to the state that it stands for.
//!
//! Events are all there is: state comes only from applying them in order, so a start, a restart and an
//! audit see the same. Never here: writing.

use std::collections::BTreeMap;

use hansa_base::{Generation, ReplicaKey};
use hansa_protocol::{Ownership, RunSpec, State};
use hansa_store::{Journal, Seq, StoredRecord};
use hansa_wire::Recipe;
use hansa_wire::journal::{
    Entry, Events, GenerationFiles, JournalError, SnapshotState, Started, decode_entry,
    decode_snapshot,
};

use crate::error::Error;

/// Characters of a record in a message.
const SHOWN_MAX: usize = 300;

/// What a journal stands for.
#[derive(Debug)]
pub struct Replayed {
    /// How the run began.
    pub started: Started,
    /// Its recipe.
    pub recipe: Recipe,
    /// The protocol's part of it.
    pub spec: RunSpec,
    /// The state after the last record.
    pub state: State,
    /// The files of every generation.
    pub files: BTreeMap<Generation, GenerationFiles>,
    /// The last record.
    pub seq: Seq,
}

impl Replayed {
    /// Takes the first record; `None` if there is none yet.
    pub(crate) fn first(journal: &Journal) -> Result<Option<Self>, Error> {
        let Some(record) = journal.read_from(Seq(1))?.next() else {
            return Ok(None);
        };
        let record = record?;
        let Entry::Started(started) = decode(&record)? else {
            return Err(Error::Misplaced(record.seq));
        };
        let seq = record.seq;
        let (recipe, spec) = started
            .run()
            .map_err(|source| Error::Record { seq, source })?;
        let state = started.state(&spec);
        let files = BTreeMap::from([(Generation(0), started.files)]);
        Ok(Some(Self {
            started,
            recipe,
            spec,
            state,
            files,
            seq,
        }))
    }

    /// The state of a position, in words.
    #[must_use]
    pub fn owner(&self, ownership: Ownership) -> String {
        let name = |key: Option<ReplicaKey>| {
            let replica = key.and_then(|key| self.state.replica(key));
            replica.map_or_else(|| "?".to_owned(), |replica| replica.id.to_string())
        };
        let holder = |id| self.state.leases.get(&id).map(|lease| lease.key);
        let author = |no| self.state.contributions.get(&no).map(|c| c.key);
        match ownership {
            Ownership::Free => "free".to_owned(),
            Ownership::Leased(id) => format!("leased to {}", name(holder(id))),
            Ownership::Staged(no) => format!("staged by {}", name(author(no))),
            Ownership::Committed(generation, key) => {
                format!(
                    "committed by {}, in generation {generation}",
                    name(Some(key))
                )
            }
            Ownership::Quarantined => "quarantined".to_owned(),
        }
    }

    /// The state after the last record, from the newest snapshot on; `None` for an empty journal.
    pub(crate) fn load(journal: &Journal) -> Result<Option<Self>, Error> {
        let Some(mut replayed) = Self::first(journal)? else {
            return Ok(None);
        };
        match journal.latest_snapshot() {
            Ok(Some(snapshot)) => {
                let seq = snapshot.seq;
                match decode_snapshot(snapshot.version, &snapshot.bytes) {
                    Ok(SnapshotState { state, files }) => {
                        (replayed.state, replayed.files, replayed.seq) = (state, files, seq);
                    }
                    Err(error) => warn_snapshot(&error),
                }
            }
            Ok(None) => {}
            Err(error) => warn_snapshot(&error),
        }
        for record in journal.read_from(replayed.seq.next())? {
            replayed.apply(&record?, |_, _| {})?;
        }
        Ok(Some(replayed))
    }

    /// Applies one further record; `before` sees each event first, with the state before it.
    pub(crate) fn apply(
        &mut self,
        record: &StoredRecord,
        mut before: impl FnMut(&State, &hansa_protocol::Event),
    ) -> Result<(), Error> {
        let seq = record.seq;
        let Entry::Events(Events { events, files }) = decode(record)? else {
            return Err(Error::Misplaced(seq));
        };
        for event in &events {
            before(&self.state, event);
            self.state
                .apply(&self.spec, event)
                .map_err(|source| Error::Replay {
                    seq,
                    event: shown(&hansa_wire::encode(event)),
                    source,
                })?;
        }
        self.files
            .extend(files.map(|files| (files.generation, files)));
        self.seq = seq;
        Ok(())
    }
}

/// As much of a record as people want to see in a message.
pub(crate) fn shown(payload: &[u8]) -> String {
    let text = String::from_utf8_lossy(payload);
    let shown: String = text.chars().take(SHOWN_MAX).collect();
    let more = if shown.len() < text.len() { " …" } else { "" };
    shown + more
}

fn decode(record: &StoredRecord) -> Result<Entry, Error> {
    let (seq, payload) = (record.seq, &record.record.payload);
    decode_entry(record.record.version, payload).map_err(|source| Error::Record { seq, source })
}

// Records are never removed, so a snapshot that cannot be used costs time only.
fn warn_snapshot(error: &dyn std::fmt::Display) {
    tracing::warn!(%error, "the snapshot cannot be used; replaying the journal from its start");
}

/// Whether a record's error is another version's doing.
pub(crate) fn is_other_version(error: &Error) -> bool {
    matches!(
        error,
        Error::Record {
            source: JournalError::OtherVersion(_),
            ..
        }
    )
}
