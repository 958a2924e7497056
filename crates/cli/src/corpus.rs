//! `hansa corpus`: from text to windows on disk.

use crate::ui::out;
use crate::ui::{self, CorpusBar};
use anyhow::Context as _;
use clap::{Args, Subcommand};
use hansa_corpus::{
    BpeOptions, BuildOptions, Corpus, HeldOut, InputOptions, Manifest, Split, Tokenizer,
};
use std::path::PathBuf;

/// What to do with corpora.
#[derive(Subcommand)]
pub enum Command {
    /// Train a byte-level BPE tokenizer on text.
    Tokenizer(TokenizerArguments),
    /// Tokenise text into a new corpus.
    Build(BuildArguments),
    /// Say what a corpus holds.
    Info(CorpusArguments),
    /// Hash every file of a corpus and compare it with its manifest.
    Verify(CorpusArguments),
}

/// Text files.
#[derive(Args)]
pub struct Input {
    /// Text: JSON lines (.jsonl, .json), gzip of those (C4's .json.gz), or plain text.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The JSON field that holds a document's text.
    #[arg(long, default_value = "text")]
    field: String,
    /// Threads to use [default: all cores].
    #[arg(long)]
    threads: Option<usize>,
}

impl Input {
    fn options(&self) -> InputOptions {
        InputOptions {
            field: self.field.clone(),
            ..InputOptions::default()
        }
    }
}

/// `hansa corpus tokenizer`.
#[derive(Args)]
pub struct TokenizerArguments {
    #[command(flatten)]
    input: Input,
    /// Entries of the vocabulary.
    #[arg(long, default_value_t = 4096)]
    vocab_size: u32,
    /// The tokenizer.json to write.
    #[arg(long, short)]
    out: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// `hansa corpus build`.
#[derive(Args)]
pub struct BuildArguments {
    #[command(flatten)]
    input: Input,
    /// A Hugging Face tokenizer.json (or .json.gz).
    #[arg(long)]
    tokenizer: PathBuf,
    /// The token that ends a document [default: <|endoftext|>].
    #[arg(long)]
    end_of_document: Option<String>,
    /// Tokens of a training window.
    #[arg(long, default_value_t = 1024)]
    seq_len: u32,
    /// Share of the documents that is held out for evaluation.
    #[arg(long, default_value_t = 0.01)]
    held_out: f64,
    /// Seed of that choice.
    #[arg(long, default_value_t = 0)]
    held_out_seed: u64,
    /// The directory to write; it must not exist.
    #[arg(long, short)]
    out: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// A corpus to look at.
#[derive(Args)]
pub struct CorpusArguments {
    /// The corpus directory.
    dir: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Tokenizer(arguments) => tokenizer(&arguments),
        Command::Build(arguments) => build(&arguments),
        Command::Info(arguments) => info(&arguments),
        Command::Verify(arguments) => verify(&arguments),
    }
}

fn tokenizer(arguments: &TokenizerArguments) -> anyhow::Result<()> {
    let options = BpeOptions {
        vocab_size: arguments.vocab_size,
        input: arguments.input.options(),
        threads: arguments.input.threads,
    };
    let bar = CorpusBar::new();
    let trained = hansa_corpus::train_bpe(&arguments.input.files, &arguments.out, &options, &bar);
    bar.finish();
    let trained = trained?;
    if arguments.json {
        return ui::print_json(&serde_json::json!({
            "path": arguments.out,
            "vocab_size": trained.vocab_size,
            "hash": trained.hash.to_string(),
            "documents": trained.documents,
        }));
    }
    out!("{}", arguments.out.display());
    out!(
        "  {} entries, from {} documents",
        trained.vocab_size,
        ui::count(trained.documents)
    );
    out!("  blake3 {}", trained.hash);
    Ok(())
}

fn build(arguments: &BuildArguments) -> anyhow::Result<()> {
    let share = arguments.held_out;
    anyhow::ensure!(
        (0.0..1.0).contains(&share),
        "--held-out {share}: expected 0 or more, below 1"
    );
    let tokenizer = Tokenizer::load(&arguments.tokenizer, arguments.end_of_document.as_deref())?;
    let mut options = BuildOptions::new(arguments.seq_len);
    options.held_out = HeldOut {
        seed: arguments.held_out_seed,
        fraction_ppm: (share * 1e6).round() as u32,
    };
    options.input = arguments.input.options();
    options.threads = arguments.input.threads;
    let bar = CorpusBar::new();
    let built = hansa_corpus::build(
        &arguments.input.files,
        &tokenizer,
        &arguments.out,
        &options,
        &bar,
    );
    bar.finish();
    print_manifest(&arguments.out, &built?, arguments.json)
}

fn info(arguments: &CorpusArguments) -> anyhow::Result<()> {
    let corpus = Corpus::open(&arguments.dir)?;
    print_manifest(&arguments.dir, corpus.manifest(), arguments.json)
}

fn verify(arguments: &CorpusArguments) -> anyhow::Result<()> {
    let bar = CorpusBar::new();
    let verified = hansa_corpus::verify(&arguments.dir, &bar);
    bar.finish();
    let verified = verified?;
    if arguments.json {
        return ui::print_json(&serde_json::json!({
            "path": arguments.dir,
            "files": verified.files,
            "bytes": verified.bytes.0,
            "whole": true,
        }));
    }
    let (files, size) = (verified.files, ui::bytes(verified.bytes.0));
    out!(
        "{}: {files} files, {size}: all as in the manifest",
        arguments.dir.display()
    );
    Ok(())
}

fn print_manifest(dir: &std::path::Path, manifest: &Manifest, json: bool) -> anyhow::Result<()> {
    if json {
        let mut value = serde_json::to_value(manifest).context("write the manifest as JSON")?;
        value["path"] = dir.display().to_string().into();
        return ui::print_json(&value);
    }
    out!("{}", dir.display());
    let tokenizer = &manifest.tokenizer;
    out!(
        "  tokenizer  {} entries, blake3 {}",
        tokenizer.vocab_size,
        tokenizer.hash.short()
    );
    out!(
        "  windows    of {} tokens, {}",
        manifest.seq_len,
        manifest.dtype.name()
    );
    for (name, split) in [("train", Split::Train), ("held out", Split::HeldOut)] {
        let split = manifest.split(split);
        out!(
            "  {name:<10} {} windows, {} tokens, {} documents, {} shards",
            ui::count(split.windows.0),
            ui::count(split.tokens.0),
            ui::count(split.documents),
            split.shards.len(),
        );
    }
    let (files, size) = (manifest.inputs.len(), ui::bytes(manifest.total_bytes().0));
    out!("  from       {files} files; {size} on disk");
    Ok(())
}
