//! The corpus is hashed before it is trusted, but not at every restart.
//!
//! A job that starts after hours in a queue must not spend its first minutes on reading terabytes
//! again. What was hashed is written down with each file's size and time; while those stay the same,
//! so do the bytes, as far as anything but malice goes.

use std::path::Path;
use std::time::UNIX_EPOCH;

use hansa_base::{Hash, Windows};
use hansa_corpus::{Corpus, MANIFEST_FILE, Manifest, Progress};
use hansa_protocol::{BlockSpace, DigestFields, RunSpec, ShardIdentity};
use serde::{Deserialize, Serialize};

use crate::files;

const VERSION: u32 = 1;

#[derive(PartialEq, Serialize, Deserialize)]
struct Marker {
    version: u32,
    manifest: String,
    files: Vec<FileStamp>,
}

#[derive(PartialEq, Serialize, Deserialize)]
struct FileStamp {
    name: String,
    bytes: u64,
    modified_ns: u64,
}

/// Opens the corpus in `dir`, after hashing all of it unless `marker` says that this was done.
///
/// # Errors
/// What [`hansa_corpus::verify`] and [`Corpus::open`] find.
pub(crate) fn open_checked(
    dir: &Path,
    marker: &Path,
    progress: &dyn Progress,
) -> hansa_corpus::Result<Corpus> {
    let corpus = Corpus::open(dir)?;
    let stamp = stamp(dir, corpus.manifest());
    let known = std::fs::read(marker).ok();
    let known = known.and_then(|text| serde_json::from_slice::<Marker>(&text).ok());
    if known.is_some() && known == stamp {
        return Ok(corpus);
    }
    hansa_corpus::verify(dir, progress)?;
    let text = stamp.and_then(|stamp| serde_json::to_vec_pretty(&stamp).ok());
    if let Some(text) = text {
        // Without the marker the next start takes longer, that is all.
        if let Err(error) = files::write_durably(marker, &text) {
            tracing::warn!(%error, "cannot note that the corpus was checked");
        }
    }
    Ok(corpus)
}

/// `None` if a file's metadata cannot be had: then nothing is taken for checked.
fn stamp(dir: &Path, manifest: &Manifest) -> Option<Marker> {
    let shards = manifest
        .train
        .shards
        .iter()
        .chain(&manifest.held_out.shards);
    let names = shards.map(|shard| shard.file.as_str());
    let names = names.chain([manifest.tokenizer.file.as_str()]);
    let files = names.map(|name| file_stamp(dir, name));
    let text = std::fs::read(dir.join(MANIFEST_FILE)).ok()?;
    Some(Marker {
        version: VERSION,
        manifest: hansa_store::hash_bytes(&text).to_string(),
        files: files.collect::<Option<_>>()?,
    })
}

fn file_stamp(dir: &Path, name: &str) -> Option<FileStamp> {
    let metadata = std::fs::metadata(dir.join(name)).ok()?;
    let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(FileStamp {
        name: name.to_owned(),
        bytes: metadata.len(),
        modified_ns: modified.as_nanos() as u64,
    })
}

/// What registration tells the coordinator about the data that this replica would read.
pub(crate) fn digest(manifest: &Manifest, block: Windows, seed: u64) -> DigestFields {
    let shards = |records: &[hansa_corpus::ShardRecord]| -> Vec<ShardIdentity> {
        let identity = |record: &hansa_corpus::ShardRecord| ShardIdentity {
            name: record.file.clone(),
            hash: record.hash,
        };
        records.iter().map(identity).collect()
    };
    let windows = manifest.train.windows;
    let space = BlockSpace::new(windows, block, seed, hansa_base::Epoch(0));
    let tokenizer: Hash = manifest.tokenizer.hash;
    DigestFields {
        format_version: manifest.version,
        windows,
        block,
        seed,
        epoch_rule: RunSpec::EPOCH_RULE.to_owned(),
        permutation_check: space.check_value(),
        tokenizer,
        dtype: manifest.dtype.name().to_owned(),
        seq_len: manifest.seq_len,
        shards: shards(&manifest.train.shards),
        held_out: shards(&manifest.held_out.shards),
    }
}
