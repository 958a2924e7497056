//! Progress: what keeps a lease and a place in the round, and for how long. Uploads and their time.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::{Bytes, Windows};
use hansa_protocol::*;

/// Reports the same again and again; how many seconds until the lease is lost.
fn lives_s(story: &mut Story, activity: Activity) -> u64 {
    story.register("a");
    story.grant("a");
    for second in 0..200 {
        if story.replica("a").lease.is_none() {
            return second;
        }
        story.beat("a", activity, 7);
        story.pass(1, &[]);
    }
    panic!("it lives on its heartbeats");
}

#[test]
fn every_activity_has_its_own_budget_and_none_lasts_for_ever() {
    let lives = |activity| lives_s(&mut Story::new(), activity);
    // 2.5 heartbeats of 2 s, at least ttl_min = 6 s.
    assert_eq!(lives(Activity::Training), 6);
    assert_eq!(lives(Activity::Downloading), 6);
    assert_eq!(lives(Activity::Uploading), 6);
    // evaluation_budget, and ttl_max for what was never measured.
    assert_eq!(lives(Activity::Evaluating), 12);
    assert_eq!(lives(Activity::Checkpointing), 30);
    assert_eq!(lives(Activity::Starting), 30);
    assert_eq!(lives(Activity::Leaving), 30);
}

#[test]
fn a_slow_step_makes_the_budget_of_training_longer_and_of_nothing_else() {
    let slow = |activity| {
        let mut story = Story::new();
        story.register("a");
        story.grant("a");
        story.beat_step("a", activity, 7, s(10)).ttl
    };
    assert_eq!(slow(Activity::Training), s(25));
    assert_eq!(slow(Activity::Downloading), s(6));
    assert_eq!(slow(Activity::Uploading), s(6));
}

#[test]
fn a_checkpoint_may_take_as_long_as_the_exchanges_that_were_measured() {
    let mut story = Story::new();
    story.register("a");
    story.contribute("a");
    story.merge();
    story.took("a", 4, 2, 4);
    story.grant("a");
    let standing = story.beat("a", Activity::Checkpointing, 7);
    assert_eq!(standing.ttl, s(10), "2.5 times 4 s");
}

#[test]
fn a_member_without_a_lease_leaves_the_round_when_it_shows_no_progress() {
    let mut story = Story::with(|spec| spec.min_quorum = 2);
    story.register("a");
    story.register("b");
    story.grant("a");
    story.grant("b");
    story.contribute("a");
    story.contribute("b");
    story.merge();
    // Both go on; b hangs in its download and says so for ever.
    story.contribute("a");
    for _ in 0..12 {
        story.beat("b", Activity::Downloading, 3);
        story.beat("a", Activity::Waiting, 0);
        story.pass(1, &[]);
    }
    assert_eq!(story.replica("b").presence, Presence::Live);
    assert_eq!(story.replica("b").plan, None);
    assert!(
        story.machine.merge_due().is_some(),
        "the round closes without it"
    );
}

fn upload(parts: &ContributionParts, bytes: u64) -> Command {
    let (id, bytes) = (parts.id(), Bytes(bytes));
    Command::UploadProgress { id, bytes }
}

/// A contribution of 1000 bytes is announced, by one whose link was measured at so many bytes per
/// second.
fn announced(bytes_per_s: u64) -> (Story, ContributionParts) {
    let mut story = Story::new();
    story.register("a");
    story.contribute("a");
    story.merge();
    story.took_uploading("a", 4, 2, 10, bytes_per_s * 10);
    let grant = story.grant("a");
    let parts = ContributionParts {
        bytes: Bytes(1000),
        ..story.parts(&grant, 4)
    };
    story.announce("a", &parts).unwrap();
    (story, parts)
}

/// Seconds until an upload of which a byte comes each second is refused.
fn refused_after_s(bytes_per_s: u64) -> u64 {
    let (mut story, parts) = announced(bytes_per_s);
    for second in 1..500 {
        story.pass(1, &[]);
        if story.send(upload(&parts, second)).is_err() {
            let slow = Verdict::Refused(RefusedBecause::TooSlow);
            assert_eq!(story.replica("a").decided, Some((parts.id(), slow)));
            assert!(story.replica("a").lease.is_some(), "its lease stays");
            return second;
        }
    }
    panic!("it is never refused");
}

#[test]
fn an_upload_may_take_twice_what_the_links_goodput_says() {
    assert_eq!(refused_after_s(50), 40);
    assert_eq!(refused_after_s(20), 100);
    assert_eq!(
        refused_after_s(100_000),
        6,
        "but never less than the shortest lease"
    );
}

#[test]
fn after_a_refusal_the_link_counts_as_half_as_fast() {
    let (mut story, parts) = announced(50);
    for bytes in 0..41 {
        let _ = story.send(upload(&parts, bytes));
        story.pass(1, &[]);
    }
    let pace = story.replica("a").pace.unwrap();
    assert_eq!(pace.upload_bytes_per_s, Some(25));
    // It is the same contribution, and welcome: this time it has 80 s.
    assert_eq!(story.announce("a", &parts), Ok(Verdict::Upload));
    for bytes in 0..79 {
        story.send(upload(&parts, bytes)).unwrap();
        story.pass(1, &[]);
    }
    assert_eq!(story.complete(parts.id()), Ok(Verdict::Staged));
}

#[test]
fn bytes_that_stop_coming_end_the_lease_within_the_budget() {
    let (mut story, parts) = announced(1);
    story.send(upload(&parts, 100)).unwrap();
    story.pass(8, &[]);
    assert_eq!(story.replica("a").lease, None);
    let lost = Verdict::Refused(RefusedBecause::LeaseLost);
    assert_eq!(story.replica("a").decided, Some((parts.id(), lost)));
}

#[test]
fn a_restart_gives_an_upload_its_whole_time_again() {
    let (mut story, parts) = announced(50);
    for bytes in 0..30 {
        story.send(upload(&parts, bytes)).unwrap();
        story.pass(1, &[]);
    }
    story.restart(5);
    for bytes in 30..69 {
        story.send(upload(&parts, bytes)).unwrap();
        story.pass(1, &[]);
    }
    assert_eq!(story.complete(parts.id()), Ok(Verdict::Staged));
    assert_eq!(story.counts().staged, Windows(4));
}
