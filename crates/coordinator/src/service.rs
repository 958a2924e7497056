//! The coordinator as a whole: open a run, listen, serve, end.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hansa_base::MonoMs;
use hansa_protocol::RunSpec;
use hansa_transfer::Fingerprint;
use hansa_transfer::tls::{self, ServerIdentity};
use hansa_wire::Recipe;
use hansa_wire::status::Status;
use tokio::net::TcpListener;
use tokio::sync::oneshot::error::RecvError;

use crate::actor::{Actor, Ended, Finish, Finished, Mailbox, RunParts};
use crate::api::{App, router};
use crate::auth::Tokens;
use crate::error::Error;
use crate::net::{self, Acceptor};
use crate::options::{Listen, Options};
use crate::planning::Planner;
use crate::queue::{QueueParts, QueueService};
use crate::report;
use crate::setup;
use crate::shell::{Bulk, Pace, Served, SharedShell, Shell};

/// A run that is open and not served yet.
pub struct Coordinator {
    shell: SharedShell,
    parts: RunParts,
    queue: QueueParts,
    identity: ServerIdentity,
}

impl Coordinator {
    /// Opens a run: on the first start makes generation 0 and the journal, on any other replays the
    /// journal and compares recipe and corpus with it. Blocks.
    ///
    /// # Errors
    /// A recipe, corpus, journal or data directory that cannot be used; another process that serves it;
    /// a recipe or corpus other than the run's.
    pub fn open(options: Options) -> Result<Self, Error> {
        let started = Instant::now();
        let run = setup::open(&options)?;
        let recipe = run.replayed.recipe.clone();
        let spec = run.replayed.spec.clone();
        let data_dir = run.dir.path().to_owned();
        let current = run.replayed.state.current.generation;
        let files = run.replayed.files.get(&current).copied();
        let theta = run
            .store
            .open_blob(files.ok_or(Error::NoFiles(current))?.theta)?;
        let layout = setup::layout_of(&theta)?;
        let tokens = Tokens::load(&data_dir)?;
        let identity = tls::load_or_make(&data_dir.join("tls"), &options.certificate_names)?;
        let queue = QueueParts::open(&data_dir, spec.run, &recipe.name, options.queue)?;
        let exported = data_dir.join("export");
        let ended = run.replayed.state.ended && exported.join("model.safetensors").exists();
        let (parts, tokenizer, store) = RunParts::new(run, MonoMs(0).after(started.elapsed()));
        let shell = Shell {
            pace: Pace::new(spec.timing.heartbeat_every() / 2),
            bulk: Bulk::new(options.bulk),
            options,
            recipe,
            spec,
            layout,
            store,
            tokens,
            tokenizer,
            started,
            served: Served::default(),
            export: Mutex::new(ended.then_some(exported)),
            data_dir,
        };
        Ok(Self {
            shell: Arc::new(shell),
            parts,
            queue,
            identity,
        })
    }

    /// The run's recipe.
    #[must_use]
    pub fn recipe(&self) -> &Recipe {
        &self.shell.recipe
    }

    /// The protocol's part of it.
    #[must_use]
    pub fn spec(&self) -> &RunSpec {
        &self.shell.spec
    }

    /// The generation that the run is at.
    #[must_use]
    pub fn generation(&self) -> hansa_base::Generation {
        self.parts.machine.state().current.generation
    }

    /// The fingerprint of its certificate, for the sites to pin.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.identity.fingerprint
    }

    /// Listens; port 0 takes any that is free. Nothing is served before [`Service::run`].
    ///
    /// # Errors
    /// If the port is in use or the address cannot be listened on.
    pub async fn listen(self, listen: Listen) -> Result<Service, Error> {
        let (address, acceptor) = match listen {
            Listen::Tls(address) => (address, Acceptor::tls(self.identity.config.clone())),
            Listen::PlainLoopback(address) if address.ip().is_loopback() => {
                (address, Acceptor::plain())
            }
            Listen::PlainLoopback(address) => return Err(Error::PlainNotLoopback(address)),
        };
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| match source.kind() {
            std::io::ErrorKind::AddrInUse => Error::PortInUse(address),
            _ => Error::Listen { address, source },
        })?;
        let local = listener.local_addr();
        let address = local.map_err(|source| Error::Listen { address, source })?;
        let (mailbox, finished, thread) = Actor::start(self.shell.clone(), self.parts)?;
        let queue = QueueService::start(self.queue, self.shell.options.queue.lease_ttl)?;
        Ok(Service {
            shell: self.shell,
            mailbox,
            finished,
            thread: Some(thread),
            queue,
            listener,
            address,
            acceptor,
        })
    }
}

