//! The few file operations that durability needs, in one place.

use std::fs::File;
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::error::StoreError;

/// Makes a directory's entries durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), StoreError> {
    let dir = File::open(path).map_err(StoreError::io("open", path))?;
    dir.sync_all().map_err(StoreError::io("sync", path))
}

/// Creates a file with these bytes; durable itself, its directory entry not yet.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let file = File::create(path).map_err(StoreError::io("create", path))?;
    let mut rest = &file;
    std::io::Write::write_all(&mut rest, bytes).map_err(StoreError::io("write", path))?;
    file.sync_all().map_err(StoreError::io("sync", path))
}

/// Creates a file of `length` bytes and reserves its space, so that a full disk shows now and not
/// halfway. A filesystem that cannot reserve gets a sparse file.
pub(crate) fn create_reserved(path: &Path, length: u64) -> Result<File, StoreError> {
    let mut options = File::options();
    let open = options.read(true).write(true).create(true).truncate(true);
    let file = open.open(path).map_err(StoreError::io("create", path))?;
    reserve(&file, length).map_err(StoreError::io("reserve space for", path))?;
    Ok(file)
}

/// Gives an open file this length, with its space reserved where the filesystem can do that.
pub fn reserve(file: &File, length: u64) -> std::io::Result<()> {
    if length > 0 {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    file.set_len(length)
}

/// Asks the system to begin writing a part of a file to the disk; neither waits nor promises anything.
pub fn start_writeback(file: &File, offset: u64, length: u64) {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let (offset, length) = (offset as libc::off64_t, length as libc::off64_t);
        // SAFETY: the descriptor is open for as long as `file` is borrowed; the call touches no memory.
        // Its failure means that the fsync to come has more to do.
        let _ = unsafe {
            libc::sync_file_range(
                file.as_raw_fd(),
                offset,
                length,
                libc::SYNC_FILE_RANGE_WRITE,
            )
        };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, length);
}

/// Makes a directory and its parents.
pub(crate) fn make_dir(path: &Path) -> Result<(), StoreError> {
    std::fs::create_dir_all(path).map_err(StoreError::io("create", path))
}

/// Renames and makes both the new and the old name's change durable.
pub(crate) fn rename_synced(from: &Path, to: &Path) -> Result<(), StoreError> {
    std::fs::rename(from, to).map_err(StoreError::io("rename", from))?;
    for side in [to, from] {
        if let Some(parent) = side.parent() {
            sync_dir(parent)?;
        }
    }
    Ok(())
}
