//! A file that is of no use any more, kept for the next download into its folder to be written over.
//!
//! Downloads of a run's models are all of one size, and one goes for each that comes. Writing over bytes
//! that are there is cheaper than a new file: no block is looked for on the disk and no page in memory.
//! Only a file that nobody on this machine has open or mapped, and that has no second name, is written over:
//! a trainer may still read the model that it was given. Where the system cannot tell, the file goes.
//!
//! For folders that one process has to itself.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const NAME: &str = ".spare";

/// Keeps this file to be written over, in place of the one that was kept before; one that has a second
/// name only loses this one.
///
/// # Errors
/// If it can be neither renamed nor removed.
pub fn leave_spare(path: &Path) -> std::io::Result<()> {
    let left = std::fs::symlink_metadata(path).and_then(|found| {
        match found.is_file() && found.nlink() == 1 {
            true => std::fs::rename(path, spare_beside(path)),
            false => std::fs::remove_file(path),
        }
    });
    match left {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        left => left,
    }
}

/// Deletes the file that is kept in a folder; whether there was one.
pub fn give_back_spare(folder: &Path) -> bool {
    std::fs::remove_file(folder.join(NAME)).is_ok()
}

/// Makes the spare file, whatever is in it, the one at `path`, if there is a spare one of about so many
/// bytes and nothing at `path`. One that somebody holds goes.
pub(crate) fn take_spare(path: &Path, bytes: u64) -> bool {
    let spare = spare_beside(path);
    if path.exists() || !spare.exists() {
        return false;
    }
    let usable = is_free(&spare, bytes);
    if !usable {
        // Failing to remove it is no reason to fail: the next model takes its place.
        let _ = std::fs::remove_file(&spare);
    }
    usable && std::fs::rename(&spare, path).is_ok()
}

fn spare_beside(path: &Path) -> PathBuf {
    path.with_file_name(NAME)
}

fn is_free(path: &Path, bytes: u64) -> bool {
    let mut options = File::options();
    let Ok(file) = options.read(true).write(true).open(path) else {
        return false;
    };
    let Ok(found) = file.metadata() else {
        return false;
    };
    hansa_store::fits(found.len(), bytes)
        && found.nlink() == 1
        && hansa_store::is_nobody_elses(&file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn leave(&self, bytes: usize) {
            std::fs::write(self.path("old"), vec![7; bytes]).unwrap();
            leave_spare(&self.path("old")).unwrap();
        }

        fn takes(&self, bytes: u64) -> bool {
            take_spare(&self.path("new"), bytes)
        }
    }

    fn folder() -> Option<Folder> {
        let folder = Folder(tempfile::tempdir().unwrap());
        std::fs::write(folder.path("f"), b"x").unwrap();
        let mut options = File::options();
        let file = options.read(true).write(true).open(folder.path("f"));
        if hansa_store::is_nobody_elses(&file.unwrap()) {
            return Some(folder);
        }
        eprintln!("skipped: this file system gives no leases");
        None
    }

    #[test]
    fn the_last_file_left_is_taken_once() {
        let Some(folder) = folder() else { return };
        assert!(!folder.takes(6400), "there is none");
        folder.leave(6400);
        folder.leave(6450);
        assert!(folder.takes(6400));
        assert_eq!(std::fs::metadata(folder.path("new")).unwrap().len(), 6450);
        std::fs::remove_file(folder.path("new")).unwrap();
        assert!(!folder.takes(6400));
    }

    #[test]
    fn what_somebody_reads_or_names_or_another_size_is_not_taken() {
        let Some(folder) = folder() else { return };
        folder.leave(6400);
        let reader = File::open(folder.path(NAME)).unwrap();
        assert!(!folder.takes(6400));
        drop(reader);
        assert!(!folder.takes(6400), "it is gone");

        folder.leave(6400);
        std::fs::hard_link(folder.path(NAME), folder.path("second")).unwrap();
        assert!(!folder.takes(6400));
        assert_eq!(std::fs::read(folder.path("second")).unwrap(), [7; 6400]);

        std::fs::hard_link(folder.path("second"), folder.path("third")).unwrap();
        leave_spare(&folder.path("third")).unwrap();
        assert!(!folder.path(NAME).exists() && !folder.path("third").exists());

        leave_spare(&folder.path("gone")).unwrap();
        std::os::unix::fs::symlink(folder.path("second"), folder.path("link")).unwrap();
        leave_spare(&folder.path("link")).unwrap();
        assert!(!folder.takes(6400), "what a link leads to is not ours");

        folder.leave(6400);
        assert!(!folder.takes(9000));

        folder.leave(6400);
        std::fs::write(folder.path("new"), b"half of it").unwrap();
        assert!(!folder.takes(6400), "a download goes on");
        assert_eq!(std::fs::read(folder.path("new")).unwrap(), b"half of it");
    }
}
