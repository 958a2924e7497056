//! Blobs by hash: models, pseudo-gradients, whatever is large and never changes.
//!
//! A blob is a directory named by its manifest's hash. It is built under `tmp/`, made durable, and
//! renamed into place, so a name under `blobs/` always stands for a whole blob; what a killed process
//! left in `tmp/` goes at the next open, while uploads stay. Never here: deciding what to keep.

use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use hansa_base::Hash;

use crate::data_dir::DataDir;
use crate::error::StoreError;
use crate::files;
use crate::manifest::{Manifest, count_chunks};
use crate::spares::{self, Spares};
use crate::tree::PartHashes;
use crate::upload::{Upload, UploadId};

/// What becomes of a file that is brought in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bring {
    /// It stays where it is; its bytes are copied.
    Copy,
    /// Its old name goes once the blob is durable; on one filesystem no byte is copied. Nobody may
    /// write to it any more.
    Move,
}

/// The blobs and uploads of a data directory. Shared by reference between threads.
#[derive(Debug)]
pub struct BlobStore {
    root: PathBuf,
    next_tmp: AtomicU64,
    // False only for measurements.
    durable: bool,
    pub(crate) uploads: Mutex<HashMap<UploadId, Arc<Upload>>>,
    pub(crate) beginning: Mutex<()>,
    /// Files of removed blobs, to be written over.
    spares: Spares,
    /// Threads that delete what is large.
    deleting: Mutex<Vec<JoinHandle<()>>>,
}

/// What has a file of this size takes the system a while to delete.
const LARGE_BYTES: u64 = 32 << 20;

impl BlobStore {
    /// Opens the store of a data directory, which the lock shows to be ours, and removes what killed
    /// writes left behind.
    pub fn open(data_dir: &DataDir) -> Result<Self, StoreError> {
        let root = data_dir.path().to_owned();
        let tmp = root.join("tmp");
        if tmp.exists() {
            std::fs::remove_dir_all(&tmp).map_err(StoreError::io("remove leftovers in", &tmp))?;
        }
        for dir in ["tmp", "blobs", "uploads"] {
            files::make_dir(&root.join(dir))?;
        }
        files::sync_dir(&root)?;
        Ok(Self {
            root,
            next_tmp: AtomicU64::new(0),
            durable: true,
            uploads: Mutex::default(),
            beginning: Mutex::default(),
            spares: Spares::default(),
            deleting: Mutex::default(),
        })
    }

    /// For measurements only: a store whose new blobs are not made durable, to see what syncing costs.
    pub fn open_without_sync(data_dir: &DataDir) -> Result<Self, StoreError> {
        let mut store = Self::open(data_dir)?;
        store.durable = false;
        Ok(store)
    }

    /// Brings a file in as a blob, durable when this returns. Content that is there already is not
    /// stored twice.
    pub fn put_file(
        &self,
        path: &Path,
        bring: Bring,
        chunk_bytes: u64,
    ) -> Result<Blob, StoreError> {
        let tmp = self.tmp_dir()?;
        let data = tmp.path.join("data");
        // A link instead of a rename: a crash in between must not lose the only name.
        let linked = bring == Bring::Move && std::fs::hard_link(path, &data).is_ok();
        if !linked {
            std::fs::copy(path, &data).map_err(StoreError::io("copy", path))?;
        }
        let blob = self.publish(tmp, &Manifest::of_file(&data, chunk_bytes)?)?;
        if bring == Bring::Move {
            std::fs::remove_file(path).map_err(StoreError::io("remove", path))?;
        }
        Ok(blob)
    }

