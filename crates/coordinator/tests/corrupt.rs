//! A journal that was changed behind its back: told, never trusted, never a panic.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::*;
use hansa_coordinator::{Error, VerifyReport, verify_journal};
use hansa_store::{DataDir, Journal, Record};

/// A run of two rounds, its journal's bytes, and what a good one proves.
async fn a_real_journal(world: &World) -> (Vec<u8>, VerifyReport) {
    let server = world.serve().await;
    let mut a = world.replica(&server, "lumi");
    let mut current = a.register().await.unwrap().current;
    for delta in [0.01, 0.02] {
        a.contribute(current.manifest, delta).await;
        current = next_generation(&a, current.generation).await;
    }
    a.grant(current.manifest).await;
    server.stop().await;
    let report = verify_journal(&world.data()).unwrap();
    assert!(report.is_good() && report.committed == 16, "{report:?}");
    let bytes = std::fs::read(DataDir::journal_path(&world.data())).unwrap();
    (bytes, report)
}

/// What `ledger verify` said of changed bytes, in a word; a good verdict must be the true one.
fn verdict(dir: &Path, bytes: &[u8], good: &VerifyReport) -> &'static str {
    std::fs::write(DataDir::journal_path(dir), bytes).unwrap();
    match verify_journal(dir) {
        Ok(report) if report.is_good() => {
            // A byte that nothing reads: what is proved is the same history to its end.
            assert_eq!(
                (&report.chain, report.records, report.committed),
                (&good.chain, good.records, good.committed)
            );
            "of no effect"
        }
        Ok(_) => "a violation",
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && text.len() < 900, "{text}");
            "refused"
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_changed_byte_of_a_real_journal_is_told_or_changes_nothing() {
    let world = World::new()
        .with("min_quorum = 2", "min_quorum = 1")
        .with("rounds = 2", "rounds = 9");
    let (bytes, good) = a_real_journal(&world).await;
    let dir = tempfile::tempdir().unwrap();
    let head = DataDir::journal_path(&world.data()).with_extension("head");
    std::fs::copy(head, dir.path().join("journal.head")).unwrap();
    assert_eq!(verdict(dir.path(), &bytes, &good), "of no effect");

    let mut seen: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for at in (0..bytes.len()).step_by(149) {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        let what = verdict(dir.path(), &changed, &good);
        seen.entry(what).or_default().push(at);
    }
    for (what, at) in &seen {
        eprintln!(
            "{what}: {} of {} bytes",
            at.len(),
            bytes.len().div_ceil(149)
        );
    }
    let told = ["a violation", "refused"].map(|what| seen.get(what).map_or(0, Vec::len));
    // Most of the file is records; free space in pages is not.
    assert!(told.iter().sum::<usize>() > 20, "{seen:?}");

    for length in (0..bytes.len()).step_by(4096) {
        let what = verdict(dir.path(), &bytes[..length], &good);
        assert_ne!(what, "of no effect", "{length} bytes are left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_another_version_is_refused_and_not_taken_for_the_end() {
    let world = World::new();
    let server = world.serve().await;
    world.replica(&server, "lumi").register().await.unwrap();
    server.stop().await;
    let path = DataDir::journal_path(&world.data());
    let record = Record {
        wall_ms: 1,
        version: 7,
        payload: b"{}".to_vec(),
    };
    Journal::open(&path)
        .unwrap()
        .append_batch(&[record])
        .unwrap();
    for error in [
        verify_journal(&world.data()).unwrap_err(),
        world.open().err().unwrap(),
    ] {
        assert!(matches!(error, Error::Record { .. }), "{error}");
        assert!(error.to_string().contains("journal version 7"), "{error}");
    }
}
