//! Weights that the trainer has written for the session to read: a safetensors file, read once in order.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hansa_outer::{Dtype, Header, Layout, PREFIX_BYTES};

/// Where exported weights may lie: what was chosen, or memory while there is room; else the state directory,
/// as a phase that cannot be exported is lost.
pub(crate) struct Places {
    chosen: Option<PathBuf>,
    memory: PathBuf,
    disk: PathBuf,
}

/// What memory must have beyond the file itself: other ranks and the page cache live there, too.
const MEMORY_SHARE: u64 = 2;

impl Places {
    pub fn new(chosen: Option<PathBuf>, state_dir: &Path) -> Self {
        Self {
            chosen,
            memory: PathBuf::from("/dev/shm"),
            disk: state_dir.to_owned(),
        }
    }

    /// Folders to try, the best first, for a file of so many bytes.
    pub fn for_bytes(&self, bytes: u64) -> Vec<&Path> {
        let mut places = Vec::new();
        if let Some(chosen) = &self.chosen {
            places.push(chosen.as_path());
        } else if free_bytes(&self.memory).is_some_and(|free| free / MEMORY_SHARE >= bytes) {
            places.push(self.memory.as_path());
        }
        places.push(&self.disk);
        places
    }
}

fn free_bytes(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

/// An exported model; its file goes with the value.
pub(crate) struct Exported {
    file: File,
    path: PathBuf,
    header: Header,
    bytes: Vec<u8>,
}

/// Why an exported file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    #[error("read {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the trainer exported what is not the run's model: {0}")]
    Other(String),
}

impl Exported {
    /// Opens what the trainer wrote, and checks that it is the run's model in `f32`.
    pub fn open(path: &Path, layout: &Layout) -> Result<Self, ExportError> {
        let io = |source| ExportError::Io {
            path: path.to_owned(),
            source,
        };
        let other = |error: hansa_outer::HeaderError| ExportError::Other(error.to_string());
        let file = File::open(path).map_err(io)?;
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
            path: path.to_owned(),
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
            path: self.path.clone(),
            source,
        })?;
        Dtype::F32.decode(&self.bytes, values);
        Ok(())
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
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

    fn write(path: &Path, columns: usize, values: &[f32]) {
        let built = Header::build(&layout(columns), Dtype::F32, Metadata::new());
        let mut bytes = built.unwrap().1;
        let mut data = vec![0; 4 * values.len()];
        Dtype::F32.encode(values, &mut data);
        bytes.extend(data);
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn a_model_is_read_in_pieces_and_its_file_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m");
        let values: Vec<f32> = (0u8..7).map(f32::from).collect();
        write(&path, 2, &values);
        let mut exported = Exported::open(&path, &layout(2)).unwrap();
        let mut read = [0.0; 4];
        exported.read(2, &mut read).unwrap();
        assert_eq!(read, [2.0, 3.0, 4.0, 5.0]);
        drop(exported);
        assert!(!path.exists());
    }

    #[test]
    fn another_model_or_half_of_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m");
        write(&path, 3, &[0.0; 9]);
        let error = Exported::open(&path, &layout(2)).err().unwrap();
        assert!(matches!(error, ExportError::Other(_)), "{error}");
        write(&path, 2, &[0.0; 6]);
        assert!(Exported::open(&path, &layout(2)).is_err());
    }

    #[test]
    fn a_chosen_place_is_tried_first_and_full_memory_is_passed_over() {
        let chosen = Places::new(Some("/scratch".into()), Path::new("/state"));
        let both = [Path::new("/scratch"), Path::new("/state")];
        assert_eq!(chosen.for_bytes(u64::MAX), both);
        let any = Places::new(None, Path::new("/state"));
        assert_eq!(any.for_bytes(u64::MAX), [Path::new("/state")]);
    }
}
