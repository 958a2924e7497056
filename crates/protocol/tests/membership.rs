//! Names, incarnations, resume tokens and fencing.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::{Incarnation, Windows};
use hansa_protocol::*;
use std::time::Duration;

#[test]
fn a_second_process_of_a_name_is_told_to_wait() {
    let mut story = Story::new();
    story.register("a");
    story.pass(5, &[]);
    let busy = Refusal::Busy {
        replica: id("a"),
        retry: Duration::from_secs(15),
    };
    assert_eq!(story.try_register("a", 50, None), Err(busy));
    // Another token than the current one does not help.
    let wrong = story.try_register("a", 51, Some(hash(250)));
    assert!(matches!(wrong, Err(Refusal::Busy { .. })));
    story.pass(16, &[]);
    assert_eq!(
        story.try_register("a", 50, None).unwrap().incarnation,
        Incarnation(2)
    );
}

#[test]
fn a_successor_with_the_token_inherits_lease_and_announced_contribution() {
    let mut story = Story::new();
    let first = story.register("a");
    let grant = story.grant("a");
    let parts = story.parts(&grant, 4);
    story.announce("a", &parts).unwrap();
    let old = story.caller("a");
    let second = story.try_register("a", 50, Some(first.token)).unwrap();
    assert_eq!(
        second.lease.as_ref().map(|lease| lease.id),
        Some(grant.lease.id)
    );
    assert_eq!(second.announced, Some(parts.id()));
    assert_eq!(story.replica("a").tally.inherited, Windows(4));
    // The predecessor changes nothing any more.
    let before = story.journal.len();
    let fenced = Refusal::Fenced { replica: id("a") };
    let base = story.state().current.manifest;
    let times = None;
    let calls = [
        Command::Lease(LeaseRequest {
            caller: old.clone(),
            base,
            times,
        }),
        Command::Announce(Announce {
            caller: old.clone(),
            parts: parts.clone(),
        }),
        Command::Goodbye(old.into()),
    ];
    for call in calls {
        assert_eq!(story.send(call), Err(fenced.clone()));
    }
    assert_eq!(story.journal.len(), before);
    // The successor finishes by id.
    assert_eq!(story.announce("a", &parts), Ok(Verdict::Upload));
    assert_eq!(story.complete(parts.id()), Ok(Verdict::Staged));
}

#[test]
fn a_used_token_is_worth_nothing() {
    let mut story = Story::new();
    let first = story.register("a");
    story.try_register("a", 50, Some(first.token)).unwrap();
    let again = story.try_register("a", 51, Some(first.token));
    assert!(matches!(again, Err(Refusal::Busy { .. })));
}

#[test]
fn a_registration_whose_answer_was_lost_gets_it_again() {
    let mut story = Story::new();
    let first = story.try_register("a", 40, None).unwrap();
    assert_eq!(story.try_register("a", 40, None).unwrap(), first);
    story.grant("a");
    let second = story.try_register("a", 41, Some(first.token)).unwrap();
    assert_eq!(
        story.try_register("a", 41, Some(first.token)).unwrap(),
        second
    );
    story.restart(5);
    assert_eq!(
        story.try_register("a", 41, Some(first.token)).unwrap(),
        second
    );
}

#[test]
fn a_repeated_registration_of_one_who_left_admits_nobody() {
    let mut story = Story::new();
    story.try_register("a", 40, None).unwrap();
    story.pass(21, &[]);
    let gone = Refusal::Gone { replica: id("a") };
    assert_eq!(story.try_register("a", 40, None), Err(gone.clone()));
    assert_eq!(story.announce_nothing("a"), Err(gone));
    assert_eq!(
        story.try_register("a", 41, None).unwrap().incarnation,
        Incarnation(2)
    );
}

#[test]
fn a_successor_that_comes_too_late_finds_its_lease_gone() {
    let mut story = Story::new();
    let first = story.register("a");
    story.grant("a");
    story.pass(21, &[]);
    assert_eq!(story.replica("a").tally.reclaimed, Windows(4));
    let second = story.try_register("a", 50, Some(first.token)).unwrap();
    assert_eq!((second.lease, second.announced), (None, None));
}

#[test]
fn another_corpus_is_refused_by_the_field_that_differs() {
    let mut story = Story::new();
    let mut register = story.registration("a", 1, None);
    register.digest.tokenizer = hash(77);
    match story.send(Command::Register(register)) {
        Err(Refusal::OtherData(mismatch)) => assert_eq!(mismatch.field, "tokenizer"),
        other => panic!("{other:?}"),
    }
    assert!(story.journal.is_empty());
}

#[test]
fn a_clean_goodbye_contributes_a_partial_phase_and_gives_the_rest_back() {
    let mut story = Story::new();
    story.register("a");
    story.register("b");
    story.grant("b");
    let grant = story.grant("a");
    let partial = story.parts(&grant, 2);
    assert_eq!(story.announce("a", &partial), Ok(Verdict::Upload));
    assert_eq!(story.complete(partial.id()), Ok(Verdict::Staged));
    story.goodbye("a");
    let tally = story.replica("a").tally;
    assert_eq!((tally.released, tally.reclaimed), (Windows(2), Windows(0)));
    // What it staged outlives it; the rest is the next one's.
    story.contribute("b");
    story.merge();
    assert_eq!(story.replica("a").tally.committed, Windows(2));
    assert_eq!(story.grant("b").lease.spans, [span(6, 10)]);
}

#[test]
fn the_last_member_to_leave_closes_the_round() {
    let mut story = Story::new();
    for name in ["a", "b"] {
        story.register(name);
        story.grant(name);
    }
    story.contribute("a");
    story.goodbye("b");
    let reason = story.machine.merge_due().unwrap().reason;
    assert_eq!(reason, CloseReason::AllContributed { members: 1 });
}

#[test]
fn calls_from_the_future_show_an_old_journal() {
    let mut story = Story::new();
    story.register("a");
    let caller = story.caller_as("a", Incarnation(9));
    let reply = story.send(Command::Goodbye(caller.into()));
    assert!(matches!(reply, Err(Refusal::NeverIssued { .. })));
    let grant = story.grant("a");
    let mut parts = story.parts(&grant, 4);
    parts.generation = hansa_base::Generation(5);
    let reply = story.announce("a", &parts);
    let generation = hansa_base::Generation(5);
    assert_eq!(reply, Err(Refusal::NoSuchGeneration { generation }));
}

impl Story {
    fn announce_nothing(&mut self, name: &str) -> Result<Reply, Refusal> {
        let caller = self.caller(name);
        self.send(Command::Goodbye(caller.into()))
    }
}
