//! What the deciding thread and the request handlers share: files, and which of them may be fetched.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use hansa_base::{Generation, Hash};
use hansa_outer::Layout;
use hansa_protocol::RunSpec;
use hansa_queue::Planning;
use hansa_store::{Blob, BlobStore, StoreError};
use hansa_transfer::Bandwidth;
use hansa_wire::Recipe;
use hansa_wire::journal::GenerationFiles;
use hansa_wire::recipe::PlanPolicy;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::Tokens;
use crate::options::{BulkCaps, Options};

/// Shared by all threads; immutable but for the small locks.
pub(crate) struct Shell {
    pub options: Options,
    pub recipe: Recipe,
    pub spec: RunSpec,
    pub layout: Layout,
    pub store: BlobStore,
    pub tokens: Tokens,
    pub tokenizer: Option<PathBuf>,
    pub started: Instant,
    pub served: Served,
    pub pace: Pace,
    pub bulk: Bulk,
    pub export: Mutex<Option<PathBuf>>,
    pub data_dir: PathBuf,
}

impl Shell {
    pub fn exported(&self) -> Option<PathBuf> {
        lock(&self.export).clone()
    }

    /// Who decides which jobs are wanted.
    pub fn planning(&self) -> Planning {
        match self.recipe.plan.policy {
            PlanPolicy::Fixed => Planning::Fixed,
            PlanPolicy::Advise => Planning::Advise,
            PlanPolicy::Auto => Planning::Auto,
        }
    }
}

/// The models that may be fetched. A fetch under way keeps its file even when the model is pruned.
#[derive(Default)]
pub(crate) struct Served(RwLock<HashMap<Hash, Blob>>);

impl Served {
    /// The model of this hash, if it is served.
    pub fn model(&self, hash: Hash) -> Option<Blob> {
        let models = self.0.read().unwrap_or_else(PoisonError::into_inner);
        models.get(&hash).cloned()
    }

    /// Serves the models of the newest `keep` generations that are there, and no others.
    pub fn set(
        &self,
        store: &BlobStore,
        files: &BTreeMap<Generation, GenerationFiles>,
        keep: usize,
    ) -> Result<(), StoreError> {
        let newest = files.values().rev().take(keep);
        let mut models = HashMap::new();
        for (age, files) in newest.enumerate() {
            match store.open_blob(files.model) {
                Ok(blob) => {
                    models.insert(files.model, blob);
                }
                Err(StoreError::NoBlob(_)) if age > 0 => {}
                Err(error) => return Err(error),
            }
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = models;
        Ok(())
    }
}

/// Reports of bytes that arrive, thinned out: one per contribution and interval is enough to keep its
/// lease alive.
pub(crate) struct Pace {
    every: Duration,
    last: Mutex<HashMap<Hash, Instant>>,
}

/// More uploads than this at once are not remembered, and report each chunk.
const PACED_MAX: usize = 4096;

impl Pace {
    pub fn new(every: Duration) -> Self {
        Self {
            every,
            last: Mutex::default(),
        }
    }

    /// Whether it is time to report again.
    pub fn is_due(&self, id: Hash) -> bool {
        let mut last = lock(&self.last);
        let now = Instant::now();
        if last.len() >= PACED_MAX {
            last.retain(|_, at| now.duration_since(*at) < self.every);
        }
        match last.get(&id) {
            Some(at) if now.duration_since(*at) < self.every => false,
            _ => {
                last.insert(id, now);
                true
            }
        }
    }
}

/// Bulk requests at once; further ones are asked to come again. Far fewer than connections and threads
/// for file work, which control calls need, too.
const BULK_REQUESTS_MAX: usize = 256;
/// More replicas than this share one cap.
const CAPPED_MAX: usize = 4096;

/// What bulk requests may take of this machine and its link.
pub(crate) struct Bulk {
    places: Arc<Semaphore>,
    all: Option<Bandwidth>,
    each_mbit: Option<f64>,
    each: Mutex<HashMap<String, Bandwidth>>,
}

impl Bulk {
    pub fn new(caps: BulkCaps) -> Self {
        let capped = |mbit| Bandwidth::capped_mbit(Some(mbit));
        Self {
            places: Arc::new(Semaphore::new(BULK_REQUESTS_MAX)),
            all: caps.all_mbit.map(capped),
            each_mbit: caps.replica_mbit,
            each: Mutex::default(),
        }
    }

    /// A place for one request, if there is one.
    pub fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.places.clone().try_acquire_owned().ok()
    }

    /// The caps that hold for a replica: its own and everybody's.
    pub fn caps_for(&self, replica: &str) -> Vec<Bandwidth> {
        let own = self.each_mbit.map(|mbit| {
            let mut each = lock(&self.each);
            let name = match each.len() < CAPPED_MAX || each.contains_key(replica) {
                true => replica,
                false => "",
            };
            let fresh = || Bandwidth::capped_mbit(Some(mbit));
            each.entry(name.to_owned()).or_insert_with(fresh).clone()
        });
        own.into_iter().chain(self.all.clone()).collect()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A shell that all threads hold.
pub(crate) type SharedShell = Arc<Shell>;
