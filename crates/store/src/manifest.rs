//! The list of chunk hashes that names a blob.
//!
//! A blob is cut into chunks of equal size (the last may be shorter); each has a BLAKE3 hash, and the
//! hash of the list is the blob's name. So any part can be checked alone, in any order, and a name
//! stands for exactly one content. Never here: how bytes travel or where they lie.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use hansa_base::Hash;
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::watch::Watch;

/// The version of the manifest's layout and encoding.
pub const MANIFEST_VERSION: u32 = 1;
/// Bytes of a chunk unless told otherwise: 16 MiB.
pub const CHUNK_BYTES_DEFAULT: u64 = 16 << 20;
/// The largest chunk: a receiver holds chunks in memory.
pub const CHUNK_BYTES_MAX: u64 = 256 << 20;
/// The longest list: 16 TiB in chunks of the default size.
pub const CHUNKS_MAX: u32 = 1 << 20;

const PIECE_BYTES: usize = 64 << 10;

/// BLAKE3 of bytes in memory.
#[must_use]
pub fn hash_bytes(bytes: &[u8]) -> Hash {
    Hash(*blake3::hash(bytes).as_bytes())
}

/// The same hash of bytes that come in pieces.
#[derive(Debug, Clone, Default)]
pub struct ChunkHasher(Box<blake3::Hasher>);

impl ChunkHasher {
    /// Of nothing so far.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The hash of all that was taken.
    #[must_use]
    pub fn finish(&self) -> Hash {
        Hash(*self.0.finalize().as_bytes())
    }
}

/// Why a manifest is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Written by another version.
    #[error(
        "format version {0} is not the version {MANIFEST_VERSION} of this hansa; use equal versions"
    )]
    OtherVersion(u32),
    /// The size of a chunk is out of bounds.
    #[error("{0} bytes per chunk; 1 to {CHUNK_BYTES_MAX} are allowed")]
    ChunkBytes(u64),
    /// More chunks than a manifest may list.
    #[error("{0} bytes make more than {CHUNKS_MAX} chunks; use larger chunks")]
    TooManyChunks(u64),
    /// The list does not have one hash per chunk.
    #[error("{found} chunk hashes for {needed} chunks")]
    ChunkCount {
        /// Chunks that the sizes imply.
        needed: u32,
        /// Hashes listed.
        found: usize,
    },
    /// The JSON text cannot be read.
    #[error("not a manifest: {0}")]
    Json(String),
}

/// What a blob consists of. Fields are checked on construction and read through methods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    total_bytes: u64,
    chunk_bytes: u64,
    chunks: Vec<Hash>,
}

impl Manifest {
    /// Puts a manifest together from its parts; refuses what cannot be one.
    pub fn new(
        total_bytes: u64,
        chunk_bytes: u64,
        chunks: Vec<Hash>,
    ) -> Result<Self, ManifestError> {
        let needed = count_chunks(total_bytes, chunk_bytes)?;
        if chunks.len() != needed as usize {
            let found = chunks.len();
            return Err(ManifestError::ChunkCount { needed, found });
        }
        Ok(Self {
            total_bytes,
            chunk_bytes,
            chunks,
        })
    }

