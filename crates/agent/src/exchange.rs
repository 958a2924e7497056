//! Weights that the trainer has written for the session to read: a safetensors file, read once in order.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use hansa_outer::{Dtype, Header, Layout, PREFIX_BYTES};

/// Where exported weights may lie: what was chosen, or memory while there is room; else the state directory,
/// as a phase that cannot be exported is lost. In each a folder of the replica's own, which only its user can
/// enter: others may write beside it.
pub(crate) struct Places {
    chosen: Option<PathBuf>,
    memory: PathBuf,
    disk: PathBuf,
    /// The folder's name.
    own: String,
}

/// What memory must have beyond the file itself: other ranks and the page cache live there, too.
const MEMORY_SHARE: u64 = 2;

impl Places {
    /// Of this replica of a run. Removes what an agent that was killed has left behind; another that lives has
    /// another state directory.
    pub fn new(chosen: Option<PathBuf>, state_dir: &Path, run: &str, replica: &str) -> Self {
        let whose = format!("{run}\0{replica}\0{}", state_dir.display());
        // The same in every build: the next one clears what this one leaves.
        let whose = hansa_store::hash_bytes(whose.as_bytes()).to_string();
        let places = Self {
            chosen,
            memory: PathBuf::from("/dev/shm"),
            disk: state_dir.to_owned(),
            own: format!("hansa-export-{}", &whose[..16]),
        };
        let all = [
            places.chosen.as_ref(),
            Some(&places.memory),
            Some(&places.disk),
        ];
        for parent in all.into_iter().flatten() {
            let _ = std::fs::remove_dir_all(parent.join(&places.own));
        }
        places
    }

    /// Places to try, the best first, for a file of so many bytes.
    pub fn for_bytes(&self, bytes: u64) -> Vec<Place> {
        let mut parents = Vec::new();
        if let Some(chosen) = &self.chosen {
            parents.push(chosen);
        } else if free_bytes(&self.memory).is_some_and(|free| free / MEMORY_SHARE >= bytes) {
            parents.push(&self.memory);
        }
        parents.push(&self.disk);
        let own = parents.into_iter().map(|parent| parent.join(&self.own));
        own.map(Place).collect()
    }
}

/// The replica's own folder in one of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place(PathBuf);

impl Place {
    /// The name of a file to write there; the folder is made for it, and both go with the value.
    pub fn file(&self) -> Result<Temporary, ExportError> {
        let io = |source| ExportError::Folder {
            path: self.0.clone(),
            source,
        };
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(io)?,
        }
        // Its name can be guessed: it may be another user's, or a link to somewhere.
        let found = std::fs::symlink_metadata(&self.0).map_err(io)?;
        if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
            return Err(io(io::Error::other(
                "it is there already, and is not this user's folder",
            )));
        }
        Ok(Temporary {
            path: self.0.join("model.safetensors"),
            folder: self.0.clone(),
        })
    }
}

/// A file that goes with the value, and its folder with it.
#[derive(Debug)]
pub(crate) struct Temporary {
    path: PathBuf,
    folder: PathBuf,
}

impl Temporary {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_dir(&self.folder);
    }
}

fn free_bytes(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

/// An exported model; its file goes with the value.
pub(crate) struct Exported {
    file: File,
    at: Temporary,
    header: Header,
    bytes: Vec<u8>,
}

/// Why an exported file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    #[error("read {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("make the folder {}: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("the trainer exported what is not the run's model: {0}")]
    Other(String),
}

impl Exported {
    /// Opens what the trainer wrote, and checks that it is the run's model in `f32`.
    pub fn open(at: Temporary, layout: &Layout) -> Result<Self, ExportError> {
        let io = |source| ExportError::Io {
            path: at.path.clone(),
            source,
        };
        let other = |error: hansa_outer::HeaderError| ExportError::Other(error.to_string());
        let file = File::open(&at.path).map_err(io)?;
        let mut head = vec![0; PREFIX_BYTES];
        file.read_exact_at(&mut head, 0).map_err(io)?;
        let mut prefix = [0; PREFIX_BYTES];
        prefix.copy_from_slice(&head);
        let needed = Header::bytes_needed(prefix).map_err(other)?;
        head.resize(needed, 0);
        file.read_exact_at(&mut head, 0).map_err(io)?;
        let header = Header::parse(&head).map_err(other)?;
        header.check(layout, Dtype::F32).map_err(other)?;
        let found = file.metadata().map_err(io)?.len();
        header.check_file_bytes(found).map_err(other)?;
        Ok(Self {
            file,
            at,
            header,
            bytes: Vec::new(),
        })
    }

