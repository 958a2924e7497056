//! `hansa backup`: a copy of a data directory that a run can go on from, made while it is served.
//!
//! ```text
//! BACKUP/backup.json            what is in it; replaced last, so that there is a whole backup at any time
//!        journal-N.sqlite       the journal up to record N
//!        queue-N.sqlite         the queue's journal up to record N, if there is one
//!        blobs/                 what that journal needs: the current generation, what is staged
//!        files/                 tokens, certificate, recipe, corpus manifest: keep them secret
//! ```
//!
//! Consistent without stopping anybody: a prefix of the journal is a state that the run had, and blobs
//! never change. They are opened before the first is copied, so none goes away underway; if one has gone
//! before, the journal is read again. Repeated into the same folder it copies only what is new. Never
//! here: writing to the data directory.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hansa_base::Hash;
use hansa_store::{Blob, BlobStore, DataDir, Journal, Seq, StoreError, open_blob_in, replace_file};
use serde::{Deserialize, Serialize};

use crate::auth::AUTH_FILE;
use crate::error::Error;
use crate::queue::copy_queue;
use crate::replay::Replayed;
use crate::setup::{CORPUS_FILE, RECIPE_FILE, wall_ms};

/// The list's name in a backup.
pub(crate) const LIST_FILE: &str = "backup.json";
/// Where small files lie in a backup.
pub(crate) const FILES_DIR: &str = "files";
const VERSION: u32 = 1;
/// A run that publishes generations faster than a blob is opened is not to be waited for.
const READS_MAX: u32 = 50;
/// What belongs to a coordinator beside journal and blobs; what is not there is left out.
const FILES: [&str; 5] = [
    AUTH_FILE,
    "operator.toml",
    "tls/tls.pem",
    RECIPE_FILE,
    CORPUS_FILE,
];

/// What is in a backup: its list, and what `hansa backup` reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backup {
    /// The version of this list.
    pub version: u32,
    /// The run's name.
    pub run: String,
    /// The run's identity.
    pub run_id: String,
    /// The timeline that it is a copy of.
    pub timeline: u64,
    /// When it was made, in milliseconds since 1970.
    pub made_ms: u64,
    /// Records of the journal.
    pub records: u64,
    /// The hash that stands for all of them.
    pub chain: String,
    /// The current generation.
    pub generation: u64,
    /// Windows committed, over all epochs.
    pub committed: u64,
    /// True if the run is over.
    pub ended: bool,
    /// Manifest hashes of the blobs.
    pub blobs: Vec<String>,
    /// Bytes of all blobs.
    pub blob_bytes: u64,
    /// Names and BLAKE3 hashes of the small files.
    pub files: Vec<(String, String)>,
    /// Records of the queue's journal, and the hash that stands for all of them, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<(u64, String)>,
}

impl Backup {
    /// The list of a backup; `None` if there is none.
    pub(crate) fn load(dir: &Path) -> Result<Option<Self>, Error> {
        let path = dir.join(LIST_FILE);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", &path)(error)),
        };
        let unusable = |why: String| Error::BackupList {
            path: path.clone(),
            why,
        };
        let version: serde_json::Value =
            serde_json::from_slice(&text).map_err(|error| unusable(error.to_string()))?;
        if version["version"] != VERSION {
            let found = &version["version"];
            return Err(unusable(format!(
                "its version is {found}, this hansa reads {VERSION}: use the hansa that made it"
            )));
        }
        let list = serde_json::from_value(version).map_err(|error| unusable(error.to_string()))?;
        Ok(Some(list))
    }

    pub(crate) fn journal(&self, dir: &Path) -> PathBuf {
        dir.join(format!("journal-{}.sqlite", self.records))
    }

    /// The queue's journal, and its chain hash.
    pub(crate) fn queue_journal(&self, dir: &Path) -> Option<(PathBuf, &str)> {
        let (records, chain) = self.queue.as_ref()?;
        Some((queue_file(dir, *records), chain))
    }

    /// The hashes of its blobs.
    pub(crate) fn blob_hashes(&self, dir: &Path) -> Result<Vec<Hash>, Error> {
        let parsed: Result<Vec<Hash>, _> = self.blobs.iter().map(|hash| hash.parse()).collect();
        parsed.map_err(|error| Error::BackupList {
            path: dir.join(LIST_FILE),
            why: error.to_string(),
        })
    }
}