    /// Hashes a file on all cores; memory stays below 64 KiB per core whatever its size.
    pub fn of_file(path: &Path, chunk_bytes: u64) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(StoreError::io("open", path))?;
        let total_bytes = file
            .metadata()
            .map_err(StoreError::io("inspect", path))?
            .len();
        let malformed = |source| StoreError::Manifest {
            path: path.to_owned(),
            source,
        };
        let count = count_chunks(total_bytes, chunk_bytes).map_err(malformed)?;
        let empty = Self {
            total_bytes,
            chunk_bytes,
            chunks: vec![Hash::default(); count as usize],
        };
        let chunks = empty
            .hash_chunks(&file, None)
            .map_err(StoreError::io("read", path))?;
        Ok(Self { chunks, ..empty })
    }

    /// The manifest of a file of which the hashes of most chunks are known; reads the others.
    pub(crate) fn of_known(
        path: &Path,
        total_bytes: u64,
        chunk_bytes: u64,
        known: Vec<Option<Hash>>,
    ) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(StoreError::io("open", path))?;
        let mut piece = vec![0; PIECE_BYTES];
        let hash = |(index, known): (u64, Option<Hash>)| match known {
            Some(hash) => Ok(hash),
            None => {
                let offset = index * chunk_bytes;
                let length = chunk_bytes.min(total_bytes - offset);
                let hash = hash_part(&file, offset, length, &mut piece, |_| ());
                hash.map_err(StoreError::io("read", path))
            }
        };
        let chunks = (0..).zip(known).map(hash).collect::<Result<_, _>>()?;
        Self::new(total_bytes, chunk_bytes, chunks).map_err(|source| StoreError::Manifest {
            path: path.to_owned(),
            source,
        })
    }

    /// The manifest of bytes in memory.
    pub fn of_bytes(bytes: &[u8], chunk_bytes: u64) -> Result<Self, ManifestError> {
        count_chunks(bytes.len() as u64, chunk_bytes)?;
        let chunks = bytes.chunks(chunk_bytes as usize).map(hash_bytes).collect();
        Self::new(bytes.len() as u64, chunk_bytes, chunks)
    }

    /// The layout's version.
    #[must_use]
    pub fn format_version(&self) -> u32 {
        MANIFEST_VERSION
    }

    /// The blob's size.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// The size of every chunk but the last.
    #[must_use]
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// One hash per chunk, in order.
    #[must_use]
    pub fn chunks(&self) -> &[Hash] {
        &self.chunks
    }

    /// The number of chunks.
    #[must_use]
    pub fn chunk_count(&self) -> u32 {
        self.chunks.len() as u32
    }

    /// Offset and length of a chunk, in bytes; `None` if there is no such chunk.
    #[must_use]
    pub fn chunk_range(&self, index: u32) -> Option<(u64, u64)> {
        if index >= self.chunk_count() {
            return None;
        }
        let offset = u64::from(index) * self.chunk_bytes;
        Some((offset, self.chunk_bytes.min(self.total_bytes - offset)))
    }

    /// Whether these bytes are chunk `index`, by length and hash.
    #[must_use]
    pub fn chunk_matches(&self, index: u32, bytes: &[u8]) -> bool {
        self.chunk_range(index).is_some_and(|(_, length)| {
            bytes.len() as u64 == length && hash_bytes(bytes) == self.chunks[index as usize]
        })
    }

    /// The bytes that the manifest's hash covers: `"hansa manifest\0"`, then in little-endian
    /// `format_version: u32`, `total_bytes: u64`, `chunk_bytes: u64`, `number of chunks: u64`, then 32
    /// bytes per chunk hash.
    #[must_use]
    pub fn canonical_bytes(&self) -> Vec<u8> {
        let mut bytes = b"hansa manifest\0".to_vec();
        bytes.extend(MANIFEST_VERSION.to_le_bytes());
        bytes.extend(self.total_bytes.to_le_bytes());
        bytes.extend(self.chunk_bytes.to_le_bytes());
        bytes.extend((self.chunks.len() as u64).to_le_bytes());
        bytes.extend(self.chunks.iter().flat_map(|hash| hash.0));
        bytes
    }

    /// The blob's name: BLAKE3 of [`Self::canonical_bytes`].
    #[must_use]
    pub fn hash(&self) -> Hash {
        hash_bytes(&self.canonical_bytes())
    }

    /// The form in files and messages.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        // A structure of numbers and strings cannot fail to serialise.
        serde_json::to_vec(&ManifestJson::from(self)).unwrap_or_default()
    }

    /// Reads and checks [`Self::to_json`]'s form; it may come from anywhere.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ManifestError> {
        let json: ManifestJson = serde_json::from_slice(bytes)
            .map_err(|error| ManifestError::Json(error.to_string()))?;
        Self::try_from(json)
    }

    /// The chunks of which `file` does not hold the right bytes, ascending. Hashes on all cores; a
    /// file that is too short, or of another content, is a matter of chunks, not an error.
    pub fn missing_in(&self, file: &File) -> std::io::Result<Vec<u32>> {
        self.missing_in_watched(file, None)
    }

    /// The same, and who watches sees those that match.
    pub(crate) fn missing_in_watched(
        &self,
        file: &File,
        watch: Option<&Arc<dyn Watch>>,
    ) -> std::io::Result<Vec<u32>> {
        let found = self.hash_chunks(file, watch)?;
        let differs = |&index: &u32| found[index as usize] != self.chunks[index as usize];
        Ok((0..self.chunk_count()).filter(differs).collect())
    }

    /// The hash of every chunk as `file` has it; a chunk beyond the file's end gets the hash of the
    /// part that is there. Threads take the next chunk until none is left.
    fn hash_chunks(
        &self,
        file: &File,
        watch: Option<&Arc<dyn Watch>>,
    ) -> std::io::Result<Vec<Hash>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let next = AtomicU32::new(0);
        let failed = AtomicBool::new(false);
        let work = || {
            let mut piece = vec![0; PIECE_BYTES];
            let mut done = Vec::new();
            while !failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some((offset, length)) = self.chunk_range(index) else {
                    break;
                };
                let mut look = watch.map(|watch| watch.clone().chunk(index, offset));
                let show = |bytes: &[u8]| look.iter_mut().for_each(|look| look.push(bytes));
                match hash_part(file, offset, length, &mut piece, show) {
                    Ok(hash) => {
                        let right = self.chunks[index as usize] == hash;
                        look.into_iter().filter(|_| right).for_each(|l| l.finish());
                        done.push((index, hash));
                    }
                    Err(error) => {
                        failed.store(true, Ordering::Relaxed);
                        return Err(error);
                    }
                }
            }
            Ok(done)
        };
        let results = std::thread::scope(|scope| {
            let threads = cores.min(self.chunks.len()).max(1);
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let join = |handle: std::thread::ScopedJoinHandle<'_, _>| {
                handle
                    .join()
                    .unwrap_or_else(|_| Err(std::io::Error::other("a hashing thread died")))
            };
            handles
                .into_iter()
                .map(join)
                .collect::<std::io::Result<Vec<_>>>()
        })?;
        let mut hashes = vec![Hash::default(); self.chunks.len()];
        for (index, hash) in results.into_iter().flatten() {
            hashes[index as usize] = hash;
        }
        Ok(hashes)
    }
}

