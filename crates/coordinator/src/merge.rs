//! The merge's shell: moves bytes between blobs and the arithmetic of `hansa-outer`.
//!
//! ```text
//!  θ_g ──┐                       ┌──► θ_{g+1}   f32 master
//!  m_g ──┤   chunk by chunk,     ├──► m_{g+1}   f32 momentum
//!  Δ_1 ──┤   threads side by     └──► model     as it travels (the master itself if that is f32)
//!   …  ──┤   side
//!  Δ_n ──┘
//! ```
//!
//! A pure function of its inputs, which are blobs and therefore never change: killed halfway it leaves
//! only rubbish that the store removes at its next open, and run again it makes the same blobs, bit for
//! bit, whatever the number of threads or the size of a buffer. There is no record of progress: it would
//! need syncs of its own on the way, to save seconds after a crash. Each thread takes a piece small enough
//! to stay in its cache through all that happens to it: read, decoded, summed, stepped, hashed, written;
//! so memory is one such piece per thread, whatever the size of the model and the number of contributions,
//! and no byte is read twice. Meanwhile one more thread brings to the disk what is written. Never here:
//! which contributions count, with what step, or when the result is published; that is decided and
//! journaled elsewhere.
//!
//! These calls block for as long as disks take: run them off the asynchronous threads.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use hansa_base::{Hash, Tokens};
use hansa_outer::{
    Chunk, Codec, Dtype, Header, HeaderError, Layout, Merge, MergeError, MergePlan, Metadata,
    OuterStep, PREFIX_BYTES, PayloadHeader, Weights,
};
use hansa_store::{Blob, BlobStore, CHUNK_BYTES_DEFAULT, HashingWriter, StoreError};

/// Pieces begin at multiples of this: whole blocks of every codec, whole pages, whole leaves of a hash.
const PIECE_UNIT: usize = 4096;
/// The largest piece: with what is made of it, it fits a second-level cache.
const PIECE_ELEMENTS_MAX: usize = 1 << 15;
/// Pieces between two calls that bring to the disk what is written: 64 MiB of master weights.
const PIECES_PER_SYNC: u64 = 512;

/// What a round's merge reads, in the words of its close record.
#[derive(Debug)]
pub struct MergeInputs<'a> {
    /// The f32 master weights of generation `g`. Their layout is the run's.
    pub theta: &'a Blob,
    /// The f32 momentum of generation `g`; none is a buffer of zeros.
    pub momentum: Option<&'a Blob>,
    /// Pseudo-gradients and their tokens, in the order of the close record.
    pub contributions: &'a [(Blob, Tokens)],
    /// The outer step, with `η`, `μ` and solo mode resolved.
    pub step: OuterStep,
    /// How pseudo-gradients are encoded.
    pub codec: Codec,
    /// How models travel.
    pub model_dtype: Dtype,
    /// Strings for the headers of the new files; part of their bytes.
    pub metadata: Metadata,
}

/// How a merge uses the machine. Nothing here changes a bit of the result but `chunk_bytes`, which
/// cuts manifests.
#[derive(Debug, Clone, Copy)]
pub struct MergeOptions {
    /// Threads that work on chunks.
    pub threads: NonZeroUsize,
    /// Most that the buffers of one thread may take, in bytes.
    pub buffer_bytes_per_thread: usize,
    /// Chunk size of the new blobs' manifests, in bytes.
    pub chunk_bytes: u64,
}

impl Default for MergeOptions {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            buffer_bytes_per_thread: 1 << 20,
            chunk_bytes: CHUNK_BYTES_DEFAULT,
        }
    }
}

/// Generation `g + 1`, durable.
#[derive(Debug, Clone)]
pub struct Merged {
    /// The new f32 master weights.
    pub theta: Blob,
    /// The new f32 momentum.
    pub momentum: Blob,
    /// The model as it travels; the same blob as `theta` if that is f32.
    pub model: Blob,
    /// Time it took, from first read to last sync.
    pub elapsed: Duration,
}

