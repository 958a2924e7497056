//! Peak memory of a whole coordinator with few and with many contributions: it should not differ.
//!
//! `cargo run --release -p hansa-coordinator --example coordinator_memory [DIR]`
//!
//! Serves a model of 101 million parameters from a process of its own and drives one round of it over
//! HTTPS, with 3 and with 12 replicas that train nothing and contribute noise in bf16 (202 MB each): their
//! uploads once one after another, once all at the same time; then all download the new model at the
//! same time. Prints the coordinator's peak resident set (`VmHWM`, Linux) along the way. The process that
//! made generation 0 is restarted before, because it held the initial weights once; its own peak is
//! shown, too. Files lie in a temporary directory (under DIR if given; 8 GB of disk) and go at the end.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use hansa_base::{Bytes, Generation, Hash, Incarnation, Steps, Tokens};
use hansa_coordinator::{Coordinator, Listen, Options, Scope, issue_token};
use hansa_corpus::{BpeOptions, BuildOptions, HeldOut, InputOptions, Quiet};
use hansa_outer::{Dtype, Header, Layout, Metadata, PREFIX_BYTES};
use hansa_protocol::{
    Activity, Announce, Caller, ContributionParts, DigestFields, GenerationInfo, Grant, Heartbeat,
    LeaseAnswer, LeaseRequest, Progress, Registered, Span, Standing, Verdict,
};
use hansa_store::{Manifest, ManifestJson};
use hansa_transfer::{Client, Endpoint, Token, TransferOptions, Trust};
use hansa_wire::http::{self, AnnounceRequest, RegisterRequest, path};
use hansa_wire::{PayloadManifest, Recipe, Wire};
use tokio::task::JoinSet;

const SEQ_LEN: u32 = 32;
const STEPS: u64 = 2;
const CALL_MAX: Duration = Duration::from_secs(30);
const MERGE_MAX: Duration = Duration::from_secs(600);

/// `{quorum}` stands for the number of replicas: a round is complete when all have contributed.
const RECIPE: &str = r#"
name = "memory"

[model]
vocab_size = 8192
hidden_size = 768
intermediate_size = 3072
num_hidden_layers = 11
num_attention_heads = 12
num_key_value_heads = 4
head_dim = 64
tie_word_embeddings = true

[corpus]
path = "../corpus"
seq_len = 32
block_windows = 4

[phase]
steps = 2
batch = 2

[inner]
peak_lr = 1e-3

[exchange]
contribution = "bf16"
model = "bf16"

[rounds]
min_quorum = {quorum}
grace_s = 3600

[lease]
ttl_min_s = 1800
session_ttl_s = 1800

[evaluation]
every = 0

[end]
rounds = 2
"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, recipe, data] = &arguments[..]
        && first == "serve"
    {
        return serve(recipe, data).await;
    }
    let parent = arguments
        .first()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(parent)?;
    build_corpus(dir.path())?;
    println!(
        "peak resident set of the coordinator, MiB\n\n{:>13} {:<15} {:>7} {:>7} {:>8} {:>6} {:>10} {:>7}",
        "contributions", "uploads", "first", "served", "uploaded", "merged", "downloaded", "round"
    );
    for at_once in [false, true] {
        let few = measure(dir.path(), 3, at_once).await?;
        let many = measure(dir.path(), 12, at_once).await?;
        println!("{:>13} 12 to 3: {:.3}\n", "", many / few);
    }
    Ok(())
}

/// Serves until its standard input ends; prints where, and the fingerprint to pin.
async fn serve(recipe: &str, data: &str) -> anyhow::Result<()> {
    let coordinator = Coordinator::open(Options::new(recipe, data))?;
    let fingerprint = coordinator.fingerprint();
    let listen = Listen::Tls("127.0.0.1:0".parse()?);
    let service = coordinator.listen(listen).await?;
    println!("https://{} {fingerprint}", service.address());
    let input_ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    service
        .run(async {
            let _ = input_ended.await;
        })
        .await?;
    Ok(())
}

