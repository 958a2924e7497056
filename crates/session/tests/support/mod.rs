//! A small run to train: a corpus of made-up text, a tiny model, a real coordinator on loopback.
#![allow(clippy::unwrap_used)]

pub mod child;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hansa_coordinator::{
    Coordinator, Listen, Scope, Summary, add_token, replay_journal, verify_journal,
};
use hansa_corpus::{BpeOptions, BuildOptions, HeldOut, Quiet, Tokenizer, build, train_bpe};
use hansa_protocol::State;
use hansa_session::{Error, Options, Outcome, Session, SessionEvent};
use hansa_transfer::{Endpoint, Fingerprint, Token, Trust};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Builds a corpus of some 500 windows of 16 tokens; another `seed`, another text.
pub fn build_corpus(dir: &Path, seed: u64) -> PathBuf {
    std::fs::create_dir_all(dir).unwrap();
    let text = dir.join("text.jsonl");
    std::fs::write(&text, made_up_text(seed)).unwrap();
    let tokenizer = dir.join("tokenizer.json");
    let bpe = BpeOptions {
        vocab_size: 300,
        input: hansa_corpus::InputOptions::default(),
        threads: Some(1),
    };
    train_bpe(std::slice::from_ref(&text), &tokenizer, &bpe, &Quiet).unwrap();
    let options = BuildOptions {
        held_out: HeldOut {
            seed: 0,
            fraction_ppm: 50_000,
        },
        threads: Some(1),
        ..BuildOptions::new(16)
    };
    let tokenizer = Tokenizer::load(&tokenizer, None).unwrap();
    let corpus = dir.join("corpus");
    build(&[text], &tokenizer, &corpus, &options, &Quiet).unwrap();
    corpus
}

fn made_up_text(seed: u64) -> String {
    let words = [
        "the", "ship", "left", "port", "with", "salt", "herring", "and", "wool", "for", "Bergen",
        "Lübeck", "Visby",
    ];
    let mut state = seed.wrapping_add(1);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        words[(state >> 33) as usize % words.len()]
    };
    let mut text = String::new();
    for _ in 0..300 {
        let sentence: Vec<&str> = (0..24).map(|_| next()).collect();
        text += &format!("{{\"text\": \"{}.\"}}\n", sentence.join(" "));
    }
    text
}

/// A recipe over `corpus`: phases of `steps` steps of two windows, leases that live `ttl_s`.
pub fn recipe(corpus: &Path, steps: u64, rounds: u64, ttl_s: u64) -> String {
    format!(
        r#"
name = "tiny"
[model]
vocab_size = 300
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 16
tie_word_embeddings = true
[corpus]
path = "{}"
seq_len = 16
block_windows = 4
seed = 3
[phase]
steps = {steps}
batch = 2
[inner]
peak_lr = 3e-3
warmup_steps = 2
[exchange]
contribution = "bf16"
[rounds]
min_quorum = 2
[lease]
ttl_min_s = {ttl_s}
session_ttl_s = {ttl_s}
[checkpoint]
every_s = 0.001
[end]
rounds = {rounds}
"#,
        corpus.display()
    )
}

/// The events of a session, as they come.
#[derive(Clone, Default)]
pub struct Events(Arc<Mutex<Vec<SessionEvent>>>);

impl Events {
    pub fn all(&self) -> Vec<SessionEvent> {
        self.0.lock().unwrap().clone()
    }

    pub fn count(&self, wanted: impl Fn(&SessionEvent) -> bool) -> usize {
        self.all().iter().filter(|event| wanted(event)).count()
    }

