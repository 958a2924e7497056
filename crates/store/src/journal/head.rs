//! The journal's last record, and the small file that remembers it outside SQLite.
//!
//! 48 bytes: number (u64, little-endian), chain hash, and the first 8 bytes of BLAKE3 of both. It is
//! written in place after the commit and not fsynced: it may be behind the journal, which is harmless,
//! never ahead of it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hansa_base::Hash;

use super::{Record, Seq};
use crate::error::{Damage, StoreError};
use crate::files;

const HEAD_BYTES: usize = 48;
const READS_MAX: u32 = 10;

/// The end of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) seq: Seq,
    pub(super) chain: Hash,
}

impl Head {
    /// The end once `record` is appended.
    pub(super) fn after(self, record: &Record) -> Self {
        let seq = self.seq.next();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.chain.0).update(&seq.0.to_le_bytes());
        hasher
            .update(&record.wall_ms.to_le_bytes())
            .update(&record.version.to_le_bytes());
        hasher.update(&record.payload);
        Self {
            seq,
            chain: Hash(*hasher.finalize().as_bytes()),
        }
    }

    pub(super) fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.seq.0.to_le_bytes());
        bytes[8..40].copy_from_slice(&self.chain.0);
        let check = blake3::hash(&bytes[..40]);
        bytes[40..].copy_from_slice(&check.as_bytes()[..8]);
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let seq = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
        let chain = Hash(bytes.get(8..40)?.try_into().ok()?);
        let head = Self {
            seq: Seq(seq),
            chain,
        };
        (head.to_bytes() == bytes).then_some(head)
    }
}

/// `journal.head`, open for writing.
#[derive(Debug)]
pub(super) struct HeadFile {
    file: File,
    path: PathBuf,
}

impl HeadFile {
    /// Makes the file, durably but for its directory entry.
    pub(super) fn create(path: &Path, head: Head) -> Result<(), StoreError> {
        files::write_synced(path, &head.to_bytes())
    }

    /// What the file says; `None` if there is none. A reader beside a living writer may see half of
    /// its write, so damage is believed only when it stays.
    pub(super) fn read(path: &Path) -> Result<Option<Head>, StoreError> {
        for _ in 0..READS_MAX {
            match std::fs::read(path) {
                Ok(bytes) => {
                    if let Some(head) = Head::from_bytes(&bytes) {
                        return Ok(Some(head));
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(StoreError::io("read", path)(error)),
            }
        }
        Err(StoreError::Damaged {
            path: path.to_owned(),
            damage: Damage::Head,
        })
    }

    /// Opens the file to keep it up to date, making it if a copied journal came without.
    pub(super) fn open_or_create(path: &Path, head: Head) -> Result<Self, StoreError> {
        if !path.exists() {
            tracing::warn!(path = %path.display(), "the journal came without its head file; making it");
            Self::create(path, head)?;
        }
        let open = File::options().write(true).open(path);
        let file = open.map_err(StoreError::io("open", path))?;
        let head_file = Self {
            file,
            path: path.to_owned(),
        };
        head_file.store(head)?;
        Ok(head_file)
    }

    pub(super) fn store(&self, head: Head) -> Result<(), StoreError> {
        let written = self.file.write_all_at(&head.to_bytes(), 0);
        written.map_err(StoreError::io("write", &self.path))
    }
}