    /// A blob to be written in place, in any order and by many threads: every byte, as the file may be that
    /// of a blob that is gone.
    pub fn writer(&self, total_bytes: u64) -> Result<BlobWriter<'_>, StoreError> {
        let tmp = self.tmp_dir()?;
        let file = self.create_file(&tmp.path.join("data"), total_bytes)?;
        Ok(BlobWriter {
            store: self,
            tmp,
            file,
        })
    }

    /// The same, for who writes each byte once: pieces are hashed as they are written, and nothing is
    /// read again if they begin at multiples of 1024 bytes.
    pub fn hashing_writer(
        &self,
        total_bytes: u64,
        chunk_bytes: u64,
    ) -> Result<HashingWriter<'_>, StoreError> {
        let writer = self.writer(total_bytes)?;
        let malformed = |source| StoreError::Manifest {
            path: writer.path(),
            source,
        };
        let count = count_chunks(total_bytes, chunk_bytes).map_err(malformed)?;
        Ok(HashingWriter {
            parts: PartHashes::new(total_bytes, chunk_bytes, count),
            total_bytes,
            chunk_bytes,
            writer,
        })
    }

    /// A file of this length with its space reserved; what is in it is for the caller to write. On a full
    /// disk, files that are only kept for later make room.
    pub(crate) fn create_file(&self, path: &Path, bytes: u64) -> Result<File, StoreError> {
        let made = match self.spares.take(path, bytes) {
            Some(file) => files::reserve(&file, bytes)
                .map(|()| file)
                .map_err(StoreError::io("reserve space for", path)),
            None => files::create_reserved(path, bytes),
        };
        match made {
            Err(error) if error.is_disk_full() && self.spares.clear() => {
                files::create_reserved(path, bytes)
            }
            made => made,
        }
    }

    /// Opens a blob after checking its manifest and size; its content is checked by
    /// [`Blob::read_chunk`] and [`Blob::verify`].
    pub fn open_blob(&self, hash: Hash) -> Result<Blob, StoreError> {
        open_in(&self.root, hash)
    }

    /// Copies a blob of another store, checking each chunk; one that is here and whole is kept. True if
    /// bytes were copied.
    pub fn copy_in(&self, source: &Blob) -> Result<bool, StoreError> {
        let whole = |hash| self.open_blob(hash).and_then(|blob| blob.verify());
        if self.contains(source.hash) && whole(source.hash).is_ok() {
            return Ok(false);
        }
        let manifest = source.manifest();
        let writer = self.writer(manifest.total_bytes())?;
        for index in 0..manifest.chunk_count() {
            let (offset, _) = manifest.chunk_range(index).unwrap_or_default();
            writer.write_all_at(&source.read_chunk(index)?, offset)?;
        }
        self.publish(writer.tmp, manifest).map(|_| true)
    }

    /// Whether a blob of this name is there.
    #[must_use]
    pub fn contains(&self, hash: Hash) -> bool {
        self.blob_dir(hash).exists()
    }

    /// The manifest that has this hash.
    pub fn manifest(&self, hash: Hash) -> Result<Manifest, StoreError> {
        manifest_in(&self.root, hash)
    }

    /// Where a blob's bytes lie, whether or not it is there. For reading only.
    #[must_use]
    pub fn path(&self, hash: Hash) -> PathBuf {
        self.blob_dir(hash).join("data")
    }

    /// Removes a blob; who has it open can read on. `false` if it was not there.
    pub fn remove(&self, hash: Hash) -> Result<bool, StoreError> {
        self.discard(&self.blob_dir(hash))
    }

    /// The blobs that are there, in order of their hash.
    pub fn list(&self) -> Result<Vec<Hash>, StoreError> {
        let mut hashes: Vec<Hash> = names_in(&self.root.join("blobs"))?;
        hashes.sort_unstable();
        Ok(hashes)
    }

    /// Makes `tmp` the blob of this manifest: its `data` is complete, the rest happens here.
    pub(crate) fn publish(&self, tmp: TmpDir, manifest: &Manifest) -> Result<Blob, StoreError> {
        let list = tmp.path.join("manifest.json");
        if !self.durable {
            std::fs::write(&list, manifest.to_json()).map_err(StoreError::io("write", &list))?;
            return self.adopt(&tmp.path, manifest.hash());
        }
        let data = tmp.path.join("data");
        let file = File::open(&data).map_err(StoreError::io("open", &data))?;
        file.sync_all().map_err(StoreError::io("sync", &data))?;
        files::write_synced(&list, &manifest.to_json())?;
        files::sync_dir(&tmp.path)?;
        self.adopt(&tmp.path, manifest.hash())
    }

    /// Renames a durable directory of `data` and `manifest.json` to its place among the blobs.
    pub(crate) fn adopt(&self, dir: &Path, hash: Hash) -> Result<Blob, StoreError> {
        if self.contains(hash) {
            let usable = self
                .open_blob(hash)
                .and_then(|blob| blob.verify().map(|()| blob));
            match usable {
                Ok(blob) => {
                    self.discard(dir)?;
                    return Ok(blob);
                }
                Err(error) => tracing::warn!(%hash, %error, "replacing a damaged blob"),
            }
            self.remove(hash)?;
        }
        let place = self.blob_dir(hash);
        if self.durable {
            files::rename_synced(dir, &place)?;
        } else {
            std::fs::rename(dir, &place).map_err(StoreError::io("rename", dir))?;
        }
        self.open_blob(hash)
    }

    /// Takes a directory away at once; its file is kept to be written over, or deleted, if that may take
    /// long then at leisure. `false` if it was not there.
    pub(crate) fn discard(&self, dir: &Path) -> Result<bool, StoreError> {
        let grave = TmpDir {
            path: self.tmp_path(),
        };
        match std::fs::rename(dir, &grave.path) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(StoreError::io("remove", dir)(error)),
        }
        if let Some(parent) = dir.parent() {
            files::sync_dir(parent)?;
        }
        let Some(grave) = self.spares.keep(grave) else {
            return Ok(true);
        };
        let length = std::fs::metadata(grave.path.join("data")).map_or(0, |data| data.len());
        if length >= LARGE_BYTES {
            self.delete_at_leisure(grave);
        }
        Ok(true)
    }

    /// Whoever decides what goes has more to do than to wait for the disk.
    fn delete_at_leisure(&self, grave: TmpDir) {
        let builder = std::thread::Builder::new().name("delete".to_owned());
        // Without a thread it is deleted here and now.
        if let Ok(thread) = builder.spawn(move || drop(grave)) {
            let mut deleting = self.deleting.lock().unwrap_or_else(PoisonError::into_inner);
            deleting.retain(|thread| !thread.is_finished());
            deleting.push(thread);
        }
    }

    pub(crate) fn tmp_dir(&self) -> Result<TmpDir, StoreError> {
        let path = self.tmp_path();
        files::make_dir(&path)?;
        Ok(TmpDir { path })
    }

    pub(crate) fn uploads_dir(&self) -> PathBuf {
        self.root.join("uploads")
    }

    // Unique: `tmp/` was empty at open, and the data directory is ours alone.
    fn tmp_path(&self) -> PathBuf {
        let number = self.next_tmp.fetch_add(1, Ordering::Relaxed);
        self.root.join("tmp").join(number.to_string())
    }

    fn blob_dir(&self, hash: Hash) -> PathBuf {
        blob_dir(&self.root, hash)
    }
}

