//! A file to a server that says which chunks it misses.
//!
//! The server keeps the state, so the client may be killed and start over: it asks, sends, completes.
//! Every step can be repeated without harm. A chunk may go in several parts, one after another; after a
//! cut the server says how much of it arrived, and the next part begins there.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{Stream, stream};
use hansa_store::{ChunkHasher, Manifest};
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE};
use reqwest::{Body, Method};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::client::{Client, accept};
use crate::download::blocking;
use crate::error::TransferError;
use crate::lane::Lane;
use crate::lanes::{self, Work};
use crate::options::{Meter, Progress, TransferOptions};
use crate::retry::{Patience, with_retries};
use crate::serve::{ByteRange, CODE_CHUNK_MISMATCH, CODE_INCOMPLETE};

/// Rounds of asking, sending and completing before something else must be wrong.
const ROUNDS_MAX: u32 = 4;
/// Movement is noticed in steps of this size, and of the other over a fast connection.
const PIECE_BYTES: usize = 64 << 10;
const PIECE_BYTES_MAX: usize = 256 << 10;
/// How often movement is looked at.
const TICK: Duration = Duration::from_millis(200);

/// The answer to `GET {prefix}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingChunks {
    /// Indices that have not arrived, ascending.
    pub missing: Vec<u32>,
}