/// A run that is being served.
pub struct Service {
    shell: SharedShell,
    mailbox: Mailbox,
    finished: Finished,
    thread: Option<JoinHandle<()>>,
    queue: QueueService,
    listener: TcpListener,
    address: SocketAddr,
    acceptor: Acceptor,
}

/// A look at a run that is being served. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    shell: SharedShell,
    mailbox: Mailbox,
}

impl Handle {
    /// The status report; `None` once the coordinator has ended.
    pub async fn status(&self) -> Option<Status> {
        let shell = self.shell.clone();
        let look = move |machine: &_, now| report::status(&shell, machine, now);
        self.mailbox.query(look).await.ok()
    }
}

/// How serving ended.
#[derive(Clone, Debug)]
pub struct Summary {
    /// True if the run is over; false if the coordinator was stopped before.
    pub run_over: bool,
    /// The last status report.
    pub status: Status,
    /// The exported model's directory, if the run is over.
    pub export: Option<PathBuf>,
}

impl Service {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The data directory.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.shell.data_dir
    }

    /// For looking at the run from within the process.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle {
            shell: self.shell.clone(),
            mailbox: self.mailbox.clone(),
        }
    }

    /// Serves until `shutdown` is ready, or until the run is over and every live replica has left (or
    /// its session TTL has passed). Everything acknowledged is durable at any time; a shutdown only
    /// saves the next start some replaying.
    ///
    /// # Errors
    /// If the journal cannot be written, a merge fails, the state is found broken, or a replica shows
    /// that the journal is an old copy.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<Summary, Error> {
        let (run, queue) = (self.mailbox.clone(), self.queue.mailbox.clone());
        let (planner, planning) = Planner::new(self.shell.clone(), run.clone(), queue.clone());
        let app = Arc::new(App {
            shell: self.shell.clone(),
            mailbox: run.clone(),
            queue,
            planner,
        });
        let informing = self.queue.inform(run, self.shell.planning());
        let planning = tokio::spawn(planning.serve());
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let listening = net::serve(self.listener, self.acceptor, router(app), stopped);
        let listening = tokio::spawn(listening);
        let finish = tokio::select! {
            finish = &mut self.finished => finish,
            () = self.queue.failed() => stop_run(&self.mailbox, &mut self.finished).await,
            () = shutdown => stop_run(&self.mailbox, &mut self.finished).await,
        };
        if matches!(&finish, Ok(Ok(ended)) if ended.finish == Finish::RunOver) {
            self.queue.farewell().await;
        }
        informing.abort();
        planning.abort();
        let _ = stop.send(true);
        if tokio::time::timeout(Duration::from_secs(5), listening)
            .await
            .is_err()
        {
            tracing::warn!("some connections did not end in time and were cut");
        }
        if let Some(thread) = self.thread.take() {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        let queue = self.queue.stop().await;
        let ended = finish.map_err(|_| Error::ActorGone)??;
        queue?;
        Ok(Summary {
            run_over: ended.finish == Finish::RunOver,
            status: ended.status,
            export: self.shell.exported(),
        })
    }
}

/// Asks the run's thread to end, and waits for that.
async fn stop_run(
    mailbox: &Mailbox,
    finished: &mut Finished,
) -> Result<Result<Ended, Error>, RecvError> {
    let mailbox = mailbox.clone();
    // May wait for a place in the queue.
    let _ = tokio::task::spawn_blocking(move || mailbox.stop()).await;
    finished.await
}
