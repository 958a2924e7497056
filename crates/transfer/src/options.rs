//! How hard to push, how long to wait, and how far a transfer is.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hansa_base::RetryPolicy;

/// Bounds of a transfer. Memory is at most `parallelism` chunks.
#[derive(Debug, Clone)]
pub struct TransferOptions {
    /// Chunks on their way at once.
    pub parallelism: NonZeroUsize,
    /// For each chunk and each small request.
    pub retry: RetryPolicy,
    /// Spreads the delays between retries.
    pub seed: u64,
    /// A request in which nothing moves for so long is given up.
    pub stall_max: Duration,
    /// How long the server may take to complete an upload: fsync and whatever it does with the blob.
    pub complete_max: Duration,
}

impl TransferOptions {
    /// Four chunks at once, five retries each from 0.2 s to 10 s, 30 s without movement.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            parallelism: NonZeroUsize::MIN.saturating_add(3),
            retry: RetryPolicy {
                first: Duration::from_millis(200),
                longest: Duration::from_secs(10),
                retries_max: Some(5),
            },
            seed,
            stall_max: Duration::from_secs(30),
            complete_max: Duration::from_secs(600),
        }
    }
}

/// How far a transfer is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The blob's size.
    pub total_bytes: u64,
    /// Bytes of chunks that are there and checked, however they came.
    pub done_bytes: u64,
    /// Bytes that went over the network in this call, repeated ones included.
    pub travelled_bytes: u64,
}

/// Counts for a callback that may be called from several tasks.
pub(crate) struct Meter<'a> {
    total_bytes: u64,
    done_bytes: AtomicU64,
    travelled_bytes: AtomicU64,
    report: &'a (dyn Fn(Progress) + Send + Sync),
}

impl<'a> Meter<'a> {
    pub(crate) fn new(total_bytes: u64, report: &'a (dyn Fn(Progress) + Send + Sync)) -> Self {
        Self {
            total_bytes,
            done_bytes: 0.into(),
            travelled_bytes: 0.into(),
            report,
        }
    }

    pub(crate) fn done(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
        (self.report)(self.now());
    }

    pub(crate) fn travelled(&self, bytes: u64) {
        self.travelled_bytes.fetch_add(bytes, Ordering::Relaxed);
        (self.report)(self.now());
    }

    pub(crate) fn now(&self) -> Progress {
        Progress {
            total_bytes: self.total_bytes,
            done_bytes: self.done_bytes.load(Ordering::Relaxed),
            travelled_bytes: self.travelled_bytes.load(Ordering::Relaxed),
        }
    }
}
