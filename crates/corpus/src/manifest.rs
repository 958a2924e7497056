//! What a corpus consists of: `manifest.json`, written last, and the identity drawn from it.
//!
//! A manifest can be read where the shards are not (a coordinator has no corpus). It names no path
//! and no clock time, so that the same corpus has the same manifest on every machine.

use std::fmt;
use std::path::Path;

use hansa_base::{Bytes, Hash, Tokens, Windows};
use serde::{Deserialize, Serialize};

use crate::build::HeldOut;
use crate::{Error, Result};

/// The manifest's name in the corpus directory.
pub const MANIFEST_FILE: &str = "manifest.json";
/// The version of manifest and shards that this crate writes and reads.
pub const FORMAT_VERSION: u32 = 1;
pub(crate) const TOKENIZER_FILE: &str = "tokenizer.json";
const FORMAT: &str = "hansa-corpus";

/// Everything about a corpus but its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub(crate) format: String,
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// The tokenizer that made the tokens.
    pub tokenizer: TokenizerRecord,
    /// How one token is stored.
    pub dtype: TokenDtype,
    /// Target tokens of a window.
    pub seq_len: u32,
    /// The windows that are leased and trained on.
    pub train: SplitRecord,
    /// The windows for evaluation only.
    pub held_out: SplitRecord,
    /// How held-out documents were chosen.
    pub held_out_rule: HeldOut,
    /// The JSON field that held the text.
    pub text_field: String,
    /// The size at which plain-text files were cut into documents.
    pub text_document_bytes: Option<usize>,
    /// The text files, in order.
    pub inputs: Vec<InputRecord>,
}

/// Which part of a corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Split {
    /// Leased and trained on.
    Train,
    /// For evaluation only.
    HeldOut,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Train => "train",
            Self::HeldOut => "held-out",
        })
    }
}

/// How one token is stored, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenDtype {
    /// Two bytes, for vocabularies of up to 65,536 entries.
    U16,
    /// Four bytes.
    U32,
}

impl TokenDtype {
    /// The smallest that holds every token of a vocabulary.
    #[must_use]
    pub fn for_vocab(vocab_size: u32) -> Self {
        if vocab_size <= 1 << 16 {
            Self::U16
        } else {
            Self::U32
        }
    }

    /// Bytes of one token.
    #[must_use]
    pub fn width(self) -> usize {
        match self {
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }

    /// `u16` or `u32`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::U16 => "u16",
            Self::U32 => "u32",
        }
    }
}

/// The tokenizer of a corpus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerRecord {
    /// Its name in the corpus directory.
    pub file: String,
    /// BLAKE3 of that file.
    #[serde(with = "hex")]
    pub hash: Hash,
    /// One more than the largest token id.
    pub vocab_size: u32,
    /// The token that ends documents.
    pub end_of_document: EndOfDocument,
}

/// The token that ends documents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndOfDocument {
    /// As text.
    pub token: String,
    /// Its id.
    pub id: u32,
}

/// The windows of one split.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitRecord {
    /// Windows in all shards.
    #[serde(with = "windows")]
    pub windows: Windows,
    /// Tokens of the stream, end-of-document tokens and the tail too short for a window included.
    #[serde(with = "tokens")]
    pub tokens: Tokens,
    /// Documents in the stream.
    pub documents: u64,
    /// The files, in order of their windows.
    pub shards: Vec<ShardRecord>,
}

/// One file of windows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardRecord {
    /// Its name in the corpus directory.
    pub file: String,
    /// Its windows.
    #[serde(with = "windows")]
    pub windows: Windows,
    /// Its length: `(windows · seq_len + 1) · width`.
    #[serde(with = "bytes")]
    pub bytes: Bytes,
    /// BLAKE3 of the file.
    #[serde(with = "hex")]
    pub hash: Hash,
}

/// One text file that went into a corpus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputRecord {
    /// The last part of its path.
    pub name: String,
    /// Its length as stored (compressed).
    #[serde(with = "bytes")]
    pub bytes: Bytes,
    /// BLAKE3 of the file as stored.
    #[serde(with = "hex")]
    pub hash: Hash,
    /// Documents taken from it (those with nothing but white space are left out).
    pub documents: u64,
}

/// What must be equal for two sites to train on the same corpus. Each field has a name, so that a
/// refusal can say which is the first to differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// [`Manifest::version`].
    pub format_version: u32,
    /// BLAKE3 of `tokenizer.json`.
    pub tokenizer_hash: Hash,
    /// How one token is stored.
    pub dtype: TokenDtype,
    /// Target tokens of a window.
    pub seq_len: u32,
    /// Windows that are leased.
    pub train_windows: Windows,
    /// Windows for evaluation.
    pub held_out_windows: Windows,
    /// BLAKE3 of each train shard, in order.
    pub train_shard_hashes: Vec<Hash>,
    /// BLAKE3 of each held-out shard, in order.
    pub held_out_shard_hashes: Vec<Hash>,
}

#[derive(Deserialize)]
struct Header {
    format: String,
    version: u64,
}

