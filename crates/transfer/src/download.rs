//! A blob from a server into a file: what is there already does not travel again.
//!
//! Chunks are written in place into `dest.partial`, which becomes `dest` when it is whole and durable.
//! After a cut or a kill the partial file itself says what it has: its chunks are hashed anew.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use hansa_base::Hash;
use hansa_store::{CHUNK_BYTES_DEFAULT, Manifest};
use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::{Method, Response, StatusCode};

use crate::client::{Client, accept};
use crate::error::TransferError;
use crate::options::{Meter, Progress, TransferOptions};
use crate::retry::with_retries;
use crate::serve::ByteRange;

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
/// After an error the partial file stays for the next attempt.
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
    let partial = Arc::new(open_partial(dest, &manifest).await?);
    let meter = Meter::new(manifest.total_bytes(), on_progress);
    meter.done(manifest.total_bytes() - bytes_of(&manifest, &partial.missing));
    let fetch = Fetch {
        client,
        path: format!("{prefix}/data"),
        manifest: &manifest,
        options,
        meter,
    };
    stream::iter(partial.missing.clone())
        .map(|chunk| fetch.chunk_into(chunk, partial.clone()))
        .buffer_unordered(options.parallelism.get())
        .try_collect::<()>()
        .await?;
    let travelled_bytes = fetch.meter.now().travelled_bytes;
    let dest = dest.to_owned();
    blocking(move || partial.finish(&dest)).await?;
    Ok(Downloaded {
        manifest,
        travelled_bytes,
    })
}

async fn already_there(
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

/// What all chunks of a download share.
struct Fetch<'a> {
    client: &'a Client,
    path: String,
    manifest: &'a Manifest,
    options: &'a TransferOptions,
    meter: Meter<'a>,
}

impl Fetch<'_> {
    async fn chunk_into(&self, chunk: u32, partial: Arc<Partial>) -> Result<(), TransferError> {
        let seed = self.options.seed ^ (u64::from(chunk) << 32);
        let bytes = with_retries(&self.options.retry, seed, || self.chunk(chunk)).await?;
        let (offset, length) = self.manifest.chunk_range(chunk).unwrap_or_default();
        blocking(move || {
            let written = partial.file.write_all_at(&bytes, offset);
            written.map_err(TransferError::io("write", &partial.path))
        })
        .await?;
        self.meter.done(length);
        Ok(())
    }

    /// One request for one chunk; the bytes that it returns are the right ones.
    async fn chunk(&self, chunk: u32) -> Result<Vec<u8>, TransferError> {
        let (start, length) = self.manifest.chunk_range(chunk).unwrap_or_default();
        let range = ByteRange { start, length };
        let stall_max = self.options.stall_max;
        let url = self.client.url(&self.path);
        let request = self
            .client
            .bulk(Method::GET, &self.path)
            .header(RANGE, range.to_header());
        let timed_out = || TransferError::TimedOut {
            url: url.clone(),
            limit: stall_max,
        };
        let broke = |error: reqwest::Error| TransferError::from_http(&error, &url, stall_max);
        let sent = tokio::time::timeout(stall_max, request.send()).await;
        let response = sent.map_err(|_| timed_out())?.map_err(broke)?;
        let mut response = accept(response, &url, stall_max).await?;
        self.check_range(&response, range, &url)?;
        let mut bytes = Vec::with_capacity(length as usize);
        loop {
            let piece = tokio::time::timeout(stall_max, response.chunk()).await;
            let Some(piece) = piece.map_err(|_| timed_out())?.map_err(broke)? else {
                break;
            };
            self.meter.travelled(piece.len() as u64);
            if (bytes.len() + piece.len()) as u64 > length {
                let why = format!("more than the {length} bytes asked for");
                return Err(TransferError::BadAnswer { url, why });
            }
            bytes.extend_from_slice(&piece);
        }
        self.checked(chunk, bytes, url).await
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

    async fn checked(
        &self,
        chunk: u32,
        bytes: Vec<u8>,
        url: String,
    ) -> Result<Vec<u8>, TransferError> {
        let expected = self.manifest.chunks()[chunk as usize];
        blocking(move || {
            if hansa_store::hash_bytes(&bytes) == expected {
                return Ok(bytes);
            }
            Err(TransferError::BadChunk { url, chunk })
        })
        .await
    }
}

/// The file in the making, locked against other processes.
struct Partial {
    file: File,
    path: PathBuf,
    missing: Vec<u32>,
}

async fn open_partial(dest: &Path, manifest: &Manifest) -> Result<Partial, TransferError> {
    let mut name = dest.as_os_str().to_owned();
    name.push(".partial");
    let (path, manifest) = (PathBuf::from(name), manifest.clone());
    blocking(move || {
        let mut options = File::options();
        let open = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let file = open.map_err(TransferError::io("open", &path))?;
        if file.try_lock().is_err() || !is_still_at(&file, &path) {
            return Err(TransferError::Busy(path));
        }
        let sized = file.set_len(manifest.total_bytes());
        sized.map_err(TransferError::io("set the size of", &path))?;
        let missing = manifest
            .missing_in(&file)
            .map_err(TransferError::io("read", &path))?;
        Ok(Partial {
            file,
            path,
            missing,
        })
    })
    .await
}

/// Between opening and locking, another process may have finished the file and renamed it; its new name
/// must not be written to.
fn is_still_at(file: &File, path: &Path) -> bool {
    let number = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let there = std::fs::metadata(path).map(number).ok();
    there.is_some() && file.metadata().map(number).ok() == there
}

impl Partial {
    fn finish(&self, dest: &Path) -> Result<(), TransferError> {
        self.file
            .sync_all()
            .map_err(TransferError::io("sync", &self.path))?;
        std::fs::rename(&self.path, dest).map_err(TransferError::io("rename", &self.path))?;
        let parent = match dest.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => return Ok(()),
        };
        let synced = File::open(parent).and_then(|dir| dir.sync_all());
        synced.map_err(TransferError::io("sync", parent))
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
