//! A served run on a free port, and replicas that speak to it as a site would, but train nothing: they
//! contribute what a test tells them to.
#![allow(clippy::unwrap_used, dead_code)]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hansa_base::{Bytes, Generation, Hash, ReplicaId, Steps};
use hansa_coordinator::*;
use hansa_outer::{Dtype, Header, Metadata};
use hansa_protocol::*;
use hansa_store::{Manifest, ManifestJson};
use hansa_transfer::{Client, Endpoint, Token, TransferError, TransferOptions, Trust};
use hansa_wire::http::{self, AnnounceRequest, Done, RegisterRequest, path};
use hansa_wire::{PayloadManifest, Recipe, Wire};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const CALL_MAX: Duration = Duration::from_secs(60);

pub fn hash(byte: u8) -> Hash {
    Hash([byte; 32])
}

/// A recipe and a corpus manifest in a folder of their own, and tokens of two sites.
pub struct World {
    pub dir: tempfile::TempDir,
    pub recipe: String,
    pub keep_all: bool,
    pub lease_hold: LeaseHold,
    lumi: String,
    snellius: String,
}

pub const RECIPE: &str = r#"
name = "tiny"

[model]
vocab_size = 64
hidden_size = 8
intermediate_size = 16
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 4
tie_word_embeddings = true

[corpus]
path = "corpus"
seq_len = 16
block_windows = 4

[phase]
steps = 2
batch = 4

[inner]
peak_lr = 1e-3

[rounds]
min_quorum = 2

[evaluation]
every = 0

[end]
rounds = 2
"#;

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let site = |name: &str| issue_token(&data, &Scope::Site(name.parse().unwrap())).unwrap();
        let (lumi, snellius) = (site("lumi"), site("snellius"));
        let world = Self {
            dir,
            recipe: RECIPE.to_owned(),
            keep_all: false,
            lease_hold: LeaseHold {
                longest: Duration::ZERO,
                ..LeaseHold::default()
            },
            lumi,
            snellius,
        };
        world.write_corpus(40, 0xcd);
        world
    }

    /// Who is to wait is not answered before something happens that it may wait for.
    pub fn holding_leases(mut self) -> Self {
        let hour = Duration::from_secs(3600);
        self.lease_hold = LeaseHold {
            longest: hour,
            look_again: hour,
        };
        self
    }

    /// A changed recipe: `from` is replaced by `to`.
    pub fn with(mut self, from: &str, to: &str) -> Self {
        assert!(self.recipe.contains(from));
        self.recipe = self.recipe.replace(from, to);
        self
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn write_corpus(&self, windows: u64, tokenizer: u8) {
        let split = |name: &str, windows: u64| {
            let bytes = (windows * 16 + 1) * 2;
            format!(
                r#"{{"windows":{windows},"tokens":9,"documents":1,"shards":[{{"file":
                "{name}-00000.bin","windows":{windows},"bytes":{bytes},"hash":"{}"}}]}}"#,
                hash(0xab)
            )
        };
        let text = format!(
            r#"{{"format":"hansa-corpus","version":1,"tokenizer":{{"file":"tokenizer.json","hash":
            "{}","vocab_size":64,"end_of_document":{{"token":"<e>","id":0}}}},"dtype":"u16",
            "seq_len":16,"train":{},"held_out":{},"held_out_rule":{{"seed":0,"fraction_ppm":9}},
            "text_field":"text","text_document_bytes":null,"inputs":[]}}"#,
            hash(tokenizer),
            split("train", windows),
            split("held-out", 4)
        );
        let dir = self.dir.path().join("corpus");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("manifest.json"), text).unwrap();
    }

    pub fn options(&self, data: &Path) -> Options {
        let recipe = self.dir.path().join("run.toml");
        std::fs::write(&recipe, &self.recipe).unwrap();
        Options {
            keep_all: self.keep_all,
            lease_hold: self.lease_hold,
            ..Options::new(recipe, data)
        }
    }

    pub fn open(&self) -> Result<Coordinator, Error> {
        Coordinator::open(self.options(&self.data()))
    }

    /// Serves the data directory of this world.
    pub async fn serve(&self) -> Server {
        self.serve_from(&self.data()).await
    }

    pub async fn serve_from(&self, data: &Path) -> Server {
        let coordinator = Coordinator::open(self.options(data)).unwrap();
        let trust = Trust::Pinned(coordinator.fingerprint());
        let digest = coordinator.spec().digest.clone();
        let run = coordinator.spec().run;
        let listen = Listen::Tls("127.0.0.1:0".parse().unwrap());
        let service = coordinator.listen(listen).await.unwrap();
        let base_url = format!("https://{}", service.address());
        let handle = service.handle();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(service.run(async {
            let _ = stopped.await;
        }));
        Server {
            base_url,
            trust,
            digest,
            run,
            handle,
            stop,
            running,
        }
    }

    pub fn token(&self, site: &str) -> &str {
        match site {
            "lumi" => &self.lumi,
            _ => &self.snellius,
        }
    }

    /// A process of `site/r0`.
    pub fn replica(&self, server: &Server, site: &str) -> Process {
        let replica: ReplicaId = format!("{site}/r0").parse().unwrap();
        let headers = http::Client {
            name: replica.to_string(),
            version: "0.1.0".to_owned(),
        };
        Process {
            client: server.client(self.token(site), &headers.headers()),
            folder: self.dir.path().join(site),
            digest: server.digest.clone(),
            caller: Caller {
                replica,
                run: server.run,
                timeline: hansa_base::Timeline(0),
                incarnation: hansa_base::Incarnation(0),
                seal: Hash::default(),
            },
            held: None,
            token: None,
            nonce: hash(100),
        }
    }
}

