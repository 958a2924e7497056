//! The stage of a rehearsal: a toy corpus, a toy model, a coordinator in this process, and the profile
//! bent towards them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use hansa_coordinator::{Coordinator, Handle, Listen, Options, Scope, issue_token};
use hansa_corpus::{BpeOptions, BuildOptions, HeldOut, InputOptions, Quiet, Tokenizer};
use hansa_store::host;
use hansa_wire::status::Status;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{RehearseOptions, folder};
use crate::error::SiteError;
use crate::profile::Profile;

const VOCAB_SIZE: u32 = 400;
const SEQ_LEN: u32 = 64;

/// A stage that is set.
pub(super) struct Stage {
    pub profile: Profile,
    pub minutes: u64,
    folder: PathBuf,
    handle: Handle,
    stop: oneshot::Sender<()>,
    service: JoinHandle<()>,
}

impl Stage {
    /// Sets it, in a new folder on the storage that jobs see.
    pub async fn set(options: &RehearseOptions) -> Result<Self, SiteError> {
        let mut profile = options.profile.clone();
        if let Some(host) = &profile.slurm.ssh {
            return Err(SiteError::NotHere { host: host.clone() });
        }
        let folder = folder(&profile);
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(SiteError::io("remove", &folder))?;
        }
        std::fs::create_dir_all(&folder).map_err(SiteError::io("create", &folder))?;
        let made = folder.clone();
        let prepared = tokio::task::spawn_blocking(move || prepare(&made)).await;
        prepared.map_err(|error| stage_error("make the corpus", error))??;
        let (recipe, data) = (folder.join("run.toml"), folder.join("data"));
        let opened = {
            let data = data.clone();
            tokio::task::spawn_blocking(move || Coordinator::open(Options::new(recipe, data))).await
        };
        let coordinator = opened
            .map_err(|error| stage_error("open the run", error))?
            .map_err(|error| stage_error("open the run", error))?;
        let fingerprint = coordinator.fingerprint().to_string();
        let any = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
        let service = coordinator.listen(Listen::Tls(any)).await;
        let service = service.map_err(|error| stage_error("listen", error))?;
        let here = options.host.clone().unwrap_or_else(host);
        let url = format!("https://{here}:{}", service.address().port());
        let token_file = folder.join("token.toml");
        token(&profile, &data, &fingerprint, &token_file)?;
        bend(&mut profile, options, &folder, url, token_file)?;
        let handle = service.handle();
        let (stop, stopped) = oneshot::channel();
        let service = tokio::spawn(async move {
            // What becomes of a run that is thrown away is nobody's concern.
            let _ = service.run(async { drop(stopped.await) }).await;
        });
        Ok(Self {
            profile,
            minutes: options.minutes,
            folder,
            handle,
            stop,
            service,
        })
    }

    /// How the toy run stands.
    pub async fn status(&self) -> Option<Status> {
        self.handle.status().await
    }

    /// Ends the coordinator; its folder is left.
    pub async fn strike(self) -> PathBuf {
        let _ = self.stop.send(());
        let _ = self.service.await;
        self.folder
    }
}

fn stage_error(what: &'static str, error: impl ToString) -> SiteError {
    SiteError::Stage {
        what,
        why: error.to_string(),
    }
}

/// The profile of the rehearsal: all as it is but for the run, its data and the walltime.
fn bend(
    profile: &mut Profile,
    options: &RehearseOptions,
    folder: &Path,
    url: String,
    token_file: PathBuf,
) -> Result<(), SiteError> {
    if let Some(shape) = &options.shape {
        if profile.shape(shape).is_none() {
            return Err(stage_error(
                "choose the shape",
                format!("the profile has no shape {shape}"),
            ));
        }
        profile.jobs.shape.clone_from(shape);
    }
    let preferred = profile.jobs.shape.clone();
    for shape in profile
        .shape
        .iter_mut()
        .filter(|shape| shape.name == preferred)
    {
        let walltime = hansa_slurm::parse::Walltime(60 * options.minutes);
        shape.walltime = walltime.to_string();
    }
    profile.jobs.chain = crate::profile::Chain::None;
    profile.coordinator.url = url;
    profile.coordinator.token_file = token_file;
    profile.coordinator.proxy = None;
    profile.relay = None;
    let script = &mut profile.script;
    script.token_file = None;
    script.corpus = folder.join("corpus");
    script.state = folder.join("state");
    script.logs = folder.join("logs");
    script.cache = None;
    script.signal_before_s = 60 * options.minutes / 4;
    for made in [&script.state, &script.logs] {
        std::fs::create_dir_all(made).map_err(SiteError::io("create", made))?;
    }
    Ok(())
}

fn token(profile: &Profile, data: &Path, fingerprint: &str, file: &Path) -> Result<(), SiteError> {
    let site = profile
        .site()
        .map_err(|error| stage_error("name the site", error))?;
    let token = issue_token(data, &Scope::Site(site));
    let token = token.map_err(|error| stage_error("issue a token", error))?;
    let text = format!("token = \"{token}\"\nfingerprint = \"{fingerprint}\"\n");
    Ok(hansa_store::replace_file(file, text.as_bytes(), 0o600)?)
}

fn prepare(folder: &Path) -> Result<(), SiteError> {
    let text = folder.join("text.jsonl");
    std::fs::write(&text, prose()).map_err(SiteError::io("write", &text))?;
    let tokenizer = folder.join("tokenizer.json");
    let bpe = BpeOptions {
        vocab_size: VOCAB_SIZE,
        input: InputOptions::default(),
        threads: Some(1),
    };
    let made = |error: hansa_corpus::Error| stage_error("make the corpus", error);
    let files = [text];
    hansa_corpus::train_bpe(&files, &tokenizer, &bpe, &Quiet).map_err(made)?;
    let tokenizer = Tokenizer::load(&tokenizer, None).map_err(made)?;
    let mut options = BuildOptions::new(SEQ_LEN);
    options.held_out = HeldOut {
        seed: 1,
        fraction_ppm: 50_000,
    };
    hansa_corpus::build(&files, &tokenizer, &folder.join("corpus"), &options, &Quiet)
        .map_err(made)?;
    let recipe = folder.join("run.toml");
    std::fs::write(&recipe, RECIPE).map_err(SiteError::io("write", &recipe))
}

/// Sentences of few words, as JSON lines.
fn prose() -> String {
    const WORDS: &[&str] = &[
        "ship", "salt", "cloth", "harbour", "winter", "grain", "letter", "north", "market",
        "brick", "amber", "herring", "captain", "ledger", "tower", "gold",
    ];
    let mut text = String::new();
    let mut state: u64 = 1;
    for _ in 0..2000 {
        text.push_str("{\"text\":\"");
        for _ in 0..60 {
            // Knuth's MMIX generator.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let word = WORDS[(state >> 60) as usize];
            let _ = write!(text, "{word} ");
        }
        text.push_str("\"}\n");
    }
    text
}

/// It never ends by itself; its phases take seconds.
const RECIPE: &str = r#"name = "rehearsal"
[model]
vocab_size = 400
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 16
max_position_embeddings = 64
tie_word_embeddings = true
[corpus]
path = "corpus"
seq_len = 64
[phase]
steps = 20
batch = 4
[inner]
peak_lr = 1e-3
warmup_steps = 5
[rounds]
grace_s = 5
[evaluation]
every = 1000000
[end]
rounds = 1000000
"#;
