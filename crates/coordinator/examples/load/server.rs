//! The coordinator in a process of its own, and what it serves.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use hansa_coordinator::{Coordinator, Listen, Options, Scope, issue_token};
use hansa_protocol::DigestFields;
use hansa_wire::Recipe;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use super::client::Connector;

pub const SITES: usize = 10;
const WINDOWS: u64 = 10_000_000;

const RECIPE: &str = r#"
name = "load"

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
block_windows = 16

[phase]
steps = 4
batch = 4

[inner]
peak_lr = 1e-3

[evaluation]
every = 0

[end]
rounds = 2
"#;

/// Serves until its standard input ends; prints where.
pub async fn serve(recipe: &str, data: &str, tls: bool) -> anyhow::Result<()> {
    let coordinator = Coordinator::open(Options::new(recipe, data))?;
    let address = "127.0.0.1:0".parse()?;
    let listen = if tls {
        Listen::Tls(address)
    } else {
        Listen::PlainLoopback(address)
    };
    let service = coordinator.listen(listen).await?;
    println!("{}", service.address());
    let input_ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    service
        .run(async {
            let _ = input_ended.await;
        })
        .await?;
    Ok(())
}

/// A recipe, the manifest of a large corpus, a data directory and tokens.
#[derive(Clone)]
pub struct World {
    dir: PathBuf,
    pub tokens: Arc<Vec<String>>,
    pub digest: DigestFields,
    /// The run's identity.
    pub run: hansa_base::Hash,
}

impl World {
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        let (data, corpus) = (dir.join("data"), dir.join("corpus"));
        std::fs::create_dir_all(&data)?;
        std::fs::create_dir_all(&corpus)?;
        let file = corpus.join("manifest.json");
        std::fs::write(&file, manifest())?;
        // The coordinator never reads a window; so there are none.
        let manifest = hansa_corpus::Manifest::load(&file)?;
        let recipe = dir.join("run.toml");
        std::fs::write(&recipe, RECIPE)?;
        let parsed = Recipe::parse(RECIPE, &recipe)?;
        let digest = parsed.digest_fields(&manifest)?;
        let tokens = (0..SITES).map(|site| {
            let site = format!("site{site}").parse()?;
            Ok(issue_token(&data, &Scope::Site(site))?)
        });
        Ok(Self {
            dir: dir.to_owned(),
            tokens: Arc::new(tokens.collect::<anyhow::Result<_>>()?),
            run: parsed.run_id(&digest),
            digest,
        })
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Its records and its size in MiB.
    pub fn journal(&self) -> anyhow::Result<(u64, f64)> {
        let path = hansa_store::DataDir::journal_path(&self.data());
        let files = ["", "-wal"].map(|suffix| format!("{}{suffix}", path.display()));
        let sizes = files.iter().filter_map(|file| std::fs::metadata(file).ok());
        let bytes: u64 = sizes.map(|meta| meta.len()).sum();
        let journal = hansa_store::Journal::open_read_only(&path)?;
        Ok((journal.last_seq().0, bytes as f64 / f64::from(1 << 20)))
    }
}

fn manifest() -> String {
    let split = |name: &str, windows: u64| {
        let bytes = (windows * 16 + 1) * 2;
        let hash = "ab".repeat(32);
        format!(
            r#"{{"windows":{windows},"tokens":9,"documents":1,"shards":[{{"file":
            "{name}-00000.bin","windows":{windows},"bytes":{bytes},"hash":"{hash}"}}]}}"#
        )
    };
    format!(
        r#"{{"format":"hansa-corpus","version":1,"tokenizer":{{"file":"tokenizer.json","hash":
        "{}","vocab_size":64,"end_of_document":{{"token":"<e>","id":0}}}},"dtype":"u16",
        "seq_len":16,"train":{},"held_out":{},"held_out_rule":{{"seed":0,"fraction_ppm":9}},
        "text_field":"text","text_document_bytes":null,"inputs":[]}}"#,
        "cd".repeat(32),
        split("train", WINDOWS),
        split("held-out", 4)
    )
}

/// The coordinator's process.
pub struct Server {
    child: Child,
    address: String,
    tls: bool,
}

impl Server {
    pub fn start(world: &World, tls: bool) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .args([world.dir.join("run.toml"), world.data()])
            .arg(if tls { "tls" } else { "plain" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().context("take standard output")?;
        BufReader::new(output).read_line(&mut line)?;
        ensure!(!line.is_empty(), "the coordinator did not start");
        let address = line.trim().to_owned();
        Ok(Self {
            child,
            address,
            tls,
        })
    }

    /// Trusts its certificate as a root: pinning is not what is measured here.
    pub fn connector(&self, world: &World) -> anyhow::Result<Connector> {
        let config = || {
            let mut roots = RootCertStore::empty();
            let file = world.data().join("tls/tls.pem");
            roots.add(CertificateDer::from_pem_file(file)?)?;
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let builder = ClientConfig::builder_with_provider(provider);
            let builder = builder.with_safe_default_protocol_versions()?;
            let config = builder.with_root_certificates(roots).with_no_client_auth();
            anyhow::Ok(Arc::new(config))
        };
        Ok(Connector {
            address: self.address.parse()?,
            tls: self.tls.then(config).transpose()?,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn resident_mib(&self) -> anyhow::Result<f64> {
        self.status_mib("VmRSS:")
    }

    /// The largest resident set that the process ever had.
    pub fn peak_mib(&self) -> anyhow::Result<f64> {
        self.status_mib("VmHWM:")
    }

    fn status_mib(&self, field: &str) -> anyhow::Result<f64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let number = line.and_then(|line| line.split_whitespace().next());
        let kib: f64 = number.with_context(|| format!("find {field}"))?.parse()?;
        Ok(kib / 1024.0)
    }

    pub fn stop(mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        ensure!(self.child.wait()?.success(), "the coordinator failed");
        Ok(())
    }

    pub fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
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
