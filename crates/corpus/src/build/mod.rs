//! Builds a corpus: documents in, windows out, the same bytes whoever builds it.
//!
//! Never holds more than a few batches in memory, and never lets an unfinished corpus be taken for
//! a whole one: work happens in `OUT.partial`, the manifest is written last, a rename publishes.

mod partial;
mod read;
mod shard;

use std::path::{Path, PathBuf};

use hansa_base::{Bytes, Hash};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

pub(crate) use read::{Batch, Reading, Workers, read_batches};

use crate::files::{hash_bytes, write_atomically};
use crate::input::{InputFile, InputOptions, RawDocument, stat_inputs};
use crate::manifest::{self, TOKENIZER_FILE};
use crate::{
    EndOfDocument, Error, InputRecord, Manifest, Progress, Result, Split, Stage, Tick, TokenDtype,
    Tokenizer, TokenizerRecord,
};
use partial::{BuildState, Partial};
use read::Place;
use shard::{Layout, SplitWriter};

/// What to build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildOptions {
    /// Target tokens of a window.
    pub seq_len: u32,
    /// Which documents are held out for evaluation.
    pub held_out: HeldOut,
    /// How input files become documents.
    pub input: InputOptions,
    /// Shards have at most this many bytes (or one window). Part of the corpus' identity.
    pub shard_bytes: u64,
    /// Worker threads; `None`: rayon's own pool. Never changes the output.
    pub threads: Option<usize>,
    /// After this many bytes of text progress is made durable. Never changes the output.
    pub checkpoint_bytes: u64,
}

impl BuildOptions {
    /// The defaults for windows of `seq_len` targets: 256 MiB shards, 0.5 % held out by seed 0.
    #[must_use]
    pub fn new(seq_len: u32) -> Self {
        Self {
            seq_len,
            held_out: HeldOut {
                seed: 0,
                fraction_ppm: 5_000,
            },
            input: InputOptions::default(),
            shard_bytes: 256 << 20,
            threads: None,
            checkpoint_bytes: 256 << 20,
        }
    }
}

/// The rule that holds documents out: by a seeded hash of their text, not of their place. Copies
/// of one document then fall on the same side, so that no held-out text is trained on under another
/// line number, and the split stays the same when files are reordered or cut differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldOut {
    /// Another seed, another choice.
    pub seed: u64,
    /// The share of documents, in millionths; 0 holds nothing out.
    pub fraction_ppm: u32,
}

impl HeldOut {
    /// Whether a document with this text is held out: the first eight bytes of
    /// `BLAKE3("hansa held-out 1" ‖ seed ‖ text)`, read as a fraction, are below the share.
    #[must_use]
    pub fn holds_out(&self, text: &str) -> bool {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"hansa held-out 1");
        hasher.update(&self.seed.to_le_bytes());
        hasher.update(text.as_bytes());
        let mut bytes = [0; 8];
        hasher.finalize_xof().fill(&mut bytes);
        let scaled = (u128::from(u64::from_le_bytes(bytes)) * 1_000_000) >> 64;
        scaled < u128::from(self.fraction_ppm)
    }
}

