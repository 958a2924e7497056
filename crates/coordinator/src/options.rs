//! What a coordinator is told.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hansa_queue::Timing;

use crate::merge::MergeOptions;
use crate::news::LeaseHold;

/// How to serve a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The recipe's file.
    pub recipe: PathBuf,
    /// The data directory, made if needed.
    pub data_dir: PathBuf,
    /// Names in the certificate that is made on the first start. Sites pin its fingerprint, so these
    /// are for other tools.
    pub certificate_names: Vec<String>,
    /// How merges use the machine. Its chunk size is the recipe's.
    pub merge: MergeOptions,
    /// Generations whose models are kept and served, the current one included; at least 2. A slow site finishes
    /// a download although newer ones were published meanwhile.
    pub keep_generations: usize,
    /// Nothing is deleted: every generation and every contribution stays, so that all merges can be
    /// done again from the first on. Older generations are kept, but still not served.
    pub keep_all: bool,
    /// After the run's end: how long to wait for replicas that were lost before it, to tell them. Those
    /// that live are waited for anyway, within their session TTL. `None`: the recipe's session TTL.
    pub farewell: Option<Duration>,
    /// Caps on what bulk transfers take of the link.
    pub bulk: BulkCaps,
    /// How often site processes call.
    pub queue: Timing,
    /// How long replicas that have nothing to do are kept waiting for an answer.
    pub lease_hold: LeaseHold,
}

/// Caps on bulk transfers, up and down together, in Mbit/s; `None`: as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BulkCaps {
    /// Of all replicas together.
    pub all_mbit: Option<f64>,
    /// Of each replica.
    pub replica_mbit: Option<f64>,
}

impl Options {
    /// The defaults: three models, all cores, nothing else kept.
    #[must_use]
    pub fn new(recipe: impl Into<PathBuf>, data_dir: impl Into<PathBuf>) -> Self {
        let names = ["localhost", "127.0.0.1", "::1"];
        Self {
            recipe: recipe.into(),
            data_dir: data_dir.into(),
            certificate_names: names.map(str::to_owned).to_vec(),
            merge: MergeOptions::default(),
            keep_generations: 3,
            keep_all: false,
            farewell: None,
            bulk: BulkCaps::default(),
            queue: Timing::default(),
            lease_hold: LeaseHold::default(),
        }
    }

    /// How many models are kept and served.
    pub(crate) fn models_kept(&self) -> usize {
        self.keep_generations.max(2)
    }
}

/// Where and how to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// HTTPS.
    Tls(SocketAddr),
    /// Plain HTTP, on this machine only.
    PlainLoopback(SocketAddr),
}
