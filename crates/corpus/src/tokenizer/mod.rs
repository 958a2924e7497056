//! Hugging Face `tokenizer.json` files: loading one by content, and training a byte-level BPE.
//!
//! Text is only text here: a document that spells out a special token does not get its id, and no
//! special token is added. Never truncates or pads, whatever the file asks for.

mod bpe;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use hansa_base::Hash;
use tokenizers::ModelWrapper;

pub use bpe::{BpeOptions, TrainedBpe, train_bpe};

use crate::files::hash_bytes;
use crate::{Error, Result};

/// The token that ends documents, unless another is named.
pub const DEFAULT_END_OF_DOCUMENT: &str = "<|endoftext|>";

/// No tokenizer file may decompress to more.
const MAX_FILE_BYTES: u64 = 512 << 20;

/// A loaded tokenizer and the identity of its file.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    json: Vec<u8>,
    hash: Hash,
    vocab_size: u32,
    end_of_document: (String, u32),
}

impl Tokenizer {
    /// Loads a `tokenizer.json`, plain or gzip. Documents will end with `end_of_document`, by
    /// default [`DEFAULT_END_OF_DOCUMENT`].
    ///
    /// # Errors
    /// If the file cannot be read or understood, lacks that token, or tokenises at random
    /// (dropout), which would give different windows on every machine.
    pub fn load(path: &Path, end_of_document: Option<&str>) -> Result<Self> {
        Self::from_json(read_json(path)?, path, end_of_document)
    }

    /// As [`Tokenizer::load`], from a file's content; `path` is for messages.
    pub(crate) fn from_json(
        json: Vec<u8>,
        path: &Path,
        end_of_document: Option<&str>,
    ) -> Result<Self> {
        let bad = |detail: String| Error::BadTokenizer {
            path: path.to_owned(),
            detail,
        };
        let mut inner =
            tokenizers::Tokenizer::from_bytes(&json).map_err(|error| bad(error.to_string()))?;
        if let ModelWrapper::BPE(model) = inner.get_model()
            && model.dropout.is_some_and(|dropout| dropout > 0.0)
        {
            return Err(bad("it uses dropout; set `dropout` to null".to_owned()));
        }
        inner
            .with_truncation(None)
            .map_err(|error| bad(error.to_string()))?;
        inner.with_padding(None);
        inner.set_encode_special_tokens(true);
        let largest = inner.get_vocab(true).into_values().max();
        let vocab_size = largest.ok_or_else(|| bad("its vocabulary is empty".to_owned()))? + 1;
        let token = end_of_document.unwrap_or(DEFAULT_END_OF_DOCUMENT);
        let id = inner
            .token_to_id(token)
            .ok_or_else(|| Error::NoEndOfDocument {
                path: path.to_owned(),
                wanted: token.to_owned(),
                specials: special_tokens(&inner),
            })?;
        Ok(Self {
            hash: hash_bytes(&json),
            end_of_document: (token.to_owned(), id),
            inner,
            json,
            vocab_size,
        })
    }

    /// BLAKE3 of the (decompressed) `tokenizer.json`.
    #[must_use]
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// One more than the largest token id.
    #[must_use]
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// The id of the token that ends documents.
    #[must_use]
    pub fn end_of_document_id(&self) -> u32 {
        self.end_of_document.1
    }

    /// The token that ends documents, as text.
    #[must_use]
    pub fn end_of_document(&self) -> &str {
        &self.end_of_document.0
    }

    /// The (decompressed) `tokenizer.json`.
    #[must_use]
    pub fn json(&self) -> &[u8] {
        &self.json
    }

    /// A text's tokens, without an end-of-document token.
    ///
    /// # Errors
    /// If the tokenizer itself fails, such as on a character outside its vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, false);
        let encoding = encoding.map_err(|error| self.failed("tokenise", &*error))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, special ones left out.
    ///
    /// # Errors
    /// If the tokenizer itself fails.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let text = self.inner.decode(tokens, true);
        text.map_err(|error| self.failed("decode", &*error))
    }

    fn failed(&self, action: &str, error: &dyn std::error::Error) -> Error {
        Error::BadTokenizer {
            path: PathBuf::from(crate::manifest::TOKENIZER_FILE),
            detail: format!("cannot {action}: {error}"),
        }
    }
}

fn read_json(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes))
        .map_err(Error::io("read", path))?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut json = Vec::new();
    let unpacked = MultiGzDecoder::new(&bytes[..])
        .take(MAX_FILE_BYTES)
        .read_to_end(&mut json);
    unpacked.map_err(|error| Error::BadTokenizer {
        path: path.to_owned(),
        detail: format!("broken gzip: {error}"),
    })?;
    Ok(json)
}

fn special_tokens(tokenizer: &tokenizers::Tokenizer) -> String {
    let mut tokens: Vec<(u32, String)> = tokenizer
        .get_added_tokens_decoder()
        .into_iter()
        .filter(|(_, token)| token.special)
        .map(|(id, token)| (id, token.content))
        .collect();
    tokens.sort();
    match tokens.len() {
        0 => "none".to_owned(),
        _ => tokens
            .into_iter()
            .take(12)
            .map(|(_, token)| token)
            .collect::<Vec<_>>()
            .join(", "),
    }
}
