//! The window that kills whoever trains it: found by halves, taken out, let out again.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::{Epoch, Windows};
use hansa_protocol::*;

const POISON: u64 = 5;

/// Trains what it gets; what contains the poison is not finite. Returns what it was given.
fn tries(story: &mut Story, name: &str, poison: bool) -> Vec<Span> {
    let grant = story.grant(name);
    let parts = story.parts(&grant, grant.plan.windows.0);
    story.announce(name, &parts).unwrap();
    let bad = |span: &Span| (span.start.0..span.end.0).contains(&POISON);
    let problem = (poison && parts.spans.iter().any(bad)).then_some("not finite");
    story.complete_with(parts.id(), problem).unwrap();
    if story.machine.merge_due().is_some() {
        story.merge();
    }
    parts.spans
}

/// The same, but the trainer finds what is not finite, and its process ends; the gate sees nothing of it.
/// Whether it ended.
fn finds(story: &mut Story, name: &str) -> bool {
    let grant = story.grant(name);
    let parts = story.parts(&grant, grant.plan.windows.0);
    let bad = |span: &Span| (span.start.0..span.end.0).contains(&POISON);
    if parts.spans.iter().any(bad) {
        let (caller, not_finite) = (story.caller(name), true);
        let goodbye = Command::Goodbye(Goodbye { caller, not_finite });
        assert_eq!(story.send(goodbye), Ok(Reply::Done));
        return true;
    }
    story.announce(name, &parts).unwrap();
    story.complete_with(parts.id(), None).unwrap();
    if story.machine.merge_due().is_some() {
        story.merge();
    }
    false
}

#[test]
fn a_trainer_that_ends_over_bad_numbers_has_tried() {
    let mut story = Story::with(|spec| spec.end = End::Epochs(3));
    for turn in 0..60 {
        let name = ["a", "b"][turn % 2];
        story.register(name);
        let ended = story.counts().free > Windows(0) && finds(&mut story, name);
        if !ended {
            story.goodbye(name);
            continue;
        }
        if story.counts().quarantined > Windows(0) {
            break;
        }
    }
    let at = hansa_base::Position(POISON);
    let state = story.state().ledger.state_at(at);
    assert_eq!(state, Some(Ownership::Quarantined), "{:?}", story.counts());
    assert_eq!(story.counts().quarantined, Windows(1));
    let tally = |name: &str| story.replica(name).tally.failed;
    assert!(tally("a") > Windows(0) && tally("b") > Windows(0));
}

/// Two who take turns until nothing but the poison is left of the epoch.
fn hunted() -> Story {
    let mut story = Story::with(|spec| spec.end = End::Epochs(3));
    for _ in 0..30 {
        for name in ["a", "b"] {
            if story.counts().quarantined > Windows(0) {
                return story;
            }
            story.register(name);
            if story.counts().free > Windows(0) {
                tries(&mut story, name, true);
            }
            story.goodbye(name);
        }
    }
    panic!("{:?}", story.counts());
}

#[test]
fn each_retry_halves_the_lease_and_only_the_poison_is_quarantined() {
    let story = hunted();
    assert_eq!(story.counts().quarantined, Windows(1));
    let at = hansa_base::Position(POISON);
    let state = story.state().ledger.state_at(at);
    assert_eq!(state, Some(Ownership::Quarantined));
    let window = story.spec.space(Epoch(0)).window_at(at).unwrap();
    let listed: Vec<_> = story.state().quarantine.iter().collect();
    assert_eq!(listed, [(&window, &Epoch(0))]);
    let failed = story.replica("a").tally.failed + story.replica("b").tally.failed;
    assert!(failed > Windows(3), "{failed}");
}

