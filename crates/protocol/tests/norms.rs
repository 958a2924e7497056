//! The gate's bound on norms, and what becomes of who is refused again and again.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::{Generation, Steps, Windows};
use hansa_protocol::*;

const ROUNDS: usize = 100;

/// Accepted norms: `of(steps)` for each, with a spread of a few per cent.
fn seen(steps: impl Iterator<Item = u64>, of: impl Fn(f64) -> f64) -> Norms {
    let spread = |n: usize| 1.0 + 0.02 * (n % 5) as f64;
    let norms = steps.enumerate();
    let recent = norms.map(|(n, s)| (Steps(s), norm(of(s as f64) * spread(n))));
    Norms {
        recent: recent.collect(),
        raised: None,
    }
}

fn passes(norms: &Norms, steps: u64, value: f64) -> bool {
    let bound = norms.bound(ROUNDS, Steps(steps)).unwrap();
    norm(value) <= bound
}

#[test]
fn a_norm_is_finite_and_not_negative() {
    assert_eq!([f64::NAN, f64::INFINITY, -1.0].map(Norm::new), [None; 3]);
    assert_eq!(Norm::new(-0.0), Norm::new(0.0));
}

#[test]
fn whatever_the_law_short_and_long_phases_pass() {
    for exponent in [0.5, 0.75, 1.0] {
        let law = |steps: f64| 3.0 * steps.powf(exponent);
        let norms = seen((0..64).map(|_| 500), law);
        for steps in [1, 5, 50, 500, 5000] {
            assert!(
                passes(&norms, steps, law(steps as f64)),
                "{exponent}: {steps}"
            );
        }
        // The first steps with fresh moments are a few times as long.
        assert!(passes(&norms, 20, 4.0 * law(20.0)), "{exponent}");
        assert!(!passes(&norms, 500, 20.0 * law(500.0)), "{exponent}");
    }
}

#[test]
fn short_phases_among_the_recent_do_not_make_long_ones_fail() {
    for exponent in [0.5, 1.0] {
        let law = |steps: f64| steps.powf(exponent);
        let norms = seen((0..64).map(|n| if n % 2 == 0 { 10 } else { 500 }), law);
        for steps in [10, 100, 500] {
            assert!(
                passes(&norms, steps, law(steps as f64)),
                "{exponent}: {steps}"
            );
        }
    }
}

#[test]
fn warm_up_passes_and_so_does_a_decay() {
    let mut story = Story::with(|spec| spec.digest.windows = Windows(4000));
    story.register("a");
    // Learning rates, and with them norms, grow from nearly nothing, and go to nearly nothing.
    let rise = (1..=40).map(|n| f64::from(n) * 0.01);
    let fall = (1..=40).rev().map(|n| f64::from(n) * 0.01);
    for size in rise.chain(fall) {
        assert_eq!(contribute_norm(&mut story, "a", size), Verdict::Staged);
        story.merge();
    }
}

#[test]
fn the_bound_is_inactive_in_the_first_rounds() {
    let norms = seen((0..64).map(|_| 10), |s| s);
    assert_eq!(norms.bound(3, Steps(10)), None);
    let few = seen((0..7).map(|_| 10), |s| s);
    assert_eq!(few.bound(ROUNDS, Steps(10)), None);
    assert!(norms.bound(4, Steps(10)).is_some());
}

#[test]
fn one_outlier_among_the_recent_moves_nothing() {
    let mut norms = seen((0..20).map(|_| 10), |s| s);
    norms.recent.push((Steps(10), norm(1e9)));
    assert!(!passes(&norms, 10, 200.0));
}

/// Trains a phase and contributes it with this norm.
fn contribute_norm(story: &mut Story, name: &str, size: f64) -> Verdict {
    let grant = story.grant(name);
    let mut parts = story.parts(&grant, grant.plan.windows.0);
    // Another size, other bytes.
    parts.payload.0[..8].copy_from_slice(&size.to_le_bytes());
    match story.announce(name, &parts).unwrap() {
        Verdict::Upload => story.found(parts.id(), Ok(norm(size))).unwrap(),
        verdict => verdict,
    }
}

/// Everybody contributes, for as many rounds as it takes until norms count.
fn seasoned(names: &[&str]) -> Story {
    let mut story = Story::with(|spec| spec.digest.windows = Windows(4000));
    names.iter().for_each(|name| {
        story.register(name);
    });
    for _ in 0..10 {
        for name in names {
            story.grant(name);
        }
        for name in names {
            assert_eq!(contribute_norm(&mut story, name, 1.0), Verdict::Staged);
        }
        story.merge();
    }
    names.iter().for_each(|name| {
        story.grant(name);
    });
    story
}

fn is_norm(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Refused(RefusedBecause::Norm { .. }))
}

fn paused(story: &Story) -> Option<&Pause> {
    story.state().orders.paused.as_ref()
}

fn resume(story: &mut Story) {
    let order = Order::Resume { why: String::new() };
    assert_eq!(story.send(Command::Operate(order)), Ok(Reply::Done));
}

