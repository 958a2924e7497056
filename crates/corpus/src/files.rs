//! Small file operations that must survive a crash: a file is the old one or the new one, whole.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use hansa_base::Hash;

use crate::{Error, Result};

/// Writes `bytes` to `path` so that after a crash the path holds all of it or what was there.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = with_suffix(path, ".tmp");
    let mut file = File::create(&partial).map_err(Error::io("create", &partial))?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(Error::io("write", &partial))?;
    fs::rename(&partial, path).map_err(Error::io("rename into place", path))?;
    sync_parent(path)
}

/// Makes a creation, rename or removal in `path`'s directory durable.
pub(crate) fn sync_parent(path: &Path) -> Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)
        .and_then(|dir| dir.sync_all())
        .map_err(Error::io("sync directory", parent))
}

/// `a/b` and `.x` give `a/b.x`.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The BLAKE3 hash of a byte string.
pub(crate) fn hash_bytes(bytes: &[u8]) -> Hash {
    Hash(*blake3::hash(bytes).as_bytes())
}
