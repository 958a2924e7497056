//! Trains a byte-level BPE: the same file on any machine and with any number of threads.
//!
//! The `tokenizers` crate splits text into words and loads, writes and applies what is learned; the
//! merge loop is our own because the crate's wants all text in one iterator that cannot fail,
//! counts pairs in 32 bits and tells nobody how far it is. It learns the same vocabulary (the most
//! frequent pair first, the smaller ids on a tie; a test compares). Nothing here depends on the
//! order of a hash map: words are sorted, and the queue's order is total.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::{Path, PathBuf};

use hansa_base::Hash;
use rayon::prelude::*;
use serde_json::json;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

use super::{DEFAULT_END_OF_DOCUMENT, Tokenizer};
use crate::build::{Batch, Reading, Workers, read_batches};
use crate::files::{hash_bytes, write_atomically};
use crate::input::{InputFile, InputOptions, stat_inputs};
use crate::{Error, Progress, Result, Stage, Tick};

/// The special token and the 256 bytes.
const SMALLEST_VOCAB: u32 = 257;
/// A pair seen once teaches nothing.
const MIN_PAIR_COUNT: i64 = 2;
const TICK_EVERY_MERGES: usize = 64;

/// What to train.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BpeOptions {
    /// Entries of the vocabulary, `<|endoftext|>` and the 256 bytes included. Fewer come out of a
    /// text that has no more pairs to merge.
    pub vocab_size: u32,
    /// How input files become documents.
    pub input: InputOptions,
    /// Worker threads; `None`: rayon's own pool.
    pub threads: Option<usize>,
}

/// A tokenizer that was trained and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainedBpe {
    /// Entries that the vocabulary really has.
    pub vocab_size: u32,
    /// BLAKE3 of the file.
    pub hash: Hash,
    /// Documents read.
    pub documents: u64,
}

/// Trains a byte-level BPE with the end-of-document token [`DEFAULT_END_OF_DOCUMENT`] (id 0) on
/// the text of `inputs` and writes it to `out` as a Hugging Face `tokenizer.json`. Memory grows
/// with the number of different words, not with the text.
///
/// # Errors
/// If an input cannot be read (with file and line), has no text, or `out` holds something else.
pub fn train_bpe(
    inputs: &[PathBuf],
    out: &Path,
    options: &BpeOptions,
    progress: &dyn Progress,
) -> Result<TrainedBpe> {
    options.input.check()?;
    if options.vocab_size < SMALLEST_VOCAB {
        return Err(Error::BadOption {
            name: "vocab_size",
            value: options.vocab_size.to_string(),
            expected: "at least 257 (the 256 bytes and <|endoftext|>)",
        });
    }
    let inputs = stat_inputs(inputs)?;
    let workers = Workers::start(options.threads)?;
    let (words, documents) = count_words(&inputs, options, &workers, progress)?;
    let mut learner = Learner::new(words);
    learner.learn(options.vocab_size as usize, progress);
    let vocab_size = learner.vocab.len() as u32;
    let json = learner.into_json()?;
    match std::fs::read(out) {
        Ok(present) if present == json => {}
        Ok(_) => {
            return Err(Error::OutputExists {
                path: out.to_owned(),
            });
        }
        Err(_) => write_atomically(out, &json)?,
    }
    Ok(TrainedBpe {
        vocab_size,
        hash: hash_bytes(&json),
        documents,
    })
}

type WordCounts = HashMap<String, i64>;

