//! One folder of downloaded models for all replicas of a site: each model travels once.
//!
//! A replica's model is a second name (hard link) of the file in the cache, so the number of names says
//! who still needs it, and a replica may remove its own name at any time. What only the cache names, and is
//! not new, goes when the next model comes. On another file system than the cache's the bytes are copied.
//! Never here: trust. Whoever takes a file from the cache has hashed it.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hansa_base::Hash;
use hansa_transfer::TransferError;

use crate::files;

/// A model that nobody names any more stays so long: others may be about to link it.
const UNUSED_MAX: Duration = Duration::from_secs(3600);

/// Where the cache has, or will have, the model with this manifest hash; makes the folder.
pub(crate) fn path_of(cache: &Path, manifest: Hash) -> Result<PathBuf, TransferError> {
    std::fs::create_dir_all(cache).map_err(io("create", cache))?;
    Ok(cache.join(format!("{manifest}.safetensors")))
}

/// Takes a model that is in the cache to `dest`; `false` if it is not there any more.
pub(crate) async fn take(cached: &Path, dest: &Path) -> Result<bool, TransferError> {
    let (from, to) = (cached.to_owned(), dest.to_owned());
    let taken = tokio::task::spawn_blocking(move || {
        second_name(&from, &to)?;
        clean_up(&from);
        std::io::Result::Ok(())
    });
    match taken.await.unwrap_or_else(|error| Err(error.into())) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io("take from the cache", cached)(error)),
    }
}

/// Gives a file of the cache a second name, or copies it.
fn second_name(from: &Path, to: &Path) -> std::io::Result<()> {
    let temporary = files::temporary_beside(to);
    files::remove_if_there(&temporary)?;
    if std::fs::hard_link(from, &temporary).is_err() {
        std::fs::copy(from, &temporary)?;
        File::open(&temporary)?.sync_all()?;
    }
    files::rename_synced(&temporary, to)
}

/// Removes what is of no use to anybody, but this. Failing is no reason to fail.
fn clean_up(but: &Path) {
    let Some(Ok(entries)) = but.parent().map(std::fs::read_dir) else {
        return;
    };
    let unused = |path: &PathBuf| {
        let is_old = |m: &std::fs::Metadata| {
            let age = m.modified().ok().and_then(|at| at.elapsed().ok());
            age.is_some_and(|age| age > UNUSED_MAX)
        };
        let metadata = std::fs::metadata(path);
        path != but && metadata.is_ok_and(|m| m.is_file() && m.nlink() == 1 && is_old(&m))
    };
    for path in entries.flatten().map(|entry| entry.path()).filter(unused) {
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "an old model stays in the cache");
        }
    }
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> TransferError {
    let path = path.to_owned();
    move |source| TransferError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::SystemTime;

    use super::*;

    #[tokio::test]
    async fn replicas_share_what_one_brought_and_what_none_needs_goes() {
        let site = tempfile::tempdir().unwrap();
        let path = |name: &str| site.path().join(name);
        let cache = path("cache");
        let brought = |number: u8| {
            let cached = path_of(&cache, Hash([number; 32])).unwrap();
            std::fs::write(&cached, [number]).unwrap();
            cached
        };
        let first = brought(1);
        assert!(take(&first, &path("a")).await.unwrap());
        assert!(take(&first, &path("b")).await.unwrap());
        assert_eq!(std::fs::read(path("b")).unwrap(), [1]);
        let inode = |name: &str| std::fs::metadata(path(name)).unwrap().ino();
        assert_eq!(inode("a"), inode("b"), "no byte was copied");

        let long_ago = SystemTime::now() - 2 * UNUSED_MAX;
        File::options()
            .write(true)
            .open(&first)
            .and_then(|file| file.set_modified(long_ago))
            .unwrap();
        std::fs::remove_file(path("a")).unwrap();
        assert!(take(&brought(2), &path("c")).await.unwrap());
        assert!(first.exists(), "b still has it");
        std::fs::remove_file(path("b")).unwrap();
        assert!(take(&brought(3), &path("d")).await.unwrap());
        assert!(!first.exists(), "nobody has it");
        assert!(!take(&first, &path("e")).await.unwrap());
    }
}