pub struct Server {
    pub base_url: String,
    pub trust: Trust,
    pub digest: DigestFields,
    pub run: Hash,
    pub handle: Handle,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<Summary, Error>>,
}

impl Server {
    pub fn client(&self, token: &str, headers: &[(&'static str, String)]) -> Client {
        let endpoint = Endpoint {
            base_url: self.base_url.clone(),
            token: Token::new(token),
            trust: self.trust,
        };
        Client::with_headers(&endpoint, headers).unwrap()
    }

    /// The manifest of the current generation's model.
    pub async fn handle_manifest(&self) -> Hash {
        let status = self.handle.status().await.unwrap();
        status.generation.manifest.parse().unwrap()
    }

    pub async fn stop(self) -> Summary {
        self.stop.send(()).unwrap();
        self.running.await.unwrap().unwrap()
    }

    /// Waits until it ends by itself.
    pub async fn end(self) -> Result<Summary, Error> {
        let Self { stop, running, .. } = self;
        let ended = running.await.unwrap();
        drop(stop);
        ended
    }
}

/// A replica's process.
pub struct Process {
    pub client: Client,
    pub caller: Caller,
    pub digest: DigestFields,
    pub token: Option<Hash>,
    /// What it says that it was before.
    pub held: Option<Caller>,
    pub nonce: Hash,
    pub folder: PathBuf,
}

/// Why a call was refused: the code.
pub type Code = String;

pub fn code_of(error: TransferError) -> Code {
    match error {
        TransferError::Refused { code, .. } => code,
        TransferError::Unauthorized { .. } => "unauthorized".to_owned(),
        other => panic!("not a refusal: {other}"),
    }
}

impl Process {
    async fn post<Q, A>(&self, path: &str, request: &Q) -> Result<A, TransferError>
    where
        Q: Wire<Json: Send + Sync>,
        A: Wire,
    {
        let body = request.to_json();
        let json = self.client.post_json(path, &body, CALL_MAX).await?;
        Ok(A::from_json(json).unwrap())
    }

    pub async fn register(&mut self) -> Result<Registered, TransferError> {
        let request = RegisterRequest {
            replica: self.caller.replica.clone(),
            digest: self.digest.clone(),
            ranks: 1,
            nonce: self.nonce,
            resume: self.token,
            held: self.held.clone(),
        };
        let registered: Registered = self.post(path::REGISTER, &request).await?;
        self.caller.incarnation = registered.incarnation;
        self.caller.timeline = registered.timeline;
        self.caller.seal = registered.seal;
        self.held = Some(self.caller.clone());
        self.token = Some(registered.token);
        Ok(registered)
    }

    pub async fn lease(&self, base: Hash) -> Result<LeaseAnswer, TransferError> {
        let request = LeaseRequest {
            caller: self.caller.clone(),
            base,
            times: None,
        };
        self.post(path::LEASE, &request).await
    }

    pub async fn grant(&self, base: Hash) -> Grant {
        match self.lease(base).await.unwrap() {
            LeaseAnswer::Train(grant) => grant,
            other => panic!("{other:?} instead of a grant"),
        }
    }

    pub async fn evaluated(&self, generation: Generation, loss: f64) {
        let result = Evaluated {
            caller: self.caller.clone(),
            generation,
            loss_sum_nats: loss * 64.0,
            tokens: hansa_base::Tokens(64),
        };
        let _: Done = self.post(path::EVALUATED, &result).await.unwrap();
    }

    pub async fn heartbeat(&self) -> Result<Standing, TransferError> {
        let progress = Progress {
            activity: Activity::Training,
            counter: 1,
            step: None,
            rtt: None,
            loss: Some(4.5),
            tokens_per_s: Some(1000.0),
        };
        let heartbeat = Heartbeat {
            caller: self.caller.clone(),
            progress,
            at: None,
        };
        self.post(path::HEARTBEAT, &heartbeat).await
    }

    pub async fn goodbye(&self) -> Result<Done, TransferError> {
        self.post(path::GOODBYE, &self.caller).await
    }

    /// The model of a generation, fetched and read.
    pub async fn download(&self, manifest: Hash) -> Model {
        let dest = self.folder.join(format!("{manifest}.safetensors"));
        std::fs::create_dir_all(&self.folder).unwrap();
        let (prefix, options) = (path::blob(manifest), TransferOptions::new(1));
        hansa_transfer::download(&self.client, &prefix, manifest, &dest, &options, &|_| {})
            .await
            .unwrap();
        Model::read(&dest)
    }

    /// Encodes a pseudo-gradient for a grant.
    pub fn encode(&self, grant: &Grant, model: &Model, delta: &[f32]) -> Payload {
        let layout = model.header.layout();
        let (header, mut bytes) = Header::build(layout, Dtype::F32, Metadata::new()).unwrap();
        bytes.resize(header.file_bytes() as usize, 0);
        Dtype::F32.encode(delta, &mut bytes[header.data_offset() as usize..]);
        self.payload(grant, &bytes)
    }

    pub fn payload(&self, grant: &Grant, bytes: &[u8]) -> Payload {
        std::fs::create_dir_all(&self.folder).unwrap();
        let file = self.folder.join("payload");
        std::fs::write(&file, bytes).unwrap();
        let manifest = Manifest::of_file(&file, 1 << 20).unwrap();
        let (spans, _) = Span::split(&grant.lease.spans, grant.plan.windows);
        let parts = ContributionParts {
            generation: grant.plan.generation,
            base: grant.base.manifest,
            tokens: hansa_base::Tokens(Span::total(&spans).0 * 16),
            spans,
            steps: Steps(2),
            payload: manifest.hash(),
            bytes: Bytes(bytes.len() as u64),
        };
        Payload {
            file,
            manifest,
            parts,
        }
    }

    pub async fn announce(&self, payload: &Payload) -> Result<Verdict, TransferError> {
        let json = ManifestJson::from(&payload.manifest);
        let request = AnnounceRequest {
            announce: Announce {
                caller: self.caller.clone(),
                parts: payload.parts.clone(),
            },
            payload: PayloadManifest {
                format_version: json.format_version,
                total_bytes: json.total_bytes,
                chunk_bytes: json.chunk_bytes,
                chunks: json.chunks,
            },
        };
        self.post(path::ANNOUNCE, &request).await
    }

    pub async fn upload(&self, payload: &Payload) -> Result<Verdict, TransferError> {
        let (prefix, options) = (path::upload(payload.parts.id()), TransferOptions::new(1));
        let (file, manifest) = (&payload.file, &payload.manifest);
        let sent = hansa_transfer::upload(&self.client, &prefix, file, manifest, &options, &|_| {})
            .await?;
        let verdict = serde_json::from_value(sent.answer).unwrap();
        Ok(Verdict::from_json(verdict).unwrap())
    }

    /// Leases, and contributes `delta` for each parameter.
    pub async fn contribute(&self, base: Hash, delta: f32) -> Payload {
        let grant = self.grant(base).await;
        let model = self.download(base).await;
        let delta = vec![delta; model.values.len()];
        let payload = self.encode(&grant, &model, &delta);
        assert_eq!(self.announce(&payload).await.unwrap(), Verdict::Upload);
        assert_eq!(self.upload(&payload).await.unwrap(), Verdict::Staged);
        payload
    }
}

pub struct Payload {
    pub file: PathBuf,
    pub manifest: Manifest,
    pub parts: ContributionParts,
}

pub struct Model {
    pub header: Header,
    pub values: Vec<f32>,
}

impl Model {
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let header = Header::parse(&bytes).unwrap();
        let mut values = vec![0.0; header.layout().elements() as usize];
        let data = &bytes[header.data_offset() as usize..];
        Dtype::F32.decode(data, &mut values);
        Self { header, values }
    }
}

/// Asks again until the answer is there; the test's own time limit ends a wait in vain.
pub async fn until<T, F: Future<Output = Option<T>>>(ask: impl Fn() -> F) -> T {
    loop {
        if let Some(there) = ask().await {
            return there;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for the generation after this one.
pub async fn next_generation(process: &Process, after: Generation) -> GenerationInfo {
    until(async || {
        let current = process.heartbeat().await.unwrap().current;
        (current.generation > after).then_some(current)
    })
    .await
}

pub fn recipe_of(world: &World) -> Recipe {
    Recipe::parse(&world.recipe, Path::new("run.toml")).unwrap()
}
