//! Files of blobs that are gone, kept to be written over.
//!
//! Every round writes files of the same few sizes, and deletes as many. Writing over bytes that are there
//! is cheaper than a new file: no block is looked for on the disk and no page in memory, which in a virtual
//! machine that gives freed memory back can cost several times the writing itself. At most as much
//! disk as one round needs is held that way, and given back when the disk is full.
//!
//! A reader may still have a removed blob open, and reads it to its end: each holds a shared lock on the
//! file ([`hold`]), and a file that is held, or that has a second name, is never written over. Where the file
//! system knows no locks, nothing is.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::blob::TmpDir;

/// Smaller files cost little to make.
const BYTES_MIN: u64 = 1 << 20;
/// More than a round of any size that was seen needs: three files of a generation, and contributions.
const COUNT_MAX: usize = 24;

/// The files, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    kept: Mutex<VecDeque<Spare>>,
}

/// A directory under `tmp/`, with the file `data` in it.
#[derive(Debug)]
struct Spare {
    dir: TmpDir,
    bytes: u64,
}

impl Spares {
    /// Keeps a removed blob's directory, if it is worth it; hands back what is to be deleted.
    pub fn keep(&self, dir: TmpDir) -> Option<TmpDir> {
        let data = std::fs::metadata(dir.path.join("data"));
        let bytes = data.map_or(0, |data| data.len());
        if bytes < BYTES_MIN {
            return Some(dir);
        }
        let mut kept = self.lock();
        kept.push_back(Spare { dir, bytes });
        let too_many = kept.len() > COUNT_MAX;
        too_many.then(|| kept.pop_front().map(|spare| spare.dir))?
    }

    /// Moves a file of about this length, with whatever lies in it, to `path`.
    pub fn take(&self, path: &Path, bytes: u64) -> Option<File> {
        let mut kept = self.lock();
        // The newest is the likeliest to be in memory still.
        let found = kept.iter().enumerate().rev();
        let found = found.filter(|(_, spare)| fits(spare.bytes, bytes));
        let (index, file) = found
            .filter_map(|(index, spare)| Some((index, spare.claim()?)))
            .next()?;
        let spare = kept.remove(index)?;
        drop(kept);
        std::fs::rename(spare.dir.path.join("data"), path).ok()?;
        // Whoever opened it by its old name and asks for a lock only now finds that name gone.
        file.unlock().ok()?;
        Some(file)
    }

    /// Gives the disk back what is kept; `false` if that is nothing.
    pub fn clear(&self) -> bool {
        let kept = std::mem::take(&mut *self.lock());
        !kept.is_empty()
    }

    // A panic elsewhere leaves the list whole.
    fn lock(&self) -> MutexGuard<'_, VecDeque<Spare>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spare {
    /// The file, locked, if nobody else can reach it.
    fn claim(&self) -> Option<File> {
        let mut options = File::options();
        let file = options.read(true).write(true);
        let file = file.open(self.dir.path.join("data")).ok()?;
        file.try_lock().ok()?;
        let names = file.metadata().ok()?.nlink();
        (names == 1).then_some(file)
    }
}

/// Whether a file of `found` bytes is worth writing over for one of `wanted`: heads differ by a few bytes from one
/// generation to the next.
#[must_use]
pub fn fits(found: u64, wanted: u64) -> bool {
    found.abs_diff(wanted) <= wanted / 64
}

/// Keeps an open file from being written over for as long as it is open. `false` if it is not the one at
/// `path` any more: then it may be written over already.
pub(crate) fn hold(file: &File, path: &Path) -> std::io::Result<bool> {
    match file.try_lock_shared() {
        Err(std::fs::TryLockError::WouldBlock) => return Ok(false),
        // No locks here: nobody writes over anything either.
        Ok(()) | Err(std::fs::TryLockError::Error(_)) => {}
    }
    let ours = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_file_opened_just_before_it_lost_its_name_is_not_held() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("data"), dir.path().join("moved"));
        std::fs::write(&path, b"old").unwrap();
        let file = File::open(&path).unwrap();
        assert!(hold(&file, &path).unwrap());
        std::fs::rename(&path, &moved).unwrap();
        assert!(!hold(&file, &path).unwrap());
        std::fs::write(&path, b"another").unwrap();
        assert!(!hold(&file, &path).unwrap());
        let writer = File::open(&moved).unwrap();
        assert!(writer.try_lock().is_err(), "it is held all the same");
    }
}
