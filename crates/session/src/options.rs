//! What a session is told by its user; everything else comes from the coordinator's recipe.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hansa_base::ReplicaId;
use hansa_transfer::{Endpoint, Route};

use crate::event::SessionEvent;

/// Receives what happens; called from the session's own tasks, must be quick.
pub type EventSink = Arc<dyn Fn(&SessionEvent) + Send + Sync>;

/// How this replica gets to the coordinator, and what large transfers may take.
#[derive(Clone, Debug, Default)]
pub struct LinkOptions {
    /// Proxy and version of HTTP; by default `HTTPS_PROXY` and `NO_PROXY` are heeded.
    pub route: Route,
    /// A cap on uploads and downloads together, in Mbit/s; `None`: as much as there is.
    pub bulk_mbit: Option<f64>,
    /// A folder that several replicas of a site download into, so that a model travels once; on the same
    /// file system as their state directories no byte is copied. `None`: each downloads its own.
    pub cache: Option<PathBuf>,
}

/// How to run one replica.
#[derive(Clone)]
pub struct Options {
    /// The coordinator.
    pub endpoint: Endpoint,
    /// The way there.
    pub link: LinkOptions,
    /// This replica's full name.
    pub replica: ReplicaId,
    /// The corpus directory at this site.
    pub corpus_dir: PathBuf,
    /// Where this replica keeps its state; on storage that outlives the job.
    pub state_dir: PathBuf,
    /// Threads of the embedded trainer; `None`: all of the machine. Never changes a result.
    pub threads: Option<usize>,
    /// Trains at most this many windows per second, for demonstrations and tests of slow sites on
    /// one machine. `None`, which is what training wants: as fast as it can.
    pub pace: Option<f64>,
    /// While another process has the name: wait until it is gone, instead of ending.
    pub wait_if_busy: bool,
    /// How long to try for a first answer from the coordinator, if the state directory is a new one.
    pub first_contact_within: Duration,
    /// How long a stop may take (finish the step, encode, upload, say goodbye).
    pub leave_within: Duration,
    /// SIGTERM, SIGINT and SIGUSR1 stop the session cleanly; a second one ends it at once.
    pub handle_signals: bool,
    /// Where events go.
    pub events: EventSink,
}

impl Options {
    /// Defaults: all cores, full speed, an error if the name is taken, a minute for the first
    /// contact, two for leaving, signals handled, nobody watching.
    #[must_use]
    pub fn new(
        endpoint: Endpoint,
        replica: ReplicaId,
        corpus_dir: PathBuf,
        state_dir: PathBuf,
    ) -> Self {
        Self {
            endpoint,
            link: LinkOptions::default(),
            replica,
            corpus_dir,
            state_dir,
            threads: None,
            pace: None,
            wait_if_busy: false,
            first_contact_within: Duration::from_secs(60),
            leave_within: Duration::from_secs(120),
            handle_signals: true,
            events: Arc::new(|_| {}),
        }
    }
}
