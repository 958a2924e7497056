//! A round's files: master weights, momentum, contributions; noise of real shapes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use hansa_outer::{Codec, Dither, Dtype, Header, Layout, Metadata, PayloadHeader};
use hansa_store::{BlobStore, CHUNK_BYTES_DEFAULT, DataDir};

/// Files of contributions that are written at most; more contributions name these again, so that disk
/// and memory hold them.
const DISTINCT_MAX: usize = 4;
/// Elements made at a time.
const PIECE_ELEMENTS: u64 = 1 << 18;

/// A round in a data directory that is closed again.
pub struct Round {
    pub data: PathBuf,
    pub theta: String,
    pub momentum: String,
    pub distinct: usize,
    contributions: Vec<String>,
    layout: Layout,
}

impl Round {
    /// The names of so many contributions.
    pub fn contributions(&self, count: usize) -> Vec<String> {
        self.contributions.iter().take(count).cloned().collect()
    }

    /// Every file that a merge of so many contributions reads.
    pub fn files_read(&self, count: usize) -> Vec<PathBuf> {
        let state = [self.theta.clone(), self.momentum.clone()];
        let names = state.into_iter().chain(self.contributions(count));
        names
            .map(|name| self.data.join("blobs").join(name).join("data"))
            .collect()
    }

    /// Their bytes.
    pub fn bytes_read(&self, count: usize) -> anyhow::Result<u64> {
        let length = |path: PathBuf| anyhow::Ok(path.metadata().context("inspect an input")?.len());
        self.files_read(count).into_iter().map(length).sum()
    }

    /// The sizes of the files that a merge writes.
    pub fn sizes_written(&self, model: Dtype) -> anyhow::Result<Vec<u64>> {
        let size = |dtype| {
            let (header, _) = Header::build(&self.layout, dtype, Metadata::new())?;
            anyhow::Ok(header.file_bytes())
        };
        let mut sizes = vec![size(Dtype::F32)?; 2];
        if model != Dtype::F32 {
            sizes.push(size(model)?);
        }
        Ok(sizes)
    }
}

/// Writes the files of a round of `count` contributions.
pub fn round(dir: &Path, layout: &Layout, codec: Codec, count: usize) -> anyhow::Result<Round> {
    let data = dir.join("data");
    let lock = DataDir::lock(&data)?;
    let store = BlobStore::open_without_sync(&lock)?;
    let distinct = count.min(DISTINCT_MAX);
    let write = |codec, file: u64| write(&store, layout, codec, file);
    let theta = write(Codec::F32, 0)?;
    let momentum = write(Codec::F32, 1)?;
    let files = (0..distinct).map(|index| write(codec, index as u64 + 2));
    let files = files.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Round {
        data,
        theta,
        momentum,
        distinct,
        contributions: files.into_iter().cycle().take(count).collect(),
        layout: layout.clone(),
    })
}

/// One file of noise; the same for the same number.
fn write(store: &BlobStore, layout: &Layout, codec: Codec, file: u64) -> anyhow::Result<String> {
    let (header, head) = PayloadHeader::build(layout, codec)?;
    let dither = Dither::new(file.to_le_bytes());
    let writer = store.writer(header.file_bytes())?;
    writer.write_all_at(&head, 0)?;
    let next = AtomicU64::new(0);
    let work = || -> anyhow::Result<()> {
        let mut values = vec![0f32; PIECE_ELEMENTS as usize];
        let mut bytes = vec![0; codec.bytes(PIECE_ELEMENTS) as usize];
        loop {
            let start = next.fetch_add(PIECE_ELEMENTS, Ordering::Relaxed);
            if start >= layout.elements() {
                return Ok(());
            }
            let end = (start + PIECE_ELEMENTS).min(layout.elements());
            let count = (end - start) as usize;
            for (value, index) in values[..count].iter_mut().zip(start..end) {
                *value = noise(file, index);
            }
            let bytes = &mut bytes[..codec.bytes(count as u64) as usize];
            codec.encode(dither, start, &values[..count], bytes)?;
            writer.write_all_at(bytes, header.byte_range(start..end).start)?;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|worker| match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.fold(Ok(()), Result::and)
    })?;
    Ok(writer.finish(CHUNK_BYTES_DEFAULT)?.hash().to_string())
}

/// A number between -0.02 and 0.02 without pattern: the size of weights.
fn noise(file: u64, index: u64) -> f32 {
    let mixed = (index as u32 ^ (file as u32).wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    let mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
    (mixed >> 8) as f32 / (1 << 24) as f32 * 0.04 - 0.02
}
