//! Training a tokenizer: the same file from any number of threads and in any process.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{gzip, story, train};
use hansa_corpus::{BpeOptions, Error, InputOptions, Quiet, Tokenizer, train_bpe};
use tempfile::TempDir;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, NormalizerWrapper, TokenizerImpl};

const CHILD_DIR: &str = "HANSA_CORPUS_TEST_CHILD_DIR";
const CHILD_THREADS: &str = "HANSA_CORPUS_TEST_CHILD_THREADS";

/// Words, and runs of one character of every length, which merge in overlapping ways.
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
fn the_vocabulary_is_the_one_that_the_tokenizers_crate_learns() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("tokenizer.json");
    // More than there are pairs to merge: both learn all there is.
    train(&write_text(dir.path()), &out, 4096, None);
    let ours = tokenizers::Tokenizer::from_file(&out).unwrap();

    let mut trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(4096)
        .min_frequency(2)
        .special_tokens(vec![AddedToken::from("<|endoftext|>", true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let mut theirs: ByteLevelBpe = TokenizerImpl::new(BPE::default());
    theirs.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    // Fed in the same documents: their ends end words.
    let documents = cut_at_lines(&text_with_runs(), 16 << 10);
    theirs.train(&mut trainer, documents.into_iter()).unwrap();
    assert!(theirs.get_vocab_size(true) > 350);
    assert_eq!(ours.get_vocab(true), theirs.get_vocab(true));
}

type ByteLevelBpe = TokenizerImpl<BPE, NormalizerWrapper, ByteLevel, ByteLevel, ByteLevel>;

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
    train(&write_text(dir.path()), &out, 350, None);
    let tokenizer = Tokenizer::load(&out, None).unwrap();
    assert_eq!(tokenizer.vocab_size(), 350);
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
    train(&write_text(dir.path()), &out, 350, None);
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
