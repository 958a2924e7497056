//! Rounds: from a lease to a commit, with 0, 1 and N replicas, to the run's end.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::{Epoch, Generation, Steps, Tokens, Windows};
use hansa_protocol::*;

#[test]
fn what_is_trained_is_committed_with_the_generation_that_contains_it() {
    let mut story = Story::new();
    story.register("a");
    let grant = story.grant("a");
    assert_eq!(grant.lease.spans, [span(0, 4)]);
    assert_eq!(
        (grant.plan.steps, grant.plan.windows),
        (Steps(2), Windows(4))
    );
    let parts = story.parts(&grant, 4);
    assert_eq!(story.announce("a", &parts), Ok(Verdict::Upload));
    assert_eq!(story.counts().leased, Windows(4));
    assert_eq!(story.complete(parts.id()), Ok(Verdict::Staged));
    assert_eq!(story.counts().staged, Windows(4));
    assert!(matches!(story.effects[..], [Effect::Merge(_)]));
    assert_eq!(story.ask("a"), LeaseAnswer::Wait(Wait::Merging));
    story.merge();
    assert_eq!(story.counts().committed, Windows(4));
    assert_eq!(story.replica("a").tally.committed, Windows(4));
    assert_eq!(
        story.announce("a", &parts),
        Ok(Verdict::Merged(Generation(1)))
    );
    let current = story.state().current;
    assert_eq!((current.inner_step, current.tokens), (Steps(2), Tokens(32)));
    // The next lease starts where this one ended.
    assert_eq!(story.grant("a").lease.spans, [span(4, 8)]);
}

#[test]
fn with_nobody_the_run_waits_and_loses_nothing() {
    let mut story = Story::new();
    story.pass(100, &[]);
    story.restart(1000);
    story.pass(100, &[]);
    assert!(story.journal.is_empty());
    story.register("a");
    story.contribute("a");
    assert_eq!(story.merge(), Generation(1));
}

#[test]
fn a_round_waits_for_all_its_members_and_merges_them_in_order_of_staging() {
    let mut story = Story::new();
    for name in ["a", "b", "c"] {
        story.register(name);
        story.grant(name);
    }
    story.contribute("b");
    story.contribute("a");
    assert_eq!(
        story.ask("a"),
        LeaseAnswer::Wait(Wait::Members(vec![id("c")]))
    );
    assert!(story.machine.merge_due().is_none());
    story.contribute("c");
    let record = story.machine.merge_due().unwrap().clone();
    let order: Vec<_> = record.contributions.iter().map(|c| c.key).collect();
    assert_eq!(order, [story.key("b"), story.key("a"), story.key("c")]);
    assert_eq!(record.reason, CloseReason::AllContributed { members: 3 });
    story.merge();
    assert_eq!(story.counts().committed, Windows(12));
    assert_eq!(story.state().current.inner_step, Steps(2));
}

#[test]
fn a_solo_round_takes_the_step_that_the_recipe_says() {
    let nesterov = |lr| OuterStep::Nesterov { lr, momentum: 0.9 };
    let cases = [
        (Solo::Full, nesterov(1.0)),
        (Solo::Same, nesterov(0.7)),
        (Solo::Adopt, OuterStep::Adopt { momentum: 0.9 }),
    ];
    for (solo, step) in cases {
        let mut story = Story::with(|spec| spec.outer.solo = solo);
        story.register("a");
        story.contribute("a");
        assert_eq!(story.machine.merge_due().unwrap().step, step);
        story.merge();
        // With two, all modes are the same.
        story.register("b");
        story.grant("b");
        story.contribute("a");
        story.contribute("b");
        assert_eq!(story.machine.merge_due().unwrap().step, nesterov(0.7));
    }
}

#[test]
fn a_late_joiner_adopts_the_current_generation_first() {
    let mut story = Story::new();
    story.register("a");
    story.contribute("a");
    story.merge();
    let joined = story.register("late");
    assert_eq!(joined.current.generation, Generation(1));
    let adopt = story.ask_on("late", hash(0)).unwrap();
    assert_eq!(adopt, LeaseAnswer::Adopt(story.state().current));
    let grant = story.grant("late");
    assert_eq!(grant.base.inner_step, Steps(2), "the schedule is the run's");
}

