//! What an exchange needs: a corpus of nonsense, a recipe, tokens; all in one folder that goes with it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use hansa_coordinator::{Scope, issue_token, replay_journal};
use hansa_corpus::{BpeOptions, BuildOptions, HeldOut, Quiet, Tokenizer};
use hansa_outer::Codec;
use serde_json::Value;

use super::ReplicaTask;
use crate::model;

const SEQ_LEN: u32 = 16;
const VOCAB_SIZE: u32 = 300;
const DOCUMENTS: u32 = 2000;
/// The first round starts the programs, and the last generation is not fetched.
const ROUNDS_BESIDE: u64 = 2;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The model's name.
    pub model: String,
    /// How contributions travel.
    pub codec: String,
    /// How models travel.
    pub model_dtype: String,
    /// Sites, of one replica each.
    pub sites: usize,
    /// Rounds to measure, and how often the floor is.
    pub runs: u64,
    /// Where; must not exist, or be empty.
    pub dir: PathBuf,
    /// Plain HTTP instead of HTTPS.
    pub plain: bool,
    /// Where the coordinator listens.
    pub listen: SocketAddr,
    /// Where replicas find it, if not there: a relay that plays a long way.
    pub via: Option<SocketAddr>,
    /// All replicas download into one folder.
    pub share_cache: bool,
    /// A cap on each replica's bulk transfers.
    pub bulk_mbit: Option<f64>,
}

/// A site that may take part.
#[derive(Clone, Debug)]
pub struct Site {
    /// Its name.
    pub name: String,
    url: String,
    fingerprint: Option<String>,
    token: String,
}

/// The prepared folder.
pub struct World {
    plan: Plan,
    model_elements: u64,
}

impl World {
    /// Makes corpus and recipe.
    pub fn prepare(plan: &Plan) -> anyhow::Result<Self> {
        let dir = &plan.dir;
        std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let mut entries = std::fs::read_dir(dir).context("list the folder")?;
        ensure!(
            entries.next().is_none(),
            "{} is not empty: name a folder that is new",
            dir.display()
        );
        let world = Self {
            plan: plan.clone(),
            model_elements: model::layout(&plan.model)?.elements(),
        };
        build_corpus(dir)?;
        let recipe = world.recipe()?;
        std::fs::write(dir.join("run.toml"), recipe).context("write the recipe")?;
        Ok(world)
    }

    pub fn dir(&self) -> &Path {
        &self.plan.dir
    }

    fn data(&self) -> PathBuf {
        self.plan.dir.join("coordinator")
    }

    /// `hansa serve …`.
    pub fn serve_arguments(&self) -> Vec<String> {
        let recipe = self.plan.dir.join("run.toml").display().to_string();
        let data = self.data().display().to_string();
        let listen = self.plan.listen.to_string();
        let mut arguments = [
            "serve", &recipe, "--data", &data, "--listen", &listen, "--json",
        ]
        .map(str::to_owned)
        .to_vec();
        if self.plan.plain {
            arguments.push("--plain".to_owned());
        }
        arguments
    }

    /// Gives every site its token.
    pub fn admit_sites(&self, listening: &Value) -> anyhow::Result<Vec<Site>> {
        let url = listening["url"].as_str().context("no address was told")?;
        let (scheme, _) = url.split_once("://").context("an address without scheme")?;
        let url = match self.plan.via {
            Some(via) => format!("{scheme}://{via}"),
            None => url.to_owned(),
        };
        let admit = |number: usize| {
            let name = format!("site{number}");
            let scope = Scope::Site(name.parse().context("name a site")?);
            Ok(Site {
                token: issue_token(&self.data(), &scope).context("issue a token")?,
                name,
                url: url.clone(),
                fingerprint: listening["fingerprint"].as_str().map(str::to_owned),
            })
        };
        (1..=self.plan.sites).map(admit).collect()
    }

    /// What a site's replica is told.
    pub fn replica_task(&self, site: &Site) -> ReplicaTask {
        let dir = &self.plan.dir;
        ReplicaTask {
            url: site.url.clone(),
            fingerprint: site.fingerprint.clone(),
            token: site.token.clone(),
            replica: format!("{}/r0", site.name),
            corpus: dir.join("corpus"),
            state: dir.join(&site.name),
            model: self.plan.model.clone(),
            seq_len: u64::from(SEQ_LEN),
            seed: site.name.bytes().map(u64::from).sum(),
            cache: self.plan.share_cache.then(|| dir.join("cache")),
            bulk_mbit: self.plan.bulk_mbit,
        }
    }