pub(crate) fn count_chunks(total_bytes: u64, chunk_bytes: u64) -> Result<u32, ManifestError> {
    if chunk_bytes == 0 || chunk_bytes > CHUNK_BYTES_MAX {
        return Err(ManifestError::ChunkBytes(chunk_bytes));
    }
    match u32::try_from(total_bytes.div_ceil(chunk_bytes)) {
        Ok(count) if count <= CHUNKS_MAX => Ok(count),
        _ => Err(ManifestError::TooManyChunks(total_bytes)),
    }
}

fn hash_part(
    file: &File,
    offset: u64,
    length: u64,
    piece: &mut [u8],
    mut show: impl FnMut(&[u8]),
) -> std::io::Result<Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut done = 0;
    while done < length {
        let want = (length - done).min(piece.len() as u64) as usize;
        match file.read_at(&mut piece[..want], offset + done) {
            Ok(0) => break,
            Ok(got) => {
                hasher.update(&piece[..got]);
                show(&piece[..got]);
                done += got as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Hash(*hasher.finalize().as_bytes()))
}

/// The manifest in JSON, in files and messages; hashes are hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestJson {
    /// [`MANIFEST_VERSION`].
    pub format_version: u32,
    /// The blob's size.
    pub total_bytes: u64,
    /// The size of every chunk but the last.
    pub chunk_bytes: u64,
    /// One hash per chunk, in order.
    pub chunks: Vec<String>,
}