#[test]
fn a_contribution_to_an_old_generation_is_stale_whatever_its_number_says() {
    let mut story = Story::new();
    story.register("a");
    story.register("slow");
    let grant = story.grant("slow");
    story.grant("a");
    story.contribute("a");
    story.pass(9, &["a", "slow"]);
    let reason = story.machine.merge_due().unwrap().reason;
    let (staged, members) = (1, 2);
    assert_eq!(reason, CloseReason::GraceOver { staged, members });
    let late = story.parts(&grant, 4);
    let stale = Refusal::Stale {
        base: Generation(0),
        current: Generation(0),
    };
    assert_eq!(story.announce("slow", &late), Err(stale));
    story.merge();
    assert!(matches!(
        story.announce("slow", &late),
        Err(Refusal::Stale { .. })
    ));
    // Hashes are compared, not numbers.
    let mut other = late.clone();
    other.generation = Generation(1);
    assert!(matches!(
        story.announce("slow", &other),
        Err(Refusal::Stale { .. })
    ));
    // Its lease is still its own: the same windows, on the new base.
    let again = story.grant("slow");
    assert_eq!(again.lease.spans, grant.lease.spans);
    let parts = story.parts(&again, 4);
    assert_eq!(story.announce("slow", &parts), Ok(Verdict::Upload));
}

#[test]
fn a_name_contributes_once_in_a_round() {
    let mut story = Story::new();
    for name in ["a", "b"] {
        story.register(name);
        story.grant(name);
    }
    let first = story.contribute("a");
    let second = ContributionParts {
        spans: vec![span(8, 12)],
        ..first.clone()
    };
    let again = Refusal::ContributedAlready { replica: id("a") };
    assert_eq!(story.announce("a", &second), Err(again));
    // The same one is answered, not refused.
    assert_eq!(story.announce("a", &first), Ok(Verdict::Staged));
    assert_eq!(story.complete(first.id()), Ok(Verdict::Staged));
}

#[test]
fn only_a_contribution_from_the_front_without_gaps_is_taken() {
    let mut story = Story::new();
    story.register("a");
    let grant = story.grant("a");
    let good = story.parts(&grant, 4);
    let bad = [
        vec![span(1, 4)],
        vec![span(0, 1), span(2, 4)],
        vec![span(0, 5)],
        vec![],
    ];
    for spans in bad {
        let tokens = story.spec.tokens(Span::total(&spans));
        let parts = ContributionParts {
            spans,
            tokens,
            ..good.clone()
        };
        let lease = Some(grant.lease.id);
        assert_eq!(
            story.announce("a", &parts),
            Err(Refusal::NotFromFront { lease })
        );
    }
    let (said, real) = (Tokens(31), Tokens(32));
    let parts = ContributionParts {
        tokens: said,
        ..good.clone()
    };
    assert_eq!(
        story.announce("a", &parts),
        Err(Refusal::WrongTokens { said, real })
    );
    assert_eq!(story.announce("a", &good), Ok(Verdict::Upload));
}

#[test]
fn what_the_gate_refuses_stays_with_its_lease() {
    let mut story = Story::new();
    story.register("a");
    let grant = story.grant("a");
    let parts = story.parts(&grant, 4);
    story.announce("a", &parts).unwrap();
    let refused = Verdict::Refused(RefusedBecause::Gate);
    let verdict = story.complete_with(parts.id(), Some("tensor x is missing"));
    assert_eq!(verdict, Ok(refused.clone()));
    assert_eq!(
        story.announce("a", &parts),
        Ok(refused),
        "it is the first verdict"
    );
    let again = story.grant("a");
    assert_eq!(again.lease, grant.lease);
    let other = ContributionParts {
        payload: hash(10),
        ..parts
    };
    assert_eq!(story.announce("a", &other), Ok(Verdict::Upload));
    assert_eq!(story.replica("a").tally.refused, 1);
}

#[test]
fn grace_waits_for_an_upload_that_is_under_way() {
    let mut story = Story::new();
    for name in ["a", "b", "c"] {
        story.register(name);
    }
    let grants = ["a", "b", "c"].map(|name| story.grant(name));
    story.contribute("a");
    let under_way = story.parts(&grants[1], 4);
    story.announce("b", &under_way).unwrap();
    story.pass(20, &["a", "b", "c"]);
    assert!(story.machine.merge_due().is_none());
    story.complete(under_way.id()).unwrap();
    story.pass(1, &["a", "b", "c"]);
    let reason = story.machine.merge_due().unwrap().reason;
    let (staged, members) = (2, 3);
    assert_eq!(reason, CloseReason::GraceOver { staged, members });
}

