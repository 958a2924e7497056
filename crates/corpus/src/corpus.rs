//! A corpus on disk, memory-mapped: windows are copied out on demand, from any thread.
//!
//! Never writes. Checks sizes on opening and every token on reading; content is `verify`'s.

use std::fs::File;
use std::path::{Path, PathBuf};

use hansa_base::Windows;
use memmap2::{Advice, Mmap};

use crate::files::with_suffix;
use crate::manifest::TOKENIZER_FILE;
use crate::{
    Damage, Error, Identity, MANIFEST_FILE, Manifest, Result, ShardRecord, Split, TokenDtype,
    Tokenizer,
};

/// An open corpus.
#[derive(Debug)]
pub struct Corpus {
    dir: PathBuf,
    manifest: Manifest,
    train: Vec<MappedShard>,
    held_out: Vec<MappedShard>,
}

#[derive(Debug)]
struct MappedShard {
    /// The split's window right after this shard.
    end: u64,
    windows: u64,
    map: Mmap,
}

impl Corpus {
    /// Opens a corpus directory. Its files must not change while it is open.
    ///
    /// # Errors
    /// If there is no readable manifest, or files are missing or of another size than it says.
    pub fn open(dir: &Path) -> Result<Self> {
        let manifest = info(dir)?;
        let map = |split| map_shards(dir, &manifest.split(split).shards);
        Ok(Self {
            train: map(Split::Train)?,
            held_out: map(Split::HeldOut)?,
            dir: dir.to_owned(),
            manifest,
        })
    }

    /// What the corpus consists of.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The fields that make two corpora the same for a run.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.manifest.identity()
    }

    /// Target tokens of a window.
    #[must_use]
    pub fn seq_len(&self) -> usize {
        self.manifest.seq_len as usize
    }

    /// Windows of one split.
    #[must_use]
    pub fn windows(&self, split: Split) -> Windows {
        self.manifest.split(split).windows
    }

    /// The path of its `tokenizer.json`.
    #[must_use]
    pub fn tokenizer_path(&self) -> PathBuf {
        self.dir.join(TOKENIZER_FILE)
    }

    /// Loads its tokenizer.
    ///
    /// # Errors
    /// If the file cannot be used, or is not the one that made the tokens.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let record = &self.manifest.tokenizer;
        let path = self.tokenizer_path();
        let tokenizer = Tokenizer::load(&path, Some(&record.end_of_document.token))?;
        if tokenizer.hash() != record.hash {
            return Err(Error::Damaged {
                dir: self.dir.clone(),
                damage: vec![Damage::Content {
                    file: record.file.clone(),
                }],
            });
        }
        Ok(tokenizer)
    }

    /// Copies train window `index` into `tokens`, which becomes `seq_len + 1` long.
    ///
    /// # Errors
    /// If there is no such window, or it holds a token that the vocabulary does not have.
    pub fn window(&self, index: u64, tokens: &mut Vec<u32>) -> Result<()> {
        self.read(Split::Train, index, tokens)
    }

    /// Copies held-out window `index` into `tokens`, which becomes `seq_len + 1` long.
    ///
    /// # Errors
    /// As [`Corpus::window`].
    pub fn held_out_window(&self, index: u64, tokens: &mut Vec<u32>) -> Result<()> {
        self.read(Split::HeldOut, index, tokens)
    }

    /// Copies one window of `split` into `tokens`, which becomes `seq_len + 1` long.
    ///
    /// # Errors
    /// As [`Corpus::window`].
    pub fn read(&self, split: Split, index: u64, tokens: &mut Vec<u32>) -> Result<()> {
        tokens.clear();
        let shards = match split {
            Split::Train => &self.train,
            Split::HeldOut => &self.held_out,
        };
        let at = shards.partition_point(|shard| shard.end <= index);
        let Some(shard) = shards.get(at) else {
            return Err(Error::NoSuchWindow {
                split,
                index,
                count: self.windows(split).0,
            });
        };
        let dtype = self.manifest.dtype;
        let in_shard = (index - (shard.end - shard.windows)) as usize;
        let start = in_shard * self.seq_len() * dtype.width();
        let bytes = &shard.map[start..start + (self.seq_len() + 1) * dtype.width()];
        decode(bytes, dtype, tokens);
        let vocab_size = self.manifest.tokenizer.vocab_size;
        match tokens.iter().find(|&&token| token >= vocab_size) {
            Some(&token) => Err(Error::TokenOutOfRange {
                split,
                index,
                token,
                vocab_size,
            }),
            None => Ok(()),
        }
    }
}