/// Why there is no new generation. Nothing was published.
#[derive(Debug, thiserror::Error)]
pub enum MergeFailure {
    /// A file could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file is not what the run needs.
    #[error("{what} (blob {hash}): {source}")]
    Header {
        /// Which input: "contribution 2".
        what: String,
        /// Its blob's name.
        hash: Hash,
        /// What is wrong with it.
        source: Box<HeaderError>,
    },
    /// The close record or the numbers make no sense.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// The numbers make no sense at one place.
    #[error("{source} (tensor {tensor:?})")]
    NonFinite {
        /// The tensor with the first bad element that was met.
        tensor: String,
        /// The element.
        source: MergeError,
    },
    /// A header for a new file could not be made.
    #[error("make header of the new generation: {0}")]
    NewHeader(#[source] HeaderError),
}

/// Reads a blob's safetensors header and checks it against the blob's size.
///
/// # Errors
/// If the blob cannot be read or is not one whole safetensors file. `what` names it in the message.
pub fn read_header(blob: &Blob, what: &str) -> Result<Header, MergeFailure> {
    let bad = |source| bad_header(blob, what, source);
    let header = Header::parse(&read_head(blob, what)?).map_err(bad)?;
    let total_bytes = blob.manifest().total_bytes();
    header.check_file_bytes(total_bytes).map_err(bad)?;
    Ok(header)
}

/// The same for a contribution, in whatever codec.
///
/// # Errors
/// As for [`read_header`].
pub fn read_payload_header(blob: &Blob, what: &str) -> Result<PayloadHeader, MergeFailure> {
    let bad = |source| bad_header(blob, what, source);
    let header = PayloadHeader::parse(&read_head(blob, what)?).map_err(bad)?;
    let total_bytes = blob.manifest().total_bytes();
    header.check_file_bytes(total_bytes).map_err(bad)?;
    Ok(header)
}

/// The bytes of a file's head, as many as it says.
fn read_head(blob: &Blob, what: &str) -> Result<Vec<u8>, MergeFailure> {
    let total_bytes = blob.manifest().total_bytes();
    let cut = |needed: usize| {
        let found = total_bytes as usize;
        bad_header(blob, what, HeaderError::Truncated { needed, found })
    };
    if total_bytes < PREFIX_BYTES as u64 {
        return Err(cut(PREFIX_BYTES));
    }
    let mut prefix = [0; PREFIX_BYTES];
    blob.read_exact_at(&mut prefix, 0)?;
    let needed = Header::bytes_needed(prefix).map_err(|source| bad_header(blob, what, source))?;
    if total_bytes < needed as u64 {
        return Err(cut(needed));
    }
    let mut bytes = vec![0; needed];
    blob.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Makes generation `g + 1` from generation `g` and a round's contributions.
///
/// # Errors
/// If an input is missing, damaged or of another model, a disk fails or is full, or the new weights are
/// not finite. Nothing is published then.
pub fn merge_blobs(
    store: &BlobStore,
    inputs: &MergeInputs<'_>,
    options: &MergeOptions,
) -> Result<Merged, MergeFailure> {
    let start = Instant::now();
    let sources = Sources::open(inputs)?;
    let tokens: Vec<Tokens> = inputs.contributions.iter().map(|c| c.1).collect();
    let weights = Weights::from_tokens(&tokens)?;
    let model_dtype = inputs.model_dtype;
    let merge = Merge::new(inputs.step, weights, inputs.codec, model_dtype)?;

    let layout = sources.theta.header.layout();
    let chunk_bytes = options.chunk_bytes;
    let target = |dtype| Target::create(store, layout, dtype, &inputs.metadata, chunk_bytes);
    let targets = Targets {
        theta: target(Dtype::F32)?,
        momentum: target(Dtype::F32)?,
        model: match model_dtype {
            Dtype::F32 => None,
            other => Some(target(other)?),
        },
    };
    let job = Job {
        plan: plan_pieces(layout, inputs, options),
        merge,
        sources,
        targets,
    };
    job.run(options.threads)?;
    let [theta, momentum, model] = job.targets.finish()?;
    Ok(Merged {
        theta,
        momentum,
        model,
        elapsed: start.elapsed(),
    })
}

/// The model as it travels, made from f32 master weights without a step: for generation 0.
///
/// # Errors
/// If the weights cannot be read, or the model not be written.
pub fn encode_model(
    store: &BlobStore,
    theta: &Blob,
    model_dtype: Dtype,
    metadata: &Metadata,
    chunk_bytes: u64,
) -> Result<Blob, MergeFailure> {
    if model_dtype == Dtype::F32 {
        return Ok(theta.clone());
    }
    let source = Source::open(theta, "the master weights", None)?;
    let layout = source.header.layout();
    let target = Target::create(store, layout, model_dtype, metadata, chunk_bytes)?;
    let piece_elements = NonZeroU32::new(PIECE_ELEMENTS_MAX as u32).unwrap_or(NonZeroU32::MIN);
    let plan = MergePlan::new(layout.elements(), piece_elements);
    let mut values = vec![0f32; plan.max_chunk_elements()];
    let mut bytes = vec![0; values.len() * model_dtype.bytes_per_element()];
    for chunk in plan.chunks() {
        let values = &mut values[..chunk.len()];
        let bytes = &mut bytes[..chunk.len() * model_dtype.bytes_per_element()];
        source.read(&chunk, bytemuck::cast_slice_mut(values))?;
        model_dtype.encode(values, bytes);
        target.write(&chunk, bytes)?;
    }
    Ok(target.writer.finish()?)
}

/// Pieces small enough for one thread's buffers to stay within their budget.
fn plan_pieces(layout: &Layout, inputs: &MergeInputs<'_>, options: &MergeOptions) -> MergePlan {
    // Weights, momentum, mean, the outgoing model, and one contribution in any codec.
    let bytes_per_element = 4 * 4 + inputs.model_dtype.bytes_per_element();
    let elements = options.buffer_bytes_per_thread / bytes_per_element;
    let elements = elements.clamp(PIECE_UNIT, PIECE_ELEMENTS_MAX) / PIECE_UNIT * PIECE_UNIT;
    let elements = NonZeroU32::new(elements as u32).unwrap_or(NonZeroU32::MIN);
    MergePlan::new(layout.elements(), elements)
}

/// The f32 weights or momentum that a merge starts from.
struct Source<'a> {
    blob: &'a Blob,
    header: Header,
}

impl<'a> Source<'a> {
    /// Opens a file, and compares its layout with one if there is one.
    fn open(blob: &'a Blob, what: &str, layout: Option<&Layout>) -> Result<Self, MergeFailure> {
        let header = read_header(blob, what)?;
        header
            .check(layout.unwrap_or(header.layout()), Dtype::F32)
            .map_err(|source| bad_header(blob, what, source))?;
        Ok(Self { blob, header })
    }

