//! Reserve marks: what a replica may touch before it is heard of again.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::{LeaseId, Windows};
use hansa_protocol::*;

/// A phase of 20 steps of 2 windows; a mark is kept 3 s of training ahead.
fn long_phases() -> Story {
    Story::with(|spec| {
        spec.digest.windows = Windows(100);
        spec.phase.steps = hansa_base::Steps(20);
        spec.timing.mark_lead = s(3);
    })
}

/// `name` says that it trains at a step of two windows a second and is at `cursor` of its lease.
fn says(story: &mut Story, name: &str, cursor: u64) -> LeaseView {
    let lease = story.replica(name).lease.unwrap();
    story.beat_at(
        name,
        Activity::Training,
        cursor,
        Some((lease, Windows(cursor))),
    );
    story.state().lease_of(story.key(name)).unwrap().view()
}

fn marks(story: &Story) -> usize {
    let marked = |event: &&Event| matches!(event, Event::Marked { .. });
    story.journal.iter().filter(marked).count()
}

#[test]
fn whose_rate_is_not_known_may_train_its_whole_plan() {
    let mut story = long_phases();
    story.register("a");
    let grant = story.grant("a");
    assert_eq!(grant.lease.mark, Windows(40));
    assert_eq!(grant.lease.reserved(), grant.plan.windows);
}

#[test]
fn a_heartbeat_raises_the_mark_ahead_of_need_and_seldom() {
    let mut story = long_phases();
    story.register("a");
    // Two windows a second: the lead is 6 windows.
    story.beat("a", Activity::Waiting, 0);
    assert_eq!(story.grant("a").lease.mark, Windows(12));
    assert_eq!(
        (marks(&story), story.state().leases[&LeaseId(1)].seq),
        (1, 2)
    );
    for cursor in [2, 4, 6] {
        let before = story.journal.len();
        assert_eq!(says(&mut story, "a", cursor).mark, Windows(12));
        assert_eq!(story.journal.len(), before, "nothing to journal");
    }
    let view = says(&mut story, "a", 8);
    assert_eq!((view.mark, view.seq), (Windows(20), 3), "two leads ahead");
    (9..=40).for_each(|cursor| drop(says(&mut story, "a", cursor)));
    let lease = &story.state().leases[&LeaseId(1)];
    assert_eq!(lease.mark, Windows(40), "and never beyond the plan");
    assert!(marks(&story) <= 6, "{}", marks(&story));
}

#[test]
fn a_cursor_that_cannot_be_raises_a_mark_no_further_than_one_at_the_mark() {
    let mut story = long_phases();
    story.register("a");
    story.beat("a", Activity::Waiting, 0);
    story.grant("a");
    assert_eq!(says(&mut story, "a", u64::MAX).mark, Windows(24));
    assert_eq!(says(&mut story, "a", 0).mark, Windows(24));
}

#[test]
fn a_contribution_beyond_the_mark_is_refused() {
    let mut story = long_phases();
    story.register("a");
    story.beat("a", Activity::Waiting, 0);
    let grant = story.grant("a");
    let parts = story.parts(&grant, 14);
    let (said, reserved) = (Windows(14), Windows(12));
    let refusal = Refusal::BeyondMark { said, reserved };
    assert_eq!(story.announce("a", &parts), Err(refusal));
    let parts = story.parts(&grant, 12);
    assert_eq!(story.announce("a", &parts), Ok(Verdict::Upload));
}

#[test]
fn only_what_lies_below_the_mark_is_held_against_whoever_was_lost() {
    let mut story = long_phases();
    story.register("a");
    story.beat("a", Activity::Waiting, 0);
    story.grant("a");
    story.pass(25, &[]);
    assert_eq!(story.replica("a").tally.reclaimed, Windows(40));
    assert_eq!(story.replica("a").tally.failed, Windows(12));
    let suspects: Vec<_> = story.state().attempts.keys().map(|p| p.0).collect();
    assert_eq!(suspects, [0]);
    assert_eq!(story.state().attempts.values().next().unwrap().end.0, 12);
}