    /// Waits for an event; the whole test's patience is the only limit that matters.
    pub async fn wait_for(&self, what: &str, wanted: impl Fn(&SessionEvent) -> bool) {
        for _ in 0..3000 {
            if self.count(&wanted) > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no {what} among {:#?}", self.all());
    }
}

/// A coordinator that serves.
pub struct Served {
    pub address: SocketAddr,
    pub fingerprint: Fingerprint,
    pub data_dir: PathBuf,
    recipe: PathBuf,
    corpus: PathBuf,
    shutdown: oneshot::Sender<()>,
    task: JoinHandle<Result<Summary, hansa_coordinator::Error>>,
}

impl Served {
    /// Serves a new run over `corpus`, in plain HTTP or not.
    pub async fn start(dir: &Path, corpus: &Path, recipe: &str, tls: bool) -> Self {
        let (data_dir, file) = (dir.join("data"), dir.join("run.toml"));
        std::fs::create_dir_all(&data_dir).unwrap();
        std::fs::write(&file, recipe).unwrap();
        for site in SITES {
            let scope = Scope::Site(site.parse().unwrap());
            add_token(&data_dir, &scope, &token_of(site)).unwrap();
        }
        let any = "127.0.0.1:0".parse().unwrap();
        let listen = if tls {
            Listen::Tls(any)
        } else {
            Listen::PlainLoopback(any)
        };
        Self::serve(data_dir, file, corpus.to_owned(), listen).await
    }

    async fn serve(data_dir: PathBuf, recipe: PathBuf, corpus: PathBuf, listen: Listen) -> Self {
        let options = hansa_coordinator::Options::new(&recipe, &data_dir);
        let coordinator = Coordinator::open(options).unwrap();
        let fingerprint = coordinator.fingerprint();
        let service = coordinator.listen(listen).await.unwrap();
        let address = service.address();
        let (shutdown, stopped) = oneshot::channel();
        let task = tokio::spawn(service.run(async {
            // A sender that is dropped is a stop, too.
            let _ = stopped.await;
        }));
        Self {
            address,
            fingerprint,
            data_dir,
            recipe,
            corpus,
            shutdown,
            task,
        }
    }

    /// Waits until the journal says so.
    pub async fn wait_until(&self, wanted: impl Fn(&State) -> bool) {
        while !wanted(&replay_journal(&self.data_dir).unwrap().state) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops it; what it returns can be served again at the same address.
    pub async fn stop(self) -> Stopped {
        let _ = self.shutdown.send(());
        self.task.await.unwrap().unwrap();
        Stopped {
            data_dir: self.data_dir,
            recipe: self.recipe,
            corpus: self.corpus,
            address: self.address,
        }
    }

    /// What a replica of this site needs to know.
    pub fn invite(&self, site: &str) -> Invitation {
        Invitation {
            url: format!("http://{}", self.address),
            token: token_of(site),
            corpus: self.corpus.clone(),
        }
    }
}

/// A run between two coordinators.
pub struct Stopped {
    pub data_dir: PathBuf,
    recipe: PathBuf,
    corpus: PathBuf,
    address: SocketAddr,
}

impl Stopped {
    pub async fn start_again(self) -> Served {
        let listen = Listen::PlainLoopback(self.address);
        Served::serve(self.data_dir, self.recipe, self.corpus, listen).await
    }

    /// The journal's state, after checking that nothing is lost or doubled.
    pub fn exact_ledger(&self) -> State {
        let report = verify_journal(&self.data_dir).unwrap();
        assert!(report.is_good(), "{report:#?}");
        replay_journal(&self.data_dir).unwrap().state
    }
}

const SITES: [&str; 2] = ["lumi", "frontier"];

fn token_of(site: &str) -> String {
    format!("hansa_{}", site.repeat(8))
}

/// What a replica needs to know to join.
#[derive(Clone)]
pub struct Invitation {
    pub url: String,
    pub token: String,
    pub corpus: PathBuf,
}

impl Invitation {
    /// Options of a replica with one thread, and where its events go.
    pub fn options(&self, replica: &str, state_dir: &Path) -> (Options, Events) {
        let endpoint = Endpoint {
            base_url: self.url.clone(),
            token: Token::new(&self.token),
            trust: Trust::LoopbackPlain,
        };
        let events = Events::default();
        let sink = events.clone();
        let mut options = Options::new(
            endpoint,
            replica.parse().unwrap(),
            self.corpus.clone(),
            state_dir.to_owned(),
        );
        options.threads = Some(1);
        options.handle_signals = false;
        options.first_contact_within = Duration::from_secs(5);
        options.events = Arc::new(move |event| sink.0.lock().unwrap().push(event.clone()));
        (options, events)
    }
}

/// A session that runs.
pub struct Running {
    pub events: Events,
    pub handle: hansa_session::Handle,
    pub task: tokio::task::JoinHandle<Result<Outcome, Error>>,
}

impl Running {
    pub fn start((options, events): (Options, Events)) -> Self {
        let session = Session::new(options);
        let handle = session.handle();
        let task = tokio::spawn(session.run());
        Self {
            events,
            handle,
            task,
        }
    }

    pub async fn outcome(self) -> Result<Outcome, Error> {
        self.task.await.unwrap()
    }
}
