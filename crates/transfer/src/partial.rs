//! The file in the making: `dest.partial`, locked against other processes, which becomes `dest` when it is
//! whole and durable.
//!
//! Several processes may want the same file at the same time: one of them brings it, the others wait for
//! it. The lock is the system's, so it ends with its holder. Where a file system knows no locks, each
//! process has a partial file of its own, and the last rename wins: more bytes travel, and none is wrong.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hansa_base::Hash;
use hansa_store::Manifest;

use crate::download::{already_there, blocking};
use crate::error::TransferError;
use crate::options::TransferOptions;
use crate::spare::take_spare;

/// How often to look whether another process is done.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The partial file; the lock goes with it.
pub(crate) struct Partial {
    pub file: File,
    pub path: PathBuf,
    /// Chunks that it does not have.
    pub missing: Vec<u32>,
}

pub(crate) enum Opened {
    /// It is this process's to fill.
    Ours(Partial),
    /// Another process had it, and the file is whole now.
    BroughtByAnother,
}

impl Partial {
    /// Opens it, or waits for another process that fills it; gives up when that one moves nothing for
    /// several times `stall_max`.
    pub async fn open(
        dest: &Path,
        manifest: &Manifest,
        expected: Hash,
        options: &TransferOptions,
    ) -> Result<Opened, TransferError> {
        let partial = lock(dest, manifest, options).await?;
        // Whoever had the lock before may have brought the file.
        let there = already_there(dest, manifest.chunk_bytes(), expected).await?;
        if there.is_some() {
            let path = partial.path.clone();
            let remove = move || {
                std::fs::remove_file(&path).map_err(TransferError::io("remove", &path))?;
                drop(partial);
                Ok(())
            };
            blocking(remove).await?;
            return Ok(Opened::BroughtByAnother);
        }
        Ok(Opened::Ours(partial))
    }

    /// A chunk is in the file: the disk may begin with it while others travel.
    pub fn written(&self, start: u64, bytes: u64) {
        hansa_store::start_writeback(&self.file, start, bytes);
    }

    /// Makes it the file that was wanted, durably.
    pub fn finish(&self, dest: &Path) -> Result<(), TransferError> {
        self.file
            .sync_all()
            .map_err(TransferError::io("sync", &self.path))?;
        std::fs::rename(&self.path, dest).map_err(TransferError::io("rename", &self.path))?;
        let parent = match dest.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => return Ok(()),
        };
        let synced = File::open(parent).and_then(|dir| dir.sync_all());
        synced.map_err(TransferError::io("sync", parent))
    }
}

async fn lock(
    dest: &Path,
    manifest: &Manifest,
    options: &TransferOptions,
) -> Result<Partial, TransferError> {
    let patience = options.stall_max.saturating_mul(4);
    let mut seen = None;
    let mut moved_at = Instant::now();
    loop {
        let (dest, manifest) = (dest.to_owned(), manifest.clone());
        let attempt = blocking(move || try_lock(&dest, &manifest)).await;
        let Err(TransferError::Busy(path)) = attempt else {
            return attempt;
        };
        let stamp = |m: std::fs::Metadata| (m.mtime(), m.mtime_nsec(), m.ino());
        let now = Some(std::fs::metadata(&path).map(stamp).ok());
        if seen.is_none() {
            tracing::info!(path = %path.display(), "another process brings it; waiting for that one");
        }
        if now != seen {
            (seen, moved_at) = (now, Instant::now());
        } else if moved_at.elapsed() > patience {
            return Err(TransferError::Busy(path));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn try_lock(dest: &Path, manifest: &Manifest) -> Result<Partial, TransferError> {
    let path = with_suffix(dest, ".partial");
    let total_bytes = manifest.total_bytes();
    let is_spare = take_spare(&path, total_bytes);
    let file = open(&path)?;
    let (file, path) = match file.try_lock() {
        Ok(()) if is_still_at(&file, &path) => (file, path),
        Ok(()) | Err(TryLockError::WouldBlock) => return Err(TransferError::Busy(path)),
        Err(TryLockError::Error(error)) => {
            let own = with_suffix(dest, &format!(".partial-{}", std::process::id()));
            if is_spare {
                // Failing that, a new file is made.
                let _ = std::fs::rename(&path, &own);
            }
            let path = path.display();
            tracing::warn!(%path, %error, "no locks here; bringing a copy of our own");
            (open(&own)?, own)
        }
    };
    let inspected = file.metadata();
    let length = inspected
        .map_err(TransferError::io("inspect", &path))?
        .len();
    if length != total_bytes {
        hansa_store::reserve(&file, total_bytes)
            .map_err(TransferError::io("reserve space for", &path))?;
    }
    // What was never written, or for another file, need not be hashed.
    let missing = match is_spare || length == 0 {
        true => (0..manifest.chunk_count()).collect(),
        false => manifest
            .missing_in(&file)
            .map_err(TransferError::io("read", &path))?,
    };
    Ok(Partial {
        file,
        path,
        missing,
    })
}

fn open(path: &Path) -> Result<File, TransferError> {
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(false);
    options.open(path).map_err(TransferError::io("open", path))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Between opening and locking, another process may have finished the file and renamed it; its new name
/// must not be written to.
fn is_still_at(file: &File, path: &Path) -> bool {
    let number = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let there = std::fs::metadata(path).map(number).ok();
    there.is_some() && file.metadata().map(number).ok() == there
}