impl Manifest {
    /// Reads and checks a manifest; the shards need not be there.
    ///
    /// # Errors
    /// If the file cannot be read, is of another version, or contradicts itself.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).map_err(Error::io("read", path))?;
        Self::parse(&text, path)
    }

    /// As [`Manifest::load`], from a file's content; `path` is for messages.
    ///
    /// # Errors
    /// If it is of another version, or contradicts itself.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self> {
        let bad = |detail: String| Error::BadManifest {
            path: path.to_owned(),
            detail,
        };
        let header: Header = serde_json::from_slice(text).map_err(|e| bad(e.to_string()))?;
        if header.format != FORMAT {
            return Err(bad(format!(
                "its format is `{}`, not `{FORMAT}`",
                header.format
            )));
        }
        if header.version != u64::from(FORMAT_VERSION) {
            return Err(Error::ManifestVersion {
                path: path.to_owned(),
                found: header.version,
                expected: FORMAT_VERSION,
            });
        }
        let manifest: Self = serde_json::from_slice(text).map_err(|e| bad(e.to_string()))?;
        manifest.check().map_err(bad)?;
        Ok(manifest)
    }

    /// The fields that make two corpora the same for a run.
    #[must_use]
    pub fn identity(&self) -> Identity {
        let hashes = |split: &SplitRecord| split.shards.iter().map(|shard| shard.hash).collect();
        Identity {
            format_version: self.version,
            tokenizer_hash: self.tokenizer.hash,
            dtype: self.dtype,
            seq_len: self.seq_len,
            train_windows: self.train.windows,
            held_out_windows: self.held_out.windows,
            train_shard_hashes: hashes(&self.train),
            held_out_shard_hashes: hashes(&self.held_out),
        }
    }

    /// One split's record.
    #[must_use]
    pub fn split(&self, split: Split) -> &SplitRecord {
        match split {
            Split::Train => &self.train,
            Split::HeldOut => &self.held_out,
        }
    }

    /// Tokens of both streams.
    #[must_use]
    pub fn total_tokens(&self) -> Tokens {
        self.train.tokens + self.held_out.tokens
    }

    /// Bytes of all shards.
    #[must_use]
    pub fn total_bytes(&self) -> Bytes {
        let shards = self.train.shards.iter().chain(&self.held_out.shards);
        shards.map(|shard| shard.bytes).sum()
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        // Serialising plain structs of strings and integers cannot fail.
        let mut json = serde_json::to_vec_pretty(self).unwrap_or_default();
        json.push(b'\n');
        json
    }

    fn check(&self) -> Result<(), String> {
        if self.seq_len == 0 {
            return Err("seq_len is 0".to_owned());
        }
        if self.tokenizer.file != TOKENIZER_FILE {
            return Err(format!("the tokenizer's file is not `{TOKENIZER_FILE}`"));
        }
        let vocab_size = self.tokenizer.vocab_size;
        if TokenDtype::for_vocab(vocab_size) != self.dtype {
            return Err(format!(
                "{vocab_size} tokens are not stored as {}",
                self.dtype.name()
            ));
        }
        for split in [Split::Train, Split::HeldOut] {
            self.check_split(split)?;
        }
        Ok(())
    }

    fn check_split(&self, split: Split) -> Result<(), String> {
        let record = self.split(split);
        let mut windows = 0_u64;
        for (number, shard) in record.shards.iter().enumerate() {
            // Also keeps a foreign manifest from naming files elsewhere.
            let file = shard_file(split, number);
            if shard.file != file {
                return Err(format!("shard `{}` should be `{file}`", shard.file));
            }
            let bytes = shard_bytes(shard.windows.0, self.seq_len, self.dtype);
            if bytes != Some(shard.bytes.0) || shard.windows.0 == 0 {
                return Err(format!(
                    "the size of {file} does not follow from its windows"
                ));
            }
            windows = windows.saturating_add(shard.windows.0);
        }
        if windows != record.windows.0 {
            return Err(format!(
                "the {split} shards hold {windows} windows, not {}",
                record.windows
            ));
        }
        Ok(())
    }
}

/// The name of a shard.
pub(crate) fn shard_file(split: Split, number: usize) -> String {
    format!("{split}-{number:05}.bin")
}

/// The length of a shard, unless it is beyond all numbers.
pub(crate) fn shard_bytes(windows: u64, seq_len: u32, dtype: TokenDtype) -> Option<u64> {
    windows
        .checked_mul(u64::from(seq_len))?
        .checked_add(1)?
        .checked_mul(dtype.width() as u64)
}

pub(crate) fn new_manifest(
    tokenizer: TokenizerRecord,
    seq_len: u32,
    held_out_rule: HeldOut,
    input: &crate::InputOptions,
) -> Manifest {
    Manifest {
        format: FORMAT.to_owned(),
        version: FORMAT_VERSION,
        dtype: TokenDtype::for_vocab(tokenizer.vocab_size),
        tokenizer,
        seq_len,
        train: SplitRecord::default(),
        held_out: SplitRecord::default(),
        held_out_rule,
        text_field: input.field.clone(),
        text_document_bytes: input.text_document_bytes,
        inputs: Vec::new(),
    }
}

/// Hashes as hexadecimal text.
mod hex {
    use hansa_base::Hash;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(hash: &Hash, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(hash)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Hash, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Counts as plain numbers.
macro_rules! plain_number {
    ($module:ident, $count:ident) => {
        mod $module {
            use hansa_base::$count;
            use serde::{Deserialize, Deserializer, Serializer};

            pub fn serialize<S: Serializer>(count: &$count, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_u64(count.0)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$count, D::Error> {
                u64::deserialize(from).map($count)
            }
        }
    };
}
plain_number!(windows, Windows);
plain_number!(tokens, Tokens);
plain_number!(bytes, Bytes);
