//! A blob from a server into a file: what is there already does not travel again.
//!
//! Chunks are written in place into `dest.partial`, as they arrive, and hashed on the way. After a cut a
//! lane goes on in mid-chunk; after a kill the partial file itself says which chunks it has: they are
//! hashed anew.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use hansa_base::Hash;
use hansa_store::{CHUNK_BYTES_DEFAULT, ChunkHasher, Manifest};
use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::{Response, StatusCode};

use crate::client::{Client, accept};
use crate::error::TransferError;
use crate::lane::Lane;
use crate::lanes::{self, Work};
use crate::options::{Meter, Progress, TransferOptions};
use crate::partial::{Opened, Partial};
use crate::retry::{Patience, with_retries};
use crate::serve::ByteRange;

/// A lane hashes and writes so much at once.
const BUFFER_BYTES: usize = 256 << 10;

/// What a download did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Downloaded {
    /// What the file consists of.
    pub manifest: Manifest,
    /// Bytes of chunks that travelled, repeated ones included; 0 if the file was there.
    pub travelled_bytes: u64,
}

/// Brings the blob whose manifest has the hash `expected` from `{prefix}/manifest` and `{prefix}/data`
/// into the file `dest`, durable when this returns. `on_progress` is called often and must be quick.
/// After an error the partial file stays for the next attempt. A file left by [`leave_spare`] in `dest`'s
/// folder is written over instead of making a new one.
///
/// [`leave_spare`]: crate::leave_spare
pub async fn download(
    client: &Client,
    prefix: &str,
    expected: Hash,
    dest: &Path,
    options: &TransferOptions,
    on_progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Downloaded, TransferError> {
    if let Some(manifest) = already_there(dest, CHUNK_BYTES_DEFAULT, expected).await? {
        return Ok(Downloaded {
            manifest,
            travelled_bytes: 0,
        });
    }
    let manifest = fetch_manifest(client, prefix, expected, options).await?;
    if let Some(manifest) = already_there(dest, manifest.chunk_bytes(), expected).await? {
        return Ok(Downloaded {
            manifest,
            travelled_bytes: 0,
        });
    }
    let partial = match Partial::open(dest, &manifest, expected, options).await? {
        Opened::Ours(partial) => Arc::new(partial),
        Opened::BroughtByAnother => {
            return Ok(Downloaded {
                manifest,
                travelled_bytes: 0,
            });
        }
    };
    let meter = Arc::new(Meter::new(manifest.total_bytes()));
    meter.done(manifest.total_bytes() - bytes_of(&manifest, &partial.missing));
    let fetch = Fetch {
        client: client.clone(),
        path: format!("{prefix}/data"),
        manifest: manifest.clone(),
        options: options.clone(),
        meter: meter.clone(),
        partial: partial.clone(),
    };
    let missing = partial.missing.clone();
    lanes::run(client, missing, fetch, &meter, options, on_progress).await?;
    let travelled_bytes = meter.now().travelled_bytes;
    let dest = dest.to_owned();
    blocking(move || partial.finish(&dest)).await?;
    Ok(Downloaded {
        manifest,
        travelled_bytes,
    })
}

pub(crate) async fn already_there(
    dest: &Path,
    chunk_bytes: u64,
    expected: Hash,
) -> Result<Option<Manifest>, TransferError> {
    let dest = dest.to_owned();
    blocking(move || {
        if !dest.exists() {
            return Ok(None);
        }
        let manifest = Manifest::of_file(&dest, chunk_bytes)?;
        Ok((manifest.hash() == expected).then_some(manifest))
    })
    .await
}

async fn fetch_manifest(
    client: &Client,
    prefix: &str,
    expected: Hash,
    options: &TransferOptions,
) -> Result<Manifest, TransferError> {
    let path = format!("{prefix}/manifest");
    let get = || client.bulk_bytes(&path, options.stall_max);
    let json = with_retries(&options.retry, options.seed, get).await?;
    let url = client.url(&path);
    let manifest = Manifest::from_json(&json).map_err(|source| TransferError::Manifest {
        url: url.clone(),
        source,
    })?;
    let got = manifest.hash();
    if got == expected {
        return Ok(manifest);
    }
    Err(TransferError::WrongManifest { url, expected, got })
}

/// What all lanes of a download share.
struct Fetch {
    client: Client,
    path: String,
    manifest: Manifest,
    options: TransferOptions,
    meter: Arc<Meter>,
    partial: Arc<Partial>,
}

impl Work for Fetch {
    // Two that write the same part of a file would have to be kept apart.
    const CAN_BE_TAKEN_OVER: bool = false;

    async fn chunk(&self, lane: &mut Lane, chunk: u32, _: u64) -> Result<(), TransferError> {
        let (start, length) = self.manifest.chunk_range(chunk).unwrap_or_default();
        let seed = self.options.seed ^ (u64::from(chunk) << 32);
        let mut wrong = Patience::new(&self.options.retry, seed);
        loop {
            let mut sink = Sink::new(self.partial.clone(), start);
            self.fill(lane, &mut sink, ByteRange { start, length }, seed)
                .await?;
            if sink.finish().await? == self.manifest.chunks()[chunk as usize] {
                return Ok(());
            }
            let url = self.client.url(&self.path);
            let error = TransferError::BadChunk { url, chunk };
            lane.failed(&error);
            wrong.wait(error).await?;
        }
    }

    async fn held(&self, _: &mut Lane, _: u32) -> Option<u64> {
        None
    }

    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

impl Fetch {
    /// Brings a whole range into the sink, in as many requests as it takes; what a request brought
    /// before it was cut stays.
    async fn fill(
        &self,
        lane: &mut Lane,
        sink: &mut Sink,
        whole: ByteRange,
        seed: u64,
    ) -> Result<(), TransferError> {
        let mut patience = Patience::new(&self.options.retry, seed);
        while sink.bytes < whole.length {
            let began = Instant::now();
            let before = sink.bytes;
            let part = ByteRange {
                start: whole.start + before,
                length: lane.unit_bytes(whole.length - before),
            };
            match self.part(lane, sink, part).await {
                Ok(()) => {
                    lane.succeeded(part.length, began.elapsed());
                    patience.moved();
                }
                Err(error) => {
                    lane.failed(&error);
                    if sink.bytes > before {
                        patience.moved();
                    }
                    patience.wait(error).await?;
                }
            }
        }
        Ok(())
    }

    /// One request.
    async fn part(
        &self,
        lane: &mut Lane,
        sink: &mut Sink,
        part: ByteRange,
    ) -> Result<(), TransferError> {
        let stall_max = self.options.stall_max;
        let url = self.client.url(&self.path);
        let connection = lane.connection(part.length)?;
        let request = connection.get(&url).header(RANGE, part.to_header());
        let timed_out = || TransferError::TimedOut {
            url: url.clone(),
            limit: stall_max,
        };
        let broke = |error: reqwest::Error| TransferError::from_http(&error, &url, stall_max);
        let sent = tokio::time::timeout(stall_max, request.send()).await;
        let response = sent.map_err(|_| timed_out())?.map_err(broke)?;
        let mut response = accept(response, &url, stall_max).await?;
        self.check_range(&response, part, &url)?;
        let mut left_bytes = part.length;
        while left_bytes > 0 {
            let piece = tokio::time::timeout(stall_max, response.chunk()).await;
            let piece = piece.map_err(|_| timed_out())?.map_err(broke)?;
            let piece = piece.ok_or_else(|| TransferError::Cut {
                url: url.clone(),
                why: "the answer ended early".to_owned(),
            })?;
            self.meter.travelled(piece.len() as u64);
            if piece.len() as u64 > left_bytes {
                let why = format!("more than the {} bytes asked for", part.length);
                return Err(TransferError::BadAnswer { url, why });
            }
            left_bytes -= piece.len() as u64;
            self.options.bandwidth.pass(piece.len()).await;
            sink.take(&piece).await?;
        }
        // Read to its end, the connection can carry the next request.
        match tokio::time::timeout(stall_max, response.chunk()).await {
            Ok(Ok(None)) => {}
            _ => lane.drop_connection(),
        }
        Ok(())
    }

    fn check_range(
        &self,
        response: &Response,
        range: ByteRange,
        url: &str,
    ) -> Result<(), TransferError> {
        let expected = range.content_range(self.manifest.total_bytes());
        let got = response
            .headers()
            .get(CONTENT_RANGE)
            .map(|value| value.as_bytes());
        if response.status() == StatusCode::PARTIAL_CONTENT && got == Some(expected.as_bytes()) {
            return Ok(());
        }
        let why = format!(
            "status {} instead of {expected:?}",
            response.status().as_u16()
        );
        Err(TransferError::BadAnswer {
            url: url.to_owned(),
            why,
        })
    }
}

/// Hashes and writes a chunk's bytes in their order, some of them at a time.
struct Sink {
    partial: Arc<Partial>,
    start: u64,
    /// Bytes taken so far.
    bytes: u64,
    buffer: Vec<u8>,
    hasher: ChunkHasher,
}

impl Sink {
    fn new(partial: Arc<Partial>, start: u64) -> Self {
        Self {
            partial,
            start,
            bytes: 0,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            hasher: ChunkHasher::new(),
        }
    }

    async fn take(&mut self, mut piece: &[u8]) -> Result<(), TransferError> {
        self.bytes += piece.len() as u64;
        while !piece.is_empty() {
            let count = piece.len().min(BUFFER_BYTES - self.buffer.len());
            self.buffer.extend_from_slice(&piece[..count]);
            piece = &piece[count..];
            if self.buffer.len() == BUFFER_BYTES {
                self.write(piece.len() as u64).await?;
            }
        }
        Ok(())
    }

    /// Writes what is buffered; `after_bytes` of those taken come after it.
    async fn write(&mut self, after_bytes: u64) -> Result<(), TransferError> {
        let offset = self.start + self.bytes - after_bytes - self.buffer.len() as u64;
        let (partial, buffer) = (self.partial.clone(), std::mem::take(&mut self.buffer));
        let mut hasher = std::mem::take(&mut self.hasher);
        (self.buffer, self.hasher) = blocking(move || {
            hasher.update(&buffer);
            let written = partial.file.write_all_at(&buffer, offset);
            written.map_err(TransferError::io("write", &partial.path))?;
            let mut buffer = buffer;
            buffer.clear();
            Ok((buffer, hasher))
        })
        .await?;
        Ok(())
    }

    /// The hash of all that was taken; by now it is in the file.
    async fn finish(mut self) -> Result<Hash, TransferError> {
        self.write(0).await?;
        self.partial.written(self.start, self.bytes);
        Ok(self.hasher.finish())
    }
}

fn bytes_of(manifest: &Manifest, chunks: &[u32]) -> u64 {
    let length = |&chunk: &u32| manifest.chunk_range(chunk).map_or(0, |(_, length)| length);
    chunks.iter().map(length).sum()
}

/// Runs file work where it does not hold up the network.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TransferError> + Send + 'static,
) -> Result<T, TransferError> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.unwrap_or_else(|error| {
        Err(TransferError::io("finish file work on", "a worker thread")(
            error.into(),
        ))
    })
}
