//! How hard to push, how long to wait, and how far a transfer is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hansa_base::RetryPolicy;

use crate::bucket::Bandwidth;
use crate::lane_control::LaneLimits;

/// Bounds of a transfer. Memory is some hundred kilobytes for each lane, whatever the chunks' size.
#[derive(Debug, Clone)]
pub struct TransferOptions {
    /// Connections at once.
    pub lanes: LaneLimits,
    /// For each chunk and each small request; counted anew whenever something has moved.
    pub retry: RetryPolicy,
    /// Spreads the delays between retries.
    pub seed: u64,
    /// A request in which nothing moves for so long is given up.
    pub stall_max: Duration,
    /// How long the server may take to complete an upload: fsync and whatever it does with the blob.
    pub complete_max: Duration,
    /// A cap, shared with every transfer that has a clone of it.
    pub bandwidth: Bandwidth,
}

impl TransferOptions {
    /// 4 to 32 lanes, twelve retries without any movement from 0.2 s to 10 s (more than a minute), 30 s of
    /// silence in a request, no cap.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            lanes: LaneLimits::default(),
            retry: RetryPolicy {
                first: Duration::from_millis(200),
                longest: Duration::from_secs(10),
                retries_max: Some(12),
            },
            seed,
            stall_max: Duration::from_secs(30),
            complete_max: Duration::from_secs(600),
            bandwidth: Bandwidth::default(),
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

/// Counts what the lanes do; whoever drives them looks.
#[derive(Debug)]
pub(crate) struct Meter {
    total_bytes: u64,
    done_bytes: AtomicU64,
    travelled_bytes: AtomicU64,
}

impl Meter {
    pub(crate) fn new(total_bytes: u64) -> Self {
        Self {
            total_bytes,
            done_bytes: 0.into(),
            travelled_bytes: 0.into(),
        }
    }

    pub(crate) fn done(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn travelled(&self, bytes: u64) {
        self.travelled_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Progress {
        Progress {
            total_bytes: self.total_bytes,
            done_bytes: self.done_bytes.load(Ordering::Relaxed),
            travelled_bytes: self.travelled_bytes.load(Ordering::Relaxed),
        }
    }
}
