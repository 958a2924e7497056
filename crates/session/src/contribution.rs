//! A replica's pseudo-gradient as a file: base minus local weights, chunk by chunk, in the run's codec.
//!
//! The base is the file that was downloaded, not a copy in memory: those bytes are what the
//! coordinator subtracts from. Memory is a few chunks whatever the model's size. Nothing that the gate
//! would refuse for its values is ever written whole. It is hashed as it is written, and the disk begins with
//! what is written while the rest is encoded.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use hansa_outer::{
    Codec, Dither, Dtype, Header, HeaderError, PREFIX_BYTES, PayloadHeader, VALUE_MAX,
    pseudo_gradient,
};
use hansa_store::{Manifest, ManifestError, ManifestHasher};
use rayon::prelude::*;

use crate::files;
use crate::trainer::{Trainer, TrainerError};

/// Elements handled at a time: 1 MiB in `f32`.
const CHUNK_ELEMENTS: usize = 1 << 18;
/// Elements that a thread takes at once: whole blocks of every codec, and in the first-level cache.
const SLICE_ELEMENTS: usize = 1 << 12;

/// The disk is told to begin with so many bytes at once.
const WRITEBACK_BYTES: u64 = 16 << 20;

/// Why no contribution could be written.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// A NaN, an infinity or a value that leads there: the phase is worthless.
    #[error(
        "the contribution is {value:e} at element {index} of tensor {tensor}, where values must be finite \
         and at most {VALUE_MAX:e}: it was not announced; lower the learning rate, or look for broken \
         hardware"
    )]
    BadValue {
        /// The tensor.
        tensor: String,
        /// The element in it.
        index: u64,
        /// What it is.
        value: f32,
    },
    /// The base generation's file is not the run's model.
    #[error("{path} is not the base generation's model: {source}; delete it, it is fetched again")]
    Base {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: HeaderError,
    },
    /// The file's head cannot be made.
    #[error("lay out the contribution: {0}")]
    Header(HeaderError),
    /// A file operation failed.
    #[error("{what} {path}: {source}")]
    Io {
        /// A bare verb phrase.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file cannot be cut into chunks.
    #[error("cut the contribution into chunks: {0}")]
    Chunks(#[from] ManifestError),
    /// The trainer could not give its weights.
    #[error("export weights: {0}")]
    Trainer(#[from] TrainerError),
}

fn io<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> EncodeError + 'a {
    move |source| EncodeError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// Where [`encode`] writes what is to become `out`; a file that lies there is written over.
pub(crate) fn draft_of(out: &Path) -> PathBuf {
    files::temporary_beside(out)
}

/// Writes `base − weights` to `out` in `codec`, durably and whole or not at all, and says how it is cut into
/// chunks of `chunk_bytes`. The same weights, base and `dither` give the same bytes.
///
/// # Errors
/// A value that no contribution may hold (by tensor), a base of another model, a failed file operation.
pub fn encode(
    trainer: &mut dyn Trainer,
    base: &Path,
    codec: Codec,
    dither: Dither,
    out: &Path,
    chunk_bytes: u64,
) -> Result<Manifest, EncodeError> {
    let layout = trainer.layout().clone();
    let (mut base_file, base_header) = open_base(base)?;
    let agrees = base_header
        .layout()
        .check_same(&layout)
        .map_err(HeaderError::Layout);
    agrees.map_err(|source| EncodeError::Base {
        path: base.to_owned(),
        source,
    })?;
    let (_, head) = PayloadHeader::build(&layout, codec).map_err(EncodeError::Header)?;

    let temporary = draft_of(out);
    let writer = Writer::create(&temporary, chunk_bytes);
    let mut writer = writer.map_err(io("create", &temporary))?;
    writer.write_all(&head).map_err(io("write", &temporary))?;

    let mut buffers = Buffers::default();
    let mut first = 0;
    while first < layout.elements() {
        let count = (layout.elements() - first).min(CHUNK_ELEMENTS as u64) as usize;
        buffers.resize(count, base_header.dtype(), codec);
        base_file
            .read_exact(&mut buffers.base_bytes)
            .map_err(io("read", base))?;
        trainer.read_weights(first, &mut buffers.local)?;
        let encoded = buffers.encode(base_header.dtype(), codec, dither, first);
        if let Err((element, value)) = encoded {
            drop(writer);
            // Best effort: the finding is what matters.
            let _ = std::fs::remove_file(&temporary);
            return Err(bad_value(&layout, element, value));
        }
        writer
            .write_all(&buffers.out_bytes)
            .map_err(io("write", &temporary))?;
        first += count as u64;
    }
    let ended = writer.end();
    ended.map_err(io("sync", &temporary))?;
    let manifest = writer.hasher.finish()?;
    files::rename_synced(&temporary, out).map_err(io("rename to", out))?;
    Ok(manifest)
}

/// Writes one thing after another and hashes it meanwhile; the disk may begin with the first soon.
struct Writer {
    file: File,
    hasher: ManifestHasher,
    bytes: u64,
    /// Of these, the disk was told.
    told_bytes: u64,
}

impl Writer {
    /// Over what is there: the contribution before it, mostly, whose bytes are cheaper to write over than
    /// new ones are to make.
    fn create(path: &Path, chunk_bytes: u64) -> std::io::Result<Self> {
        let mut options = File::options();
        let options = options.write(true).create(true).truncate(false);
        Ok(Self {
            file: options.open(path)?,
            hasher: ManifestHasher::new(chunk_bytes),
            bytes: 0,
            told_bytes: 0,
        })
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let (file, hasher) = (&mut self.file, &mut self.hasher);
        let (written, ()) = rayon::join(|| file.write_all(bytes), || hasher.update(bytes));
        written?;
        self.bytes += bytes.len() as u64;
        let new_bytes = self.bytes - self.told_bytes;
        if new_bytes >= WRITEBACK_BYTES {
            hansa_store::start_writeback(&self.file, self.told_bytes, new_bytes);
            self.told_bytes = self.bytes;
        }
        Ok(())
    }

    /// Nothing is left of what was there, and all is durable.
    fn end(&self) -> std::io::Result<()> {
        self.file.set_len(self.bytes)?;
        self.file.sync_all()
    }
}

fn bad_value(layout: &hansa_outer::Layout, element: u64, value: f32) -> EncodeError {
    let (tensor, index) = layout
        .tensor_at(element)
        .map_or((String::new(), element), |(tensor, index)| {
            (tensor.name.clone(), index)
        });
    EncodeError::BadValue {
        tensor,
        index,
        value,
    }
}

/// Opens the base and reads its head; the file stands at its first element then.
fn open_base(path: &Path) -> Result<(File, Header), EncodeError> {
    let bad = |source| EncodeError::Base {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(io("open", path))?;
    let mut head = vec![0; PREFIX_BYTES];
    file.read_exact(&mut head).map_err(io("read", path))?;
    let mut prefix = [0; PREFIX_BYTES];
    prefix.copy_from_slice(&head);
    let needed = Header::bytes_needed(prefix).map_err(bad)?;
    head.resize(needed, 0);
    file.read_exact(&mut head[PREFIX_BYTES..])
        .map_err(io("read", path))?;
    let header = Header::parse(&head).map_err(bad)?;
    let found = file.metadata().map_err(io("inspect", path))?.len();
    header.check_file_bytes(found).map_err(bad)?;
    Ok((file, header))
}

/// A slice's base in the file, local weights, their difference, and that as it travels.
type Slice<'a> = (((&'a [u8], &'a [f32]), &'a mut [f32]), &'a mut [u8]);

#[derive(Default)]
struct Buffers {
    base_bytes: Vec<u8>,
    out_bytes: Vec<u8>,
    local: Vec<f32>,
    delta: Vec<f32>,
}

impl Buffers {
    fn resize(&mut self, elements: usize, base: Dtype, out: Codec) {
        self.base_bytes
            .resize(elements * base.bytes_per_element(), 0);
        self.out_bytes
            .resize(out.bytes(elements as u64) as usize, 0);
        for values in [&mut self.local, &mut self.delta] {
            values.resize(elements, 0.0);
        }
    }

    /// Fills `out_bytes` with the difference of the elements from `first` on, on all cores.
    fn encode(
        &mut self,
        base: Dtype,
        codec: Codec,
        dither: Dither,
        first: u64,
    ) -> Result<(), (u64, f32)> {
        let base_bytes = self
            .base_bytes
            .par_chunks(SLICE_ELEMENTS * base.bytes_per_element());
        let out_slice = codec.bytes(SLICE_ELEMENTS as u64) as usize;
        let slices = base_bytes
            .zip(self.local.par_chunks(SLICE_ELEMENTS))
            .zip(self.delta.par_chunks_mut(SLICE_ELEMENTS))
            .zip(self.out_bytes.par_chunks_mut(out_slice))
            .enumerate();
        let encode = |(number, parts): (usize, Slice<'_>)| {
            let (((base_bytes, local), delta), out) = parts;
            let first = first + (number * SLICE_ELEMENTS) as u64;
            let mut values = [0.0; SLICE_ELEMENTS];
            let values = &mut values[..local.len()];
            base.decode(base_bytes, values);
            pseudo_gradient(values, local, delta);
            let encoded = codec.encode(dither, first, delta, out);
            encoded.map_err(|bad| (first + bad.index as u64, bad.value))
        };
        let encoded: Vec<Result<(), (u64, f32)>> = slices.map(encode).collect();
        // The first bad element of all, whichever thread was quicker.
        encoded.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::fake::Fake;
    use hansa_outer::{Layout, Metadata, TensorSpec};

    fn dither() -> Dither {
        Dither::new([5; 8])
    }

    /// A model of two tensors, longer than one chunk.
    fn layout() -> Layout {
        let tensor = |name: &str, shape: &[usize]| TensorSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
        };
        Layout::new([tensor("a", &[3]), tensor("b", &[CHUNK_ELEMENTS, 2])]).unwrap()
    }

    fn values(seed: u32, count: usize) -> Vec<f32> {
        let noise = |i: usize| (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 16;
        (0..count)
            .map(|i| noise(i) as f32 / 65_536.0 - 0.5)
            .collect()
    }

    fn write_model(path: &Path, dtype: Dtype, values: &[f32]) {
        let (_, mut bytes) = Header::build(&layout(), dtype, Metadata::new()).unwrap();
        let mut data = vec![0; values.len() * dtype.bytes_per_element()];
        dtype.encode(values, &mut data);
        bytes.extend(data);
        std::fs::write(path, bytes).unwrap();
    }

    fn read_model(path: &Path, dtype: Dtype) -> Vec<f32> {
        let bytes = std::fs::read(path).unwrap();
        let header = Header::parse(&bytes).unwrap();
        header.check(&layout(), dtype).unwrap();
        let mut values = vec![0.0; layout().elements() as usize];
        dtype.decode(&bytes[header.data_offset() as usize..], &mut values);
        values
    }

    fn read_contribution(path: &Path, codec: Codec) -> Vec<f32> {
        let bytes = std::fs::read(path).unwrap();
        let header = PayloadHeader::parse(&bytes).unwrap();
        header.check(&layout(), codec).unwrap();
        let mut values = vec![0.0; layout().elements() as usize];
        codec.decode(&bytes[header.data_offset() as usize..], &mut values);
        values
    }

    #[test]
    fn the_file_holds_base_minus_local_for_every_dtype_and_codec() {
        let dir = tempfile::tempdir().unwrap();
        let (base, out) = (dir.path().join("base"), dir.path().join("out"));
        let count = layout().elements() as usize;
        let local = values(7, count);
        for model_dtype in Dtype::ALL {
            for codec in Codec::ALL {
                write_model(&base, model_dtype, &values(1, count));
                let mut trainer = Fake::new(layout(), local.clone());
                // The contribution before it, in a wider codec.
                std::fs::write(draft_of(&out), vec![7; 5 * count]).unwrap();
                let cut = encode(&mut trainer, &base, codec, dither(), &out, 1 << 20).unwrap();
                assert_eq!(cut, Manifest::of_file(&out, 1 << 20).unwrap());
                let downloaded = read_model(&base, model_dtype);
                let exact = downloaded.iter().zip(&local).map(|(b, l)| b - l);
                let mut expected: Vec<f32> = exact.collect();
                let mut bytes = vec![0; codec.bytes(count as u64) as usize];
                codec.encode(dither(), 0, &expected, &mut bytes).unwrap();
                codec.decode(&bytes, &mut expected);
                assert_eq!(
                    read_contribution(&out, codec),
                    expected,
                    "{model_dtype} {codec}"
                );
            }
        }
    }

    #[test]
    fn a_weight_that_nobody_may_merge_is_named_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let (base, out) = (dir.path().join("base"), dir.path().join("out"));
        let count = layout().elements() as usize;
        write_model(&base, Dtype::F32, &values(1, count));
        for (at, bad, tensor, index) in [
            (2, f32::NAN, "a", 2),
            (count - 1, f32::INFINITY, "b", count as u64 - 4),
            (3, f32::MAX, "b", 0),
        ] {
            for codec in Codec::ALL {
                let mut local = values(7, count);
                local[at] = bad;
                let mut trainer = Fake::new(layout(), local);
                let error =
                    encode(&mut trainer, &base, codec, dither(), &out, 1 << 20).unwrap_err();
                assert!(
                    matches!(&error, EncodeError::BadValue { tensor: t, index: i, .. }
                        if t == tensor && *i == index),
                    "{error}"
                );
                assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
            }
        }
    }

    #[test]
    fn a_base_that_is_cut_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (base, out) = (dir.path().join("base"), dir.path().join("out"));
        let count = layout().elements() as usize;
        write_model(&base, Dtype::F32, &values(1, count));
        let bytes = std::fs::read(&base).unwrap();
        std::fs::write(&base, &bytes[..bytes.len() - 1]).unwrap();
        let mut trainer = Fake::new(layout(), values(2, count));
        let error = encode(&mut trainer, &base, Codec::F32, dither(), &out, 1 << 20).unwrap_err();
        assert!(matches!(error, EncodeError::Base { .. }), "{error}");
        assert!(!out.exists());
    }
}
