//! The payload of journal records and snapshots, versioned.
//!
//! The first record says what the run is; each further one holds the events of one command, and the
//! files of a generation with the event that publishes it. So a journal alone, without its data
//! directory, can be replayed and checked. The store keeps the version beside the bytes.

use std::collections::BTreeMap;
use std::path::Path;

use hansa_base::{Generation, Hash, Timeline};
use hansa_protocol::{DigestFields, Event, Lineage, RunSpec, State};

use crate::mirror::{mirror_enum, mirror_struct};
use crate::{BadValue, Recipe, RecipeError, decode, encode};

/// The version of records and snapshots that this build writes and reads.
pub const JOURNAL_VERSION: u32 = 1;

/// A record that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum JournalError {
    /// Another version wrote it.
    #[error(
        "it was written in journal version {0}, this hansa reads version {JOURNAL_VERSION}: use the \
         hansa that began the run"
    )]
    OtherVersion(u32),
    /// It is not what this version writes.
    #[error("it cannot be read: {0}")]
    Malformed(#[from] BadValue),
    /// The recipe in it does not parse.
    #[error("its recipe cannot be used: {0}")]
    Recipe(#[from] Box<RecipeError>),
}

/// One record.
#[derive(Clone, Debug, PartialEq)]
// The large one comes once in a journal.
#[allow(clippy::large_enum_variant)]
pub enum Entry {
    /// What the run is; the first record, and only that.
    Started(Started),
    /// What one command changed.
    Events(Events),
}

/// What a run is.
#[derive(Clone, Debug, PartialEq)]
pub struct Started {
    /// The version of hansa that began it.
    pub hansa_version: String,
    /// The recipe, canonical ([`Recipe::to_toml`]).
    pub recipe: String,
    /// Positions and corpus.
    pub digest: DigestFields,
    /// The history that begins.
    pub timeline: Timeline,
    /// The key of the seals, of this data directory and its copies: secret.
    pub key: Hash,
    /// Generation 0.
    pub files: GenerationFiles,
}

/// What one command changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Events {
    /// In order.
    pub events: Vec<Event>,
    /// The files of the generation that these events publish.
    pub files: Option<GenerationFiles>,
}

/// The blobs of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationFiles {
    /// Which.
    pub generation: Generation,
    /// The f32 master weights.
    pub theta: Hash,
    /// The f32 momentum; none is all zeros.
    pub momentum: Option<Hash>,
    /// The model as it travels.
    pub model: Hash,
}

/// What replay can begin with.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotState {
    /// The machine's state.
    pub state: State,
    /// Every generation's files so far.
    pub files: BTreeMap<Generation, GenerationFiles>,
}

mirror_enum!(EntryJson = Entry {
    tuple Started(started: Started)
    tuple Events(events: Events)
});
mirror_struct!(
    StartedJson = Started {
        hansa_version: String,
        recipe: String,
        digest: DigestFields,
        timeline: Timeline,
        key: Hash,
        files: GenerationFiles,
    }
);
mirror_struct!(EventsJson = Events { events: Vec<Event>, files: Option<GenerationFiles> });
mirror_struct!(GenerationFilesJson = GenerationFiles {
    generation: Generation,
    theta: Hash,
    momentum: Option<Hash>,
    model: Hash,
});
mirror_struct!(SnapshotStateJson = SnapshotState {
    state: State,
    files: BTreeMap<Generation, GenerationFiles>,
});

impl Started {
    /// The state of the run before its second record.
    #[must_use]
    pub fn state(&self, spec: &RunSpec) -> State {
        let mut state = State::new(spec, self.files.model);
        state.lineage = Lineage::begun(self.key, self.timeline);
        state
    }

    /// The recipe and the spec of the run.
    ///
    /// # Errors
    /// If this build cannot read the recipe.
    pub fn run(&self) -> Result<(Recipe, RunSpec), JournalError> {
        let recipe = Recipe::parse(&self.recipe, Path::new("the journal's recipe"));
        let recipe = recipe.map_err(Box::new)?;
        let spec = recipe
            .run_spec_with(self.digest.clone())
            .map_err(Box::new)?;
        Ok((recipe, spec))
    }
}

/// A record's payload, in [`JOURNAL_VERSION`].
#[must_use]
pub fn encode_entry(entry: &Entry) -> Vec<u8> {
    encode(entry)
}

/// Reads a record's payload; never panics, whatever the bytes.
///
/// # Errors
/// If another version wrote it, or it is damaged.
pub fn decode_entry(version: u32, payload: &[u8]) -> Result<Entry, JournalError> {
    check_version(version)?;
    Ok(decode(payload)?)
}

/// A snapshot's bytes, in [`JOURNAL_VERSION`].
#[must_use]
pub fn encode_snapshot(snapshot: &SnapshotState) -> Vec<u8> {
    encode(snapshot)
}

/// Reads a snapshot; never panics, whatever the bytes.
///
/// # Errors
/// If another version wrote it, or it is damaged.
pub fn decode_snapshot(version: u32, bytes: &[u8]) -> Result<SnapshotState, JournalError> {
    check_version(version)?;
    Ok(decode(bytes)?)
}

fn check_version(version: u32) -> Result<(), JournalError> {
    if version == JOURNAL_VERSION {
        return Ok(());
    }
    Err(JournalError::OtherVersion(version))
}
