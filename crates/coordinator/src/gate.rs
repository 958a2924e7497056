//! The gate: what a contribution must be before it is staged.
//!
//! Positions, tokens and base were checked when it was announced; here it is about bytes. Each chunk is
//! looked at on its own while it arrives ([`Seen`]), and the findings are put together in the order of the
//! file ([`judge`]), so that the answer is the same whatever came first. Only what nobody saw arrive is
//! read: after a restart the chunks that are on disk, together with the hashing that finds them; and all
//! of a blob that was in the store already. Never here: what becomes of a contribution that does not pass.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hansa_outer::{Arriving, Codec, Layout, Part, VALUE_MAX, combine, data_offset};
use hansa_protocol::{Norm, Problem};
use hansa_store::{Blob, Manifest, StoreError, Watch, WatchChunk};

use crate::merge::{MergeFailure, read_payload_header};
use crate::shell::Shell;

/// Small: after a phase that all end together, many contributions are checked at the same time.
const PIECE_BYTES: u64 = 64 << 10;

/// What was found in the chunks of a contribution that have arrived. A few hundred bytes a chunk.
#[derive(Debug)]
pub(crate) struct Seen {
    codec: Codec,
    elements: u64,
    data_offset: u64,
    parts: Mutex<Vec<Option<Part>>>,
}

/// Who is to see the chunks of an upload; nobody if it cannot be a contribution to this run.
pub(crate) fn watch(shell: &Shell, manifest: &Manifest) -> Option<Arc<dyn Watch>> {
    let seen = Seen::new(&shell.layout, shell.recipe.exchange.contribution, manifest)?;
    Some(Arc::new(seen))
}

impl Seen {
    fn new(layout: &Layout, codec: Codec, manifest: &Manifest) -> Option<Self> {
        let elements = layout.elements();
        let data_offset = data_offset(manifest.total_bytes(), codec, elements)?;
        Some(Self {
            codec,
            elements,
            data_offset,
            parts: Mutex::new(vec![None; manifest.chunk_count() as usize]),
        })
    }

    fn arriving(&self, offset: u64) -> Arriving {
        Arriving::new(self.codec, self.elements, self.data_offset, offset)
    }

    // A panic elsewhere leaves a part or none.
    fn parts(&self) -> MutexGuard<'_, Vec<Option<Part>>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Seen {
    fn chunk(self: Arc<Self>, index: u32, offset: u64) -> Box<dyn WatchChunk> {
        let arriving = self.arriving(offset);
        let seen = self;
        Box::new(SeenChunk {
            seen,
            index,
            arriving,
        })
    }
}

/// One attempt to bring a chunk.
#[derive(Debug)]
struct SeenChunk {
    seen: Arc<Seen>,
    index: u32,
    arriving: Arriving,
}

impl WatchChunk for SeenChunk {
    fn push(&mut self, bytes: &[u8]) {
        self.arriving.push(bytes);
    }

    fn finish(self: Box<Self>) {
        let part = self.arriving.finish();
        if let Some(slot) = self.seen.parts().get_mut(self.index as usize) {
            *slot = Some(part);
        }
    }
}

/// What there is to know of a contribution's file.
#[derive(Debug)]
pub(crate) struct Judged {
    /// Its Euclidean norm, or what is wrong with it. If it has a norm, no value of it is beyond
    /// [`VALUE_MAX`], so that a merge cannot fail on what has passed here.
    pub found: Result<Norm, Problem>,
    /// Chunks that had to be read, because nobody had seen them arrive.
    pub chunks_read: usize,
}