impl Drop for BlobStore {
    /// The next one must not meet deletions under way.
    fn drop(&mut self) {
        let deleting = self.deleting.get_mut();
        for thread in deleting.unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = thread.join();
        }
    }
}

/// Opens a blob of a data directory that another process may be serving: for reading only. Who has it
/// open can read it to its end, even when it is removed.
pub fn open_in(data_dir: &Path, hash: Hash) -> Result<Blob, StoreError> {
    let manifest = manifest_in(data_dir, hash)?;
    let path = blob_dir(data_dir, hash).join("data");
    let file = File::open(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => StoreError::NoBlob(hash),
        _ => StoreError::io("open", &path)(error),
    })?;
    if !spares::hold(&file, &path).map_err(StoreError::io("inspect", &path))? {
        return Err(StoreError::NoBlob(hash));
    }
    let got_bytes = file
        .metadata()
        .map_err(StoreError::io("inspect", &path))?
        .len();
    let expected_bytes = manifest.total_bytes();
    if got_bytes != expected_bytes {
        return Err(StoreError::WrongSize {
            path,
            expected_bytes,
            got_bytes,
        });
    }
    Ok(Blob {
        hash,
        manifest: Arc::new(manifest),
        file: Arc::new(file),
        path,
    })
}

fn manifest_in(data_dir: &Path, hash: Hash) -> Result<Manifest, StoreError> {
    let path = blob_dir(data_dir, hash).join("manifest.json");
    let manifest = read_manifest(&path)?.ok_or(StoreError::NoBlob(hash))?;
    let got = manifest.hash();
    if got != hash {
        return Err(StoreError::WrongContent {
            path,
            expected: hash,
            got,
        });
    }
    Ok(manifest)
}

fn blob_dir(data_dir: &Path, hash: Hash) -> PathBuf {
    data_dir.join("blobs").join(hash.to_string())
}

/// A blob that is there, open for reading. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Blob {
    hash: Hash,
    manifest: Arc<Manifest>,
    file: Arc<File>,
    path: PathBuf,
}