    fn read(&self, chunk: &Chunk, bytes: &mut [u8]) -> Result<(), StoreError> {
        let range = self.header.byte_range(chunk.elements.clone());
        self.blob.read_exact_at(bytes, range.start)
    }
}

struct Sources<'a> {
    theta: Source<'a>,
    momentum: Option<Source<'a>>,
    contributions: Vec<(&'a Blob, PayloadHeader)>,
}

impl<'a> Sources<'a> {
    fn open(inputs: &MergeInputs<'a>) -> Result<Self, MergeFailure> {
        let theta = Source::open(inputs.theta, "the master weights", None)?;
        let layout = theta.header.layout();
        let momentum = inputs
            .momentum
            .map(|blob| Source::open(blob, "the momentum", Some(layout)))
            .transpose()?;
        let contribution = |(index, (blob, _)): (usize, &'a (Blob, Tokens))| {
            let what = format!("contribution {index}");
            let header = read_payload_header(blob, &what)?;
            header
                .check(layout, inputs.codec)
                .map_err(|source| bad_header(blob, &what, source))?;
            Ok((blob, header))
        };
        let contributions = inputs.contributions.iter().enumerate().map(contribution);
        let contributions = contributions.collect::<Result<_, MergeFailure>>()?;
        Ok(Self {
            theta,
            momentum,
            contributions,
        })
    }
}

/// One output file, with its header already written.
struct Target<'a> {
    writer: HashingWriter<'a>,
    header: Header,
}

