//! A file to a server that says which chunks it misses.
//!
//! The server keeps the state, so the client may be killed and start over: it asks, sends, completes.
//! Every step can be repeated without harm.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use hansa_store::Manifest;
use reqwest::header::CONTENT_LENGTH;
use reqwest::{Body, Method};
use serde::{Deserialize, Serialize};

use crate::client::{Client, accept};
use crate::download::blocking;
use crate::error::TransferError;
use crate::options::{Meter, Progress, TransferOptions};
use crate::retry::with_retries;
use crate::serve::CODE_INCOMPLETE;

/// Rounds of asking, sending and completing before something else must be wrong.
const ROUNDS_MAX: u32 = 4;
/// Movement is noticed in steps of this size.
const PIECE_BYTES: usize = 64 << 10;
/// How often movement is looked at.
const TICK: Duration = Duration::from_millis(200);

/// The answer to `GET {prefix}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingChunks {
    /// Indices that have not arrived, ascending.
    pub missing: Vec<u32>,
}

/// What an upload did.
#[derive(Debug, Clone, PartialEq)]
pub struct Uploaded {
    /// The server's answer to `complete`.
    pub answer: serde_json::Value,
    /// Bytes of chunks that travelled, repeated ones included; 0 if the server had all.
    pub travelled_bytes: u64,
}

/// Sends what the server misses of `file`, which `manifest` describes, to the upload begun at `prefix`,
/// and completes it. `on_progress` is called often and must be quick. After an error, call it again.
pub async fn upload(
    client: &Client,
    prefix: &str,
    file: &Path,
    manifest: &Manifest,
    options: &TransferOptions,
    on_progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Uploaded, TransferError> {
    let opened = File::open(file).map_err(TransferError::io("open", file))?;
    let sender = Sender {
        client,
        prefix,
        file: Arc::new(opened),
        path: file,
        manifest,
        options,
        meter: Meter::new(manifest.total_bytes(), on_progress),
    };
    let mut known_bytes = 0;
    for _ in 0..ROUNDS_MAX {
        let missing = sender.ask_missing().await?;
        let there_bytes = manifest.total_bytes() - sender.bytes_of(&missing);
        sender.meter.done(there_bytes.saturating_sub(known_bytes));
        known_bytes = manifest.total_bytes();
        stream::iter(missing)
            .map(|chunk| sender.chunk(chunk))
            .buffer_unordered(options.parallelism.get())
            .try_collect::<()>()
            .await?;
        match sender.complete().await {
            Err(error) if error.refusal_code() == Some(CODE_INCOMPLETE) => {
                tracing::warn!(%error, "the server lost chunks; sending them again");
            }
            Err(error) => return Err(error),
            Ok(answer) => {
                let travelled_bytes = sender.meter.now().travelled_bytes;
                return Ok(Uploaded {
                    answer,
                    travelled_bytes,
                });
            }
        }
    }
    Err(TransferError::NeverComplete {
        url: client.url(prefix),
        rounds: ROUNDS_MAX,
    })
}

/// What all requests of an upload share.
struct Sender<'a> {
    client: &'a Client,
    prefix: &'a str,
    file: Arc<File>,
    path: &'a Path,
    manifest: &'a Manifest,
    options: &'a TransferOptions,
    meter: Meter<'a>,
}

