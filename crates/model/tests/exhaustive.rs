//! Every state within the bounds keeps every rule, and what must be reachable is reached.
//!
//! With `HANSA_MODEL=large` the bounds are larger; see docs/HACKING.md for how large they are.
#![allow(clippy::unwrap_used)]

use hansa_model::{Bounds, Mutation, Report, explore};

fn bounds(replicas: u32, windows: u64, steps: u64, faults: u8) -> Bounds {
    Bounds {
        replicas,
        windows,
        steps,
        faults,
        jobs: 2,
        mutation: None,
    }
}

fn large() -> bool {
    std::env::var("HANSA_MODEL").is_ok_and(|value| value == "large")
}

fn holds(bounds: Bounds) -> Report {
    let report = explore(bounds);
    eprintln!(
        "{bounds:?}: {} states, {} transitions, up to {} steps deep: {:?}",
        report.states, report.transitions, report.depth, report.seen
    );
    assert!(report.broken.is_none(), "{:#?}", report.broken);
    assert!(report.ends, "no epoch ends");
    report
}

fn reaches(report: &Report, what: &[&str]) {
    for what in what {
        let count = report.seen.get(what);
        assert!(
            count.is_some_and(|count| *count > 0),
            "never reached: {what}"
        );
    }
}

#[test]
fn two_replicas_train_each_window_once_whatever_goes_wrong_once() {
    let faults = if large() { 2 } else { 1 };
    let report = holds(bounds(2, 4, 2, faults));
    let what = [
        "revival",
        "absolution",
        "takeover with a lease",
        "second process of a name",
        "start from the older checkpoint",
        "fenced call",
        "late heartbeat",
        "late message",
        "crash",
        "coordinator died",
        "signal",
        "lease expired",
        "session expired",
        "many ended at once",
        "lease lost to bad numbers",
        "lease given back",
        "refused for a lost lease",
        "commit",
        "end of the epoch",
    ];
    // To start from the older checkpoint after a crash is two faults.
    let once = |what: &&str| large() || *what != "start from the older checkpoint";
    reaches(&report, &what.into_iter().filter(once).collect::<Vec<_>>());
}

#[test]
fn a_replica_and_its_successors_train_each_window_once_whatever_goes_wrong_twice() {
    let replicas = if large() { 2 } else { 1 };
    let report = holds(bounds(replicas, 2, 2, 2));
    reaches(
        &report,
        &[
            "commit",
            "end of the epoch",
            "late message",
            "takeover with a lease",
        ],
    );
}

#[test]
fn three_replicas_share_an_epoch() {
    let faults = u8::from(large());
    let report = holds(bounds(3, 3, 1, faults));
    reaches(&report, &["commit", "end of the epoch"]);
}

/// Tests of the test: a bug that is put in must be found, as a breach of this rule.
fn finds(mutation: Mutation, rules: &[u8]) {
    let mutation = Some(mutation);
    let report = explore(Bounds {
        mutation,
        ..bounds(2, 4, 2, 1)
    });
    let seen = &report.seen;
    let (rule, what, way) = report
        .broken
        .unwrap_or_else(|| panic!("nothing is found: {seen:?}"));
    assert!(rules.contains(&rule), "rule {rule}: {what}; {way:#?}");
}

#[test]
fn a_coordinator_that_fences_nobody_is_found() {
    finds(Mutation::FencesNobody, &[8, 12]);
}

#[test]
fn an_end_of_a_lease_that_is_not_journaled_is_found() {
    finds(Mutation::ForgetsFreed, &[10]);
}

#[test]
fn a_contribution_that_is_merged_twice_is_found() {
    finds(Mutation::MergesTwice, &[12]);
}

#[test]
fn weights_that_outlive_their_lease_are_found() {
    finds(Mutation::KeepsStaleWeights, &[7, 12]);
}

#[test]
fn training_beyond_what_is_reserved_is_found() {
    finds(Mutation::TrainsBeyondTheMark, &[7, 12]);
}