    /// Seconds of each merge, by base generation.
    pub fn merge_seconds(&self) -> anyhow::Result<BTreeMap<u64, f64>> {
        let replayed = replay_journal(&self.data()).context("read the journal")?;
        let rounds = replayed.history().rounds;
        let seconds = |merge_ms: u64| merge_ms as f64 / 1000.0;
        Ok(rounds
            .iter()
            .map(|round| (round.base, seconds(round.merge_ms)))
            .collect())
    }

    /// Bytes of a contribution's numbers.
    pub fn contribution_bytes(&self) -> u64 {
        // Checked where the recipe is read.
        let codec = self.plan.codec.parse::<Codec>();
        codec.map_or(0, |codec| codec.bytes(self.model_elements))
    }

    /// Bytes of a model's numbers.
    pub fn model_bytes(&self) -> u64 {
        self.model_elements * width_of(&self.plan.model_dtype)
    }

    /// Master weights and momentum: two of the coordinator's files that have fp32's size.
    pub fn state_files(&self) -> anyhow::Result<Vec<PathBuf>> {
        let blobs = self.data().join("blobs");
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&blobs).context("list the blobs")? {
            let path = entry.context("list the blobs")?.path().join("data");
            let length = std::fs::metadata(&path).map_or(0, |m| m.len());
            if length >= 4 * self.model_elements {
                found.push(path);
            }
        }
        found.truncate(2);
        ensure!(
            found.len() == 2,
            "the coordinator has no fp32 state in {}",
            blobs.display()
        );
        Ok(found)
    }

    fn recipe(&self) -> anyhow::Result<String> {
        let model = model::config(&self.plan.model)?;
        let model = serde_json::to_value(&model).context("describe the model")?;
        let mut text = "name = \"bench\"\n[model]\n".to_owned();
        for (key, value) in model.as_object().into_iter().flatten() {
            writeln!(text, "{key} = {value}")?;
        }
        let Plan {
            codec, model_dtype, ..
        } = &self.plan;
        let (rounds, sites) = (self.plan.runs + ROUNDS_BESIDE, self.plan.sites);
        // Two steps and a checkpoint between them, as in a real phase: the contribution before this one is of no
        // use from then on.
        write!(
            text,
            r#"
[corpus]
path = "corpus"
seq_len = {SEQ_LEN}
block_windows = 1
[phase]
steps = 2
batch = 1
balance = false
[inner]
peak_lr = 1e-3
[exchange]
contribution = "{codec}"
model = "{model_dtype}"
[rounds]
min_quorum = {sites}
grace_s = 600
[evaluation]
every = 0
[checkpoint]
every_s = 1e-3
[end]
rounds = {rounds}
"#
        )?;
        Ok(text)
    }
}

fn width_of(dtype: &str) -> u64 {
    match dtype {
        "f32" => 4,
        "bf16" => 2,
        _ => 1,
    }
}

/// Words without sense: enough windows for every round, and a tokenizer that takes no time.
fn build_corpus(dir: &Path) -> anyhow::Result<()> {
    let (text, tokenizer) = (dir.join("text.jsonl"), dir.join("tokenizer.json"));
    let mut lines = String::new();
    for document in 0..DOCUMENTS {
        let words: Vec<String> = (0..20u32)
            .map(|word| format!("w{}", (document * 31 + word * word * 7) % 97))
            .collect();
        // The number makes each document another one: held-out documents are chosen by what they say.
        let words = words.join(" ");
        writeln!(lines, "{{\"text\": \"{words} {document}\"}}")?;
    }
    std::fs::write(&text, lines).context("write the corpus' text")?;
    let files = [text];
    let mut options = BuildOptions::new(SEQ_LEN);
    options.held_out = HeldOut {
        seed: 1,
        fraction_ppm: 50_000,
    };
    let bpe = BpeOptions {
        vocab_size: VOCAB_SIZE,
        input: options.input.clone(),
        threads: None,
    };
    hansa_corpus::train_bpe(&files, &tokenizer, &bpe, &Quiet).context("make a tokenizer")?;
    let tokenizer = Tokenizer::load(&tokenizer, None).context("load the tokenizer")?;
    hansa_corpus::build(&files, &tokenizer, &dir.join("corpus"), &options, &Quiet)
        .context("build the corpus")?;
    Ok(())
}
