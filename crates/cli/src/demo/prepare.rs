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
/// Plain text of one's own is cut into documents of this size.
const OWN_DOCUMENT_BYTES: usize = 4 << 10;

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
        if own_text.is_empty() {
            build_corpus(
                places,
                &text::default_files()?,
                BuildOptions::new(SEQ_LEN),
                HELD_OUT_PPM,
            )?;
        } else {
            let sizes = own_text.iter().filter_map(|file| fs::metadata(file).ok());
            let held_out_ppm = held_out_ppm(sizes.map(|file| file.len()).sum());
            let mut options = BuildOptions::new(SEQ_LEN);
            options.input.text_document_bytes = Some(OWN_DOCUMENT_BYTES);
            build_corpus(places, own_text, options, held_out_ppm)?;
        }
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

/// The share of somebody's own text that is held out: of little text a larger one, as it must hold
/// whole documents.
fn held_out_ppm(text_bytes: u64) -> u32 {
    let wanted = 32 * OWN_DOCUMENT_BYTES as u64 * 1_000_000 / text_bytes.max(1);
    u32::try_from(wanted)
        .unwrap_or(u32::MAX)
        .clamp(HELD_OUT_PPM, 20 * HELD_OUT_PPM)
}

fn build_corpus(
    places: &Places,
    files: &[PathBuf],
    mut options: BuildOptions,
    held_out_ppm: u32,
) -> anyhow::Result<()> {
    let bar = CorpusBar::new();
    let bpe = BpeOptions {
        vocab_size: VOCAB_SIZE,
        input: options.input.clone(),
        threads: None,
    };
    // Left by a demo that did not get as far as a corpus, perhaps from other text.
    let _ = fs::remove_file(places.tokenizer());
    hansa_corpus::train_bpe(files, &places.tokenizer(), &bpe, &bar)?;
    let tokenizer = Tokenizer::load(&places.tokenizer(), None)?;
    options.held_out = HeldOut {
        seed: 1,
        fraction_ppm: held_out_ppm,
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_small_text_of_ones_own_is_enough_and_another_may_follow_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(dir.path());
        let text = dir.path().join("text.txt");
        std::fs::write(&text, "word ".repeat(60)).unwrap();
        let own = [text.clone()];
        prepare(&places, &own, 1).unwrap_err();

        let sentence = |n: u32| format!("{n} ships left port, {} came back with salt. ", n / 2);
        std::fs::write(&text, (0..4000).map(sentence).collect::<String>()).unwrap();
        prepare(&places, &own, 1).unwrap();
        let corpus = Corpus::open(&places.corpus()).unwrap();
        assert!(corpus.manifest().held_out.windows.0 > 0);
        assert!(places.recipe().exists());
    }
}
