//! A blob that arrives in chunks, in any order, from many requests, across restarts.
//!
//! Which chunks are there is found by hashing the file when an upload is resumed, not from a stored
//! bitmap: the hashes are known anyway, a bitmap would need an fsync of the data before every one of its
//! own, and it could only claim what the hash proves. Hashing runs at gigabytes per second, once per
//! restart. So a chunk costs positioned writes only; all are fsynced together on completion, and one that a
//! power cut took is merely asked for again. Its bytes are written as they come and hashed beside, so that
//! nobody holds whole chunks in memory, however many arrive at once. Never here: requests, and who may send.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use hansa_base::Hash;

use crate::blob::{Blob, BlobStore, names_in, read_manifest};
use crate::error::StoreError;
use crate::files;
use crate::manifest::Manifest;

const ID_LENGTH_MAX: usize = 100;

/// The name of an upload, chosen by who begins it; it becomes a directory name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UploadId(String);

impl std::str::FromStr for UploadId {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if (1..=ID_LENGTH_MAX).contains(&text.len()) && text.chars().all(plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(StoreError::BadUploadId(text.chars().take(120).collect()))
    }
}

impl From<Hash> for UploadId {
    fn from(hash: Hash) -> Self {
        Self(hash.to_string())
    }
}

impl std::fmt::Display for UploadId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.0)
    }
}

/// What became of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkOutcome {
    /// It was missing and is there now.
    Stored,
    /// It was there already.
    Known,
}

/// An upload that has begun. All methods take `&self`, so that chunks arrive in parallel.
#[derive(Debug)]
pub struct Upload {
    id: UploadId,
    manifest: Manifest,
    dir: PathBuf,
    // None: the blob was in the store before the upload began.
    file: Option<File>,
    missing: Mutex<Vec<bool>>,
    completing: Mutex<()>,
    // Held for reading while a piece is written; true once the bytes are being checked for good.
    sealed: RwLock<bool>,
}

/// A chunk that is arriving: give it the bytes in order, then [`ChunkWriter::finish`]. Dropped before, the
/// chunk stays missing.
#[derive(Debug)]
pub struct ChunkWriter {
    upload: Arc<Upload>,
    index: u32,
    offset: u64,
    left_bytes: u64,
    hasher: blake3::Hasher,
    // Bytes went to the file; bytes did not, because the chunk was there.
    wrote: bool,
    skipped: bool,
}

impl ChunkWriter {
    /// Bytes of the chunk that are still to come.
    #[must_use]
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// Takes the next bytes; more than [`Self::left_bytes`] are refused.
    pub fn write(&mut self, piece: &[u8]) -> Result<(), StoreError> {
        let length = piece.len() as u64;
        if length > self.left_bytes {
            return Err(StoreError::ChunkMismatch(self.index));
        }
        self.hasher.update(piece);
        let wrote = self.upload.write_piece(self.index, piece, self.offset)?;
        self.wrote |= wrote;
        self.skipped |= !wrote;
        self.offset += length;
        self.left_bytes -= length;
        Ok(())
    }

    /// The chunk counts from now on, if its bytes are those that the manifest names.
    pub fn finish(self) -> Result<ChunkOutcome, StoreError> {
        let hash = Hash(*self.hasher.finalize().as_bytes());
        if self.left_bytes > 0 || hash != self.upload.manifest.chunks()[self.index as usize] {
            if self.wrote {
                // It may have written over what another request brought meanwhile.
                lock(&self.upload.missing)[self.index as usize] = true;
            }
            return Err(StoreError::ChunkMismatch(self.index));
        }
        if self.skipped {
            return Ok(ChunkOutcome::Known);
        }
        lock(&self.upload.missing)[self.index as usize] = false;
        Ok(ChunkOutcome::Stored)
    }
}

impl Upload {
    /// Its name.
    #[must_use]
    pub fn id(&self) -> &UploadId {
        &self.id
    }

    /// What is to arrive.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The chunks that are not there yet, ascending.
    #[must_use]
    pub fn missing(&self) -> Vec<u32> {
        let missing = lock(&self.missing);
        (0..self.manifest.chunk_count())
            .filter(|&index| missing[index as usize])
            .collect()
    }