/// Copies the run in `data` to `to`, which is new, empty, or a backup of the same run. Gives what is in it
/// now, and how many bytes of blobs were copied for it.
///
/// # Errors
/// If there is no run, it cannot be read, or `to` cannot be used. An earlier backup in `to` stays whole.
pub fn backup(data: &Path, to: &Path) -> Result<(Backup, u64), Error> {
    let path = DataDir::journal_path(data);
    if !path.exists() {
        return Err(StoreError::NoJournal(path).into());
    }
    let before = usable_target(to)?;
    let dir = DataDir::lock(to)?;
    let only_owner = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(to, only_owner).map_err(Error::io("protect", to))?;
    let (journal, replayed, blobs) = read_consistently(data)?;
    let run_id = replayed.spec.run.to_string();
    if let Some(before) = before.filter(|before| before.run_id != run_id) {
        return Err(Error::OtherBackup {
            path: to.to_owned(),
            run: before.run,
        });
    }
    let store = BlobStore::open(&dir)?;
    let mut copied_bytes = 0;
    for blob in &blobs {
        if store.copy_in(blob)? {
            copied_bytes += blob.manifest().total_bytes();
        }
    }
    let files = copy_files(data, &to.join(FILES_DIR))?;
    let queue = copy_queue(data, |records| queue_file(to, records))?;
    let list = Backup {
        version: VERSION,
        run: replayed.recipe.name.clone(),
        run_id,
        timeline: replayed.state.lineage.current().0,
        made_ms: wall_ms(),
        records: replayed.seq.0,
        chain: journal.chain().to_string(),
        generation: replayed.state.current.generation.0,
        committed: replayed.state.committed().0,
        ended: replayed.state.ended,
        blobs: blobs.iter().map(|blob| blob.hash().to_string()).collect(),
        blob_bytes: blobs.iter().map(|b| b.manifest().total_bytes()).sum(),
        files,
        queue,
    };
    journal.copy_to(&list.journal(to))?;
    // A structure of numbers and strings cannot fail to serialise.
    let text = serde_json::to_vec_pretty(&list).unwrap_or_default();
    replace_file(&to.join(LIST_FILE), &text, 0o600)?;
    remove_what_is_not_listed(&list, to, &store)?;
    Ok((list, copied_bytes))
}

fn queue_file(dir: &Path, records: u64) -> PathBuf {
    dir.join(format!("queue-{records}.sqlite"))
}

/// The list of the backup that `to` holds; `None` if it is empty, or a first backup was broken off.
fn usable_target(to: &Path) -> Result<Option<Backup>, Error> {
    if let Some(list) = Backup::load(to)? {
        return Ok(Some(list));
    }
    let entries = match std::fs::read_dir(to) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("list", to)(error)),
    };
    for entry in entries {
        let name = entry.map_err(Error::io("list", to))?.file_name();
        let name = name.to_string_lossy().into_owned();
        let ours = [
            "lock",
            "tmp",
            "blobs",
            "uploads",
            FILES_DIR,
            ".backup.json.new",
        ];
        let journal = name.starts_with("journal-") || name.starts_with("queue-");
        if !ours.contains(&name.as_str()) && !journal {
            let path = to.to_owned();
            return Err(Error::NotABackup { path, found: name });
        }
    }
    Ok(None)
}

/// A prefix of the journal, what it stands for, and the blobs that a run needs to go on from there.
fn read_consistently(data: &Path) -> Result<(Journal, Replayed, Vec<Blob>), Error> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let journal = Journal::open_read_only(&DataDir::journal_path(data))?;
        let replayed = Replayed::load(&journal)?.ok_or(Error::Misplaced(Seq(0)))?;
        let opened = needed(&replayed)?
            .into_iter()
            .map(|hash| open_blob_in(data, hash))
            .collect::<Result<Vec<_>, _>>();
        match opened {
            Ok(blobs) => return Ok((journal, replayed, blobs)),
            // Pruned, because the run has gone on since.
            Err(StoreError::NoBlob(_)) if attempt < READS_MAX => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn needed(replayed: &Replayed) -> Result<BTreeSet<Hash>, Error> {
    let current = replayed.state.current.generation;
    let files = replayed.files.get(&current);
    let files = files.ok_or(Error::NoFiles(current))?;
    let mut needed: BTreeSet<Hash> = [Some(files.theta), files.momentum, Some(files.model)]
        .into_iter()
        .flatten()
        .collect();
    let staged = &replayed.state.round.staged;
    let contributions = staged
        .iter()
        .filter_map(|no| replayed.state.contributions.get(no));
    needed.extend(contributions.map(|contribution| contribution.parts.payload));
    Ok(needed)
}

fn copy_files(data: &Path, to: &Path) -> Result<Vec<(String, String)>, Error> {
    let mut copied = Vec::new();
    for name in FILES {
        let (from, to) = (data.join(name), to.join(name));
        let bytes = match std::fs::read(&from) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::io("read", &from)(error)),
        };
        let parent = to.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        replace_file(&to, &bytes, 0o600)?;
        copied.push((name.to_owned(), blake3::hash(&bytes).to_hex().to_string()));
    }
    Ok(copied)
}

/// What an earlier backup needed, or one that was broken off.
fn remove_what_is_not_listed(list: &Backup, dir: &Path, store: &BlobStore) -> Result<(), Error> {
    let needed: BTreeSet<Hash> = list.blob_hashes(dir)?.into_iter().collect();
    for hash in store.list()? {
        if !needed.contains(&hash) {
            store.remove(hash)?;
        }
    }
    let kept = format!("journal-{}.", list.records);
    let queue = list.queue.as_ref();
    let kept_queue = queue.map(|(records, _)| format!("queue-{records}."));
    for entry in std::fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let path = entry.map_err(Error::io("list", dir))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let kept_queue = |name: &str| {
            kept_queue
                .as_ref()
                .is_some_and(|kept| name.starts_with(kept))
        };
        let old = name.starts_with("journal-") && !name.starts_with(&kept);
        if old || (name.starts_with("queue-") && !kept_queue(&name)) {
            std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}
