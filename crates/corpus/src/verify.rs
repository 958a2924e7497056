//! Hashes every file of a corpus again and compares with its manifest.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;

use hansa_base::{Bytes, Hash};
use rayon::prelude::*;

use crate::{Damage, Error, Manifest, Progress, Result, Stage, Tick, info};

const READ_BYTES: usize = 1 << 20;

/// A corpus that matches its manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The manifest.
    pub manifest: Manifest,
    /// Files hashed.
    pub files: usize,
    /// Bytes hashed.
    pub bytes: Bytes,
}

/// Hashes all shards and the tokenizer of the corpus in `dir`, on rayon's pool.
///
/// # Errors
/// Names every file that is missing or differs; or the manifest or a file cannot be read.
pub fn verify(dir: &Path, progress: &dyn Progress) -> Result<Verified> {
    let manifest = info(dir)?;
    let shards = manifest
        .train
        .shards
        .iter()
        .chain(&manifest.held_out.shards);
    let mut files: Vec<(&str, Hash)> = shards.map(|it| (it.file.as_str(), it.hash)).collect();
    files.push((&manifest.tokenizer.file, manifest.tokenizer.hash));
    let meter = Meter {
        progress,
        total: manifest.total_bytes().0,
        done: Mutex::new(0),
    };
    let found: Vec<Result<Hash>> = files
        .par_iter()
        .map(|(file, _)| hash_file(&dir.join(file), &meter))
        .collect();
    let mut damage = Vec::new();
    for ((file, expected), found) in files.iter().zip(found) {
        if found? != *expected {
            damage.push(Damage::Content {
                file: (*file).to_owned(),
            });
        }
    }
    if !damage.is_empty() {
        return Err(Error::Damaged {
            dir: dir.to_owned(),
            damage,
        });
    }
    let files = files.len();
    let bytes = Bytes(meter.total);
    Ok(Verified {
        manifest,
        files,
        bytes,
    })
}

struct Meter<'a> {
    progress: &'a dyn Progress,
    total: u64,
    done: Mutex<u64>,
}

impl Meter<'_> {
    fn add(&self, bytes: u64) {
        // The lock also keeps ticks in order. Poison: another thread's panic ends the work anyway.
        let Ok(mut done) = self.done.lock() else {
            return;
        };
        *done += bytes;
        self.progress.tick(&Tick {
            stage: Stage::Verify,
            done: (*done).min(self.total),
            total: self.total,
            documents: 0,
            tokens: 0,
        });
    }
}

fn hash_file(path: &Path, meter: &Meter<'_>) -> Result<Hash> {
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let count = file.read(&mut buffer).map_err(Error::io("read", path))?;
        if count == 0 {
            return Ok(Hash(*hasher.finalize().as_bytes()));
        }
        hasher.update(&buffer[..count]);
        meter.add(count as u64);
    }
}
