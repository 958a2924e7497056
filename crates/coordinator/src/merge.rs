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
//! bit, whatever the number of threads or the size of a buffer. Memory is a fixed budget per thread, whatever
//! the size of the model and the number of contributions. Never here: which contributions count, with
//! what step, or when the result is published; that is decided and journaled elsewhere.
//!
//! These calls block for as long as disks take: run them off the asynchronous threads.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hansa_base::{Hash, Tokens};
use hansa_outer::{
    Chunk, Dtype, Header, HeaderError, Layout, Merge, MergeError, MergePlan, Metadata, OuterStep,
    PREFIX_BYTES, Weights,
};
use hansa_store::{Blob, BlobStore, BlobWriter, CHUNK_BYTES_DEFAULT, StoreError};

/// No chunk is smaller than this, however many contributions share the budget.
const MIN_CHUNK_ELEMENTS: usize = 4096;
/// Above this, larger chunks save no time.
const MAX_CHUNK_ELEMENTS: usize = 1 << 20;

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
    pub contribution_dtype: Dtype,
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
    /// Buffers of one thread, in bytes.
    pub buffer_bytes_per_thread: usize,
    /// Chunk size of the new blobs' manifests, in bytes.
    pub chunk_bytes: u64,
}

impl Default for MergeOptions {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            buffer_bytes_per_thread: 16 << 20,
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
    let total_bytes = blob.manifest().total_bytes();
    let cut = |needed: usize| HeaderError::Truncated {
        needed,
        found: total_bytes as usize,
    };
    if total_bytes < PREFIX_BYTES as u64 {
        return Err(bad(cut(PREFIX_BYTES)));
    }
    let mut prefix = [0; PREFIX_BYTES];
    blob.read_exact_at(&mut prefix, 0)?;
    let needed = Header::bytes_needed(prefix).map_err(bad)?;
    if total_bytes < needed as u64 {
        return Err(bad(cut(needed)));
    }
    let mut bytes = vec![0; needed];
    blob.read_exact_at(&mut bytes, 0)?;
    let header = Header::parse(&bytes).map_err(bad)?;
    header.check_file_bytes(total_bytes).map_err(bad)?;
    Ok(header)
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
    let (contribution_dtype, model_dtype) = (inputs.contribution_dtype, inputs.model_dtype);
    let merge = Merge::new(inputs.step, weights, contribution_dtype, model_dtype)?;

    let layout = sources.theta.header.layout();
    let target = |dtype| Target::create(store, layout, dtype, &inputs.metadata);
    let targets = Targets {
        theta: target(Dtype::F32)?,
        momentum: target(Dtype::F32)?,
        model: match model_dtype {
            Dtype::F32 => None,
            other => Some(target(other)?),
        },
    };
    let job = Job {
        plan: plan_chunks(layout, inputs, options),
        merge,
        sources,
        targets,
    };
    job.run(options.threads)?;

    let Job { targets, .. } = job;
    let theta = targets.theta.writer.finish(options.chunk_bytes)?;
    let momentum = targets.momentum.writer.finish(options.chunk_bytes)?;
    let model = match targets.model {
        None => theta.clone(),
        Some(model) => model.writer.finish(options.chunk_bytes)?,
    };
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
    let source = Source::open(theta, "the master weights", Dtype::F32, None)?;
    let layout = source.header.layout();
    let target = Target::create(store, layout, model_dtype, metadata)?;
    let chunk_elements = NonZeroU32::new(MAX_CHUNK_ELEMENTS as u32).unwrap_or(NonZeroU32::MIN);
    let plan = MergePlan::new(layout.elements(), chunk_elements);
    let mut values = vec![0f32; plan.max_chunk_elements()];
    let mut bytes = vec![0; values.len() * model_dtype.bytes_per_element()];
    for chunk in plan.chunks() {
        let values = &mut values[..chunk.len()];
        let bytes = &mut bytes[..chunk.len() * model_dtype.bytes_per_element()];
        source.read(&chunk, bytemuck::cast_slice_mut(values))?;
        model_dtype.encode(values, bytes);
        target.write(&chunk, bytes)?;
    }
    Ok(target.writer.finish(chunk_bytes)?)
}

/// Chunks small enough for one thread's buffers to stay within their budget: the more contributions,
/// the smaller the chunks.
fn plan_chunks(layout: &Layout, inputs: &MergeInputs<'_>, options: &MergeOptions) -> MergePlan {
    let bytes_per_element = 2 * Dtype::F32.bytes_per_element()
        + inputs.model_dtype.bytes_per_element()
        + inputs.contributions.len() * inputs.contribution_dtype.bytes_per_element();
    let elements = options.buffer_bytes_per_thread / bytes_per_element;
    let elements = elements.clamp(MIN_CHUNK_ELEMENTS, MAX_CHUNK_ELEMENTS);
    let chunk_elements = NonZeroU32::new(elements as u32).unwrap_or(NonZeroU32::MIN);
    MergePlan::new(layout.elements(), chunk_elements)
}

