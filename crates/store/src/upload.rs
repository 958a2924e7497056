//! A blob that arrives in chunks, in any order, from many requests, across restarts.
//!
//! Which chunks are there is found by hashing the file when an upload is resumed, not from a stored
//! bitmap: the hashes are known anyway, a bitmap would need an fsync of the data before every one of its
//! own, and it could only claim what the hash proves. Hashing runs at gigabytes per second, once per
//! restart. So a chunk costs positioned writes only; all are fsynced together on completion, and one that a
//! power cut took is merely asked for again. Its bytes are written as they come and hashed beside, so that
//! nobody holds whole chunks in memory, however many arrive at once, and nothing is read a second time. The
//! state of a chunk's hash outlives the request that brings it, so the next one goes on where that stopped.
//! Never here: requests, and who may send.

use std::any::Any;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hansa_base::Hash;

use crate::blob::{Blob, BlobStore, names_in, read_manifest};
use crate::error::StoreError;
use crate::files;
use crate::manifest::{ChunkHasher, Manifest};
use crate::spares;
use crate::watch::{Watch, WatchChunk};

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
    watch: Option<Arc<dyn Watch>>,
    slots: Vec<Mutex<Slot>>,
    completing: Mutex<()>,
}

/// What is known of one chunk. Its lock is held while a piece of it is written.
#[derive(Debug, Default)]
struct Slot {
    there: bool,
    /// The writer that began last: only it may write.
    writer: u64,
    /// What came of the chunk so far. It lies here and not with its writer, so that who sends again goes on
    /// behind it, though nobody has noticed yet that the earlier connection is dead.
    begun: Option<Box<Begun>>,
}

/// A chunk's first bytes: hashed, looked at, and in the file.
#[derive(Debug)]
struct Begun {
    hasher: ChunkHasher,
    look: Option<Box<dyn WatchChunk>>,
    bytes: u64,
}

/// A chunk that is arriving: give it the bytes in order, then [`ChunkWriter::finish`]. Dropped before, the
/// chunk stays missing, but [`Upload::chunk_writer_at`] can go on where it stopped.
#[derive(Debug)]
pub struct ChunkWriter {
    upload: Arc<Upload>,
    index: u32,
    number: u64,
    length: u64,
    /// Bytes of the chunk before the next piece.
    at: u64,
}

impl ChunkWriter {
    /// Bytes of the chunk that are still to come.
    #[must_use]
    pub fn left_bytes(&self) -> u64 {
        self.length - self.at
    }

    /// Takes the next bytes; more than [`Self::left_bytes`] are refused. Those that are here already are
    /// passed over.
    pub fn write(&mut self, piece: &[u8]) -> Result<(), StoreError> {
        if piece.len() as u64 > self.left_bytes() {
            return Err(StoreError::ChunkMismatch(self.index));
        }
        self.upload
            .write_piece(self.index, self.number, piece, self.at)?;
        self.at += piece.len() as u64;
        Ok(())
    }

    /// The chunk counts from now on, if its bytes are those that the manifest names; else none of them do.
    pub fn finish(self) -> Result<ChunkOutcome, StoreError> {
        let index = self.index;
        let mut slot = lock(&self.upload.slots[index as usize]);
        if slot.writer != self.number {
            return Err(StoreError::ChunkTakenOver(index));
        }
        if slot.there {
            return Ok(ChunkOutcome::Known);
        }
        let begun = slot.begun.take();
        let Some(begun) = begun.filter(|begun| begun.bytes == self.length) else {
            return Err(StoreError::ChunkMismatch(index));
        };
        if begun.hasher.finish() != self.upload.manifest.chunks()[index as usize] {
            return Err(StoreError::ChunkMismatch(index));
        }
        if let Some(look) = begun.look {
            look.finish();
        }
        slot.there = true;
        drop(slot);
        self.upload.start_writeback(index);
        Ok(ChunkOutcome::Stored)
    }
}