/// Builds a corpus from `inputs`, in their order, into the new directory `out`.
///
/// An interrupted build leaves `out.partial`; the same call then goes on from its last checkpoint,
/// and a different one starts over. The result is the same either way.
///
/// # Errors
/// If an input cannot be read or parsed (with file and line), the text is too short for a window
/// of each split, an option is out of range, or `out` exists.
pub fn build(
    inputs: &[PathBuf],
    tokenizer: &Tokenizer,
    out: &Path,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<Manifest> {
    options.check()?;
    let inputs = stat_inputs(inputs)?;
    let workers = Workers::start(options.threads)?;
    let key = build_key(&inputs, tokenizer, options);
    let (partial, state) = Partial::open(out, &key)?;
    let build = Build {
        inputs: &inputs,
        tokenizer,
        options,
        workers,
        progress,
    };
    match build.run(&partial, &key, state) {
        Ok(manifest) => {
            partial.publish(&manifest)?;
            Ok(manifest)
        }
        Err(error) => {
            partial.drop_if_useless();
            Err(error)
        }
    }
}

impl BuildOptions {
    fn check(&self) -> Result<()> {
        self.input.check()?;
        let bad = |name, value: u64, expected| {
            Err(Error::BadOption {
                name,
                value: value.to_string(),
                expected,
            })
        };
        if !(1..=1 << 24).contains(&self.seq_len) {
            return bad("seq_len", self.seq_len.into(), "from 1 to 16777216");
        }
        if self.held_out.fraction_ppm >= 1_000_000 {
            let value = self.held_out.fraction_ppm.into();
            return bad("held_out.fraction_ppm", value, "below 1000000");
        }
        if self.shard_bytes == 0 {
            return bad("shard_bytes", 0, "at least 1");
        }
        Ok(())
    }
}

/// Hash of everything that decides the output bytes, inputs by name, size and time.
fn build_key(inputs: &[InputFile], tokenizer: &Tokenizer, options: &BuildOptions) -> String {
    // Debug output escapes strings, so that no two lists read the same.
    let files: Vec<_> = inputs
        .iter()
        .map(|input| (&input.path, input.bytes, input.modified_ns))
        .collect();
    let decisive = (
        manifest::FORMAT_VERSION,
        tokenizer.hash().0,
        tokenizer.end_of_document(),
        options.seq_len,
        &options.held_out,
        &options.input,
        options.shard_bytes,
        files,
    );
    hash_bytes(format!("{decisive:?}").as_bytes()).to_string()
}

struct Build<'a> {
    inputs: &'a [InputFile],
    tokenizer: &'a Tokenizer,
    options: &'a BuildOptions,
    workers: Workers,
    progress: &'a dyn Progress,
}

struct Tokenised {
    held_out: bool,
    tokens: Vec<u32>,
}

/// What changes while a build runs.
struct Writing {
    train: SplitWriter,
    held_out: SplitWriter,
    place: Place,
    inputs: Vec<InputRecord>,
    /// Bytes of text since the last checkpoint.
    unsaved_bytes: u64,
}