/// All words (byte-level alphabet) with their counts, sorted.
fn count_words(
    inputs: &[InputFile],
    options: &BpeOptions,
    workers: &Workers,
    progress: &dyn Progress,
) -> Result<(Vec<(String, i64)>, u64)> {
    let reading = Reading::new(inputs, &options.input, workers);
    let mut words = WordCounts::new();
    let mut documents = 0;
    read_batches(&reading, |batch: Batch, bytes| {
        let parts: Vec<Result<(WordCounts, u64)>> = workers.install(|| {
            let chunk = batch.documents.len().div_ceil(workers.count() * 4).max(1);
            batch
                .documents
                .par_chunks(chunk)
                .map(|chunk| {
                    let mut counts = WordCounts::new();
                    let mut used = 0;
                    for document in chunk {
                        let text =
                            document.text(&inputs[document.input].path, &options.input.field)?;
                        used += u64::from(!text.trim().is_empty());
                        add_words(&text, &mut counts)?;
                    }
                    Ok((counts, used))
                })
                .collect()
        });
        for part in parts {
            let (counts, used) = part?;
            documents += used;
            for (word, count) in counts {
                *words.entry(word).or_default() += count;
            }
        }
        progress.tick(&Tick {
            stage: Stage::CountWords,
            done: bytes,
            total: reading.total_bytes(),
            documents,
            tokens: 0,
        });
        Ok(())
    })?;
    if documents == 0 {
        return Err(Error::NoDocuments);
    }
    let mut words: Vec<_> = words.into_iter().collect();
    words.sort_unstable();
    Ok((words, documents))
}

fn add_words(text: &str, counts: &mut WordCounts) -> Result<()> {
    let mut split = PreTokenizedString::from(text);
    byte_level()
        .pre_tokenize(&mut split)
        .map_err(|error| unusable(&*error))?;
    for (word, ..) in split.get_splits(OffsetReferential::Original, OffsetType::None) {
        match counts.get_mut(word) {
            Some(count) => *count += 1,
            None => {
                counts.insert(word.to_owned(), 1);
            }
        }
    }
    Ok(())
}

fn byte_level() -> ByteLevel {
    ByteLevel::new(false, true, true)
}

fn unusable(error: &dyn std::error::Error) -> Error {
    Error::BadTokenizer {
        path: PathBuf::from("byte-level BPE"),
        detail: error.to_string(),
    }
}

type Pair = (u32, u32);

struct Word {
    symbols: Vec<u32>,
    count: i64,
}

impl Word {
    fn pairs(&self) -> impl Iterator<Item = Pair> + '_ {
        self.symbols.windows(2).map(|pair| (pair[0], pair[1]))
    }

    /// Replaces `pair` by `new` from left to right; false if it does not occur.
    fn merge(&mut self, pair: Pair, new: u32) -> bool {
        let (mut read, mut write) = (0, 0);
        while read < self.symbols.len() {
            let here = (self.symbols[read], self.symbols.get(read + 1).copied());
            let merges = here == (pair.0, Some(pair.1));
            self.symbols[write] = if merges { new } else { here.0 };
            read += if merges { 2 } else { 1 };
            write += 1;
        }
        let changed = write < read;
        self.symbols.truncate(write);
        changed
    }
}

/// The state of byte-pair encoding's training loop (Sennrich et al. 2016, on bytes as in GPT-2).
struct Learner {
    vocab: Vec<String>,
    ids: HashMap<String, u32>,
    merges: Vec<Pair>,
    words: Vec<Word>,
    counts: HashMap<Pair, i64>,
    /// Words in which a pair may occur; never misses one.
    places: HashMap<Pair, Vec<u32>>,
    /// Most frequent first, then the smaller ids; entries may be out of date.
    queue: BinaryHeap<(i64, Reverse<Pair>)>,
}

impl Learner {
    fn new(words: Vec<(String, i64)>) -> Self {
        let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        alphabet.sort_unstable();
        let vocab: Vec<String> = std::iter::once(DEFAULT_END_OF_DOCUMENT.to_owned())
            .chain(alphabet.iter().map(char::to_string))
            .collect();
        let ids: HashMap<String, u32> = (0..).zip(&vocab).map(|(id, t)| (t.clone(), id)).collect();
        let letters: HashMap<char, u32> = (1..).zip(&alphabet).map(|(id, &c)| (c, id)).collect();
        let words: Vec<Word> = words
            .into_iter()
            .map(|(word, count)| Word {
                symbols: word.chars().map(|letter| letters[&letter]).collect(),
                count,
            })
            .collect();
        let mut counts = HashMap::<Pair, i64>::new();
        let mut places = HashMap::<Pair, Vec<u32>>::new();
        for (at, word) in (0..).zip(&words) {
            for pair in word.pairs() {
                *counts.entry(pair).or_default() += word.count;
                note_place(&mut places, pair, at);
            }
        }
        let queue = counts.iter().map(|(&p, &n)| (n, Reverse(p))).collect();
        Self {
            vocab,
            ids,
            merges: Vec::new(),
            words,
            counts,
            places,
            queue,
        }
    }

