//! Builds that die half-way: never a corpus, and the next call makes the same one.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Place, files};
use hansa_corpus::{Corpus, Error, Quiet, Tick, Tokenizer, build};

const CHILD_DIR: &str = "HANSA_CORPUS_TEST_CHILD_DIR";
const DIES_AFTER_DOCUMENTS: u64 = 60;

fn place() -> Place {
    Place::new()
        .stories("a.jsonl", 40)
        .stories("b.jsonl", 80)
        .with(|options| {
            options.shard_bytes = 3000;
            options.checkpoint_bytes = 1000;
        })
}

/// What the child process does: builds, and dies without any farewell.
fn build_and_abort(dir: &Path) {
    let place = place();
    let inputs: Vec<PathBuf> = ["a.jsonl", "b.jsonl"].map(|name| dir.join(name)).into();
    let tokenizer = Tokenizer::load(&dir.join("tokenizer.json"), None).unwrap();
    let abort = |tick: &Tick| {
        if tick.documents > DIES_AFTER_DOCUMENTS {
            std::process::abort();
        }
    };
    let _ = build(
        &inputs,
        &tokenizer,
        &dir.join("corpus"),
        &place.options,
        &abort,
    );
}

/// Runs the test `name` again in a process of its own, where it takes the child's part.
fn interrupted(name: &str) -> Place {
    let place = place();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(CHILD_DIR, place.path(""))
        .output()
        .unwrap()
        .status;
    assert!(!status.success(), "the child should have died");
    assert!(place.path("corpus.partial").is_dir());
    assert!(!place.path("corpus").exists());
    place
}

fn uninterrupted() -> Vec<(String, Vec<u8>)> {
    let place = place();
    place.build("corpus").unwrap();
    files(&place.path("corpus"))
}

#[test]
fn a_killed_build_is_no_corpus_and_goes_on_where_it_was() {
    if let Some(dir) = std::env::var_os(CHILD_DIR) {
        return build_and_abort(Path::new(&dir));
    }
    let place = interrupted("a_killed_build_is_no_corpus_and_goes_on_where_it_was");
    for dir in ["corpus", "corpus.partial"] {
        let error = Corpus::open(&place.path(dir)).unwrap_err().to_string();
        assert!(
            error.contains("its build was interrupted, run it again"),
            "{error}"
        );
    }
    let first = AtomicU64::new(u64::MAX);
    let note = |tick: &Tick| {
        first.fetch_min(tick.documents, Ordering::Relaxed);
    };
    let out = place.path("corpus");
    build(
        &place.inputs,
        &place.tokenizer(),
        &out,
        &place.options,
        &note,
    )
    .unwrap();
    let first = first.load(Ordering::Relaxed);
    assert!(
        first > DIES_AFTER_DOCUMENTS - 10,
        "it started over: {first}"
    );
    assert!(files(&out) == uninterrupted());
    assert!(!place.path("corpus.partial").exists());
}

#[test]
fn a_killed_build_starts_over_when_its_shards_are_gone() {
    if let Some(dir) = std::env::var_os(CHILD_DIR) {
        return build_and_abort(Path::new(&dir));
    }
    let place = interrupted("a_killed_build_starts_over_when_its_shards_are_gone");
    std::fs::remove_file(place.path("corpus.partial/train-00000.bin")).unwrap();
    place.build("corpus").unwrap();
    assert!(files(&place.path("corpus")) == uninterrupted());
}

#[test]
fn a_killed_build_starts_over_when_something_else_is_asked_for() {
    if let Some(dir) = std::env::var_os(CHILD_DIR) {
        return build_and_abort(Path::new(&dir));
    }
    let place = interrupted("a_killed_build_starts_over_when_something_else_is_asked_for");
    let changed = place.with(|options| options.seq_len = 5);
    changed.build("corpus").unwrap();
    changed.build("again").unwrap();
    assert!(files(&changed.path("corpus")) == files(&changed.path("again")));
}

#[test]
fn two_builds_of_one_corpus_do_not_meet() {
    let place = place();
    let tokenizer = place.tokenizer();
    let out = place.path("corpus");
    let second = |_: &Tick| {
        let error = build(&place.inputs, &tokenizer, &out, &place.options, &Quiet).unwrap_err();
        assert!(matches!(error, Error::BuildInProgress { .. }), "{error}");
    };
    build(&place.inputs, &tokenizer, &out, &place.options, &second).unwrap();
}

#[test]
fn what_is_there_already_is_left_alone() {
    let place = place();
    place.build("corpus").unwrap();
    let error = place.build("corpus").unwrap_err();
    assert!(matches!(error, Error::OutputExists { .. }), "{error}");

    std::fs::create_dir(place.path("other.partial")).unwrap();
    std::fs::write(place.path("other.partial/thesis.tex"), "years of work").unwrap();
    let error = place.build("other").unwrap_err();
    assert!(matches!(error, Error::PartialInTheWay { .. }), "{error}");
    assert!(place.path("other.partial/thesis.tex").exists());
}