impl Build<'_> {
    fn run(&self, partial: &Partial, key: &str, state: Option<BuildState>) -> Result<Manifest> {
        let resumed = state.and_then(|state| self.open_writers(partial, state).ok());
        let mut writing = match resumed {
            Some(writing) => writing,
            // Nothing to go on from, or its shards are damaged or gone: start over.
            None => {
                partial.clear()?;
                self.open_writers(partial, self.fresh_state(key))?
            }
        };
        write_atomically(&partial.dir.join(TOKENIZER_FILE), self.tokenizer.json())?;
        let mut reading = Reading::new(self.inputs, &self.options.input, &self.workers);
        reading.start = writing.place;
        let checkpoint_bytes = usize::try_from(self.options.checkpoint_bytes).unwrap_or(usize::MAX);
        reading.batch_bytes = reading.batch_bytes.min(checkpoint_bytes);
        read_batches(&reading, |batch, bytes_read| {
            self.write_batch(&batch, &mut writing)?;
            writing.unsaved_bytes += batch.text_bytes as u64;
            if writing.unsaved_bytes >= self.options.checkpoint_bytes {
                writing.unsaved_bytes = 0;
                partial.save_state(&writing.state(key)?)?;
            }
            let total = reading.total_bytes();
            self.progress.tick(&writing.tick(bytes_read, total));
            Ok(())
        })?;
        self.finish(writing)
    }

    fn fresh_state(&self, key: &str) -> BuildState {
        let inputs = self.inputs.iter().map(|input| InputRecord {
            name: input.name.clone(),
            bytes: Bytes(input.bytes),
            hash: Hash::default(),
            documents: 0,
        });
        BuildState {
            key: key.to_owned(),
            inputs: inputs.collect(),
            ..BuildState::default()
        }
    }

    fn open_writers(&self, partial: &Partial, state: BuildState) -> Result<Writing> {
        let dtype = TokenDtype::for_vocab(self.tokenizer.vocab_size());
        let BuildOptions {
            seq_len,
            shard_bytes,
            ..
        } = *self.options;
        let layout = |split| Layout {
            dir: partial.dir.clone(),
            split,
            dtype,
            seq_len,
            windows_per_shard: Layout::windows_per_shard(shard_bytes, seq_len, dtype),
        };
        Ok(Writing {
            train: SplitWriter::resume(layout(Split::Train), state.train)?,
            held_out: SplitWriter::resume(layout(Split::HeldOut), state.held_out)?,
            place: state.place,
            inputs: state.inputs,
            unsaved_bytes: 0,
        })
    }

    /// Tokenises in parallel, writes in order.
    fn write_batch(&self, batch: &Batch, writing: &mut Writing) -> Result<()> {
        let tokenised: Vec<Result<Option<Tokenised>>> = self.workers.install(|| {
            batch
                .documents
                .par_iter()
                .map(|document| self.tokenise(document))
                .collect()
        });
        for (document, tokenised) in batch.documents.iter().zip(tokenised) {
            if let Some(Tokenised { held_out, tokens }) = tokenised? {
                writing.inputs[document.input].documents += 1;
                let to = if held_out {
                    &mut writing.held_out
                } else {
                    &mut writing.train
                };
                to.push(&tokens)?;
            }
            writing.place = Place {
                input: document.input,
                document: document.index + 1,
            };
        }
        for &(input, hash, bytes) in &batch.finished {
            writing.inputs[input].hash = hash;
            writing.inputs[input].bytes = Bytes(bytes);
        }
        Ok(())
    }

    /// A document's tokens and its end; `None` if it is white space only.
    fn tokenise(&self, document: &RawDocument) -> Result<Option<Tokenised>> {
        let path = &self.inputs[document.input].path;
        let text = document.text(path, &self.options.input.field)?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        let mut tokens = self.tokenizer.encode(&text)?;
        tokens.push(self.tokenizer.end_of_document_id());
        Ok(Some(Tokenised {
            held_out: self.options.held_out.holds_out(&text),
            tokens,
        }))
    }

    fn finish(&self, writing: Writing) -> Result<Manifest> {
        let mut manifest = manifest::new_manifest(
            TokenizerRecord {
                file: TOKENIZER_FILE.to_owned(),
                hash: self.tokenizer.hash(),
                vocab_size: self.tokenizer.vocab_size(),
                end_of_document: EndOfDocument {
                    token: self.tokenizer.end_of_document().to_owned(),
                    id: self.tokenizer.end_of_document_id(),
                },
            },
            self.options.seq_len,
            self.options.held_out,
            &self.options.input,
        );
        manifest.inputs = writing.inputs;
        manifest.train = writing.train.finish()?;
        manifest.held_out = writing.held_out.finish()?;
        if manifest.train.documents + manifest.held_out.documents == 0 {
            return Err(Error::NoDocuments);
        }
        let needs_held_out = self.options.held_out.fraction_ppm > 0;
        for (split, needed) in [(Split::Train, true), (Split::HeldOut, needs_held_out)] {
            let record = manifest.split(split);
            if needed && record.windows.0 == 0 {
                return Err(Error::TooFewTokens {
                    split,
                    tokens: record.tokens.0,
                    needed: u64::from(self.options.seq_len) + 1,
                });
            }
        }
        Ok(manifest)
    }
}

impl Writing {
    fn state(&mut self, key: &str) -> Result<BuildState> {
        Ok(BuildState {
            key: key.to_owned(),
            place: self.place,
            inputs: self.inputs.clone(),
            train: self.train.checkpoint()?.clone(),
            held_out: self.held_out.checkpoint()?.clone(),
        })
    }

    fn tick(&self, done: u64, total: u64) -> Tick {
        Tick {
            stage: Stage::Tokenise,
            done,
            total,
            documents: self.inputs.iter().map(|input| input.documents).sum(),
            tokens: (self.train.tokens() + self.held_out.tokens()).0,
        }
    }
}
