//! All merges of a run, done again from generation 0 on with what the journal says and the kept
//! contributions, and compared with every generation that was published. Nothing that a merge of the
//! run itself has written is read, so an error could not hide by being carried along.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;

use hansa_coordinator::merge::{MergeInputs, MergeOptions, Merged, encode_model, merge_blobs};
use hansa_outer::{Metadata, OuterStep};
use hansa_protocol::{CloseRecord, Event};
use hansa_store::{Blob, BlobStore, DataDir, Journal, Seq};
use hansa_wire::Recipe;
use hansa_wire::journal::{Entry, GenerationFiles, Started, decode_entry};

/// What was found on the way.
pub struct Replayed {
    pub generations: u64,
    pub contributions: usize,
    pub rounds_with_several: usize,
    /// How often what happened.
    pub events: BTreeMap<String, usize>,
    /// The last generation's master weights, as a file's bytes.
    pub weights: Vec<u8>,
}

/// Replays the journal of `data`; `scratch` is an empty directory for the generations.
pub fn replay(data: &Path, scratch: &Path) -> Replayed {
    let (kept, new) = (
        DataDir::lock(data).unwrap(),
        DataDir::lock(scratch).unwrap(),
    );
    let stores = Stores {
        kept: BlobStore::open(&kept).unwrap(),
        new: BlobStore::open(&new).unwrap(),
    };
    let journal = Journal::open_read_only(&DataDir::journal_path(data)).unwrap();
    let mut entries = journal.read_from(Seq(1)).unwrap().map(|stored| {
        let record = stored.unwrap().record;
        decode_entry(record.version, &record.payload).unwrap()
    });
    let Some(Entry::Started(started)) = entries.next() else {
        panic!("the first record does not say what the run is");
    };
    let mut replayed = Replayed {
        generations: 0,
        contributions: 0,
        rounds_with_several: 0,
        events: BTreeMap::new(),
        weights: Vec::new(),
    };
    let mut run = Run::begin(&started, stores);
    for entry in entries {
        let Entry::Events(entry) = entry else {
            panic!("the run begins twice");
        };
        for event in &entry.events {
            *replayed.events.entry(name(event)).or_default() += 1;
            if let Event::Closed(record) = event {
                run.closed = Some(record.clone());
            }
            if let Event::Published { manifest, .. } = event {
                let record = run.closed.take().unwrap();
                let published = entry.files.unwrap();
                assert_eq!(*manifest, published.model);
                replayed.generations += 1;
                replayed.contributions += record.contributions.len();
                replayed.rounds_with_several += usize::from(record.contributions.len() > 1);
                run.merge(&record, &published);
            }
        }
    }
    replayed.weights = std::fs::read(run.theta.path()).unwrap();
    replayed
}

struct Stores {
    kept: BlobStore,
    new: BlobStore,
}

struct Run {
    recipe: Recipe,
    id: String,
    stores: Stores,
    theta: Blob,
    momentum: Option<Blob>,
    closed: Option<CloseRecord>,
}

impl Run {
    fn begin(started: &Started, stores: Stores) -> Self {
        let (recipe, spec) = started.run().unwrap();
        let theta = open(&stores.kept, started.files.theta);
        let id = spec.run.to_string();
        let (dtype, chunk) = (recipe.exchange.model, recipe.exchange.chunk_bytes());
        let model = encode_model(&stores.new, &theta, dtype, &metadata(&id, 0), chunk).unwrap();
        assert_eq!(model.hash(), started.files.model, "generation 0");
        Self {
            recipe,
            id,
            stores,
            theta,
            momentum: None,
            closed: None,
        }
    }

    /// One round, with other threads and buffers than the coordinator's.
    fn merge(&mut self, record: &CloseRecord, published: &GenerationFiles) {
        let contributions = record
            .contributions
            .iter()
            .map(|closed| (open(&self.stores.kept, closed.payload), closed.tokens));
        let contributions: Vec<_> = contributions.collect();
        let inputs = MergeInputs {
            theta: &self.theta,
            momentum: self.momentum.as_ref(),
            contributions: &contributions,
            step: match record.step {
                hansa_protocol::OuterStep::Nesterov { lr, momentum } => {
                    OuterStep::Nesterov { lr, momentum }
                }
                hansa_protocol::OuterStep::Adopt { momentum } => OuterStep::Adopt { momentum },
            },
            codec: self.recipe.exchange.contribution,
            model_dtype: self.recipe.exchange.model,
            metadata: metadata(&self.id, published.generation.0),
        };
        let options = MergeOptions {
            threads: NonZeroUsize::MIN,
            buffer_bytes_per_thread: 1,
            chunk_bytes: self.recipe.exchange.chunk_bytes(),
        };
        let merged = merge_blobs(&self.stores.new, &inputs, &options).unwrap();
        let Merged {
            theta,
            momentum,
            model,
            ..
        } = merged;
        let found = GenerationFiles {
            generation: record.base.next(),
            theta: theta.hash(),
            momentum: Some(momentum.hash()),
            model: model.hash(),
        };
        assert_eq!(found, *published, "merged again, it is another generation");
        // What was served under these hashes must have their bytes, too.
        for hash in [published.theta, published.model] {
            open(&self.stores.kept, hash);
        }
        (self.theta, self.momentum) = (theta, Some(momentum));
    }
}

/// Opens a blob, every byte of which is as its name says.
fn open(store: &BlobStore, hash: hansa_base::Hash) -> Blob {
    let blob = store.open_blob(hash).unwrap();
    blob.verify().unwrap();
    blob
}

/// The strings in the header of a generation's files.
fn metadata(run: &str, generation: u64) -> Metadata {
    Metadata::from([
        ("format".to_owned(), "pt".to_owned()),
        ("hansa_generation".to_owned(), generation.to_string()),
        ("hansa_run".to_owned(), run.to_owned()),
    ])
}

/// An event's name, with its reason where it has one.
fn name(event: &Event) -> String {
    match event {
        Event::Freed { cause, .. } => format!("freed: {cause}"),
        Event::Left { reason, .. } => format!("left: {reason}"),
        Event::Refused { because, .. } => format!("refused: {because}"),
        Event::Registered {
            inherited: Some(_), ..
        } => "registered, inheriting a lease".to_owned(),
        other => {
            let text = format!("{other:?}");
            let end = text.find(|c: char| !c.is_alphanumeric());
            text[..end.unwrap_or(text.len())].to_lowercase()
        }
    }
}