/// One round with `count` replicas in a fresh data directory; returns the peak at its end, in MiB.
async fn measure(dir: &Path, count: u32, at_once: bool) -> anyhow::Result<f64> {
    let start = Instant::now();
    let world = World::new(dir, count)?;
    let first = Server::start(&world)?;
    let first_mib = first.peak_mib()?;
    first.stop()?;

    let server = Server::start(&world)?;
    let mut replicas = Vec::new();
    for number in 0..count {
        replicas.push(Replica::register(&world, &server, number).await?);
    }
    let model = &replicas[0].base;
    let layout = download_layout(&replicas[0], model).await?;
    // All hold a plan before the first contributes, so the round waits for all.
    let mut uploads = Vec::new();
    for replica in replicas {
        let grant = replica.lease().await?;
        uploads.push((replica, grant));
    }
    let served_mib = server.peak_mib()?;
    let replicas = upload_all(uploads, &layout, at_once).await?;
    let uploaded_mib = server.peak_mib()?;
    let next = next_generation(&replicas[0]).await?;
    let merged_mib = server.peak_mib()?;
    download_all(replicas, next.manifest).await?;
    let peak_mib = server.peak_mib()?;
    server.stop()?;
    std::fs::remove_dir_all(&world.dir)?;
    println!(
        "{count:>13} {:<15} {first_mib:>7.1} {served_mib:>7.1} {uploaded_mib:>8.1} {merged_mib:>6.1} \
         {peak_mib:>10.1} {:>5.0} s",
        if at_once { "all at once" } else { "one by one" },
        start.elapsed().as_secs_f64()
    );
    Ok(peak_mib)
}

/// A few hundred windows of made-up words.
fn build_corpus(dir: &Path) -> anyhow::Result<()> {
    let syllables = ["ka", "ro", "mi", "tel", "un", "sa", "vor", "pe"];
    let mut state = 1_u64;
    let words = (0..60_000).map(|index| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let pick = |shift: u32| syllables[(state >> shift) as usize % syllables.len()];
        let end = if index % 12 == 11 { ".\n" } else { " " };
        format!("{}{}{end}", pick(40), pick(50))
    });
    let text = dir.join("words.txt");
    std::fs::write(&text, words.collect::<String>())?;
    let (inputs, tokenizer) = ([text], dir.join("tokenizer.json"));
    let bpe = BpeOptions {
        vocab_size: 300,
        input: InputOptions::default(),
        threads: None,
    };
    hansa_corpus::train_bpe(&inputs, &tokenizer, &bpe, &Quiet)?;
    let tokenizer = hansa_corpus::Tokenizer::load(&tokenizer, None)?;
    let options = BuildOptions {
        held_out: HeldOut {
            seed: 0,
            fraction_ppm: 100_000,
        },
        ..BuildOptions::new(SEQ_LEN)
    };
    hansa_corpus::build(&inputs, &tokenizer, &dir.join("corpus"), &options, &Quiet)?;
    Ok(())
}

/// A recipe, a data directory and a token.
struct World {
    dir: PathBuf,
    recipe: PathBuf,
    data: PathBuf,
    token: String,
    digest: DigestFields,
}

impl World {
    fn new(parent: &Path, count: u32) -> anyhow::Result<Self> {
        let dir = parent.join("run");
        let data = dir.join("data");
        std::fs::create_dir_all(&data)?;
        let text = RECIPE.replace("{quorum}", &count.to_string());
        let recipe = dir.join("run.toml");
        std::fs::write(&recipe, &text)?;
        let parsed = Recipe::parse(&text, &recipe)?;
        let millions = parsed.model.parameter_count() as f64 / 1e6;
        ensure!(
            (95.0..=105.0).contains(&millions),
            "{millions} M parameters"
        );
        let corpus = hansa_corpus::info(&parent.join("corpus"))?;
        let token = issue_token(&data, &Scope::Site("lumi".parse()?))?;
        let digest = parsed.digest_fields(&corpus)?;
        Ok(Self {
            dir,
            recipe,
            data,
            token,
            digest,
        })
    }
}

/// The coordinator's process.
struct Server {
    child: Child,
    base_url: String,
    trust: Trust,
}

impl Server {
    fn start(world: &World) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .args([&world.recipe, &world.data])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().context("take standard output")?;
        BufReader::new(output).read_line(&mut line)?;
        let said = line.trim().split_once(' ');
        let (base_url, fingerprint) = said.context("the coordinator did not start")?;
        Ok(Self {
            child,
            base_url: base_url.to_owned(),
            trust: Trust::Pinned(fingerprint.parse()?),
        })
    }

    /// The largest resident set that the process ever had.
    fn peak_mib(&self) -> anyhow::Result<f64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        let kib: f64 = number.context("find VmHWM")?.parse()?;
        Ok(kib / 1024.0)
    }

    fn stop(mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        ensure!(self.child.wait()?.success(), "the coordinator failed");
        Ok(())
    }
}