impl Slot {
    fn held_bytes(&self, length: u64) -> u64 {
        let held = self.begun.as_ref().map_or(0, |begun| begun.bytes);
        if self.there { length } else { held }
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

    /// Who watches it, if that is a `W`. Of an upload whose blob was in the store before it began, nothing
    /// is seen.
    #[must_use]
    pub fn watch<W: Watch>(&self) -> Option<Arc<W>> {
        let watch: Arc<dyn Any + Send + Sync> = self.watch.clone()?;
        watch.downcast().ok()
    }

    /// The chunks that are not there yet, ascending.
    #[must_use]
    pub fn missing(&self) -> Vec<u32> {
        (0..self.manifest.chunk_count())
            .filter(|&index| !lock(&self.slots[index as usize]).there)
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

    /// How many of a chunk's bytes need not be sent: all once it is there, else those that requests have
    /// brought so far, whether or not they go on. A restart forgets the latter.
    pub fn held_bytes(&self, index: u32) -> Result<u64, StoreError> {
        let (_, length) = self.range(index)?;
        let slot = lock(&self.slots[index as usize]);
        Ok(slot.held_bytes(length))
    }

    /// Begins to take a chunk. Whoever else was bringing it is refused from now on: that is mostly the
    /// same sender's earlier request, whose connection is dead.
    pub fn chunk_writer(self: &Arc<Self>, index: u32) -> Result<ChunkWriter, StoreError> {
        self.chunk_writer_at(index, 0)
    }

    /// As [`Self::chunk_writer`], going on after the chunk's first `from` bytes, of which there must be
    /// [`Self::held_bytes`] at least: an earlier request may have brought more since somebody asked. From
    /// 0 on all is taken anew.
    pub fn chunk_writer_at(
        self: &Arc<Self>,
        index: u32,
        from: u64,
    ) -> Result<ChunkWriter, StoreError> {
        let (offset, length) = self.range(index)?;
        let mut slot = lock(&self.slots[index as usize]);
        let held = slot.held_bytes(length);
        if from > held {
            return Err(StoreError::WrongOffset { index, from, held });
        }
        if from == 0 && !slot.there {
            let watch = self.watch.clone();
            slot.begun = Some(Box::new(Begun {
                hasher: ChunkHasher::new(),
                look: watch.map(|watch| watch.chunk(index, offset)),
                bytes: 0,
            }));
        }
        slot.writer += 1;
        Ok(ChunkWriter {
            upload: self.clone(),
            index,
            number: slot.writer,
            length,
            at: from,
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

    fn range(&self, index: u32) -> Result<(u64, u64), StoreError> {
        let chunks = self.manifest.chunk_count();
        let range = self.manifest.chunk_range(index);
        range.ok_or(StoreError::NoChunk { index, chunks })
    }

    /// Writes a part of a chunk, `at` bytes after its beginning, but for what is there already.
    fn write_piece(
        &self,
        index: u32,
        number: u64,
        piece: &[u8],
        at: u64,
    ) -> Result<(), StoreError> {
        let (offset, _) = self.range(index)?;
        // The lock is what makes a chunk's hash speak for the file: the bytes that were hashed are the
        // last that were written, and nobody writes once the chunk is there.
        let mut slot = lock(&self.slots[index as usize]);
        if slot.writer != number {
            return Err(StoreError::ChunkTakenOver(index));
        }
        let Some(file) = self.file.as_ref().filter(|_| !slot.there) else {
            return Ok(());
        };
        // None after wrong bytes: whoever brought them ends here.
        let begun = slot.begun.as_mut();
        let begun = begun.ok_or(StoreError::ChunkMismatch(index))?;
        let known = begun.bytes.saturating_sub(at).min(piece.len() as u64);
        let piece = &piece[known as usize..];
        let written = file.write_all_at(piece, offset + begun.bytes);
        written.map_err(StoreError::io("write", self.dir.join("data")))?;
        begun.hasher.update(piece);
        if let Some(look) = &mut begun.look {
            look.push(piece);
        }
        begun.bytes += piece.len() as u64;
        Ok(())
    }

    /// The disk may begin with a chunk while the next one travels, so that the fsync finds little to do.
    fn start_writeback(&self, index: u32) {
        if let (Some(file), Ok((offset, length))) = (&self.file, self.range(index)) {
            files::start_writeback(file, offset, length);
        }
    }

    /// Opens an upload's file; until it is looked at, all chunks are taken for missing.
    fn open(
        id: UploadId,
        manifest: Manifest,
        dir: PathBuf,
        watch: Option<Arc<dyn Watch>>,
    ) -> Result<Self, StoreError> {
        let path = dir.join("data");
        let opened = File::options().read(true).write(true).open(&path);
        let file = opened.map_err(StoreError::io("open", &path))?;
        // A request that outlives its upload must not write into what the file becomes next.
        let ours = spares::hold(&file, &path).map_err(StoreError::io("inspect", &path))?;
        if !ours {
            return Err(StoreError::io("open", &path)(ErrorKind::NotFound.into()));
        }
        file.set_len(manifest.total_bytes())
            .map_err(StoreError::io("set the size of", &path))?;
        Ok(Self::new(id, manifest, dir, Some(file), watch))
    }

    fn already_there(id: UploadId, manifest: Manifest, dir: PathBuf) -> Self {
        Self::new(id, manifest, dir, None, None)
    }

    fn new(
        id: UploadId,
        manifest: Manifest,
        dir: PathBuf,
        file: Option<File>,
        watch: Option<Arc<dyn Watch>>,
    ) -> Self {
        let slot = |_: &Hash| {
            Mutex::new(Slot {
                there: file.is_none(),
                ..Slot::default()
            })
        };
        Self {
            id,
            dir,
            slots: manifest.chunks().iter().map(slot).collect(),
            manifest,
            file,
            watch,
            completing: Mutex::default(),
        }
    }

    /// Finds out from the file which chunks are there, before anybody writes, and shows those to who
    /// watches.
    fn look_at_file(&self) -> Result<(), StoreError> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let path = self.dir.join("data");
        let absent = self.manifest.missing_in_watched(file, self.watch.as_ref());
        let absent = absent.map_err(StoreError::io("read", &path))?;
        self.slots.iter().for_each(|slot| lock(slot).there = true);
        absent
            .into_iter()
            .for_each(|index| lock(&self.slots[index as usize]).there = false);
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
        self.begin_watched_upload(id, manifest, None)
    }

    /// The same with somebody who sees each chunk: while it arrives, or, if it came before a restart, now.
    /// One that goes on in this process keeps who watches it.
    pub fn begin_watched_upload(
        &self,
        id: UploadId,
        manifest: Manifest,
        watch: Option<Arc<dyn Watch>>,
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
        let upload = Arc::new(Upload::open(id.clone(), manifest, dir, watch)?);
        if begun.is_some() {
            upload.look_at_file()?;
        }
        lock(&self.uploads).insert(id, upload.clone());
        Ok(upload)
    }

    /// Goes on with an upload that was begun in this process or before, by its id alone; `None` if
    /// there is none. `watch` makes who watches it from then on, if it was begun before.
    pub fn resume_upload(
        &self,
        id: &UploadId,
        watch: impl FnOnce(&Manifest) -> Option<Arc<dyn Watch>>,
    ) -> Result<Option<Arc<Upload>>, StoreError> {
        if let Some(upload) = self.upload(id) {
            return Ok(Some(upload));
        }
        let path = self.uploads_dir().join(&id.0).join("manifest.json");
        match read_manifest(&path)? {
            Some(manifest) => {
                let watch = watch(&manifest);
                let begun = self.begin_watched_upload(id.clone(), manifest, watch);
                begun.map(Some)
            }
            None => Ok(None),
        }
    }

    /// An upload that was begun in this process and is neither complete nor aborted.
    #[must_use]
    pub fn upload(&self, id: &UploadId) -> Option<Arc<Upload>> {
        lock(&self.uploads).get(id).cloned()
    }

    /// Makes an upload a blob, durable when this returns: fsync, rename. Repeating it is harmless. What
    /// misses chunks is refused with their indices and can go on.
    pub fn complete_upload(&self, upload: &Upload) -> Result<Blob, StoreError> {
        let _completing = lock(&upload.completing);
        let hash = upload.manifest.hash();
        upload.check_complete()?;
        if let Some(file) = upload.file.as_ref().filter(|_| upload.dir.exists()) {
            let path = upload.dir.join("data");
            file.sync_all().map_err(StoreError::io("sync", &path))?;
            self.adopt(&upload.dir, hash)?;
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
        self.create_file(&tmp.path.join("data"), manifest.total_bytes())?;
        files::write_synced(&tmp.path.join("manifest.json"), &manifest.to_json())?;
        files::sync_dir(&tmp.path)?;
        files::rename_synced(&tmp.path, dir)
    }
}

// A panic elsewhere leaves marks that are true or pessimistic, so poison says nothing here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