#[test]
fn a_refused_norm_leaves_the_lease_and_the_data_are_not_to_blame() {
    let mut story = seasoned(&["a", "b"]);
    let before = story.state().lease_of(story.key("a")).cloned();
    assert!(is_norm(&contribute_norm(&mut story, "a", 1000.0)));
    assert_eq!(story.state().lease_of(story.key("a")).cloned(), before);
    assert!(story.state().attempts.is_empty());
    assert_eq!(paused(&story), None);
    // It was a hiccup: the second try passes, and nothing is held against the replica.
    assert_eq!(contribute_norm(&mut story, "a", 1.1), Verdict::Staged);
    assert_eq!(story.replica("a").setback, None);
}

#[test]
fn norms_of_two_replicas_pause_the_run_and_resuming_raises_the_bound() {
    let mut story = seasoned(&["a", "b"]);
    assert!(is_norm(&contribute_norm(&mut story, "a", 1000.0)));
    assert!(is_norm(&contribute_norm(&mut story, "b", 900.0)));
    let both = vec![id("a"), id("b")];
    assert_eq!(paused(&story), Some(&Pause::Norms(both)));
    assert!(matches!(story.ask("a"), LeaseAnswer::Wait(Wait::Paused(_))));
    story.restart(5);

    resume(&mut story);
    // The same again, to the same bytes: it is no longer refused.
    assert_eq!(contribute_norm(&mut story, "a", 1000.0), Verdict::Staged);
    assert_eq!(contribute_norm(&mut story, "b", 900.0), Verdict::Staged);
    story.merge();
    story.grant("a");
    story.grant("b");
    assert!(
        is_norm(&contribute_norm(&mut story, "a", 1e6)),
        "there still is a bound"
    );
}

#[test]
fn the_only_replica_that_repeats_itself_pauses_the_run() {
    let mut story = seasoned(&["a"]);
    assert!(is_norm(&contribute_norm(&mut story, "a", 1000.0)));
    assert_eq!(paused(&story), None);
    assert!(is_norm(&contribute_norm(&mut story, "a", 1000.0)));
    assert_eq!(paused(&story), Some(&Pause::Norms(vec![id("a")])));
}

#[test]
fn asking_twice_for_a_verdict_is_not_being_refused_twice() {
    let mut story = seasoned(&["a"]);
    let grant = story.grant("a");
    let parts = story.parts(&grant, 4);
    story.announce("a", &parts).unwrap();
    assert!(is_norm(&story.found(parts.id(), Ok(norm(1e3))).unwrap()));
    // The answer was lost, more than once.
    for _ in 0..3 {
        assert!(is_norm(&story.announce("a", &parts).unwrap()));
    }
    assert_eq!(story.replica("a").setback.unwrap().norm, 1);
    assert_eq!(paused(&story), None);
}

/// A trainer whose file is not the run's, every time.
fn contribute_form(story: &mut Story, name: &str) {
    let grant = story.grant(name);
    let parts = story.parts(&grant, grant.plan.windows.0);
    let verdict = match story.announce(name, &parts).unwrap() {
        Verdict::Upload => story.complete_with(parts.id(), Some("no header")).unwrap(),
        verdict => verdict,
    };
    assert_eq!(verdict, Verdict::Refused(RefusedBecause::Gate));
}

#[test]
fn a_trainer_that_is_refused_for_ever_ends_in_a_pause_and_not_in_a_loop() {
    let mut story = Story::new();
    story.register("a");
    contribute_form(&mut story, "a");
    contribute_form(&mut story, "a");
    assert_eq!(paused(&story), Some(&Pause::Refusals(vec![id("a")])));
    assert_eq!(
        story.state().leases.len(),
        0,
        "others may have its positions"
    );
    // The trainer is repaired.
    resume(&mut story);
    story.contribute("a");
}

#[test]
fn one_of_several_that_is_refused_sits_rounds_out_longer_and_longer() {
    let mut story = Story::with(|spec| spec.digest.windows = Windows(4000));
    story.register("good");
    story.register("bad");
    let mut tries = Vec::new();
    for round in 0..20 {
        story.grant("good");
        loop {
            match story.ask("bad") {
                LeaseAnswer::Train(_) => {
                    contribute_form(&mut story, "bad");
                    tries.push(round);
                }
                LeaseAnswer::Wait(Wait::SetBack { until, .. }) => {
                    assert!(until > Generation(round));
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(story.replica("bad").lease, None);
        story.contribute("good");
        story.merge();
    }
    assert_eq!(tries, [0, 0, 1, 3, 7, 15]);
    assert_eq!(paused(&story), None);
    // Now it is alone.
    story.goodbye("good");
    story.pass(1, &["bad"]);
    assert!(matches!(paused(&story), Some(Pause::Refusals(_))));
}

#[test]
fn values_that_are_never_finite_end_in_a_pause_too() {
    let mut story = Story::new();
    story.register("a");
    let mut tries = 0;
    while paused(&story).is_none() {
        let grant = story.grant("a");
        let parts = story.parts(&grant, grant.plan.windows.0);
        story.announce("a", &parts).unwrap();
        story.complete_with(parts.id(), Some("not finite")).unwrap();
        tries += 1;
        assert!(tries < 100, "it goes on for ever");
    }
    assert!(matches!(paused(&story), Some(Pause::Refusals(_))));
}
