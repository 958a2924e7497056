//! What a demo needs before its first process starts: tokenizer, corpus, recipe. Each is made once;
//! a demo that is started again takes what is there.

use super::text;
use crate::ui::{CorpusBar, note};
use anyhow::Context as _;
use hansa_corpus::{BpeOptions, BuildOptions, Corpus, HeldOut, Tokenizer};
use std::fs;
use std::path::{Path, PathBuf};

const VOCAB_SIZE: u32 = 4096;
const SEQ_LEN: u32 = 256;
const HELD_OUT_PPM: u32 = 10_000;

/// Where a demo keeps what.
#[derive(Clone, Debug)]
pub struct Places {
    root: PathBuf,
}

impl Places {
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn corpus(&self) -> PathBuf {
        self.root.join("corpus")
    }

    pub fn recipe(&self) -> PathBuf {
        self.root.join("run.toml")
    }

    pub fn data(&self) -> PathBuf {
        self.root.join("coordinator")
    }

    pub fn state(&self, site: &str) -> PathBuf {
        self.root.join("sites").join(site)
    }

    pub fn credentials(&self, site: &str) -> PathBuf {
        self.root.join(format!("{site}.credentials.toml"))
    }

    pub fn log(&self, process: &str) -> PathBuf {
        self.root.join("logs").join(format!("{process}.log"))
    }

    /// Which acts of the story have been played.
    pub fn story(&self) -> PathBuf {
        self.root.join("story.json")
    }

    fn tokenizer(&self) -> PathBuf {
        self.root.join("tokenizer.json")
    }
}

/// Makes what is missing.
pub fn prepare(places: &Places, own_text: &[PathBuf], rounds: u64) -> anyhow::Result<()> {
    let logs = places.root.join("logs");
    fs::create_dir_all(&logs).with_context(|| format!("create {}", logs.display()))?;
    if !places.corpus().exists() {
        let files = if own_text.is_empty() {
            text::default_files()?
        } else {
            own_text.to_vec()
        };
        build_corpus(places, &files)?;
    } else if !own_text.is_empty() {
        note!(
            "this demo goes on with the text that it began with; for other text name another folder \
             with --dir"
        );
    }
    let recipe = places.recipe();
    if !recipe.exists() {
        let corpus = Corpus::open(&places.corpus())?;
        let vocab_size = corpus.manifest().tokenizer.vocab_size;
        fs::write(&recipe, recipe_text(vocab_size, rounds))
            .with_context(|| format!("write {}", recipe.display()))?;
    }
    Ok(())
}

fn build_corpus(places: &Places, files: &[PathBuf]) -> anyhow::Result<()> {
    let bar = CorpusBar::new();
    let options = BpeOptions {
        vocab_size: VOCAB_SIZE,
        input: Default::default(),
        threads: None,
    };
    hansa_corpus::train_bpe(files, &places.tokenizer(), &options, &bar)?;
    let tokenizer = Tokenizer::load(&places.tokenizer(), None)?;
    let mut options = BuildOptions::new(SEQ_LEN);
    options.held_out = HeldOut {
        seed: 1,
        fraction_ppm: HELD_OUT_PPM,
    };
    hansa_corpus::build(files, &tokenizer, &places.corpus(), &options, &bar)?;
    bar.finish();
    Ok(())
}

/// A small Qwen3 and limits that let a few minutes show what weeks would: leases that last seconds
/// instead of minutes, and a checkpoint every two seconds.
fn recipe_text(vocab_size: u32, rounds: u64) -> String {
    format!(
        r#"# The recipe of the demo, written by `hansa demo`. A real run's looks the same.
name = "demo"

[model]                      # names of Hugging Face's config.json
vocab_size = {vocab_size}
hidden_size = 128
intermediate_size = 384
num_hidden_layers = 3
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 32
max_position_embeddings = {SEQ_LEN}
rms_norm_eps = 1e-6
rope_theta = 10000.0
tie_word_embeddings = true

[corpus]
path = "corpus"
seq_len = {SEQ_LEN}
block_windows = 16
seed = 42

[phase]
steps = 32                   # H
batch = 4                    # B
accumulation = 1             # A

[inner]
peak_lr = 3e-3
warmup_steps = 60
decay_fraction = 0.5
floor = 0.1

[outer]
lr = 0.7
momentum = 0.9

[exchange]
contribution = "bf16"
model = "bf16"
chunk_mib = 1

[rounds]
grace_s = 12

[lease]
ttl_min_s = 6
ttl_max_s = 20
session_ttl_s = 8

[evaluation]
every = 2
budget_s = 60
windows_max = 160

[checkpoint]
every_s = 2

[end]
rounds = {rounds}
"#
    )
}