#[test]
fn a_quorum_is_waited_for_beyond_grace() {
    let mut story = Story::with(|spec| spec.min_quorum = 2);
    for name in ["a", "b", "c"] {
        story.register(name);
        story.grant(name);
    }
    story.contribute("a");
    story.pass(30, &["a", "b", "c"]);
    assert!(story.machine.merge_due().is_none());
    story.contribute("b");
    assert!(story.machine.merge_due().is_some());
}

#[test]
fn a_quorum_of_more_than_there_are_is_all_there_are() {
    let mut story = Story::with(|spec| spec.min_quorum = 5);
    story.register("a");
    story.contribute("a");
    assert_eq!(story.merge(), Generation(1));
}

#[test]
fn who_gets_nothing_is_not_waited_for() {
    let mut story = Story::with(|spec| spec.digest.windows = Windows(4));
    story.register("a");
    story.register("b");
    story.grant("a");
    assert_eq!(story.ask("b"), LeaseAnswer::Wait(Wait::NothingFree));
    story.contribute("a");
    assert!(story.machine.merge_due().is_some());
}

#[test]
fn an_epoch_ends_when_everything_is_committed_and_the_next_has_another_order() {
    let mut story = Story::with(|spec| spec.end = End::Epochs(2));
    story.register("a");
    for _ in 0..6 {
        assert_eq!(story.state().epoch, Epoch(0));
        story.contribute("a");
        story.merge();
    }
    assert_eq!(story.state().epoch, Epoch(1));
    assert_eq!(story.counts().free, Windows(24));
    assert_eq!(story.state().committed(), Windows(24));
    assert_ne!(story.spec.space(Epoch(0)), story.spec.space(Epoch(1)));
    let grant = story.grant("a");
    assert_eq!(grant.lease.epoch, Epoch(1));
    for _ in 0..6 {
        story.contribute("a");
        story.merge();
    }
    assert!(story.state().ended);
    assert_eq!(story.ask("a"), LeaseAnswer::Finish(EndReason::Epochs));
    assert_eq!(story.state().current.progress, 1.0);
}

#[test]
fn a_run_ends_after_its_rounds_or_its_tokens_and_takes_its_leases_back() {
    let ends = [
        (End::Rounds(3), EndReason::Rounds),
        (End::Tokens(Tokens(65)), EndReason::Tokens),
    ];
    for (end, reason) in ends {
        let mut story = Story::with(|spec| spec.end = end);
        story.register("a");
        story.register("b");
        story.grant("b");
        for _ in 0..3 {
            assert_eq!(story.state().ending, None);
            story.contribute("a");
            story.pass(9, &["a", "b"]);
            story.merge();
        }
        assert_eq!(story.state().ending, Some(reason));
        assert!(story.state().ended && story.state().leases.is_empty());
        assert_eq!(story.ask("b"), LeaseAnswer::Finish(reason));
        let late = story.try_register("c", 50, None);
        assert_eq!(late, Err(Refusal::RunOver(reason)));
        story.goodbye("a");
        let left = Presence::Left(LeftReason::RunEnded);
        assert_eq!(story.replica("a").presence, left);
    }
}

#[test]
fn a_restart_merges_again_what_was_closed_and_not_published() {
    let mut story = Story::new();
    story.register("a");
    story.contribute("a");
    let record = story.machine.merge_due().cloned();
    story.restart(60);
    assert_eq!(story.machine.merge_due().cloned(), record);
    story.merge();
    // A merge that is reported twice is done once.
    let again = Merged {
        generation: Generation(1),
        manifest: manifest(Generation(1)),
        merge_ms: 5,
    };
    let before = story.journal.len();
    assert_eq!(story.send(Command::Merged(again)), Ok(Reply::Done));
    assert_eq!(story.journal.len(), before);
}

#[test]
fn how_a_round_was_spent_is_kept_once() {
    let mut story = Story::new();
    story.register("a");
    story.contribute("a");
    story.merge();
    let train_ms = 70;
    let times = PhaseTimes {
        train_ms,
        ..PhaseTimes::default()
    };
    for _ in 0..2 {
        let caller = story.caller("a");
        let request = LeaseRequest {
            caller,
            base: manifest(Generation(1)),
            times: Some((Generation(0), times)),
        };
        story.send(Command::Lease(request)).unwrap();
    }
    assert_eq!(
        story.state().rounds[0].times,
        [(story.key("a"), times)].into()
    );
}
