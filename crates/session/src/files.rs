//! Files that are there whole or not at all.

use std::fs::File;
use std::io::{Result, Write};
use std::path::{Path, PathBuf};

/// `.NAME.tmp` in the same directory, so that the rename cannot cross file systems. One process at a
/// time writes to a state directory, so a leftover is simply overwritten.
pub(crate) fn temporary_beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp"))
}

/// Replaces a file durably: temporary name, fsync, rename, fsync of the directory.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = temporary_beside(path);
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    rename_synced(&temporary, path)
}

/// Renames within a directory and makes that durable.
pub(crate) fn rename_synced(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to)?;
    sync_parent(to)
}

/// Removes a file if it is there.
pub(crate) fn remove_if_there(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes the entries of a file's directory durable.
pub(crate) fn sync_parent(path: &Path) -> Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