/// No coordinator outlives a measurement that fails.
impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A replica that trains nothing.
struct Replica {
    client: Client,
    caller: Caller,
    number: u32,
    dir: PathBuf,
    base: Hash,
}

impl Replica {
    async fn post_run(&self) -> anyhow::Result<Hash> {
        let hello: http::Hello = self.client.get_json(path::HELLO, CALL_MAX).await?;
        Ok(hello.run_id.parse()?)
    }

    async fn register(world: &World, server: &Server, number: u32) -> anyhow::Result<Self> {
        let replica: hansa_base::ReplicaId = format!("lumi/r{number}").parse()?;
        let endpoint = Endpoint {
            base_url: server.base_url.clone(),
            token: Token::new(&world.token),
            trust: server.trust,
        };
        let headers = http::Client {
            name: replica.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let mut this = Self {
            client: Client::with_headers(&endpoint, &headers.headers())?,
            caller: Caller {
                replica: replica.clone(),
                run: Hash::default(),
                timeline: hansa_base::Timeline(0),
                incarnation: Incarnation(0),
                seal: Hash::default(),
            },
            number,
            dir: world.dir.clone(),
            base: Hash::default(),
        };
        let request = RegisterRequest {
            replica,
            digest: world.digest.clone(),
            ranks: 1,
            nonce: Hash([1; 32]),
            resume: None,
            held: None,
        };
        let registered: Registered = this.post(path::REGISTER, &request).await?;
        this.caller.run = this.post_run().await?;
        this.caller.incarnation = registered.incarnation;
        this.caller.timeline = registered.timeline;
        this.caller.seal = registered.seal;
        this.base = this.current().await?.manifest;
        Ok(this)
    }

    async fn post<Q, A>(&self, path: &str, request: &Q) -> anyhow::Result<A>
    where
        Q: Wire<Json: Send + Sync>,
        A: Wire,
    {
        let body = request.to_json();
        let json = self.client.post_json(path, &body, CALL_MAX).await?;
        A::from_json(json).map_err(|error| anyhow::anyhow!("{path}: {error}"))
    }

    async fn current(&self) -> anyhow::Result<GenerationInfo> {
        let heartbeat = Heartbeat {
            caller: self.caller.clone(),
            progress: Progress {
                activity: Activity::Training,
                counter: 1,
                step: None,
                rtt: None,
                loss: None,
                tokens_per_s: None,
            },
            at: None,
        };
        let standing: Standing = self.post(path::HEARTBEAT, &heartbeat).await?;
        Ok(standing.current)
    }

    async fn lease(&self) -> anyhow::Result<Grant> {
        let request = LeaseRequest {
            caller: self.caller.clone(),
            base: self.base,
            times: None,
        };
        match self.post(path::LEASE, &request).await? {
            LeaseAnswer::Train(grant) => Ok(grant),
            other => bail!("{other:?} instead of a grant"),
        }
    }

    async fn download(&self, manifest: Hash) -> anyhow::Result<PathBuf> {
        let dest = self.dir.join(format!("model-{}", self.number));
        let (prefix, options) = (path::blob(manifest), TransferOptions::new(1));
        hansa_transfer::download(&self.client, &prefix, manifest, &dest, &options, &|_| {}).await?;
        Ok(dest)
    }

    /// Writes, announces and uploads a contribution.
    async fn contribute(&self, grant: &Grant, layout: &Layout) -> anyhow::Result<()> {
        let file = self.dir.join(format!("contribution-{}", self.number));
        write_contribution(&file, layout, self.number)?;
        let manifest = Manifest::of_file(&file, 16 << 20)?;
        let (spans, _) = Span::split(&grant.lease.spans, grant.plan.windows);
        let parts = ContributionParts {
            generation: grant.plan.generation,
            base: grant.base.manifest,
            tokens: Tokens(Span::total(&spans).0 * u64::from(SEQ_LEN)),
            spans,
            steps: Steps(STEPS),
            payload: manifest.hash(),
            bytes: Bytes(manifest.total_bytes()),
        };
        let prefix = path::upload(parts.id());
        let json = ManifestJson::from(&manifest);
        let caller = self.caller.clone();
        let announce = AnnounceRequest {
            announce: Announce { caller, parts },
            payload: PayloadManifest {
                format_version: json.format_version,
                total_bytes: json.total_bytes,
                chunk_bytes: json.chunk_bytes,
                chunks: json.chunks,
            },
        };
        let verdict: Verdict = self.post(path::ANNOUNCE, &announce).await?;
        ensure!(verdict == Verdict::Upload, "announced: {verdict:?}");
        let options = TransferOptions::new(u64::from(self.number));
        let sent =
            hansa_transfer::upload(&self.client, &prefix, &file, &manifest, &options, &|_| {})
                .await?;
        let verdict = Verdict::from_json(serde_json::from_value(sent.answer)?);
        let verdict = verdict.map_err(|error| anyhow::anyhow!("complete: {error}"))?;
        ensure!(verdict == Verdict::Staged, "uploaded: {verdict:?}");
        std::fs::remove_file(&file)?;
        Ok(())
    }
}

/// Noise of a small size, another for every replica.
fn write_contribution(path: &Path, layout: &Layout, number: u32) -> anyhow::Result<()> {
    use std::os::unix::fs::FileExt as _;
    const PIECE: u64 = 1 << 20;
    let (header, head) = Header::build(layout, Dtype::Bf16, Metadata::new())?;
    let file = std::fs::File::create(path)?;
    file.write_all_at(&head, 0)?;
    let mut bytes = vec![0; PIECE as usize * Dtype::Bf16.bytes_per_element()];
    for start in (0..layout.elements()).step_by(PIECE as usize) {
        let end = (start + PIECE).min(layout.elements());
        let value = |i: u64| {
            let mixed = (i + u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
            (mixed as f32 - 32_768.0) * 1e-8
        };
        let values: Vec<f32> = (start..end).map(value).collect();
        let bytes = &mut bytes[..values.len() * Dtype::Bf16.bytes_per_element()];
        Dtype::Bf16.encode(&values, bytes);
        file.write_all_at(bytes, header.byte_range(start..end).start)?;
    }
    Ok(())
}

/// Downloads a model and reads its tensors' names and shapes.
async fn download_layout(replica: &Replica, manifest: &Hash) -> anyhow::Result<Layout> {
    let path = replica.download(*manifest).await?;
    let mut file = std::fs::File::open(&path)?;
    let mut prefix = [0; PREFIX_BYTES];
    file.read_exact(&mut prefix)?;
    let mut bytes = prefix.to_vec();
    bytes.resize(Header::bytes_needed(prefix)?, 0);
    file.read_exact(&mut bytes[PREFIX_BYTES..])?;
    std::fs::remove_file(&path)?;
    Ok(Header::parse(&bytes)?.layout().clone())
}

/// Every replica contributes, one after another or all at the same time.
async fn upload_all(
    uploads: Vec<(Replica, Grant)>,
    layout: &Layout,
    at_once: bool,
) -> anyhow::Result<Vec<Replica>> {
    let mut running = JoinSet::new();
    let mut replicas = Vec::new();
    for (replica, grant) in uploads {
        let layout = layout.clone();
        running.spawn(async move {
            replica.contribute(&grant, &layout).await?;
            anyhow::Ok(replica)
        });
        if !at_once && let Some(done) = running.join_next().await {
            replicas.push(done??);
        }
    }
    while let Some(done) = running.join_next().await {
        replicas.push(done??);
    }
    Ok(replicas)
}

/// Every replica downloads a model, all at the same time.
async fn download_all(replicas: Vec<Replica>, manifest: Hash) -> anyhow::Result<()> {
    let mut running = JoinSet::new();
    for replica in replicas {
        running.spawn(async move {
            let path = replica.download(manifest).await?;
            anyhow::Ok(std::fs::remove_file(path)?)
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(())
}

/// Waits until the round is merged and generation 1 published.
async fn next_generation(replica: &Replica) -> anyhow::Result<GenerationInfo> {
    let start = Instant::now();
    loop {
        let current = replica.current().await?;
        if current.generation > Generation(0) {
            return Ok(current);
        }
        ensure!(start.elapsed() < MERGE_MAX, "no generation 1 in time");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
