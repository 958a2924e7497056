//! Training a tokenizer: the same file from any number of threads and in any process.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{gzip, story, train};
use hansa_corpus::{BpeOptions, Error, InputOptions, Quiet, Tokenizer, train_bpe};
use tempfile::TempDir;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Model, NormalizerWrapper, TokenizerImpl};

const CHILD_DIR: &str = "HANSA_CORPUS_TEST_CHILD_DIR";
const CHILD_THREADS: &str = "HANSA_CORPUS_TEST_CHILD_THREADS";

/// Text in which different pairs spell the same token: runs of one character of every length.
fn text_with_runs() -> String {
    let mut text = story(1, 4000);
    for run in 1..60 {
        for character in ["=", "-", " ", "/"] {
            text.push_str(&format!(
                "\n{} a{}b",
                character.repeat(run),
                character.repeat(run % 9)
            ));
        }
    }
    text
}

fn write_text(dir: &Path) -> Vec<PathBuf> {
    let path = dir.join("text.txt");
    std::fs::write(&path, text_with_runs()).unwrap();
    vec![path]
}

#[test]
fn every_process_and_any_number_of_threads_train_the_same_bytes() {
    if let Some(dir) = std::env::var_os(CHILD_DIR) {
        let dir = PathBuf::from(dir);
        let threads: usize = std::env::var(CHILD_THREADS).unwrap().parse().unwrap();
        let out = dir.join(format!("{threads}.json"));
        return train(&write_text(&dir), &out, 600, Some(threads));
    }
    let dir = TempDir::new().unwrap();
    train(
        &write_text(dir.path()),
        &dir.path().join("here.json"),
        600,
        None,
    );
    let here = std::fs::read(dir.path().join("here.json")).unwrap();
    for threads in [1, 2] {
        let child = TempDir::new().unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "every_process_and_any_number_of_threads_train_the_same_bytes",
            ])
            .env(CHILD_DIR, child.path())
            .env(CHILD_THREADS, threads.to_string())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let there = std::fs::read(child.path().join(format!("{threads}.json"))).unwrap();
        assert!(there == here, "{threads} threads in another process differ");
    }
}

#[test]
fn merges_are_those_of_the_tokenizers_crate_where_that_is_deterministic() {
    let dir = TempDir::new().unwrap();
    let text = dir.path().join("text.txt");
    std::fs::write(&text, story(1, 4000)).unwrap();
    let out = dir.path().join("tokenizer.json");
    train(&[text], &out, 330, None);
    let ours: tokenizers::Tokenizer = tokenizers::Tokenizer::from_file(&out).unwrap();

    let mut trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(330)
        .min_frequency(2)
        .special_tokens(vec![AddedToken::from("<|endoftext|>", true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let mut theirs: TokenizerImpl<BPE, NormalizerWrapper, ByteLevel, ByteLevel, ByteLevel> =
        TokenizerImpl::new(BPE::default());
    theirs.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    // Fed as this crate cuts it: documents end words.
    let pieces = cut_at_lines(&story(1, 4000), 16 << 10);
    theirs.train(&mut trainer, pieces.into_iter()).unwrap();
    let vocab: HashMap<String, u32> = theirs.get_model().get_vocab();
    assert_eq!(vocab.len(), 330);
    assert_eq!(ours.get_vocab(true), vocab);
}

fn cut_at_lines(text: &str, bound: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for line in text.split_inclusive('\n') {
        if pieces.last().unwrap().len() + line.len() > bound {
            pieces.push(String::new());
        }
        pieces.last_mut().unwrap().push_str(line);
    }
    pieces
}

#[test]
fn any_text_survives_encoding_and_decoding() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("tokenizer.json");
    train(&write_text(dir.path()), &out, 500, None);
    let tokenizer = Tokenizer::load(&out, None).unwrap();
    assert_eq!(tokenizer.vocab_size(), 500);
    assert_eq!(tokenizer.end_of_document_id(), 0);
    for text in ["Lübeck 1356", "  =====\t\r\n", "雪\u{1F6A2}", ""] {
        let tokens = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
    }
    let merged = tokenizer.encode(" merchants").unwrap();
    assert_eq!(merged.len(), 1, "a frequent word is one token");
}

#[test]
fn a_document_that_spells_out_the_end_token_does_not_end() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("tokenizer.json");
    train(&write_text(dir.path()), &out, 500, None);
    let tokenizer = Tokenizer::load(&out, None).unwrap();
    let text = "before <|endoftext|> after";
    let tokens = tokenizer.encode(text).unwrap();
    assert!(!tokens.contains(&tokenizer.end_of_document_id()));
    assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
}

#[test]
fn plain_and_gzip_files_are_the_same_tokenizer() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("tokenizer.json");
    train(&write_text(dir.path()), &out, 300, None);
    let packed = dir.path().join("tokenizer.json.gz");
    std::fs::write(&packed, gzip(std::fs::read(&out).unwrap())).unwrap();
    let plain = Tokenizer::load(&out, None).unwrap();
    let unpacked = Tokenizer::load(&packed, None).unwrap();
    assert_eq!(plain.hash(), unpacked.hash());
    assert_eq!(plain.json(), unpacked.json());
}

#[test]
fn training_ends_with_the_pairs_and_leaves_other_files_alone() {
    let dir = TempDir::new().unwrap();
    let text = dir.path().join("text.txt");
    std::fs::write(&text, "abcab ab xyz").unwrap();
    let out = dir.path().join("tokenizer.json");
    let options = |vocab_size| BpeOptions {
        vocab_size,
        input: InputOptions::default(),
        threads: None,
    };
    let inputs = [text];
    let trained = train_bpe(&inputs, &out, &options(4096), &Quiet).unwrap();
    // `ab` occurs three times and nothing else twice.
    assert_eq!((trained.vocab_size, trained.documents), (258, 1));
    let again = train_bpe(&inputs, &out, &options(4096), &Quiet).unwrap();
    assert_eq!(again, trained);

    let error = train_bpe(&inputs, &out, &options(257), &Quiet).unwrap_err();
    assert!(matches!(error, Error::OutputExists { .. }), "{error}");
    let error = train_bpe(&inputs, &out, &options(256), &Quiet).unwrap_err();
    assert!(
        error.to_string().starts_with("option `vocab_size` is 256"),
        "{error}"
    );

    std::fs::write(&inputs[0], " \n").unwrap();
    let error = train_bpe(&inputs, &dir.path().join("new"), &options(300), &Quiet).unwrap_err();
    assert!(matches!(error, Error::NoDocuments), "{error}");
}

#[test]
fn tmp_theirs() {
    let mut seen = std::collections::HashMap::new();
    for _ in 0..12 {
        let mut trainer = BpeTrainer::builder().show_progress(false).vocab_size(600).min_frequency(2)
            .special_tokens(vec![AddedToken::from("<|endoftext|>", true)])
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect()).build();
        let mut theirs: TokenizerImpl<BPE, NormalizerWrapper, ByteLevel, ByteLevel, ByteLevel> = TokenizerImpl::new(BPE::default());
        theirs.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
        theirs.train(&mut trainer, cut_at_lines(&text_with_runs(), 16 << 10).into_iter()).unwrap();
        let text = theirs.to_string(false).unwrap();
        *seen.entry(blake3::hash(text.as_bytes())).or_insert(0) += 1;
    }
    eprintln!("THEIRS {seen:?}");
}