    /// The bytes of the chunks that are there.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        let length = |index| {
            self.manifest
                .chunk_range(index)
                .map_or(0, |(_, length)| length)
        };
        self.manifest.total_bytes() - self.missing().into_iter().map(length).sum::<u64>()
    }

    /// Begins to take a chunk. What it turns out not to be is found by its hash, at the latest when the
    /// upload is completed; two that bring the same chunk write the same bytes.
    pub fn chunk_writer(self: &Arc<Self>, index: u32) -> Result<ChunkWriter, StoreError> {
        let chunks = self.manifest.chunk_count();
        let range = self.manifest.chunk_range(index);
        let (offset, left_bytes) = range.ok_or(StoreError::NoChunk { index, chunks })?;
        Ok(ChunkWriter {
            upload: self.clone(),
            index,
            offset,
            left_bytes,
            hasher: blake3::Hasher::new(),
            wrote: false,
            skipped: false,
        })
    }

    /// Takes a whole chunk that has the length and hash that the manifest names; repeating one is harmless.
    pub fn put_chunk(
        self: &Arc<Self>,
        index: u32,
        bytes: &[u8],
    ) -> Result<ChunkOutcome, StoreError> {
        let mut writer = self.chunk_writer(index)?;
        writer.write(bytes)?;
        writer.finish()
    }

    /// Writes a part of a chunk unless that is there already; says whether it did. Never writes once the
    /// upload is sealed: from then on the file is, or becomes, a blob.
    fn write_piece(&self, index: u32, piece: &[u8], offset: u64) -> Result<bool, StoreError> {
        let sealed = self.sealed.read().unwrap_or_else(PoisonError::into_inner);
        let wanted = !*sealed && lock(&self.missing)[index as usize];
        let Some(file) = self.file.as_ref().filter(|_| wanted) else {
            return Ok(false);
        };
        let path = self.dir.join("data");
        file.write_all_at(piece, offset)
            .map_err(StoreError::io("write", &path))?;
        Ok(true)
    }

    fn seal(&self, sealed: bool) {
        *self.sealed.write().unwrap_or_else(PoisonError::into_inner) = sealed;
    }

    /// Opens an upload's file; until it is looked at, all chunks are taken for missing.
    fn open(id: UploadId, manifest: Manifest, dir: PathBuf) -> Result<Self, StoreError> {
        let path = dir.join("data");
        let opened = File::options().read(true).write(true).open(&path);
        let file = opened.map_err(StoreError::io("open", &path))?;
        file.set_len(manifest.total_bytes())
            .map_err(StoreError::io("set the size of", &path))?;
        Ok(Self {
            id,
            dir,
            missing: Mutex::new(vec![true; manifest.chunks().len()]),
            manifest,
            file: Some(file),
            completing: Mutex::default(),
            sealed: RwLock::default(),
        })
    }

    fn already_there(id: UploadId, manifest: Manifest, dir: PathBuf) -> Self {
        let missing = Mutex::new(vec![false; manifest.chunks().len()]);
        Self {
            id,
            manifest,
            dir,
            file: None,
            missing,
            completing: Mutex::default(),
            sealed: RwLock::default(),
        }
    }

    /// Finds out from the file which chunks are there.
    fn look_again(&self) -> Result<(), StoreError> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let path = self.dir.join("data");
        let absent = self
            .manifest
            .missing_in(file)
            .map_err(StoreError::io("read", &path))?;
        let mut missing = lock(&self.missing);
        missing.fill(false);
        absent
            .into_iter()
            .for_each(|index| missing[index as usize] = true);
        Ok(())
    }

    fn check_complete(&self) -> Result<(), StoreError> {
        let missing = self.missing();
        if missing.is_empty() {
            return Ok(());
        }
        Err(StoreError::UploadIncomplete {
            id: self.id.clone(),
            missing,
        })
    }
}