/// One input file.
struct Source<'a> {
    blob: &'a Blob,
    header: Header,
}

impl<'a> Source<'a> {
    /// Opens a file of this dtype, and of this layout if there is one to compare with.
    fn open(
        blob: &'a Blob,
        what: &str,
        dtype: Dtype,
        layout: Option<&Layout>,
    ) -> Result<Self, MergeFailure> {
        let header = read_header(blob, what)?;
        header
            .check(layout.unwrap_or(header.layout()), dtype)
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
    contributions: Vec<Source<'a>>,
}

impl<'a> Sources<'a> {
    fn open(inputs: &MergeInputs<'a>) -> Result<Self, MergeFailure> {
        let theta = Source::open(inputs.theta, "the master weights", Dtype::F32, None)?;
        let layout = Some(theta.header.layout());
        let momentum = inputs
            .momentum
            .map(|blob| Source::open(blob, "the momentum", Dtype::F32, layout))
            .transpose()?;
        let contributions = inputs
            .contributions
            .iter()
            .enumerate()
            .map(|(index, (blob, _))| {
                let what = format!("contribution {index}");
                Source::open(blob, &what, inputs.contribution_dtype, layout)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            theta,
            momentum,
            contributions,
        })
    }
}

/// One output file, with its header already written.
struct Target<'a> {
    writer: BlobWriter<'a>,
    header: Header,
}

impl<'a> Target<'a> {
    fn create(
        store: &'a BlobStore,
        layout: &Layout,
        dtype: Dtype,
        metadata: &Metadata,
    ) -> Result<Self, MergeFailure> {
        let (header, bytes) =
            Header::build(layout, dtype, metadata.clone()).map_err(MergeFailure::NewHeader)?;
        let writer = store.writer(header.file_bytes())?;
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

/// One thread's buffers, reused from chunk to chunk.
struct Buffers {
    theta: Vec<f32>,
    momentum: Vec<f32>,
    model: Vec<u8>,
    /// The chunk of every contribution, one behind another.
    contributions: Vec<u8>,
}

/// A merge under way: what all threads share.
struct Job<'a> {
    plan: MergePlan,
    merge: Merge,
    sources: Sources<'a>,
    targets: Targets<'a>,
}

impl Job<'_> {
    /// Threads take the next chunk until none is left or one of them fails.
    fn run(&self, threads: NonZeroUsize) -> Result<(), MergeFailure> {
        let next = AtomicU64::new(0);
        let failed = AtomicBool::new(false);
        let work = || {
            let mut buffers = self.buffers();
            while !failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(chunk) = self.plan.chunk(index) else {
                    break;
                };
                self.merge_chunk(&chunk, &mut buffers)
                    .inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            }
            Ok(())
        };
        let threads = threads.get().min(self.plan.len().max(1) as usize);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .map(|worker| match worker.join() {
                    Ok(result) => result,
                    Err(panic) => std::panic::resume_unwind(panic),
                })
                .fold(Ok(()), Result::and)
        })
    }

    fn buffers(&self) -> Buffers {
        let elements = self.plan.max_chunk_elements();
        let encoded = |source: &Source<'_>| elements * source.header.dtype().bytes_per_element();
        let model = self.targets.model.as_ref();
        let model_bytes = model.map_or(0, |t| elements * t.header.dtype().bytes_per_element());
        Buffers {
            theta: vec![0.0; elements],
            momentum: vec![0.0; elements],
            model: vec![0; model_bytes],
            contributions: vec![0; self.sources.contributions.iter().map(encoded).sum()],
        }
    }

    fn merge_chunk(&self, chunk: &Chunk, buffers: &mut Buffers) -> Result<(), MergeFailure> {
        let (sources, targets) = (&self.sources, &self.targets);
        let theta = &mut buffers.theta[..chunk.len()];
        let momentum = &mut buffers.momentum[..chunk.len()];
        sources.theta.read(chunk, bytemuck::cast_slice_mut(theta))?;
        match &sources.momentum {
            Some(source) => source.read(chunk, bytemuck::cast_slice_mut(momentum))?,
            None => momentum.fill(0.0),
        }
        let mut encoded = Vec::with_capacity(sources.contributions.len());
        let mut rest = &mut buffers.contributions[..];
        for source in &sources.contributions {
            let bytes = chunk.len() * source.header.dtype().bytes_per_element();
            let (now, later) = rest.split_at_mut(bytes);
            source.read(chunk, now)?;
            encoded.push(&*now);
            rest = later;
        }
        // Empty where the master weights are the model.
        let model_size = buffers.model.len() / self.plan.max_chunk_elements().max(1);
        let model = &mut buffers.model[..chunk.len() * model_size];
        let model_out = targets.model.is_some().then_some(&mut *model);
        self.merge
            .merge_chunk(&encoded, theta, momentum, model_out)
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