/// Judges a whole contribution by what was seen of it, and reads the rest.
///
/// # Errors
/// If the disk fails: that is not the contribution's fault.
pub(crate) fn judge(
    blob: &Blob,
    layout: &Layout,
    codec: Codec,
    seen: Option<&Seen>,
) -> Result<Judged, StoreError> {
    let malformed = |reason: String| Judged {
        found: Err(Problem::Form(reason)),
        chunks_read: 0,
    };
    let header = match read_payload_header(blob, "the contribution") {
        Ok(header) => header,
        Err(MergeFailure::Store(error)) => return Err(error),
        Err(error) => return Ok(malformed(error.to_string())),
    };
    if let Err(error) = header.check(layout, codec) {
        return Ok(malformed(error.to_string()));
    }
    let (elements, data_offset) = (layout.elements(), header.data_offset());
    let chunks = blob.manifest().chunk_count() as usize;
    let mut parts = seen.map_or_else(Vec::new, |seen| seen.parts().clone());
    parts.resize(chunks, None);
    let (mut piece, mut chunks_read) = (Vec::new(), 0);
    for (index, part) in (0..).zip(&mut parts) {
        if part.is_none() {
            let (offset, length) = blob.manifest().chunk_range(index).unwrap_or_default();
            let arriving = Arriving::new(codec, elements, data_offset, offset);
            *part = Some(read_chunk(blob, arriving, offset, length, &mut piece)?);
            chunks_read += 1;
        }
    }
    let found = combine(codec, elements, data_offset, parts.iter().flatten());
    let found = match found.first_bad {
        Some((index, value)) => Err(not_finite(layout, index, value)),
        // Squares of values up to 1e30, 2^40 of them, are far from overflow in f64.
        None => Ok(Norm::new(found.squared_norm.sqrt()).unwrap_or_default()),
    };
    Ok(Judged { found, chunks_read })
}

fn not_finite(layout: &Layout, index: u64, value: f32) -> Problem {
    let tensor = layout.tensor_at(index);
    let tensor = tensor.map_or("", |(tensor, _)| tensor.name.as_str());
    Problem::NotFinite(match value.is_finite() {
        false => format!("a value of tensor {tensor:?} is not finite"),
        true => format!("a value of tensor {tensor:?} is beyond {VALUE_MAX:e}"),
    })
}

fn read_chunk(
    blob: &Blob,
    mut arriving: Arriving,
    offset: u64,
    length: u64,
    piece: &mut Vec<u8>,
) -> Result<Part, StoreError> {
    piece.resize(PIECE_BYTES as usize, 0);
    let mut done = 0;
    while done < length {
        let piece = &mut piece[..(length - done).min(PIECE_BYTES) as usize];
        blob.read_exact_at(piece, offset + done)?;
        arriving.push(piece);
        done += piece.len() as u64;
    }
    Ok(arriving.finish())
}