impl BlobStore {
    /// Begins an upload, or goes on with the one of this id and manifest, in this process or after a
    /// restart. If the blob is in the store already, nothing is missing.
    pub fn begin_upload(
        &self,
        id: UploadId,
        manifest: Manifest,
    ) -> Result<Arc<Upload>, StoreError> {
        let _beginning = lock(&self.beginning);
        let dir = self.uploads_dir().join(&id.0);
        if let Some(upload) = self.upload(&id) {
            return if upload.manifest == manifest {
                Ok(upload)
            } else {
                Err(StoreError::UploadConflict(id))
            };
        }
        let begun = read_manifest(&dir.join("manifest.json"))?;
        match &begun {
            Some(begun) if *begun != manifest => return Err(StoreError::UploadConflict(id)),
            Some(_) => {}
            None if self.contains(manifest.hash()) => {
                return Ok(Arc::new(Upload::already_there(id, manifest, dir)));
            }
            None => self.make_upload_dir(&dir, &manifest)?,
        }
        let upload = Arc::new(Upload::open(id.clone(), manifest, dir)?);
        if begun.is_some() {
            upload.look_again()?;
        }
        lock(&self.uploads).insert(id, upload.clone());
        Ok(upload)
    }

    /// Goes on with an upload that was begun in this process or before, by its id alone; `None` if
    /// there is none.
    pub fn resume_upload(&self, id: &UploadId) -> Result<Option<Arc<Upload>>, StoreError> {
        if let Some(upload) = self.upload(id) {
            return Ok(Some(upload));
        }
        let path = self.uploads_dir().join(&id.0).join("manifest.json");
        match read_manifest(&path)? {
            Some(manifest) => self.begin_upload(id.clone(), manifest).map(Some),
            None => Ok(None),
        }
    }

    /// An upload that was begun in this process and is neither complete nor aborted.
    #[must_use]
    pub fn upload(&self, id: &UploadId) -> Option<Arc<Upload>> {
        lock(&self.uploads).get(id).cloned()
    }

    /// Makes an upload a blob, durable when this returns: fsync, hash once more, rename. Repeating it is
    /// harmless. What misses chunks is refused with their indices and can go on.
    pub fn complete_upload(&self, upload: &Upload) -> Result<Blob, StoreError> {
        let _completing = lock(&upload.completing);
        let hash = upload.manifest.hash();
        upload.check_complete()?;
        if let Some(file) = upload.file.as_ref().filter(|_| upload.dir.exists()) {
            let path = upload.dir.join("data");
            // Nothing is written between the bytes that are synced and those that are checked.
            upload.seal(true);
            let synced = file.sync_all().map_err(StoreError::io("sync", &path));
            let checked = synced.and_then(|()| upload.look_again());
            let checked = checked.and_then(|()| upload.check_complete());
            let adopted = checked.and_then(|()| self.adopt(&upload.dir, hash));
            adopted.inspect_err(|_| upload.seal(false))?;
        }
        lock(&self.uploads).remove(&upload.id);
        self.open_blob(hash)
    }

    /// Gives an upload up and removes what arrived of it; `false` if there was nothing.
    pub fn abort_upload(&self, id: &UploadId) -> Result<bool, StoreError> {
        let _beginning = lock(&self.beginning);
        lock(&self.uploads).remove(id);
        self.discard(&self.uploads_dir().join(&id.0))
    }

    /// The uploads that lie on disk, begun in this process or before; in order of their names.
    pub fn list_uploads(&self) -> Result<Vec<UploadId>, StoreError> {
        let mut ids: Vec<UploadId> = names_in(&self.uploads_dir())?;
        ids.sort_unstable();
        Ok(ids)
    }

    /// Built aside and renamed, so that a directory of an upload always has its manifest.
    fn make_upload_dir(
        &self,
        dir: &std::path::Path,
        manifest: &Manifest,
    ) -> Result<(), StoreError> {
        let tmp = self.tmp_dir()?;
        files::create_reserved(&tmp.path.join("data"), manifest.total_bytes())?;
        files::write_synced(&tmp.path.join("manifest.json"), &manifest.to_json())?;
        files::sync_dir(&tmp.path)?;
        files::rename_synced(&tmp.path, dir)
    }
}

// A panic elsewhere leaves flags that are true or pessimistic, so poison says nothing here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