    fn learn(&mut self, vocab_size: usize, progress: &dyn Progress) {
        while self.vocab.len() < vocab_size {
            let Some((queued, Reverse(pair))) = self.queue.pop() else {
                break;
            };
            let count = self.counts.get(&pair).copied().unwrap_or(0);
            if count < MIN_PAIR_COUNT {
                continue;
            }
            if count != queued {
                // A rise has queued its own entry; a fall has not.
                if count < queued {
                    self.queue.push((count, Reverse(pair)));
                }
                continue;
            }
            self.merge(pair);
            if self.merges.len().is_multiple_of(TICK_EVERY_MERGES) {
                self.tick(vocab_size, progress);
            }
        }
        self.tick(self.vocab.len(), progress);
    }

    fn merge(&mut self, pair: Pair) {
        let token = format!(
            "{}{}",
            self.vocab[pair.0 as usize], self.vocab[pair.1 as usize]
        );
        // Should another pair have spelled this token before, the two share its id.
        let new = match self.ids.get(&token) {
            Some(&id) => id,
            None => {
                let id = self.vocab.len() as u32;
                self.vocab.push(token.clone());
                self.ids.insert(token, id);
                id
            }
        };
        self.merges.push(pair);
        let mut changes = HashMap::<Pair, i64>::new();
        for at in self.places.remove(&pair).unwrap_or_default() {
            let word = &mut self.words[at as usize];
            let before: Vec<Pair> = word.pairs().collect();
            if !word.merge(pair, new) {
                continue;
            }
            for old in before {
                *changes.entry(old).or_default() -= word.count;
            }
            for now in word.pairs() {
                *changes.entry(now).or_default() += word.count;
                if now.0 == new || now.1 == new {
                    note_place(&mut self.places, now, at);
                }
            }
        }
        for (changed, by) in changes {
            let count = self.counts.entry(changed).or_default();
            *count += by;
            if by > 0 {
                self.queue.push((*count, Reverse(changed)));
            }
            if *count == 0 {
                self.counts.remove(&changed);
            }
        }
    }

    fn tick(&self, total: usize, progress: &dyn Progress) {
        progress.tick(&Tick {
            stage: Stage::Merge,
            done: self.vocab.len() as u64,
            total: total as u64,
            documents: 0,
            tokens: 0,
        });
    }

    fn into_json(self) -> Result<Vec<u8>> {
        let merges: Vec<[&str; 2]> = self
            .merges
            .iter()
            .map(|&(a, b)| [&*self.vocab[a as usize], &*self.vocab[b as usize]])
            .collect();
        let vocab: serde_json::Map<String, serde_json::Value> = (0..)
            .zip(&self.vocab)
            .map(|(id, token)| (token.clone(), json!(id as u32)))
            .collect();
        let tokenizer = json!({
            "version": "1.0",
            "added_tokens": [{
                "id": 0, "content": DEFAULT_END_OF_DOCUMENT, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            }],
            "pre_tokenizer": byte_level(),
            "decoder": byte_level(),
            "model": {"type": "BPE", "vocab": vocab, "merges": merges},
        });
        // Through the library and back: it accepts the file and writes it in its usual form.
        let library = tokenizers::Tokenizer::from_bytes(tokenizer.to_string())
            .map_err(|error| unusable(&*error))?;
        let text = library.to_string(true).map_err(|error| unusable(&*error))?;
        let json = text.into_bytes();
        Tokenizer::from_json(json, Path::new("byte-level BPE"), None).map(|it| it.json)
    }
}

fn note_place(places: &mut HashMap<Pair, Vec<u32>>, pair: Pair, word: u32) {
    let list = places.entry(pair).or_default();
    if list.last() != Some(&word) {
        list.push(word);
    }
}