/// Whether a file of so many bytes can be a contribution to this layout.
pub(crate) fn size_fits(layout: &Layout, codec: Codec, total_bytes: u64) -> bool {
    let head_bytes = data_offset(total_bytes, codec, layout.elements());
    head_bytes.is_some_and(|bytes| bytes <= hansa_outer::MAX_HEADER_BYTES as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hansa_outer::{Dither, PayloadHeader, TensorSpec};
    use hansa_store::{BlobStore, DataDir, Upload, UploadId};

    use super::*;

    /// Cuts blocks of int8, and elements of f32.
    const CHUNK_BYTES: u64 = 4001;
    const ELEMENTS: usize = 6000;

    fn layout() -> Layout {
        let tensor = |name: &str, elements| TensorSpec {
            name: name.to_owned(),
            shape: vec![elements],
        };
        Layout::new([tensor("a", 1000), tensor("b", ELEMENTS - 1000)]).unwrap()
    }

    fn values() -> Vec<f32> {
        (0..ELEMENTS).map(|i| (i as f32 * 0.37).sin()).collect()
    }

    fn file(codec: Codec) -> Vec<u8> {
        let (header, mut bytes) = PayloadHeader::build(&layout(), codec).unwrap();
        bytes.resize(header.file_bytes() as usize, 0);
        let data = &mut bytes[header.data_offset() as usize..];
        let dither = Dither::new([9; 8]);
        codec.encode(dither, 0, &values(), data).unwrap();
        bytes
    }

    fn id() -> UploadId {
        "u".parse().unwrap()
    }

    fn begin(store: &BlobStore, codec: Codec, bytes: &[u8]) -> Arc<Upload> {
        let manifest = Manifest::of_bytes(bytes, CHUNK_BYTES).unwrap();
        let seen: Arc<dyn Watch> = Arc::new(Seen::new(&layout(), codec, &manifest).unwrap());
        let begun = store.begin_watched_upload(id(), manifest, Some(seen));
        begun.unwrap()
    }

    /// Brings the chunks of these numbers, each in two requests, of which the first breaks off.
    fn bring(upload: &Arc<Upload>, bytes: &[u8], chunks: impl Iterator<Item = u32>) {
        for index in chunks {
            let (offset, length) = upload.manifest().chunk_range(index).unwrap();
            let chunk = &bytes[offset as usize..(offset + length) as usize];
            let cut = chunk.len() / 3;
            let mut first = upload.chunk_writer(index).unwrap();
            first.write(&chunk[..cut]).unwrap();
            let mut second = upload.chunk_writer_at(index, cut as u64).unwrap();
            second.write(&chunk[cut..]).unwrap();
            second.finish().unwrap();
        }
    }

    fn judged(blob: &Blob, codec: Codec, seen: Option<&Seen>) -> (Result<Norm, Problem>, usize) {
        let judged = judge(blob, &layout(), codec, seen).unwrap();
        (judged.found, judged.chunks_read)
    }

    #[test]
    fn what_arrived_before_and_after_a_restart_is_judged_without_reading_it() {
        for codec in Codec::ALL {
            let dir = tempfile::tempdir().unwrap();
            let bytes = file(codec);
            let lock = DataDir::lock(dir.path()).unwrap();
            let store = BlobStore::open(&lock).unwrap();
            let upload = begin(&store, codec, &bytes);
            let chunks = upload.manifest().chunk_count();
            bring(&upload, &bytes, (0..chunks).rev().filter(|i| i % 2 == 0));
            // A chunk that the restart forgets halfway.
            let mut lost = upload.chunk_writer(1).unwrap();
            lost.write(&bytes[CHUNK_BYTES as usize..][..99]).unwrap();
            drop((lost, upload, store));

            let store = BlobStore::open(&lock).unwrap();
            let upload = begin(&store, codec, &bytes);
            let missing = upload.missing();
            assert!(!missing.is_empty() && missing.iter().all(|i| i % 2 == 1));
            bring(&upload, &bytes, missing.into_iter());
            let blob = store.complete_upload(&upload).unwrap();
            let seen = upload.watch::<Seen>();
            let (norm, read) = judged(&blob, codec, seen.as_deref());
            assert_eq!(read, 0, "{codec}");

            // Whoever has not seen it reads all of it, and comes to the same.
            let (again, read) = judged(&blob, codec, None);
            assert_eq!((again.clone(), read), (norm, chunks as usize), "{codec}");
            let exact: f64 = values().iter().map(|v| f64::from(*v).powi(2)).sum();
            let norm = again.unwrap().get();
            assert!((norm / exact.sqrt() - 1.0).abs() < 0.01, "{codec} {norm}");
        }
    }

    #[test]
    fn a_bad_value_is_named_wherever_it_was_seen() {
        for (bad, says) in [(f32::NAN, "not finite"), (2e30, "beyond")] {
            let dir = tempfile::tempdir().unwrap();
            let store = BlobStore::open(&DataDir::lock(dir.path()).unwrap()).unwrap();
            let mut bytes = file(Codec::F32);
            let at = bytes.len() - ELEMENTS * 4 + 1000 * 4;
            bytes[at..at + 4].copy_from_slice(&bad.to_le_bytes());
            let upload = begin(&store, Codec::F32, &bytes);
            bring(&upload, &bytes, 0..upload.manifest().chunk_count());
            let blob = store.complete_upload(&upload).unwrap();
            let seen = upload.watch::<Seen>();
            for seen in [seen.as_deref(), None] {
                let Err(Problem::NotFinite(what)) = judged(&blob, Codec::F32, seen).0 else {
                    panic!("it passed");
                };
                assert!(what.contains("\"b\"") && what.contains(says), "{what}");
            }
        }
    }

    #[test]
    fn a_file_of_another_form_is_refused_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::open(&DataDir::lock(dir.path()).unwrap()).unwrap();
        let bytes = file(Codec::Bf16);
        let upload = begin(&store, Codec::Bf16, &bytes);
        bring(&upload, &bytes, 0..upload.manifest().chunk_count());
        let blob = store.complete_upload(&upload).unwrap();
        let found = judged(&blob, Codec::Int8, upload.watch::<Seen>().as_deref()).0;
        let Err(Problem::Form(what)) = found else {
            panic!("it passed");
        };
        assert!(what.contains("bf16") && what.contains("int8"), "{what}");
    }
}