impl<'a> Target<'a> {
    fn create(
        store: &'a BlobStore,
        layout: &Layout,
        dtype: Dtype,
        metadata: &Metadata,
        chunk_bytes: u64,
    ) -> Result<Self, MergeFailure> {
        let (header, bytes) =
            Header::build(layout, dtype, metadata.clone()).map_err(MergeFailure::NewHeader)?;
        let writer = store.hashing_writer(header.file_bytes(), chunk_bytes)?;
        writer.write_all_at(&bytes, 0)?;
        Ok(Self { writer, header })
    }

    fn write(&self, chunk: &Chunk, bytes: &[u8]) -> Result<(), StoreError> {
        let range = self.header.byte_range(chunk.elements.clone());
        self.writer.write_all_at(bytes, range.start)
    }
}

struct Targets<'a> {
    theta: Target<'a>,
    momentum: Target<'a>,
    /// None where the master weights are the model that travels.
    model: Option<Target<'a>>,
}

impl Targets<'_> {
    /// Brings to the disk what is written, each time that the thread is unparked, until `over`.
    fn keep_syncing(&self, over: &AtomicBool) -> Result<(), StoreError> {
        loop {
            std::thread::park();
            for target in [Some(&self.theta), Some(&self.momentum), self.model.as_ref()] {
                if over.load(Ordering::Relaxed) {
                    return Ok(());
                }
                target.map_or(Ok(()), |target| target.writer.sync_so_far())?;
            }
        }
    }

    /// Master weights, momentum and model, durable; their syncs go on side by side.
    fn finish(self) -> Result<[Blob; 3], MergeFailure> {
        std::thread::scope(|scope| {
            let momentum = scope.spawn(|| self.momentum.writer.finish());
            let model = self
                .model
                .map(|model| scope.spawn(|| model.writer.finish()));
            let theta = self.theta.writer.finish()?;
            let momentum = unwound(momentum.join())?;
            let model = model.map_or(Ok(theta.clone()), |model| unwound(model.join()))?;
            Ok([theta, momentum, model])
        })
    }
}

/// What a thread came to; its panic goes on here.
fn unwound<T>(joined: std::thread::Result<T>) -> T {
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// One thread's buffers, reused from piece to piece.
struct Buffers {
    theta: Vec<f32>,
    momentum: Vec<f32>,
    mean: Vec<f32>,
    model: Vec<u8>,
    /// The piece of one contribution, as it came.
    encoded: Vec<u8>,
}

/// A merge under way: what all threads share.
struct Job<'a> {
    plan: MergePlan,
    merge: Merge,
    sources: Sources<'a>,
    targets: Targets<'a>,
}