#[test]
fn quarantine_outlives_the_epoch_and_an_operator_ends_it() {
    let mut story = hunted();
    let window = *story.state().quarantine.keys().next().unwrap();
    story.register("c");
    while story.state().epoch == Epoch(0) {
        if story.counts().free > Windows(0) {
            tries(&mut story, "c", false);
        }
        story.pass(1, &["c"]);
    }
    assert_eq!(
        story.counts().quarantined,
        Windows(1),
        "in the next epoch, too"
    );
    story.restart(5);
    let unknown = story.send(Command::Operate(Order::LetOut { windows: vec![99] }));
    assert_eq!(unknown, Err(Refusal::NotQuarantined(99)));
    let windows = vec![window];
    assert_eq!(
        story.send(Command::Operate(Order::LetOut { windows })),
        Ok(Reply::Done)
    );
    assert_eq!(story.counts().quarantined, Windows(0));
    assert!(story.state().quarantine.is_empty());
}

#[test]
fn one_replica_alone_condemns_nothing() {
    let mut story = Story::new();
    story.register("a");
    for _ in 0..40 {
        tries(&mut story, "a", true);
    }
    assert_eq!(story.counts().quarantined, Windows(0));
    assert_eq!(
        story.counts().committed,
        Windows(23),
        "all but one got through"
    );
}

#[test]
fn what_was_lost_once_is_granted_like_anything_else() {
    let mut story = Story::new();
    story.register("hung");
    story.register("b");
    story.grant("hung");
    story.pass(8, &["b"]);
    assert_eq!(story.replica("hung").tally.failed, Windows(4));
    assert_eq!(story.grant("b").lease.spans, [span(0, 4)]);
}

/// The first half of an epoch was lost twice, each time with another; `b` has the rest.
fn lost_twice() -> Story {
    let mut story = Story::with(|spec| spec.digest.windows = Windows(8));
    story.register("b");
    for name in ["hung", "hung-too"] {
        story.register(name);
        story.grant(name);
        story.pass(8, &["b"]);
        assert_eq!(story.replica(name).tally.failed, Windows(4));
    }
    assert_eq!(story.grant("b").lease.spans, [span(4, 8)]);
    story
}

#[test]
fn what_was_lost_twice_comes_last_and_alone_and_by_halves() {
    let mut story = lost_twice();
    for (name, alone) in [("c", span(0, 2)), ("d", span(2, 4))] {
        story.register(name);
        assert_eq!(story.grant(name).lease.spans, [alone]);
    }
}

#[test]
fn restarts_goodbyes_and_many_losses_at_once_are_nobodys_data() {
    let mut story = Story::new();
    for name in ["a", "b", "c"] {
        story.register(name);
        story.grant(name);
    }
    story.restart(5);
    story.goodbye("c");
    story.pass(31, &[]);
    let tally = |name| story.replica(name).tally;
    for name in ["a", "b", "c"] {
        assert_eq!(tally(name).failed, Windows(0), "{name}");
    }
    assert_eq!(tally("a").reclaimed, Windows(4));
    assert!(story.state().attempts.is_empty());
}

#[test]
fn a_staged_contribution_clears_its_positions() {
    let mut story = Story::new();
    story.register("hung");
    story.register("b");
    story.grant("hung");
    story.pass(8, &["b"]);
    assert_eq!(story.state().attempts.len(), 1);
    tries(&mut story, "b", false);
    assert!(story.state().attempts.is_empty());
}

#[test]
fn an_outage_that_ends_leases_within_a_heartbeat_of_each_other_is_nobodys_data() {
    let mut story = Story::new();
    for name in ["a", "b"] {
        story.register(name);
        story.grant(name);
    }
    story.pass(1, &["a"]);
    story.pass(1, &["b"]);
    story.pass(19, &[]);
    for name in ["a", "b"] {
        let tally = story.replica(name).tally;
        assert_eq!((tally.reclaimed, tally.failed), (Windows(4), Windows(0)));
    }
}

#[test]
fn what_is_tried_alone_stays_alone_in_the_next_round() {
    let mut story = lost_twice();
    story.register("c");
    let alone = story.grant("c");
    assert_eq!(alone.lease.spans, [span(0, 2)]);
    let parts = story.parts(&alone, 1);
    story.announce("c", &parts).unwrap();
    story.complete(parts.id()).unwrap();
    story.goodbye("b");
    story.merge();
    assert_eq!(story.grant("c").lease.spans, [span(1, 2)]);
}
