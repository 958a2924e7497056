//! The order of positions and the digest, against values computed elsewhere and values kept.
#![allow(clippy::unwrap_used)]

mod common;

use hansa_base::{Epoch, Position, Windows};
use hansa_protocol::{BlockSpace, ContributionParts, Permutation};

#[test]
fn any_language_can_reproduce_the_permutation() {
    // Written by golden/permutation.py, which knows the description and not this code.
    let lines = include_str!("golden/permutation.txt").lines();
    let mut count = 0;
    for line in lines {
        let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
        let [blocks, short, seed, epoch, check] = numbers[..5] else {
            panic!("{line}")
        };
        let permutation = Permutation::new(blocks as u32, short == 1, seed, Epoch(epoch as u32));
        assert_eq!(permutation.check_value(), check, "{line}");
        let first: Vec<u64> = (0..blocks.min(12))
            .map(|i| permutation.block_at(i))
            .collect();
        assert_eq!(first, numbers[5..], "{line}");
        count += 1;
    }
    assert_eq!(count, 72);
}

#[test]
fn a_position_is_a_window_of_its_block() {
    let space = BlockSpace::new(Windows(22), Windows(3), 42, Epoch(0));
    let permutation = Permutation::new(8, true, 42, Epoch(0));
    for position in 0..22 {
        let window = permutation.block_at(position / 3) * 3 + position % 3;
        assert_eq!(space.window_at(Position(position)), Some(window));
    }
    assert_eq!(
        space.window_at(Position(21)),
        Some(21),
        "the short block stays last"
    );
}

#[test]
fn digests_and_ids_do_not_change_between_versions() {
    let spec = common::spec();
    let digest = spec.digest.digest().to_string();
    assert_eq!(
        digest,
        "543a33b5d4f98aa01811c3cd4bff290eae435bc3d08e1b30474091582f0d4a56"
    );
    let parts = ContributionParts {
        generation: hansa_base::Generation(3),
        base: common::hash(4),
        spans: vec![common::span(0, 4), common::span(9, 10)],
        tokens: hansa_base::Tokens(40),
        steps: hansa_base::Steps(3),
        payload: common::hash(5),
        bytes: hansa_base::Bytes(6),
    };
    assert_eq!(
        parts.id().to_string(),
        "375b3f9c1b45efc56e64a55d21606e20cdbd8ca3b1fc0830139dc10303c30d72"
    );
}

#[test]
fn every_field_of_the_digest_counts() {
    let ours = common::spec().digest;
    let changes: [fn(&mut hansa_protocol::DigestFields); 11] = [
        |d| d.format_version += 1,
        |d| d.windows = Windows(25),
        |d| d.block = Windows(5),
        |d| d.seed += 1,
        |d| d.epoch_rule.push('x'),
        |d| d.permutation_check += 1,
        |d| d.tokenizer = common::hash(99),
        |d| d.dtype = "u32".to_owned(),
        |d| d.seq_len += 1,
        |d| d.shards[0].hash = common::hash(99),
        |d| d.shards.clear(),
    ];
    for change in changes {
        let mut theirs = ours.clone();
        change(&mut theirs);
        assert!(ours.first_difference(&theirs).is_some());
        assert_ne!(ours.digest(), theirs.digest());
    }
    assert_eq!(ours.first_difference(&ours.clone()), None);
}
