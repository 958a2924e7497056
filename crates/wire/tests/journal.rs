//! Journals of every released version load, and what is written comes back.
#![allow(clippy::unwrap_used)]

mod common;

use common::{every_entry, rich_snapshot};
use hansa_wire::journal::*;
use proptest::prelude::*;

/// One record a line, as version 1 wrote them.
const ENTRIES_V1: &str = include_str!("golden/journal_v1.jsonl");
const SNAPSHOT_V1: &str = include_str!("golden/snapshot_v1.json");

#[test]
fn every_event_comes_back() {
    for entry in every_entry() {
        let bytes = encode_entry(&entry);
        assert_eq!(decode_entry(JOURNAL_VERSION, &bytes).unwrap(), entry);
    }
}

#[test]
fn a_state_comes_back_bit_for_bit() {
    let snapshot = rich_snapshot();
    let bytes = encode_snapshot(&snapshot);
    assert_eq!(decode_snapshot(JOURNAL_VERSION, &bytes).unwrap(), snapshot);
}

#[test]
fn the_ends_of_drains_come_back() {
    let mut snapshot = rich_snapshot();
    let ends = [("lumi".parse().unwrap(), hansa_base::WallS(1_764_000_000))];
    snapshot.state.orders.drain_ends = Some(ends.into());
    let bytes = encode_snapshot(&snapshot);
    assert_eq!(decode_snapshot(JOURNAL_VERSION, &bytes).unwrap(), snapshot);
}

#[test]
fn journals_of_version_1_load_and_are_still_written_the_same() {
    let entries = every_entry();
    assert_eq!(ENTRIES_V1.lines().count(), entries.len());
    for (line, entry) in ENTRIES_V1.lines().zip(entries) {
        assert_eq!(decode_entry(1, line.as_bytes()).unwrap(), entry);
        assert_eq!(String::from_utf8(encode_entry(&entry)).unwrap(), line);
    }
    let golden = SNAPSHOT_V1.trim();
    assert_eq!(
        decode_snapshot(1, golden.as_bytes()).unwrap(),
        rich_snapshot()
    );
    assert_eq!(
        String::from_utf8(encode_snapshot(&rich_snapshot())).unwrap(),
        golden
    );
}

#[test]
fn another_version_is_refused_by_its_number() {
    let bytes = encode_entry(&every_entry()[0]);
    let error = decode_entry(2, &bytes).unwrap_err().to_string();
    assert!(
        error.contains("journal version 2") && error.contains("version 1"),
        "{error}"
    );
    assert_eq!(
        decode_snapshot(0, &bytes),
        Err(JournalError::OtherVersion(0))
    );
}

#[test]
fn impossible_values_are_refused_by_their_field() {
    let line = |find: &str| ENTRIES_V1.lines().find(|line| line.contains(find)).unwrap();
    let refuse = |text: String| decode_entry(1, text.as_bytes()).unwrap_err().to_string();
    let error = refuse(line("\"granted\"").replace("[8,12]", "[12,8]"));
    assert!(error.contains("events.spans: 12..8 is no range"), "{error}");
    let error = refuse(line("\"registered\"").replace("lumi/r0", "../r0"));
    assert!(
        error.contains("events.id: ") && error.contains("cannot be a name"),
        "{error}"
    );
    let error = refuse(line("\"announced\"").replace("\"steps\":4", "\"steps\":0"));
    assert!(
        error.contains("events.parts: a contribution needs at least one step"),
        "{error}"
    );
    let gap = SNAPSHOT_V1.replace("[[8,12],", "[[9,12],");
    let error = decode_snapshot(1, gap.as_bytes()).unwrap_err().to_string();
    assert!(
        error.contains("state.ledger: the intervals leave a gap"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn damaged_bytes_are_an_error_never_a_panic(
        noise in prop::collection::vec(any::<u8>(), 0..300),
        at in any::<prop::sample::Index>(),
        entry in any::<prop::sample::Index>(),
    ) {
        let _ = decode_entry(1, &noise);
        let _ = decode_snapshot(1, &noise);
        for whole in [entry.get(&every_entry()), &every_entry()[0]].map(encode_entry) {
            let mut bytes = whole;
            let at = at.index(bytes.len());
            let end = (at + noise.len() % 7).min(bytes.len());
            bytes.splice(at..end, noise.iter().take(7).copied());
            let _ = decode_entry(1, &bytes);
        }
        let mut bytes = encode_snapshot(&rich_snapshot());
        let at = at.index(bytes.len());
        bytes.splice(at..at, noise.iter().take(3).copied());
        let _ = decode_snapshot(1, &bytes);
    }
}

/// A snapshot is compared with the replay of the journal, bit for bit.
#[test]
fn numbers_come_back_as_they_were_written() {
    for i in 1..5000_u64 {
        let info = hansa_protocol::GenerationInfo {
            generation: hansa_base::Generation(i),
            manifest: hansa_base::Hash([1; 32]),
            inner_step: hansa_base::Steps(i),
            tokens: hansa_base::Tokens(i),
            progress: i as f64 / 5003.0,
            progress_per_round: 1.0 / (i as f64 * 0.7),
        };
        let back: hansa_protocol::GenerationInfo =
            hansa_wire::decode(&hansa_wire::encode(&info)).unwrap();
        assert_eq!(back, info);
    }
}