    /// Copies elements of the flat array from `first` on.
    pub fn read(&mut self, first: u64, values: &mut [f32]) -> Result<(), ExportError> {
        let range = self.header.byte_range(first..first + values.len() as u64);
        self.bytes.resize((range.end - range.start) as usize, 0);
        let read = self.file.read_exact_at(&mut self.bytes, range.start);
        read.map_err(|source| ExportError::Io {
            path: self.at.path.clone(),
            source,
        })?;
        Dtype::F32.decode(&self.bytes, values);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hansa_outer::{Metadata, TensorSpec};

    fn layout(columns: usize) -> Layout {
        let tensor = |name: &str, shape: &[usize]| TensorSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
        };
        Layout::new([tensor("a", &[2, columns]), tensor("b", &[3])]).unwrap()
    }

    fn places(dir: &Path) -> Places {
        Places::new(Some(dir.to_owned()), Path::new("/state"), "run", "a/r0")
    }

    fn written(dir: &Path, columns: usize, values: &[f32]) -> Temporary {
        let file = places(dir).for_bytes(1)[0].file().unwrap();
        let built = Header::build(&layout(columns), Dtype::F32, Metadata::new());
        let mut bytes = built.unwrap().1;
        let mut data = vec![0; 4 * values.len()];
        Dtype::F32.encode(values, &mut data);
        bytes.extend(data);
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn a_model_is_read_in_pieces_and_its_file_goes() {
        let dir = tempfile::tempdir().unwrap();
        let values: Vec<f32> = (0u8..7).map(f32::from).collect();
        let file = written(dir.path(), 2, &values);
        let folder = std::fs::metadata(file.path().parent().unwrap()).unwrap();
        assert_eq!(folder.mode() & 0o777, 0o700);
        let mut exported = Exported::open(file, &layout(2)).unwrap();
        let mut read = [0.0; 4];
        exported.read(2, &mut read).unwrap();
        assert_eq!(read, [2.0, 3.0, 4.0, 5.0]);
        drop(exported);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn another_model_or_half_of_one_is_refused_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = written(dir.path(), 3, &[0.0; 9]);
        let error = Exported::open(file, &layout(2)).err().unwrap();
        assert!(matches!(error, ExportError::Other(_)), "{error}");
        let file = written(dir.path(), 2, &[0.0; 6]);
        assert!(Exported::open(file, &layout(2)).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_agent_left_goes_at_the_next_start_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let of = |replica: &str| {
            Places::new(
                Some(dir.path().to_owned()),
                Path::new("/state"),
                "run",
                replica,
            )
        };
        // Killed: nothing of it is dropped.
        let (mine, others) = (of("a/r0"), of("a/r1"));
        for places in [&mine, &others] {
            let file = places.for_bytes(1)[0].file().unwrap();
            std::fs::write(file.path(), "x").unwrap();
            std::mem::forget(file);
        }
        let again = of("a/r0");
        assert!(!again.for_bytes(1)[0].0.exists());
        assert!(others.for_bytes(1)[0].0.exists());
    }

    #[test]
    fn a_folder_that_is_a_link_is_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let place = &places(dir.path()).for_bytes(1)[0];
        std::os::unix::fs::symlink("/tmp", &place.0).unwrap();
        assert!(matches!(place.file(), Err(ExportError::Folder { .. })));
    }

    #[test]
    fn a_chosen_place_is_tried_first_and_full_memory_is_passed_over() {
        let parents = |chosen: Option<&str>| {
            let chosen = chosen.map(PathBuf::from);
            let places = Places::new(chosen, Path::new("/state"), "run", "a/r0");
            let found = places.for_bytes(u64::MAX).into_iter();
            let parents = found.map(|place| place.0.parent().unwrap().to_owned());
            parents.collect::<Vec<_>>()
        };
        let both = [Path::new("/scratch"), Path::new("/state")];
        assert_eq!(parents(Some("/scratch")), both);
        assert_eq!(parents(None), [Path::new("/state")]);
    }
}
