//! Who joins while others train, and how long a round waits.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::{Steps, Windows};
use hansa_protocol::*;

/// A long epoch; a phase is 10 steps of 2 windows. `a` was measured: a window a second, and 3 s of
/// exchange. It has just begun its second phase.
fn running(change: impl FnOnce(&mut RunSpec)) -> Story {
    let mut story = Story::with(|spec| {
        spec.digest.windows = Windows(1000);
        spec.digest.permutation_check = 0;
        spec.phase.steps = Steps(10);
        change(spec);
    });
    story.register("a");
    story.contribute("a");
    story.merge();
    story.took("a", 20, 20, 3);
    assert_eq!(story.grant("a").plan.windows, Windows(20));
    story
}

#[test]
fn a_joiner_gets_as_many_steps_as_fit_before_the_round_closes() {
    let mut story = running(|_| {});
    story.pass(11, &["a"]);
    story.register("late");
    // 9 s of training are left; the newcomer counts as fast and as far away as the other.
    let plan = story.grant("late").plan;
    assert_eq!((plan.steps, plan.windows), (Steps(5), Windows(10)));
    // Asked again, later, it is the same: the answer was lost.
    story.pass(3, &["a", "late"]);
    assert_eq!(story.grant("late").plan, plan);
}

#[test]
fn a_restart_in_between_changes_no_plan() {
    let mut story = running(|_| {});
    story.pass(11, &["a"]);
    story.register("late");
    let plan = story.grant("late").plan;
    story.restart(3);
    assert_eq!(story.grant("late").plan, plan);
}

#[test]
fn a_joiner_for_whom_no_step_fits_waits_for_the_next_round_and_is_not_waited_for() {
    let mut story = running(|_| {});
    story.pass(20, &["a"]);
    story.register("late");
    assert_eq!(story.ask("late"), LeaseAnswer::Wait(Wait::NextRound));
    assert_eq!(story.counts().leased, Windows(20), "and holds nothing");
    story.contribute("a");
    assert!(story.machine.merge_due().is_some());
    story.merge();
    assert_eq!(story.grant("late").plan.steps, Steps(10));
}

#[test]
fn a_joiners_own_exchange_is_counted() {
    let mut story = running(|spec| spec.timing.grace = s(60));
    story.register("far");
    story.grant("far");
    story.contribute("a");
    story.contribute("far");
    story.merge();
    // As fast as the other, but its exchange takes 13 s.
    story.took("far", 20, 20, 13);
    story.goodbye("far");
    story.grant("a");
    story.pass(4, &["a"]);
    story.register("far");
    // The round closes in 19 s, so it has 6 s to train.
    assert_eq!(story.grant("far").plan.windows, Windows(6));
}

#[test]
fn one_whose_exchange_is_longer_than_a_round_takes_no_part_and_is_told_why() {
    let mut story = running(|_| {});
    story.register("far");
    story.grant("far");
    story.contribute("a");
    story.contribute("far");
    story.merge();
    story.took("far", 20, 20, 90);
    story.goodbye("far");
    story.grant("a");
    story.register("far");
    let (exchange, round) = (s(90), s(31));
    let wait = Wait::ExchangeTooLong { exchange, round };
    assert_eq!(story.ask("far"), LeaseAnswer::Wait(wait));
    // Alone, it holds nobody up.
    story.goodbye("a");
    story.grant("far");
}

#[test]
fn before_anything_is_measured_a_joiner_gets_the_base_phase() {
    let mut story = Story::new();
    story.register("a");
    story.grant("a");
    story.pass(5, &["a"]);
    story.register("late");
    assert_eq!(story.grant("late").plan.windows, Windows(4));
}

/// Five rounds of two, in which the second needs `lags` seconds longer than the first.
fn with_lags(rule: GraceRule, lags: [u64; 5]) -> Story {
    let mut story = Story::with(|spec| {
        spec.digest.windows = Windows(1000);
        spec.digest.permutation_check = 0;
        (spec.timing.grace, spec.timing.grace_rule) = (s(8), rule);
        (spec.timing.ttl_min, spec.timing.session_ttl) = (s(60), s(60));
        spec.timing.ttl_max = s(60);
    });
    story.register("a");
    story.register("b");
    for lag in lags {
        story.grant("a");
        story.grant("b");
        story.contribute("a");
        story.contribute("b");
        story.merge();
        story.took("a", 4, 4, 0);
        story.took("b", 4, 4 + lag, 0);
    }
    story.grant("b");
    story.contribute("a");
    story
}

#[test]
fn a_fixed_grace_window_stays_what_it_is() {
    let mut story = with_lags(GraceRule::Fixed, [20; 5]);
    story.pass(7, &["b"]);
    assert!(story.machine.merge_due().is_none());
    story.pass(1, &["b"]);
    assert!(story.machine.merge_due().is_some());
}

#[test]
fn an_adaptive_grace_window_follows_median_and_spread_within_bounds() {
    // Lags 2, 3, 3, 4, 9: median 3, distances from it 0, 0, 1, 1, 6: 3 + 4 · 1.
    for (lags, window) in [([3, 2, 9, 4, 3], 7), ([0; 5], 2), ([50; 5], 32)] {
        let mut story = with_lags(GraceRule::Adaptive, lags);
        story.pass(window - 1, &["b"]);
        assert!(story.machine.merge_due().is_none(), "{lags:?}");
        story.pass(1, &["b"]);
        assert!(story.machine.merge_due().is_some(), "{lags:?}");
    }
}

#[test]
fn who_had_little_to_train_does_not_start_the_clock_for_those_who_have_more() {
    let mut story = running(|spec| spec.timing.grace = s(4));
    story.pass(11, &["a"]);
    story.register("late");
    // Done long before the other, whose plan takes 12 s more.
    story.contribute("late");
    story.pass(8, &["a", "late"]);
    assert!(story.machine.merge_due().is_none(), "a is not late");
    story.pass(10, &["a", "late"]);
    let record = story.machine.merge_due().unwrap();
    let (staged, members) = (1, 2);
    let reason = CloseReason::GraceOver { staged, members };
    assert_eq!(record.reason, reason, "now it is");
}

#[test]
fn a_grace_window_does_not_outlive_its_round() {
    let mut story = running(|_| {});
    story.contribute("a");
    story.restart(3);
    story.merge();
    story.grant("a");
    // Longer than the window was.
    story.pass(10, &["a"]);
    story.register("late");
    let answer = story.ask("late");
    assert!(matches!(answer, LeaseAnswer::Train(_)), "{answer:?}");
}

#[test]
fn one_who_begins_again_is_not_taken_for_nearly_done() {
    let mut story = running(|_| {});
    story.pass(18, &["a"]);
    story.goodbye("a");
    story.register("a");
    story.grant("a");
    story.pass(4, &["a"]);
    story.register("late");
    let answer = story.ask("late");
    assert!(matches!(answer, LeaseAnswer::Train(_)), "{answer:?}");
}
