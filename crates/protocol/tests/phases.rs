//! The phase plan: measured rates decide who trains how much.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::{Steps, Windows};
use hansa_protocol::*;

/// A long epoch; a phase is 2 steps of 2 windows.
fn long(change: impl FnOnce(&mut RunSpec)) -> Story {
    Story::with(|spec| {
        spec.digest.windows = Windows(1000);
        spec.digest.permutation_check = 0;
        change(spec);
    })
}

/// One round of `fast` and `slow`, after which both are measured: 3 windows a second, and 1.
fn measured(change: impl FnOnce(&mut RunSpec)) -> Story {
    let mut story = long(change);
    for name in ["fast", "slow"] {
        story.register(name);
        story.grant(name);
    }
    story.contribute("fast");
    story.contribute("slow");
    story.merge();
    story.took("fast", 12, 4, 1);
    story.took("slow", 4, 4, 1);
    story
}

fn plan(story: &mut Story, name: &str) -> (Steps, u32, Windows) {
    let plan = story.grant(name).plan;
    (plan.steps, plan.accumulation, plan.windows)
}

#[test]
fn a_newcomer_gets_the_base_phase_and_faster_ones_more_of_each_step() {
    let mut story = measured(|_| {});
    story.register("new");
    assert_eq!(plan(&mut story, "fast"), (Steps(2), 3, Windows(12)));
    assert_eq!(plan(&mut story, "slow"), (Steps(2), 1, Windows(4)));
    assert_eq!(plan(&mut story, "new"), (Steps(2), 1, Windows(4)));
}

#[test]
fn without_balance_everybody_gets_the_base_phase() {
    let mut story = measured(|spec| spec.phase.balance = false);
    assert_eq!(plan(&mut story, "fast"), (Steps(2), 1, Windows(4)));
    assert_eq!(plan(&mut story, "slow"), (Steps(2), 1, Windows(4)));
}

#[test]
fn members_are_planned_by_their_rates_as_soon_as_the_round_opens() {
    let mut story = measured(|_| {});
    story.contribute("fast");
    story.contribute("slow");
    story.merge();
    let planned = |name| story.replica(name).plan.unwrap().windows;
    assert_eq!(
        (planned("fast"), planned("slow")),
        (Windows(12), Windows(4))
    );
}

#[test]
fn rates_outlive_a_restart_and_a_successor_but_not_other_hardware() {
    let mut story = measured(|_| {});
    story.restart(5);
    let pace = story.replica("fast").pace;
    assert_eq!(pace.map(|pace| pace.windows_per_s()), Some(3.0));
    let token = story.replica("fast").token;
    story.try_register("fast", 70, Some(token)).unwrap();
    assert_eq!(story.replica("fast").pace, pace);
    let mut register = story.registration("fast", 71, Some(story.replica("fast").token));
    register.ranks = 4;
    story.send(Command::Register(register)).unwrap();
    assert_eq!(story.replica("fast").pace, None);
}

#[test]
fn a_new_measurement_weighs_as_much_as_all_before_it() {
    let mut story = measured(|_| {});
    story.contribute("fast");
    story.contribute("slow");
    story.merge();
    story.took("fast", 10, 2, 3);
    let pace = story.replica("fast").pace.unwrap();
    assert_eq!((pace.windows_per_s(), pace.exchange_ms), (4.0, 2000));
    // A round without training says nothing of the rate.
    story.contribute("fast");
    story.contribute("slow");
    story.merge();
    story.took("fast", 0, 0, 9);
    assert_eq!(story.replica("fast").pace, Some(pace));
}

#[test]
fn what_is_left_of_an_epoch_is_shared_out_by_rate() {
    // A first round takes 8, and then 12 are left: less than the 16 that both would take.
    let mut story = measured(|spec| spec.digest.windows = Windows(20));
    let (fast, slow) = (story.grant("fast"), story.grant("slow"));
    assert_eq!(
        (fast.plan.windows, slow.plan.windows),
        (Windows(9), Windows(3))
    );
    assert_eq!((fast.plan.steps, slow.plan.steps), (Steps(2), Steps(2)));
    assert_eq!(fast.lease.left(), Windows(9), "no whole blocks any more");
}

#[test]
fn the_last_two_rounds_of_an_epoch_are_alike() {
    // 17 are left, and 16 would be taken: better twice 8 or 9 than 16 and 1.
    let mut story = measured(|spec| spec.digest.windows = Windows(25));
    assert_eq!(story.grant("fast").plan.windows, Windows(7));
    assert_eq!(story.grant("slow").plan.windows, Windows(3));
}

#[test]
fn numbers_that_cannot_be_do_no_harm() {
    let mut story = measured(|_| {});
    for windows in [u64::MAX, 1] {
        let times = PhaseTimes {
            train_ms: if windows == 1 { u64::MAX } else { 1 },
            checkpoint_ms: u64::MAX,
            upload_ms: u64::MAX,
            trained: Windows(windows),
            ..PhaseTimes::default()
        };
        assert!(Pace::after(None, &times).unwrap().windows_per_s() > 0.0);
        story.contribute("fast");
        story.contribute("slow");
        story.merge();
        let last = hansa_base::Generation(story.state().current.generation.0 - 1);
        let request = LeaseRequest {
            caller: story.caller("fast"),
            base: manifest(last),
            times: Some((last, times)),
        };
        story.send(Command::Lease(request)).unwrap();
        assert!(story.grant("slow").plan.accumulation <= 256);
        assert!(story.grant("fast").plan.accumulation <= 256);
    }
}
