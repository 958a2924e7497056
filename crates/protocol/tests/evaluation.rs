//! Held-out evaluation: asked for, lost, asked for again, and the last one before the end.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::{Generation, Tokens};
use hansa_protocol::*;

fn evaluated() -> Story {
    Story::with(|spec| {
        spec.evaluate_every = 2;
        spec.end = End::Rounds(2);
    })
}

#[test]
fn one_replica_evaluates_and_the_others_train() {
    let mut story = evaluated();
    story.register("a");
    story.register("b");
    let ask = LeaseAnswer::Evaluate(Generation(0));
    assert_eq!(story.ask("a"), ask);
    assert_eq!(story.ask("a"), ask, "the answer may have been lost");
    story.grant("b");
    story.evaluated("a", 0);
    story.grant("a");
    assert_eq!(
        story.state().evaluations.done,
        [(Generation(0), 40.0, Tokens(10))]
    );
    story.evaluated("a", 0);
    assert_eq!(story.state().evaluations.done.len(), 1, "once is enough");
}

#[test]
fn an_evaluation_is_taken_from_one_who_is_lost() {
    let mut story = evaluated();
    story.register("a");
    story.register("b");
    assert_eq!(story.ask("a"), LeaseAnswer::Evaluate(Generation(0)));
    story.pass(13, &["b"]);
    assert_eq!(story.ask("b"), LeaseAnswer::Evaluate(Generation(0)));
    story.goodbye("b");
    assert_eq!(story.ask("a"), LeaseAnswer::Evaluate(Generation(0)));
}

#[test]
fn a_result_that_is_no_number_is_not_taken() {
    let mut story = evaluated();
    story.register("a");
    story.ask("a");
    let evaluated = Evaluated {
        caller: story.caller("a"),
        generation: Generation(0),
        loss_sum_nats: f64::NAN,
        tokens: Tokens(1),
    };
    story.send(Command::Evaluated(evaluated)).unwrap();
    assert!(story.state().evaluations.done.is_empty());
}

fn at_the_end(story: &mut Story) {
    story.register("a");
    story.ask("a");
    story.evaluated("a", 0);
    for _ in 0..2 {
        story.contribute("a");
        story.merge();
    }
    assert_eq!(story.state().ending, Some(EndReason::Rounds));
    assert!(!story.state().ended);
}

#[test]
fn the_last_generation_is_evaluated_before_the_run_is_over() {
    let mut story = evaluated();
    at_the_end(&mut story);
    assert_eq!(story.ask("a"), LeaseAnswer::Evaluate(Generation(2)));
    story.register("b");
    assert_eq!(story.ask("b"), LeaseAnswer::Wait(Wait::Ending));
    story.evaluated("a", 2);
    assert!(story.state().ended);
    assert_eq!(story.ask("b"), LeaseAnswer::Finish(EndReason::Rounds));
}

#[test]
fn the_last_generation_is_evaluated_whatever_the_rhythm() {
    let mut story = Story::with(|spec| {
        spec.evaluate_every = 5;
        spec.end = End::Rounds(2);
    });
    at_the_end(&mut story);
    assert_eq!(story.ask("a"), LeaseAnswer::Evaluate(Generation(2)));
}

#[test]
fn the_run_ends_without_an_evaluation_that_nobody_does() {
    let mut story = evaluated();
    at_the_end(&mut story);
    story.goodbye("a");
    story.restart(1);
    story.pass(30, &[]);
    assert!(story.state().ended);
}
