//! Leases and the time that they live.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::Windows;
use hansa_protocol::*;

#[test]
fn a_lost_lease_is_somebody_elses() {
    let mut story = Story::new();
    story.register("lost");
    story.register("b");
    assert_eq!(story.grant("lost").lease.spans, [span(0, 4)]);
    assert_eq!(story.grant("b").lease.spans, [span(4, 8)]);
    story.pass(8, &["b"]);
    assert_eq!(story.replica("lost").lease, None);
    assert_eq!(story.replica("lost").tally.reclaimed, Windows(4));
    story.contribute("b");
    story.merge();
    // What was lost once may have been anybody's fault.
    assert_eq!(story.grant("b").lease.spans, [span(0, 4)]);
}

#[test]
fn a_hung_replica_does_not_live_on_its_heartbeats() {
    let mut story = Story::new();
    story.register("hung");
    story.grant("hung");
    for _ in 0..10 {
        story.beat("hung", Activity::Training, 3);
        story.pass(1, &[]);
    }
    assert_eq!(story.replica("hung").lease, None, "its lease is lost");
    assert_eq!(
        story.replica("hung").presence,
        Presence::Live,
        "but it is there"
    );
    let standing = story.beat("hung", Activity::Training, 3);
    assert_eq!(standing.lease, None);
}

#[test]
fn progress_keeps_a_lease_and_so_does_waiting_for_others() {
    let mut story = Story::new();
    story.register("a");
    story.register("b");
    story.grant("a");
    story.grant("b");
    story.contribute("b");
    let lease = story.replica("b").lease;
    for _ in 0..7 {
        story.beat("b", Activity::Waiting, 0);
        story.pass(1, &["a"]);
    }
    assert_eq!(story.replica("b").lease, lease);
    assert!(story.replica("a").lease.is_some());
}

#[test]
fn a_checkpoint_has_a_budget_of_its_own() {
    let mut story = Story::new();
    story.register("a");
    story.grant("a");
    for _ in 0..25 {
        story.beat("a", Activity::Checkpointing, 0);
        story.pass(1, &[]);
    }
    assert!(story.replica("a").lease.is_some());
    for _ in 0..10 {
        story.beat("a", Activity::Checkpointing, 0);
        story.pass(1, &[]);
    }
    assert_eq!(story.replica("a").lease, None, "but not for ever");
}

#[test]
fn an_announced_contribution_falls_with_its_lease_and_rises_with_the_next() {
    let mut story = Story::new();
    story.register("a");
    let grant = story.grant("a");
    let parts = story.parts(&grant, 2);
    story.announce("a", &parts).unwrap();
    for _ in 0..10 {
        story.beat("a", Activity::Uploading, 3);
        story.pass(1, &[]);
    }
    // Its positions are another's when it tries again.
    story.register("b");
    assert_eq!(story.grant("b").lease.spans[0].start.0, 0);
    let lost = Verdict::Refused(RefusedBecause::LeaseLost);
    assert_eq!(story.announce("a", &parts), Ok(lost));
    assert!(matches!(
        story.send(upload(&parts, 0)),
        Err(Refusal::UnknownContribution(_))
    ));
    // The same windows, leased and trained again, are the same contribution, and welcome.
    story.goodbye("b");
    let again = story.grant("a");
    assert_ne!(again.lease.id, grant.lease.id);
    assert_eq!(story.parts(&again, 2), parts);
    assert_eq!(story.announce("a", &parts), Ok(Verdict::Upload));
    assert_eq!(story.complete(parts.id()), Ok(Verdict::Staged));
}

fn upload(parts: &ContributionParts, bytes: u64) -> Command {
    let (id, bytes) = (parts.id(), hansa_base::Bytes(bytes));
    Command::UploadProgress { id, bytes }
}

#[test]
fn arriving_bytes_keep_lease_and_session() {
    let mut story = Story::new();
    story.register("a");
    let grant = story.grant("a");
    let parts = ContributionParts {
        bytes: hansa_base::Bytes(100),
        ..story.parts(&grant, 4)
    };
    story.announce("a", &parts).unwrap();
    for bytes in 0..40 {
        story.send(upload(&parts, bytes)).unwrap();
        story.pass(1, &[]);
    }
    assert_eq!(story.complete(parts.id()), Ok(Verdict::Staged));
}

#[test]
fn after_a_restart_every_lease_lives_on_for_a_full_time() {
    let mut story = Story::new();
    story.register("a");
    let lease = story.grant("a").lease;
    story.pass(5, &[]);
    story.restart(10_000);
    story.pass(15, &[]);
    let standing = story.beat("a", Activity::Training, 2);
    assert_eq!(standing.lease, Some(lease));
}

#[test]
fn a_coordinator_that_stalled_blames_nobody() {
    let mut story = Story::new();
    story.register("a");
    let lease = story.grant("a").lease;
    story.now = story.now.after(s(500));
    assert_eq!(story.send(Command::Tick), Ok(Reply::Done));
    story.pass(3, &[]);
    let standing = story.beat("a", Activity::Training, 2);
    assert_eq!(standing.lease, Some(lease));
}

#[test]
fn a_lease_is_topped_up_in_whole_blocks_and_to_one_phase() {
    let mut story = Story::with(|spec| {
        spec.digest.block = Windows(3);
        spec.digest.permutation_check = 0;
    });
    story.register("a");
    let grant = story.grant("a");
    assert_eq!(grant.lease.spans, [span(0, 6)]);
    assert_eq!(grant.plan.windows, Windows(4));
    assert_eq!(
        story.grant("a").lease,
        grant.lease,
        "asking again adds nothing"
    );
    let parts = story.parts(&grant, 4);
    story.announce("a", &parts).unwrap();
    story.complete(parts.id()).unwrap();
    story.merge();
    let next = story.grant("a");
    assert_eq!(next.lease.spans, [span(4, 9)]);
    assert_eq!(
        (next.lease.id, next.lease.front),
        (grant.lease.id, Windows(4))
    );
}