impl Job<'_> {
    /// Threads take the next piece until none is left or one of them fails.
    fn run(&self, threads: NonZeroUsize) -> Result<(), MergeFailure> {
        let next = AtomicU64::new(0);
        let (failed, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let threads = threads.get().min(self.plan.len().max(1) as usize);
        std::thread::scope(|scope| {
            let syncing = scope.spawn(|| self.targets.keep_syncing(&over));
            let worker = |_| {
                let (syncer, next, failed) = (syncing.thread().clone(), &next, &failed);
                scope.spawn(move || self.work(next, failed, &syncer))
            };
            let workers: Vec<_> = (0..threads).map(worker).collect();
            let done: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            // Also when one of them panicked: it is waited for at the end of the scope.
            over.store(true, Ordering::Relaxed);
            syncing.thread().unpark();
            let merged = done.into_iter().map(unwound).fold(Ok(()), Result::and);
            let synced = unwound(syncing.join()).map_err(MergeFailure::from);
            merged.and(synced)
        })
    }

    /// One thread's part of [`Job::run`].
    fn work(
        &self,
        next: &AtomicU64,
        failed: &AtomicBool,
        syncer: &Thread,
    ) -> Result<(), MergeFailure> {
        let mut buffers = self.buffers();
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = self.plan.chunk(index) else {
                break;
            };
            self.merge_piece(&chunk, &mut buffers)
                .inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            if (index + 1).is_multiple_of(PIECES_PER_SYNC) {
                syncer.unpark();
            }
        }
        Ok(())
    }

    fn buffers(&self) -> Buffers {
        let elements = self.plan.max_chunk_elements();
        let model = self.targets.model.as_ref();
        let model_bytes = model.map_or(0, |t| elements * t.header.dtype().bytes_per_element());
        Buffers {
            theta: vec![0.0; elements],
            momentum: vec![0.0; elements],
            mean: vec![0.0; elements],
            model: vec![0; model_bytes],
            encoded: vec![0; self.merge.codec().bytes(elements as u64) as usize],
        }
    }

    fn merge_piece(&self, chunk: &Chunk, buffers: &mut Buffers) -> Result<(), MergeFailure> {
        let (sources, targets) = (&self.sources, &self.targets);
        let mean = &mut buffers.mean[..chunk.len()];
        for (index, (blob, header)) in sources.contributions.iter().enumerate() {
            let range = header.byte_range(chunk.elements.clone());
            let encoded = &mut buffers.encoded[..(range.end - range.start) as usize];
            blob.read_exact_at(encoded, range.start)?;
            self.merge.accumulate(index, encoded, mean);
        }
        let theta = &mut buffers.theta[..chunk.len()];
        let momentum = &mut buffers.momentum[..chunk.len()];
        sources.theta.read(chunk, bytemuck::cast_slice_mut(theta))?;
        match &sources.momentum {
            Some(source) => source.read(chunk, bytemuck::cast_slice_mut(momentum))?,
            None => momentum.fill(0.0),
        }
        // Empty where the master weights are the model.
        let model_size = buffers.model.len() / self.plan.max_chunk_elements().max(1);
        let model = &mut buffers.model[..chunk.len() * model_size];
        let model_out = targets.model.is_some().then_some(&mut *model);
        self.merge
            .step(mean, theta, momentum, model_out)
            .map_err(|error| self.locate(chunk, error))?;

        targets.theta.write(chunk, bytemuck::cast_slice(theta))?;
        targets
            .momentum
            .write(chunk, bytemuck::cast_slice(momentum))?;
        if let Some(target) = &targets.model {
            target.write(chunk, model)?;
        }
        Ok(())
    }

    /// Turns an index within a chunk into one of the model, with its tensor.
    fn locate(&self, chunk: &Chunk, error: MergeError) -> MergeFailure {
        let MergeError::NonFinite { index } = error else {
            return MergeFailure::Merge(error);
        };
        let index = chunk.elements.start + index;
        let found = self.sources.theta.header.layout().tensor_at(index);
        MergeFailure::NonFinite {
            tensor: found.map_or_else(String::new, |(tensor, _)| tensor.name.clone()),
            source: MergeError::NonFinite { index },
        }
    }
}

fn bad_header(blob: &Blob, what: &str, source: HeaderError) -> MergeFailure {
    MergeFailure::Header {
        what: what.to_owned(),
        hash: blob.hash(),
        source: Box::new(source),
    }
}
