//! Forged journals and corrupted states are found.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::{ContributionNo, Epoch, Generation, Incarnation, LeaseId, ReplicaKey, Windows};
use hansa_protocol::*;

/// A coordinator with a committed, a staged, a leased and a free part.
fn busy() -> Story {
    let mut story = Story::new();
    story.register("a");
    story.contribute("a");
    story.merge();
    story.register("b");
    story.grant("b");
    story.contribute("a");
    story
}

fn refuses(story: &Story, event: Event, says: &str) {
    let mut state = story.state().clone();
    let error = state
        .apply(&story.spec, &event)
        .expect_err("it is forged")
        .to_string();
    assert!(error.contains(says), "{event:?}: {error}");
}

fn published(generation: u64) -> Event {
    Event::Published {
        generation: Generation(generation),
        manifest: hash(3),
        merge_ms: 1,
    }
}

#[test]
fn events_that_were_not_earned_are_refused() {
    let story = busy();
    let (a, b) = (story.key("a"), story.key("b"));
    let (lease_a, lease_b) = (LeaseId(1), story.replica("b").lease.unwrap());
    let granted = |lease, key, incarnation, spans| Event::Granted {
        lease,
        key,
        incarnation: Incarnation(incarnation),
        spans,
    };
    let free = vec![span(12, 16)];
    refuses(
        &story,
        granted(lease_b, a, 1, free.clone()),
        "a second lease",
    );
    refuses(&story, granted(lease_b, b, 1, free.clone()), "fenced");
    refuses(
        &story,
        granted(lease_b, b, 2, vec![span(0, 4)]),
        "Committed",
    );
    refuses(&story, granted(lease_a, a, 1, vec![span(4, 8)]), "Leased");
    refuses(
        &story,
        granted(LeaseId(9), ReplicaKey(7), 1, free),
        "replica 7",
    );
    let no = story.state().round.staged[0];
    refuses(
        &story,
        Event::Staged {
            no,
            norm: norm(1.0),
        },
        "staged twice",
    );
    let because = RefusedBecause::Gate;
    refuses(
        &story,
        Event::Refused { no, because },
        "a staged contribution is refused",
    );
    refuses(&story, published(2), "without a close record");
    refuses(&story, published(3), "a generation is left out");
    let cause = FreedCause::Goodbye;
    refuses(
        &story,
        Event::Freed {
            lease: LeaseId(9),
            cause,
            at_risk: Windows(0),
        },
        "lease 9",
    );
    let epoch = Epoch(1);
    refuses(
        &story,
        Event::EpochStarted { epoch },
        "an epoch ends with open positions",
    );
    refuses(&story, Event::Ended, "unasked");
    let left = Event::Left {
        key: b,
        incarnation: Incarnation(2),
        reason: LeftReason::Goodbye,
    };
    refuses(&story, left, "a lease outlives its holder");
}

#[test]
fn a_close_record_that_is_not_what_was_staged_is_refused() {
    let mut story = busy();
    story.contribute("b");
    let record = story.machine.merge_due().unwrap().clone();
    let before = story.journal.len() - 1;
    let mut state = State::new(&story.spec, manifest(Generation(0)));
    for event in &story.journal[..before] {
        state.apply(&story.spec, event).unwrap();
    }
    let mut twice = record.clone();
    twice.contributions.push(record.contributions[0].clone());
    let mut other_order = record.clone();
    other_order.contributions.reverse();
    let mut none = record.clone();
    none.contributions.clear();
    let mut other_base = record.clone();
    other_base.base = Generation(7);
    for forged in [twice, other_order, none, other_base] {
        let applied = state.clone().apply(&story.spec, &Event::Closed(forged));
        assert!(matches!(applied, Err(ApplyError::Order(_))));
    }
    assert_eq!(state.apply(&story.spec, &Event::Closed(record)), Ok(()));
}

#[test]
fn no_position_commits_twice() {
    let mut story = busy();
    story.contribute("b");
    story.merge();
    let at = story
        .journal
        .iter()
        .rposition(|event| matches!(event, Event::Published { .. }));
    refuses(
        &story,
        story.journal[at.unwrap()].clone(),
        "a generation is left out",
    );
    refuses(&story, published(3), "without a close record");
}

#[test]
fn a_registration_cannot_take_anothers_lease_or_number() {
    let story = busy();
    let (a, b) = (story.key("a"), story.key("b"));
    let registered = |key, name: &str, incarnation, inherited| Event::Registered {
        key,
        id: id(name),
        incarnation: Incarnation(incarnation),
        ranks: 1,
        nonce: hash(1),
        presented: None,
        token: hash(2),
        inherited,
    };
    let lease_b = story.replica("b").lease;
    refuses(
        &story,
        registered(a, "a", 3, lease_b),
        "a lease goes to another name",
    );
    refuses(
        &story,
        registered(b, "b", 3, None),
        "a lease is lost by a registration",
    );
    refuses(
        &story,
        registered(b, "b", 2, lease_b),
        "an incarnation is left out",
    );
    refuses(
        &story,
        registered(b, "c", 3, lease_b),
        "a key gets a second name",
    );
    refuses(
        &story,
        registered(ReplicaKey(2), "a", 3, None),
        "a name gets a second key",
    );
}

/// Each invariant that a state shows by itself, broken by hand.
#[test]
fn every_broken_invariant_is_named() {
    type Break = fn(&mut State);
    let breaks: [(u8, Break); 9] = [
        (1, |state| state.ledger = Ledger::new(Windows(23))),
        (2, |state| {
            state.leases.values_mut().last().unwrap().spans.clear()
        }),
        (2, |state| {
            let (span, from) = state.ledger.intervals().last().unwrap();
            let to = Ownership::Leased(LeaseId(77));
            state.ledger.change(span, from, to).unwrap();
        }),
        (4, |state| state.replicas[0].tally.committed = Windows(5)),
        (5, |state| {
            let from = Ownership::Committed(Generation(1), ReplicaKey(0));
            let to = Ownership::Committed(Generation(1), ReplicaKey(1));
            state.ledger.change(span(0, 1), from, to).unwrap();
        }),
        (6, |state| {
            let no = state.round.staged[0];
            state.contributions.remove(&no);
        }),
        (6, |state| {
            let parts = state.contributions.values_mut().next().unwrap();
            parts.stage = Stage::Announced;
        }),
        (8, |state| {
            state.replicas[1].presence = Presence::Left(LeftReason::Goodbye)
        }),
        (9, |state| state.current.generation = Generation(4)),
    ];
    let story = busy();
    assert_eq!(check_invariants(&story.spec, story.state()), Ok(()));
    for (n, (number, break_it)) in breaks.into_iter().enumerate() {
        let mut state = story.state().clone();
        break_it(&mut state);
        let violation = check_invariants(&story.spec, &state).expect_err("it is broken");
        assert_eq!(violation.number, number, "case {n}: {violation}");
    }
    assert_eq!(story.state().last_contribution, ContributionNo(2));
}