/// The answer to `GET {prefix}/chunks/{index}`, and to a `PUT` of a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBytes {
    /// Bytes of the chunk, from its beginning, that need not be sent; all once it counts.
    pub held_bytes: u64,
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
    let meter = Arc::new(Meter::new(manifest.total_bytes()));
    let sender = Sender {
        client: client.clone(),
        prefix: prefix.to_owned(),
        source: Arc::new(Source {
            file: opened,
            path: file.to_owned(),
        }),
        manifest: manifest.clone(),
        options: options.clone(),
        meter: meter.clone(),
    };
    let mut known_bytes = 0;
    for _ in 0..ROUNDS_MAX {
        let missing = sender.ask_missing().await?;
        let missing_bytes: u64 = missing.iter().map(|&chunk| sender.bytes_of(chunk)).sum();
        let there_bytes = manifest.total_bytes() - missing_bytes;
        meter.done(there_bytes.saturating_sub(known_bytes));
        known_bytes = manifest.total_bytes();
        lanes::run(
            client,
            missing,
            sender.clone(),
            &meter,
            options,
            on_progress,
        )
        .await?;
        match sender.complete().await {
            Err(error) if error.refusal_code() == Some(CODE_INCOMPLETE) => {
                tracing::warn!(%error, "the server lost chunks; sending them again");
            }
            Err(error) => return Err(error),
            Ok(answer) => {
                let travelled_bytes = meter.now().travelled_bytes;
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

/// What all lanes of an upload share.
#[derive(Clone)]
struct Sender {
    client: Client,
    prefix: String,
    source: Arc<Source>,
    manifest: Manifest,
    options: TransferOptions,
    meter: Arc<Meter>,
}

/// The file that is sent.
struct Source {
    file: File,
    path: PathBuf,
}

impl Work for Sender {
    const CAN_BE_TAKEN_OVER: bool = true;

    async fn chunk(&self, lane: &mut Lane, chunk: u32, from: u64) -> Result<(), TransferError> {
        let (_, length) = self.manifest.chunk_range(chunk).unwrap_or_default();
        let seed = self.options.seed ^ (u64::from(chunk) << 32);
        let mut patience = Patience::new(&self.options.retry, seed);
        let mut wrong = Patience::new(&self.options.retry, seed);
        let (mut there, mut most) = (from, from);
        while there < length {
            let began = Instant::now();
            let start = there;
            let part = ByteRange {
                start,
                length: lane.unit_bytes(length - start),
            };
            let error = match self.put(lane, chunk, part, length).await {
                Ok(()) => {
                    lane.succeeded(part.length, began.elapsed());
                    patience.moved();
                    there += part.length;
                    most = most.max(there);
                    continue;
                }
                Err(error) => error,
            };
            lane.failed(&error);
            if error.refusal_code() == Some(CODE_CHUNK_MISMATCH) {
                self.check_source(chunk).await?;
                wrong.wait(error).await?;
                (there, most) = (0, 0);
                continue;
            }
            patience.wait(error).await?;
            there = self.ask_held(chunk, length, seed).await?;
            if there > most {
                most = there;
                patience.moved();
            }
        }
        Ok(())
    }

    async fn held(&self, lane: &mut Lane, chunk: u32) -> Option<u64> {
        // Over the lane's own connection: a new one takes round trips to be there.
        let (connection, path) = (lane.connection(0).ok()?, self.chunk_path(chunk));
        let limit = self.options.stall_max;
        let held: Result<HeldBytes, _> = self.client.json_over(&connection, &path, limit).await;
        Some(held.ok()?.held_bytes)
    }

    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

impl Sender {
    async fn ask_missing(&self) -> Result<Vec<u32>, TransferError> {
        let answer: MissingChunks = self.ask(&self.prefix, self.options.seed).await?;
        let known = |&chunk: &u32| chunk < self.manifest.chunk_count();
        if answer.missing.iter().all(known) && answer.missing.is_sorted_by(|a, b| a < b) {
            return Ok(answer.missing);
        }
        Err(self.bad_answer("chunks that the file does not have"))
    }

    /// How much of a chunk the server has after a request that broke off.
    async fn ask_held(&self, chunk: u32, length: u64, seed: u64) -> Result<u64, TransferError> {
        let path = self.chunk_path(chunk);
        // More than there is: it needs no more of this chunk, whatever it has.
        let held: HeldBytes = self.ask(&path, seed).await?;
        Ok(held.held_bytes.min(length))
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str, seed: u64) -> Result<T, TransferError> {
        let limit = self.options.stall_max;
        let get = || self.client.bulk_json(Method::GET, path, limit);
        with_retries(&self.options.retry, seed, get).await
    }

    fn chunk_path(&self, chunk: u32) -> String {
        format!("{}/chunks/{chunk}", self.prefix)
    }

    fn bad_answer(&self, why: &str) -> TransferError {
        TransferError::BadAnswer {
            url: self.client.url(&self.prefix),
            why: why.to_owned(),
        }
    }

    async fn complete(&self) -> Result<serde_json::Value, TransferError> {
        let path = format!("{}/complete", self.prefix);
        let post = || {
            self.client
                .bulk_json(Method::POST, &path, self.options.complete_max)
        };
        with_retries(&self.options.retry, self.options.seed, post).await
    }

    /// Whether the file still is what its manifest says; the server found something else.
    async fn check_source(&self, chunk: u32) -> Result<(), TransferError> {
        let (offset, length) = self.manifest.chunk_range(chunk).unwrap_or_default();
        let expected = self.manifest.chunks()[chunk as usize];
        let source = self.source.clone();
        blocking(move || {
            let mut hasher = ChunkHasher::new();
            let mut piece = vec![0; PIECE_BYTES];
            let mut done = 0;
            while done < length {
                let count = (length - done).min(PIECE_BYTES as u64) as usize;
                let read = source
                    .file
                    .read_exact_at(&mut piece[..count], offset + done);
                read.map_err(TransferError::io("read", &source.path))?;
                hasher.update(&piece[..count]);
                done += count as u64;
            }
            if hasher.finish() == expected {
                return Ok(());
            }
            let path = source.path.clone();
            Err(TransferError::SourceChanged { path, chunk })
        })
        .await
    }

    /// One request; given up when no piece leaves and no answer comes for `stall_max`.
    async fn put(
        &self,
        lane: &mut Lane,
        chunk: u32,
        part: ByteRange,
        chunk_bytes: u64,
    ) -> Result<(), TransferError> {
        let url = self.client.url(&self.chunk_path(chunk));
        let stall_max = self.options.stall_max;
        let moved_bytes = Arc::new(AtomicU64::new(0));
        let failed = Arc::new(Mutex::new(None));
        // Only over a connection that has carried much: one that is cut after little must not be handed a
        // burst, which would be lost with it.
        let piece_bytes = match lane.is_fast() && !self.options.bandwidth.is_capped() {
            true => PIECE_BYTES_MAX,
            false => PIECE_BYTES,
        };
        let body = self.body(
            chunk,
            part,
            piece_bytes,
            moved_bytes.clone(),
            failed.clone(),
        );
        let request = lane
            .connection(part.length)?
            .put(&url)
            .header(CONTENT_LENGTH, part.length)
            .header(CONTENT_RANGE, part.content_range(chunk_bytes))
            .body(Body::wrap_stream(body));
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
        if let Some(error) = failed.lock().ok().and_then(|mut failed| failed.take()) {
            return Err(error);
        }
        let broke = |error| TransferError::from_http(&error, &url, stall_max);
        let response = accept(response.map_err(broke)?, &url, stall_max).await?;
        // Read to its end, the connection can carry the next part.
        let answer = tokio::time::timeout(stall_max, response.bytes()).await;
        let timed_out = |_| TransferError::TimedOut {
            url: url.clone(),
            limit: stall_max,
        };
        answer.map_err(timed_out)?.map_err(broke).map(drop)
    }

    /// A part of the file in pieces, read as the connection takes them, and counted. What cannot be read
    /// is left in `failed`: the connection only says that the body broke off.
    fn body(
        &self,
        chunk: u32,
        part: ByteRange,
        piece_bytes: usize,
        moved_bytes: Arc<AtomicU64>,
        failed: Arc<Mutex<Option<TransferError>>>,
    ) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send + use<> {
        let (offset, _) = self.manifest.chunk_range(chunk).unwrap_or_default();
        let (start, end) = (offset + part.start, offset + part.start + part.length);
        let (source, bandwidth) = (self.source.clone(), self.options.bandwidth.clone());
        stream::try_unfold(start, move |at| {
            let (source, bandwidth) = (source.clone(), bandwidth.clone());
            let (moved_bytes, failed) = (moved_bytes.clone(), failed.clone());
            async move {
                let count = (end - at).min(piece_bytes as u64) as usize;
                if count == 0 {
                    return Ok(None);
                }
                bandwidth.pass(count).await;
                let mut piece = vec![0; count];
                // What was just written is in memory, and then another thread only costs time.
                let is_large = piece_bytes == PIECE_BYTES_MAX;
                if is_large && hansa_store::read_cached_at(&source.file, &mut piece, at) {
                    moved_bytes.fetch_add(count as u64, Ordering::Relaxed);
                    return Ok(Some((Bytes::from(piece), at + count as u64)));
                }
                let read = blocking(move || {
                    let read = source.file.read_exact_at(&mut piece, at);
                    read.map_err(TransferError::io("read", &source.path))?;
                    Ok(Bytes::from(piece))
                });
                match read.await {
                    Ok(piece) => {
                        moved_bytes.fetch_add(count as u64, Ordering::Relaxed);
                        Ok(Some((piece, at + count as u64)))
                    }
                    Err(error) => {
                        if let Ok(mut failed) = failed.lock() {
                            *failed = Some(error);
                        }
                        Err(std::io::Error::other("the file cannot be read"))
                    }
                }
            }
        })
    }
}
