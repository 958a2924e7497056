//! Many seeds, each of them a world of its own.
#![allow(clippy::unwrap_used)]

use hansa_sim::{Mutation, Options, Seen, run};

fn story(seed: u64, mutation: Option<Mutation>) -> String {
    let options = Options {
        mutation,
        verbose: true,
        ..Options::default()
    };
    let report = run(seed, options);
    let last = report.story.len().saturating_sub(60);
    format!("{}\n{report}", report.story[last..].join("\n"))
}

#[test]
fn every_seed_trains_everything_once_and_ends() {
    let mut seen = Seen::default();
    for seed in 0..1000 {
        let report = run(seed, Options::default());
        assert!(report.failure.is_none(), "{}", story(seed, None));
        seen.add(&report.seen);
    }
    assert!(
        seen.missing().is_empty(),
        "never seen: {:?}",
        seen.missing()
    );
}

/// Seeds that found something once.
fn passes(seed: u64) {
    let report = run(seed, Options::default());
    assert!(report.failure.is_none(), "{}", story(seed, None));
}

#[test]
fn windows_trained_to_the_same_bytes_under_a_new_lease_can_be_announced() {
    passes(10);
}

#[test]
fn a_payload_stays_until_no_checkpoint_names_it() {
    passes(2089);
}

#[test]
fn what_is_refused_again_takes_no_lease_from_under_another_contribution() {
    passes(742);
    passes(3196);
}

#[test]
fn a_seed_means_the_same_each_time() {
    for seed in 0..40 {
        let (first, second) = (run(seed, Options::default()), run(seed, Options::default()));
        assert_eq!(first.trace, second.trace, "seed {seed}");
    }
}

/// Tests of the tests: a bug that is put in must be found.
fn finds(mutation: Mutation, says: &str) {
    let options = Options {
        mutation: Some(mutation),
        ..Options::default()
    };
    let mut failures = (0..600).filter_map(|seed| run(seed, options).failure);
    let found = failures.any(|failure| failure.contains(says));
    assert!(found, "{mutation:?} is not found");
}

#[test]
fn an_event_that_is_not_journaled_is_found() {
    finds(Mutation::ForgetsAnEvent, "invariant 10");
}

#[test]
fn a_coordinator_that_never_looks_at_the_time_is_found() {
    finds(Mutation::NeverTicks, "invariant 13");
}

#[test]
fn a_contribution_that_is_merged_twice_is_found() {
    finds(Mutation::MergesTwice, "invariant 12");
}

#[test]
fn training_beyond_the_lease_is_found() {
    finds(Mutation::TrainsBeyondTheLease, "invariant 12");
}

#[test]
fn stale_weights_are_found() {
    finds(Mutation::KeepsStaleWeights, "invariant 12");
}

#[test]
fn moments_of_a_refused_phase_are_found() {
    finds(
        Mutation::KeepsBadMoments,
        "moments of a phase that was not accepted",
    );
}

#[test]
fn a_step_that_is_reported_but_not_taken_is_found() {
    finds(Mutation::LosesAStep, "invariant 12");
}

#[test]
fn a_steal_across_the_mark_is_found() {
    finds(Mutation::StealsAcrossTheMark, "invariant 7");
}

#[test]
fn a_revival_of_what_was_retrained_is_found() {
    finds(
        Mutation::RevivesWhatIsTaken,
        "were to go from Free to Leased",
    );
}
