//! Text to windows on disk, and memory-mapped reading of them.
//!
//! ```text
//! files ─► documents ─► tokens ─┬─► train stream    ─► windows ─► train-00000.bin …
//!   (input)     (build, rayon)  └─► held-out stream ─► windows ─► held-out-00000.bin …
//!                                                      manifest.json, tokenizer.json
//! ```
//!
//! A stream is every document's tokens followed by the end-of-document token, in input order. A
//! window is `seq_len + 1` consecutive tokens; windows start every `seq_len` tokens, so the last
//! token of one is the first of the next, and a shard of `n` windows is `n · seq_len + 1` raw
//! little-endian tokens.
//!
//! This crate never prints, never reaches the network, and never leaves behind a half-written
//! directory that opens as a corpus.

mod build;
mod corpus;
mod error;
mod files;
mod input;
mod manifest;
mod progress;
mod tokenizer;
mod unigram;
mod verify;

pub use build::{BuildOptions, HeldOut, build};
pub use corpus::{Corpus, info};
pub use error::{Damage, Error, Result};
pub use input::InputOptions;
pub use manifest::{
    EndOfDocument, FORMAT_VERSION, Identity, InputRecord, MANIFEST_FILE, Manifest, ShardRecord,
    Split, SplitRecord, TokenDtype, TokenizerRecord,
};
pub use progress::{Progress, Quiet, Stage, Tick};
pub use tokenizer::{BpeOptions, DEFAULT_END_OF_DOCUMENT, Tokenizer, TrainedBpe, train_bpe};
pub use unigram::unigram_perplexity;
pub use verify::{Verified, verify};