/// What the corpus in `dir` consists of, after the cheap check of [`Corpus::open`].
///
/// # Errors
/// As [`Corpus::open`].
pub fn info(dir: &Path) -> Result<Manifest> {
    let manifest = load_manifest(dir)?;
    check_sizes(dir, &manifest)?;
    Ok(manifest)
}

fn load_manifest(dir: &Path) -> Result<Manifest> {
    let path = dir.join(MANIFEST_FILE);
    if path.exists() {
        return Manifest::load(&path);
    }
    let unfinished = dir
        .extension()
        .is_some_and(|extension| extension == "partial")
        || with_suffix(dir, ".partial").exists();
    Err(Error::NotACorpus {
        path: dir.to_owned(),
        hint: if unfinished {
            "; its build was interrupted, run it again"
        } else if dir.is_dir() {
            "; name the directory that a corpus was built into"
        } else {
            ", nor is it a directory; build it or correct the path"
        },
    })
}

/// The cheap check: every file is there and has the right length.
fn check_sizes(dir: &Path, manifest: &Manifest) -> Result<()> {
    let shards = manifest
        .train
        .shards
        .iter()
        .chain(&manifest.held_out.shards);
    let mut damage: Vec<Damage> = shards.filter_map(|shard| size_damage(dir, shard)).collect();
    if !dir.join(TOKENIZER_FILE).is_file() {
        damage.push(Damage::Missing {
            file: TOKENIZER_FILE.to_owned(),
        });
    }
    if damage.is_empty() {
        return Ok(());
    }
    Err(Error::Damaged {
        dir: dir.to_owned(),
        damage,
    })
}

fn size_damage(dir: &Path, shard: &ShardRecord) -> Option<Damage> {
    let file = shard.file.clone();
    match std::fs::metadata(dir.join(&file)) {
        Err(_) => Some(Damage::Missing { file }),
        Ok(meta) if meta.len() != shard.bytes.0 => Some(Damage::Size {
            file,
            found: meta.len(),
            expected: shard.bytes.0,
        }),
        Ok(_) => None,
    }
}

fn map_shards(dir: &Path, shards: &[ShardRecord]) -> Result<Vec<MappedShard>> {
    let mut end = 0;
    let mut mapped = Vec::with_capacity(shards.len());
    for shard in shards {
        let path = dir.join(&shard.file);
        let file = File::open(&path).map_err(Error::io("open", &path))?;
        // SAFETY: the map is read-only and its bytes are only ever copied as integers, so no value
        // is invalid. Files of a finished corpus are never changed by Hansa; truncating one while
        // it is open ends the process, as the documentation of `open` warns.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io("map", &path))?;
        // Windows are visited in a random order. Advice only: a refusal costs speed, not truth.
        let _ = map.advise(Advice::Random);
        end += shard.windows.0;
        mapped.push(MappedShard {
            end,
            windows: shard.windows.0,
            map,
        });
    }
    Ok(mapped)
}

fn decode(bytes: &[u8], dtype: TokenDtype, tokens: &mut Vec<u32>) {
    match dtype {
        TokenDtype::U16 => tokens.extend(
            bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|&pair| u32::from(u16::from_le_bytes(pair))),
        ),
        TokenDtype::U32 => {
            tokens.extend(
                bytes
                    .as_chunks::<4>()
                    .0
                    .iter()
                    .map(|&four| u32::from_le_bytes(four)),
            );
        }
    }
}
