//! One thread reads, many tokenise: bounded batches of documents in input order.
//!
//! The order of documents, and so every byte that is written, does not depend on how they fall
//! into batches or on the number of threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use hansa_base::Hash;

use crate::input::{Documents, InputFile, InputOptions, RawDocument};
use crate::{Error, Result};

/// Text of one batch: at least this, and more for many threads.
const BATCH_BYTES: usize = 4 << 20;
const BATCH_BYTES_PER_THREAD: usize = 1 << 20;
/// A batch of tiny documents ends here.
const BATCH_DOCUMENTS: usize = 1 << 16;

/// The threads that tokenise.
pub(crate) struct Workers {
    own: Option<rayon::ThreadPool>,
}

impl Workers {
    /// Starts `threads` threads, or takes rayon's own pool.
    pub fn start(threads: Option<usize>) -> Result<Self> {
        let Some(threads) = threads else {
            return Ok(Self { own: None });
        };
        if threads == 0 {
            return Err(Error::BadOption {
                name: "threads",
                value: "0".to_owned(),
                expected: "at least 1",
            });
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(|error| Error::Threads(error.to_string()))?;
        Ok(Self { own: Some(pool) })
    }

    pub fn count(&self) -> usize {
        self.own.as_ref().map_or_else(
            rayon::current_num_threads,
            rayon::ThreadPool::current_num_threads,
        )
    }

    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.own {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }
}

/// What to read, and from where on.
pub(crate) struct Reading<'a> {
    pub inputs: &'a [InputFile],
    options: &'a InputOptions,
    /// A batch ends once it holds this much text.
    pub batch_bytes: usize,
    /// The first input to read, and how many of its documents to leave out.
    pub start: Place,
}

/// A place between two documents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Place {
    pub input: usize,
    /// Documents of that input before this place.
    pub document: u64,
}

/// Consecutive documents.
pub(crate) struct Batch {
    pub documents: Vec<RawDocument>,
    /// Inputs that ended in this batch: index, BLAKE3 and length.
    pub finished: Vec<(usize, Hash, u64)>,
    /// Bytes of these documents as text (JSON lines: as lines).
    pub text_bytes: usize,
    bytes_read: u64,
}

impl<'a> Reading<'a> {
    /// Reads all of `inputs`.
    pub fn new(inputs: &'a [InputFile], options: &'a InputOptions, workers: &Workers) -> Self {
        Self {
            inputs,
            options,
            batch_bytes: BATCH_BYTES.max(workers.count() * BATCH_BYTES_PER_THREAD),
            start: Place::default(),
        }
    }

    /// Bytes of all inputs, as stored.
    pub fn total_bytes(&self) -> u64 {
        self.inputs.iter().map(|input| input.bytes).sum()
    }

    fn run(&self, to: &SyncSender<Result<Batch>>) {
        let skipped = &self.inputs[..self.start.input];
        let bytes_read = AtomicU64::new(skipped.iter().map(|input| input.bytes).sum());
        let mut batcher = Batcher {
            reading: self,
            to,
            bytes_read: &bytes_read,
            batch: Batch::empty(),
        };
        let result = batcher.read_all();
        // What was read before an error comes before it: the first error in the text is reported.
        let flushed = batcher.send();
        if let (Err(Stop::Failed(error)), Ok(())) = (result, flushed) {
            // If nobody listens any more there is nobody to tell.
            let _ = to.send(Err(error));
        }
    }
}

/// Reads ahead on a thread of its own and hands each batch to `take`, with the bytes read so far.
pub(crate) fn read_batches(
    reading: &Reading<'_>,
    mut take: impl FnMut(Batch, u64) -> Result<()>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let (to, from): (_, Receiver<Result<Batch>>) = sync_channel(1);
        std::thread::Builder::new()
            .name("corpus-reader".to_owned())
            .spawn_scoped(scope, move || reading.run(&to))
            .map_err(|error| Error::Threads(error.to_string()))?;
        for batch in from {
            let batch = batch?;
            let bytes_read = batch.bytes_read;
            take(batch, bytes_read)?;
        }
        Ok(())
    })
}

impl Batch {
    fn empty() -> Self {
        Self {
            documents: Vec::new(),
            finished: Vec::new(),
            text_bytes: 0,
            bytes_read: 0,
        }
    }
}

struct Batcher<'a> {
    reading: &'a Reading<'a>,
    to: &'a SyncSender<Result<Batch>>,
    bytes_read: &'a AtomicU64,
    batch: Batch,
}

enum Stop {
    Failed(Error),
    NobodyListens,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Batcher<'_> {
    fn read_all(&mut self) -> Result<(), Stop> {
        let Reading {
            inputs,
            options,
            batch_bytes,
            start,
        } = *self.reading;
        for (number, input) in inputs.iter().enumerate().skip(start.input) {
            let skip = if number == start.input {
                start.document
            } else {
                0
            };
            let mut documents = Documents::open(input, number, options, self.bytes_read)?;
            while let Some(document) = documents.next()? {
                if document.index < skip {
                    continue;
                }
                self.batch.text_bytes += document.len();
                self.batch.documents.push(document);
                let full = self.batch.documents.len() >= BATCH_DOCUMENTS;
                if full || self.batch.text_bytes >= batch_bytes {
                    self.send()?;
                }
            }
            let (hash, bytes) = documents.finish();
            self.batch.finished.push((number, hash, bytes));
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), Stop> {
        let mut batch = std::mem::replace(&mut self.batch, Batch::empty());
        batch.bytes_read = self.bytes_read.load(Ordering::Relaxed);
        self.to.send(Ok(batch)).map_err(|_| Stop::NobodyListens)
    }
}
