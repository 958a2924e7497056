//! The few file operations that durability needs, in one place.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
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

/// Reads these bytes if the system has them in memory; false if some of them would have to come from a disk, or
/// the system cannot tell. So somebody who must not wait for a disk need not hand every read to others.
pub fn read_cached_at(file: &File, bytes: &mut [u8], offset: u64) -> bool {
    #[cfg(target_os = "linux")]
    {
        use rustix::io::{ReadWriteFlags, preadv2};
        let wanted = bytes.len();
        let mut slices = [std::io::IoSliceMut::new(bytes)];
        let read = preadv2(file, &mut slices, offset, ReadWriteFlags::NOWAIT);
        read.is_ok_and(|count| count == wanted)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (file, bytes, offset);
        false
    }
}

/// Whether nobody on this machine but the caller has this file open or mapped: the system gives a lease for
/// writing only then (fcntl(2)). `false` where there are no leases. What other machines do with a file on a
/// shared file system it may not know.
pub fn is_nobody_elses(file: &File) -> bool {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        // Of the kernel's `fcntl.h`; the library has it for few systems.
        const F_SETSIG: libc::c_int = 10;
        let set = |what: libc::c_int, value: libc::c_int| {
            // SAFETY: the descriptor is open for as long as `file` is borrowed; the calls touch no memory.
            unsafe { libc::fcntl(file.as_raw_fd(), what, value) == 0 }
        };
        // Whoever opens the file just now makes the system send a signal: not the one that ends processes.
        set(F_SETSIG, libc::SIGURG)
            && set(libc::F_SETLEASE, libc::F_WRLCK)
            && set(libc::F_SETLEASE, libc::F_UNLCK)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        false
    }
}

/// Replaces a file durably, for readers whole at any time: temporary name, fsync, rename, fsync of the
/// directory. `mode` is that of a new file. One process at a time may replace it.
pub fn replace_file(path: &Path, bytes: &[u8], mode: u32) -> Result<(), StoreError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.new"));
    // A leftover of a killed process would keep its mode.
    remove_if_there(&draft)?;
    let mut options = File::options();
    let options = options.write(true).create_new(true).mode(mode);
    let mut file = options
        .open(&draft)
        .map_err(StoreError::io("create", &draft))?;
    std::io::Write::write_all(&mut file, bytes)
        .and_then(|()| file.sync_all())
        .map_err(StoreError::io("write", &draft))?;
    rename_synced(&draft, path)
}

/// Removes a file, if it is there, durably.
pub fn remove_synced(path: &Path) -> Result<(), StoreError> {
    remove_if_there(path)?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
        _ => sync_dir(Path::new(".")),
    }
}

pub(crate) fn remove_if_there(path: &Path) -> Result<(), StoreError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Makes a directory and its parents.
pub(crate) fn make_dir(path: &Path) -> Result<(), StoreError> {
    std::fs::create_dir_all(path).map_err(StoreError::io("create", path))
}

/// Renames and makes both the new and the old name's change durable.
pub(crate) fn rename_synced(from: &Path, to: &Path) -> Result<(), StoreError> {
    std::fs::rename(from, to).map_err(StoreError::io("rename", from))?;
    for side in [to, from] {
        match side.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent)?,
            _ => sync_dir(Path::new("."))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_that_somebody_has_open_or_mapped_is_not_ours_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [1; 8192]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        if !is_nobody_elses(&file) {
            eprintln!("skipped: this file system gives no leases");
            return;
        }
        let reader = File::open(&path).unwrap();
        assert!(!is_nobody_elses(&file), "open");
        // SAFETY: nobody changes the file.
        let map = unsafe { memmap2::Mmap::map(&reader) }.unwrap();
        drop(reader);
        assert!(!is_nobody_elses(&file), "mapped");
        drop(map);
        assert!(is_nobody_elses(&file));
        assert!(is_nobody_elses(&file), "nothing is left of the question");
    }

    #[test]
    fn what_is_read_without_waiting_is_what_the_file_holds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = File::open(&path).unwrap();
        let mut bytes = [0; 4];
        match read_cached_at(&file, &mut bytes, 3) {
            true => assert_eq!(&bytes, b"3456"),
            false => eprintln!("skipped: this file system cannot tell what is in memory"),
        }
        assert!(!read_cached_at(&file, &mut bytes, 8), "it is not all there");
    }
}