impl From<&Manifest> for ManifestJson {
    fn from(manifest: &Manifest) -> Self {
        Self {
            format_version: MANIFEST_VERSION,
            total_bytes: manifest.total_bytes,
            chunk_bytes: manifest.chunk_bytes,
            chunks: manifest.chunks.iter().map(ToString::to_string).collect(),
        }
    }
}

impl TryFrom<ManifestJson> for Manifest {
    type Error = ManifestError;

    fn try_from(json: ManifestJson) -> Result<Self, ManifestError> {
        if json.format_version != MANIFEST_VERSION {
            return Err(ManifestError::OtherVersion(json.format_version));
        }
        let parse = |text: &String| text.parse::<Hash>();
        let chunks = json.chunks.iter().map(parse).collect::<Result<_, _>>();
        let chunks = chunks.map_err(|error| ManifestError::Json(error.to_string()))?;
        Self::new(json.total_bytes, json.chunk_bytes, chunks)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn file_of(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn the_canonical_bytes_and_hash_never_change() {
        let manifest = Manifest::of_bytes(b"hansa", 4).unwrap();
        let bytes = manifest.canonical_bytes();
        assert_eq!(bytes.len(), 15 + 4 + 8 + 8 + 8 + 2 * 32);
        assert_eq!(&bytes[..15], b"hansa manifest\0");
        assert_eq!(
            &bytes[15..31],
            &[1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]
        );
        assert_eq!(bytes[43..75], *blake3::hash(b"hans").as_bytes());
        assert_eq!(manifest.hash().to_string(), GOLDEN_HASH);
    }

    const GOLDEN_HASH: &str = "6c1d0935852fbc4a2bf1caf7f5a29ae10b30b7565ada3185c50c9da5a6aedaa3";

    #[test]
    fn a_file_and_its_bytes_have_the_same_manifest_at_every_boundary() {
        for length in [0, 1, 9, 10, 11, 20, 999, 600_000] {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 31 % 251) as u8).collect();
            for chunk_bytes in [10, 300_000, 1 << 20] {
                let of_file = Manifest::of_file(file_of(&bytes).path(), chunk_bytes).unwrap();
                assert_eq!(of_file, Manifest::of_bytes(&bytes, chunk_bytes).unwrap());
            }
        }
    }

    #[test]
    fn missing_names_the_changed_and_the_absent_chunks() {
        let mut bytes = vec![7; 45];
        let manifest = Manifest::of_bytes(&bytes, 10).unwrap();
        bytes[12] = 8;
        bytes.truncate(41);
        let file = File::open(file_of(&bytes).path()).unwrap();
        assert_eq!(manifest.missing_in(&file).unwrap(), [1, 4]);
    }

    #[test]
    fn json_round_trips_and_nonsense_is_refused() {
        let manifest = Manifest::of_bytes(&[3; 25], 10).unwrap();
        assert_eq!(Manifest::from_json(&manifest.to_json()).unwrap(), manifest);
        let good = ManifestJson::from(&manifest);
        let other = ManifestJson {
            format_version: 2,
            ..good.clone()
        };
        assert_eq!(
            Manifest::try_from(other),
            Err(ManifestError::OtherVersion(2))
        );
        let none = ManifestJson {
            chunk_bytes: 0,
            ..good.clone()
        };
        assert_eq!(Manifest::try_from(none), Err(ManifestError::ChunkBytes(0)));
        let huge = ManifestJson {
            total_bytes: u64::MAX,
            ..good.clone()
        };
        assert_eq!(
            Manifest::try_from(huge),
            Err(ManifestError::TooManyChunks(u64::MAX))
        );
        let short = ManifestJson {
            total_bytes: 31,
            ..good
        };
        let wrong = ManifestError::ChunkCount {
            needed: 4,
            found: 3,
        };
        assert_eq!(Manifest::try_from(short), Err(wrong));
        assert!(matches!(
            Manifest::from_json(b"{"),
            Err(ManifestError::Json(_))
        ));
    }
}
