//! One process at a time writes to a data directory, and everybody finds things in it.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// A locked data directory; the lock goes with the value, or with the process however it dies.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// What the lock's file says of this process.
    holder: String,
    // Held for the lock only.
    _lock: File,
}

impl DataDir {
    /// Makes the directory if needed and takes its lock, or says at once who holds it.
    pub fn lock(path: &Path) -> Result<Self, StoreError> {
        std::fs::create_dir_all(path).map_err(StoreError::io("create", path))?;
        let lock_path = path.join("lock");
        let mut options = File::options();
        let open = options.read(true).write(true).create(true).truncate(false);
        let mut lock = open
            .open(&lock_path)
            .map_err(StoreError::io("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let path = path.to_owned();
                return Err(StoreError::AlreadyOpen {
                    path,
                    holder: read_holder(&mut lock),
                });
            }
            Err(TryLockError::Error(source)) => {
                return Err(StoreError::io("lock", &lock_path)(source));
            }
        }
        // For people, and for machines that do not see each other's locks; the lock itself is the kernel's.
        let holder = format!("{} {}\n", std::process::id(), host());
        let written = lock
            .set_len(0)
            .and_then(|()| lock.write_all(holder.as_bytes()));
        written.map_err(StoreError::io("write", &lock_path))?;
        Ok(Self {
            path: path.to_owned(),
            holder,
            _lock: lock,
        })
    }

    /// Who has locked the directory since, in brackets: some filesystems keep locks from other machines.
    #[must_use]
    pub fn taken_by(&self) -> Option<String> {
        let said = std::fs::read_to_string(self.path.join("lock")).ok()?;
        (!said.is_empty() && said != self.holder).then(|| in_brackets(&said))
    }

    /// Whether a process holds the lock of a directory; changes nothing in it.
    #[must_use]
    pub fn is_locked(path: &Path) -> bool {
        let lock = File::open(path.join("lock"));
        lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// The process of this machine that had a directory last and is gone, its lock with it. `None` while
    /// somebody has it.
    #[must_use]
    pub fn left_by(path: &Path) -> Option<u32> {
        let said = std::fs::read_to_string(path.join("lock")).ok()?;
        let mut words = said.split_whitespace();
        let pid = words.next()?.parse().ok()?;
        let here = words.next()? == host();
        (here && !Self::is_locked(path)).then_some(pid)
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the journal of a data directory lies, locked or not.
    #[must_use]
    pub fn journal_path(data_dir: &Path) -> PathBuf {
        data_dir.join("journal.sqlite")
    }
}

fn read_holder(lock: &mut File) -> String {
    let mut text = String::new();
    match lock.take(300).read_to_string(&mut text) {
        Ok(_) => in_brackets(&text),
        Err(_) => String::new(),
    }
}

/// " (process N on HOST)": the directory may be on storage that other machines see. Nothing if unknown.
fn in_brackets(holder: &str) -> String {
    let mut words = holder.split_whitespace();
    let pid = words.next().and_then(|word| word.parse::<u32>().ok());
    match (pid, words.next()) {
        (Some(pid), Some(host)) => format!(" (process {pid} on {host})"),
        (Some(pid), None) => format!(" (process {pid})"),
        (None, _) => String::new(),
    }
}

/// This machine's name.
#[must_use]
pub fn host() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_second_writer_is_refused_until_the_first_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::lock(&dir.path().join("new/run")).unwrap();
        let error = DataDir::lock(first.path()).unwrap_err();
        assert!(matches!(error, StoreError::AlreadyOpen { .. }));
        let process = format!("(process {} on ", std::process::id());
        assert!(error.to_string().contains(&process), "{error}");
        let path = first.path().to_owned();
        assert!(DataDir::is_locked(&path));
        assert_eq!(first.taken_by(), None);
        assert_eq!(DataDir::left_by(&path), None, "it has not left");
        // Another machine that does not see the lock.
        std::fs::write(path.join("lock"), "4711 uan02\n").unwrap();
        assert_eq!(first.taken_by().unwrap(), " (process 4711 on uan02)");
        drop(first);
        assert!(!DataDir::is_locked(&path) && !DataDir::is_locked(dir.path()));
        assert_eq!(DataDir::left_by(&path), None, "nobody knows about uan02");
        drop(DataDir::lock(&path).unwrap());
        assert_eq!(DataDir::left_by(&path), Some(std::process::id()));
    }
}
