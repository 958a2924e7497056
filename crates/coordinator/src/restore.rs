//! `hansa restore`: a data directory from a backup, which goes its own way from there.
//!
//! The journal is that of the backup and one record more, which raises the timeline and gives up who was
//! at work: replicas that come back are told to begin afresh, whatever they have seen since the backup.
//! Until all is there and proved, a mark in the directory keeps it from being served; a restore that was
//! broken off goes on where it stopped. Never here: writing to the backup.

use std::path::Path;
use std::str::FromStr;

use hansa_base::{Hash, MonoMs};
use hansa_protocol::{Command, Machine};
use hansa_queue::UnixS;
use hansa_store::{BlobStore, DataDir, Journal, Seq, open_blob_in, remove_synced, replace_file};
use hansa_wire::journal::{Entry, Events};
use serde::Serialize;

use crate::backup::{Backup, FILES_DIR};
use crate::error::Error;
use crate::queue::restore_queue;
use crate::replay::Replayed;
use crate::setup::{next_timeline, record, wall_ms};
use crate::verify::verify_journal;

/// Its presence says that the directory is not complete; it holds the backup's chain hash.
const MARK: &str = "restore-unfinished";

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// The run's name.
    pub run: String,
    /// The run's identity.
    pub run_id: String,
    /// The timeline that begins.
    pub timeline: u64,
    /// The one that it branches off.
    pub from_timeline: u64,
    /// The current generation.
    pub generation: u64,
    /// Windows committed, over all epochs.
    pub committed: u64,
    /// Bytes of all blobs.
    pub blob_bytes: u64,
}

/// Makes `to`, which is new or empty, the data directory of the run in `from`.
///
/// # Errors
/// If `from` is no whole backup, or `to` cannot be used.
pub fn restore(from: &Path, to: &Path) -> Result<Restored, Error> {
    let Some(list) = Backup::load(from)? else {
        return Err(Error::NoBackup(from.to_owned()));
    };
    let source = Journal::open_read_only(&list.journal(from))?;
    let whole = source.chain().to_string() == list.chain && source.last_seq() == Seq(list.records);
    if !whole {
        let (path, why) = (list.journal(from), "its journal is not the one listed");
        let why = why.to_owned();
        return Err(Error::BackupList { path, why });
    }
    check_target(to, &list.chain)?;
    let dir = DataDir::lock(to)?;
    let mark = to.join(MARK);
    replace_file(&mark, list.chain.as_bytes(), 0o600)?;
    let store = BlobStore::open(&dir)?;
    for hash in list.blob_hashes(from)? {
        store.copy_in(&open_blob_in(from, hash)?)?;
    }
    copy_files(&list, from, to)?;
    let mut journal = source.copy_to(&DataDir::journal_path(to))?;
    let from_timeline = list.timeline;
    let timeline = begin_timeline(&mut journal)?;
    let queue = list.queue_journal(from);
    let queue = queue.as_ref().map(|(path, chain)| (path.as_path(), *chain));
    let run = Hash::from_str(&list.run_id).map_err(|error| Error::BackupList {
        path: from.to_owned(),
        why: error.to_string(),
    })?;
    restore_queue(queue, to, run, UnixS(wall_ms() / 1000))?;
    drop(journal);
    let report = verify_journal(to)?;
    if !report.is_good() {
        return Err(Error::BadRestore(report.violations.join("; ")));
    }
    remove_synced(&mark)?;
    Ok(Restored {
        run: list.run,
        run_id: list.run_id,
        timeline,
        from_timeline,
        generation: report.generation,
        committed: report.committed,
        blob_bytes: list.blob_bytes,
    })
}

/// Refuses to serve what a restore has not finished.
pub(crate) fn refuse_unfinished(data_dir: &Path) -> Result<(), Error> {
    if data_dir.join(MARK).exists() {
        return Err(Error::HalfRestored(data_dir.to_owned()));
    }
    Ok(())
}

fn check_target(to: &Path, chain: &str) -> Result<(), Error> {
    let refuse = |found: String| {
        let path = to.to_owned();
        Err(Error::TargetNotEmpty { path, found })
    };
    match std::fs::read_to_string(to.join(MARK)) {
        Ok(text) if text == chain => return Ok(()),
        Ok(_) => return refuse(format!("{MARK}, of another backup")),
        Err(_) => {}
    }
    let mut entries = match std::fs::read_dir(to) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("list", to)(error)),
    };
    let name = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    // A restore that is killed before its mark is there leaves its lock.
    let found = entries.find_map(|entry| entry.ok().map(name).filter(|name| name != "lock"));
    found.map_or(Ok(()), refuse)
}

fn copy_files(list: &Backup, from: &Path, to: &Path) -> Result<(), Error> {
    for (name, hash) in &list.files {
        let (from, to) = (from.join(FILES_DIR).join(name), to.join(name));
        let bytes = std::fs::read(&from).map_err(Error::io("read", &from))?;
        if blake3::hash(&bytes).to_hex().as_str() != hash {
            let why = "it is not the file that was listed".to_owned();
            return Err(Error::BackupList { path: from, why });
        }
        let parent = to.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        replace_file(&to, &bytes, 0o600)?;
    }
    Ok(())
}

/// The record that makes this copy a history of its own.
fn begin_timeline(journal: &mut Journal) -> Result<u64, Error> {
    let replayed = Replayed::load(journal)?.ok_or(Error::Misplaced(Seq(0)))?;
    let timeline = next_timeline(replayed.state.lineage.current());
    let mut machine = Machine::new(replayed.spec, replayed.state, MonoMs(0));
    // A merge that is due is begun by who serves the directory.
    let outcome = machine.handle(MonoMs(0), Command::Restored { timeline });
    outcome
        .reply
        .map_err(|refusal| Error::Broken(refusal.to_string()))?;
    let (events, files) = (outcome.events, None);
    journal.append_batch(&[record(&Entry::Events(Events { events, files }))])?;
    Ok(timeline.0)
}