impl Sender<'_> {
    async fn ask_missing(&self) -> Result<Vec<u32>, TransferError> {
        let get = || {
            self.client
                .bulk_json(Method::GET, self.prefix, self.options.stall_max)
        };
        let answer: MissingChunks =
            with_retries(&self.options.retry, self.options.seed, get).await?;
        let known = |&chunk: &u32| chunk < self.manifest.chunk_count();
        if answer.missing.iter().all(known) && answer.missing.is_sorted_by(|a, b| a < b) {
            return Ok(answer.missing);
        }
        let why = "chunks that the file does not have".to_owned();
        Err(TransferError::BadAnswer {
            url: self.client.url(self.prefix),
            why,
        })
    }

    async fn complete(&self) -> Result<serde_json::Value, TransferError> {
        let path = format!("{}/complete", self.prefix);
        let post = || {
            self.client
                .bulk_json(Method::POST, &path, self.options.complete_max)
        };
        with_retries(&self.options.retry, self.options.seed, post).await
    }

    async fn chunk(&self, chunk: u32) -> Result<(), TransferError> {
        let bytes = self.read_chunk(chunk).await?;
        let seed = self.options.seed ^ (u64::from(chunk) << 32);
        with_retries(&self.options.retry, seed, || self.put(chunk, bytes.clone())).await?;
        self.meter.done(bytes.len() as u64);
        Ok(())
    }

    async fn read_chunk(&self, chunk: u32) -> Result<Bytes, TransferError> {
        let (offset, length) = self.manifest.chunk_range(chunk).unwrap_or_default();
        let expected = self.manifest.chunks()[chunk as usize];
        let (file, path) = (self.file.clone(), self.path.to_owned());
        blocking(move || {
            let mut bytes = vec![0; length as usize];
            file.read_exact_at(&mut bytes, offset)
                .map_err(TransferError::io("read", &path))?;
            if hansa_store::hash_bytes(&bytes) == expected {
                return Ok(Bytes::from(bytes));
            }
            Err(TransferError::SourceChanged { path, chunk })
        })
        .await
    }

    /// One request; given up when no piece leaves and no answer comes for `stall_max`.
    async fn put(&self, chunk: u32, bytes: Bytes) -> Result<(), TransferError> {
        let path = format!("{}/chunks/{chunk}", self.prefix);
        let url = self.client.url(&path);
        let stall_max = self.options.stall_max;
        let moved_bytes = Arc::new(AtomicU64::new(0));
        let request = self
            .client
            .bulk(Method::PUT, &path)
            .header(CONTENT_LENGTH, bytes.len())
            .body(counted_body(bytes, moved_bytes.clone()));
        let mut sent = pin!(request.send());
        let mut seen_bytes = 0;
        let mut moved_at = Instant::now();
        let response = loop {
            let step = tokio::time::timeout(stall_max.min(TICK), &mut sent).await;
            let now_bytes = moved_bytes.load(Ordering::Relaxed);
            if now_bytes > seen_bytes {
                self.meter.travelled(now_bytes - seen_bytes);
                (seen_bytes, moved_at) = (now_bytes, Instant::now());
            }
            match step {
                Ok(response) => break response,
                Err(_) if moved_at.elapsed() < stall_max => {}
                Err(_) => {
                    return Err(TransferError::TimedOut {
                        url,
                        limit: stall_max,
                    });
                }
            }
        };
        let broke = |error| TransferError::from_http(&error, &url, stall_max);
        let response = accept(response.map_err(broke)?, &url, stall_max).await?;
        // Read to its end, the connection can carry the next chunk.
        let answer = tokio::time::timeout(stall_max, response.bytes()).await;
        let timed_out = |_| TransferError::TimedOut {
            url: url.clone(),
            limit: stall_max,
        };
        answer.map_err(timed_out)?.map_err(broke).map(drop)
    }

    fn bytes_of(&self, chunks: &[u32]) -> u64 {
        let length = |&chunk: &u32| {
            self.manifest
                .chunk_range(chunk)
                .map_or(0, |(_, length)| length)
        };
        chunks.iter().map(length).sum()
    }
}

/// A body that counts what the connection has taken from it.
fn counted_body(bytes: Bytes, moved_bytes: Arc<AtomicU64>) -> Body {
    let pieces = (0..bytes.len().div_ceil(PIECE_BYTES)).map(move |i| {
        let piece = bytes.slice(i * PIECE_BYTES..bytes.len().min((i + 1) * PIECE_BYTES));
        moved_bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
        Ok::<_, std::io::Error>(piece)
    });
    Body::wrap_stream(stream::iter(pieces))
}