impl Blob {
    /// Its name.
    #[must_use]
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// What it consists of.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Where its bytes lie. For reading only.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills `buffer` from `offset` on, unchecked.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), StoreError> {
        self.file
            .read_exact_at(buffer, offset)
            .map_err(StoreError::io("read", &self.path))
    }

    /// The same if that needs no disk; see [`crate::read_cached_at`].
    pub fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> bool {
        crate::files::read_cached_at(&self.file, buffer, offset)
    }

    /// One chunk, checked against its hash.
    pub fn read_chunk(&self, index: u32) -> Result<Vec<u8>, StoreError> {
        let chunks = self.manifest.chunk_count();
        let range = self.manifest.chunk_range(index);
        let (offset, length) = range.ok_or(StoreError::NoChunk { index, chunks })?;
        let mut bytes = vec![0; length as usize];
        self.read_exact_at(&mut bytes, offset)?;
        if self.manifest.chunk_matches(index, &bytes) {
            return Ok(bytes);
        }
        Err(StoreError::DamagedBlob {
            path: self.path.clone(),
            chunk: index,
        })
    }

    /// Reads all of it and checks every chunk.
    pub fn verify(&self) -> Result<(), StoreError> {
        let missing = self.manifest.missing_in(&self.file);
        match missing.map_err(StoreError::io("read", &self.path))?.first() {
            Some(&chunk) => Err(StoreError::DamagedBlob {
                path: self.path.clone(),
                chunk,
            }),
            None => Ok(()),
        }
    }
}

/// A blob being written; dropped without [`BlobWriter::finish`], it leaves nothing.
#[derive(Debug)]
pub struct BlobWriter<'a> {
    store: &'a BlobStore,
    tmp: TmpDir,
    file: File,
}

impl BlobWriter<'_> {
    /// The file, of the full size from the start.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where the file lies until it is finished, for who writes by path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.tmp.path.join("data")
    }

    /// Writes bytes at an offset.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<(), StoreError> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(StoreError::io("write", self.path()))
    }

    /// Hashes what was written and makes it a durable blob.
    pub fn finish(self, chunk_bytes: u64) -> Result<Blob, StoreError> {
        let manifest = Manifest::of_file(&self.path(), chunk_bytes)?;
        self.store.publish(self.tmp, &manifest)
    }
}

/// A blob being written and hashed in one go; dropped without [`HashingWriter::finish`], it leaves nothing.
#[derive(Debug)]
pub struct HashingWriter<'a> {
    writer: BlobWriter<'a>,
    parts: PartHashes,
    total_bytes: u64,
    chunk_bytes: u64,
}

impl HashingWriter<'_> {
    /// Hashes bytes and writes them at an offset, each byte once.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<(), StoreError> {
        self.parts.add(bytes, offset);
        self.writer.write_all_at(bytes, offset)
    }

    /// Brings what was written so far to the disk, while others write on: less is left for the end.
    /// Does nothing in a store that does not sync.
    pub fn sync_so_far(&self) -> Result<(), StoreError> {
        if !self.writer.store.durable {
            return Ok(());
        }
        let synced = self.writer.file.sync_data();
        synced.map_err(StoreError::io("sync", self.writer.path()))
    }

    /// Makes what was written a durable blob.
    pub fn finish(self) -> Result<Blob, StoreError> {
        let path = self.writer.path();
        let known = self.parts.finish();
        let manifest = Manifest::of_known(&path, self.total_bytes, self.chunk_bytes, known)?;
        self.writer.store.publish(self.writer.tmp, &manifest)
    }
}

/// A directory under `tmp/` that goes with the value, unless it was renamed away.
#[derive(Debug)]
pub(crate) struct TmpDir {
    pub(crate) path: PathBuf,
}

impl Drop for TmpDir {
    fn drop(&mut self) {
        match std::fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                let path = self.path.display();
                tracing::warn!(%path, %error, "a leftover stays until the next start");
            }
            _ => {}
        }
    }
}

/// A manifest's file; `None` if there is none.
pub(crate) fn read_manifest(path: &Path) -> Result<Option<Manifest>, StoreError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io("read", path)(error)),
    };
    let malformed = |source| StoreError::Manifest {
        path: path.to_owned(),
        source,
    };
    Manifest::from_json(&bytes).map_err(malformed).map(Some)
}

/// The entries of a directory whose names parse; others are not ours and are left alone.
pub(crate) fn names_in<T: std::str::FromStr>(dir: &Path) -> Result<Vec<T>, StoreError> {
    let entries = std::fs::read_dir(dir).map_err(StoreError::io("list", dir))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(StoreError::io("list", dir))?;
        match entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        {
            Some(name) => names.push(name),
            None => {
                tracing::warn!(path = %entry.path().display(), "not part of the store; ignored")
            }
        }
    }
    Ok(names)
}
