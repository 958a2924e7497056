//! The batch system on small cases that can be worked out by hand, and what always holds.
#![allow(clippy::unwrap_used)]

use hansa_backfill::{Queue, TraceJob, Walltimes};
use proptest::prelude::*;

fn job(submit_s: u64, width: u32, limit_s: u64, run_s: u64) -> TraceJob {
    TraceJob {
        submit_s,
        width,
        limit_s,
        run_s,
    }
}

/// Ten wide: one job holds 6 until 100 (by its limit; really until 40), one of 8 waits behind it.
fn busy() -> Queue {
    let jobs = [job(0, 6, 100, 40), job(5, 8, 50, 50)];
    let mut queue = Queue::new(10, Walltimes::Realised, &jobs);
    queue.run_until(10);
    assert_eq!((queue.free(), queue.waiting()), (4, 1));
    queue
}

#[test]
fn a_small_job_goes_into_the_hole_only_if_nobody_waits_longer_for_it() {
    // The eight's place is at 100: what ends by then may start now.
    let mut short = busy();
    let fits = short.submit(4, 90, 90);
    assert_eq!(short.start_of(fits), Some(10));
    // One that would reach beyond it may use only the two that the eight leaves.
    let mut long = busy();
    let narrow = long.submit(2, 500, 500);
    assert_eq!(long.start_of(narrow), Some(10));
    let mut long = busy();
    let wide = long.submit(4, 91, 91);
    assert_eq!(long.start_of(wide), None);
    // The six ends early, at 40: the eight starts then, and the four after it.
    assert_eq!(long.until_started(wide, 1_000), Some(90));
}

#[test]
fn test_only_answers_as_slurm_does() {
    let free = Queue::new(10, Walltimes::Realised, &[]);
    assert_eq!(free.test_only(10), Some(0));
    // Six run until 300 by their limit; 8 · 4 minutes and 3 · 1 wait: 35 over 10 is 3 minutes.
    let waiting = [job(5, 8, 240, 10), job(6, 3, 60, 10)];
    let queue = Queue::found(10, 30, &[(job(0, 6, 300, 100), 0)], &waiting);
    assert_eq!(
        queue.test_only(4),
        Some(30 + 180),
        "it fits now, but others wait"
    );
    assert_eq!(queue.test_only(5), Some(300 + 180));
    assert_eq!(queue.test_only(11), None);
}

#[test]
fn test_only_answers_what_a_slurm_answered() {
    // Six nodes of a Slurm 22.05, 130 s after the first submission, asked for five nodes.
    let running = [(job(56, 3, 240, 48), 128), (job(79, 3, 60, 54), 129)];
    let waiting = [
        job(90, 1, 120, 108),
        job(101, 6, 60, 54),
        job(112, 3, 240, 48),
        job(124, 1, 60, 54),
    ];
    assert_eq!(
        Queue::found(6, 130, &running, &waiting).test_only(5),
        Some(548)
    );
    // And at 100 s for one node, of which two were free.
    let running = [(job(34, 3, 60, 54), 74), (job(67, 1, 60, 54), 74)];
    let waiting = [
        job(56, 3, 240, 48),
        job(79, 3, 60, 54),
        job(90, 1, 120, 108),
    ];
    assert_eq!(
        Queue::found(6, 100, &running, &waiting).test_only(1),
        Some(220)
    );
}

#[test]
fn a_job_that_waits_can_be_taken_back_and_one_that_runs_cannot() {
    let start = |takes_back: bool| {
        let mut queue = busy();
        let (wide, other) = (queue.submit(10, 50, 50), queue.submit(4, 500, 500));
        if takes_back {
            queue.cancel(wide);
        }
        let started = queue.until_started(other, 1_000);
        queue.cancel(other);
        let free = queue.free();
        (started, queue.until_started(wide, 1_000), free)
    };
    // The eight runs from 40 to 90, then the ten if it is there.
    assert_eq!(start(false), (Some(140), Some(90), 6));
    assert_eq!(start(true), (Some(90), None, 6), "the four runs on");
}

#[test]
fn jobs_run_to_their_limit_if_asked_to() {
    let jobs = [job(0, 10, 100, 40)];
    for (walltimes, start_s) in [(Walltimes::Full, 100), (Walltimes::Realised, 40)] {
        let mut queue = Queue::new(10, walltimes, &jobs);
        queue.run_until(1);
        let next = queue.submit(1, 5, 5);
        assert_eq!(queue.until_started(next, 1_000), Some(start_s));
    }
}

#[test]
fn usage_is_what_was_really_used_of_what_was_asked_for() {
    let mut queue = Queue::new(
        10,
        Walltimes::Realised,
        &[job(0, 1, 100, 40), job(0, 1, 50, 50)],
    );
    assert_eq!(queue.usage(), None);
    queue.run_until(60);
    assert_eq!(queue.usage(), Some(90.0 / 150.0));
    queue.run_until(3 * 86_400);
    assert_eq!(queue.usage(), None, "two days later it is forgotten");
}

proptest! {
    #[test]
    fn every_job_starts_and_a_copy_has_the_same_future(
        jobs in prop::collection::vec((0..500_u64, 1..10_u32, 1..200_u64, 1..200_u64), 0..40),
        at_s in 0..600_u64,
        probe in (1..10_u32, 1..200_u64),
    ) {
        let jobs: Vec<TraceJob> = jobs
            .into_iter()
            .map(|(submit, width, limit, run)| job(submit, width, limit, run))
            .collect();
        let mut queue = Queue::new(10, Walltimes::Realised, &jobs);
        queue.run_until(at_s);
        let start = |queue: &Queue| {
            let mut world = queue.clone();
            let id = world.submit(probe.0, probe.1, probe.1);
            world.until_started(id, u64::MAX)
        };
        let first = start(&queue);
        prop_assert!(first.is_some_and(|start_s| start_s >= at_s));
        prop_assert_eq!(first, start(&queue));
        queue.run_until(1_000_000);
        prop_assert_eq!((queue.free(), queue.waiting()), (10, 0));
    }

    #[test]
    fn with_full_walltimes_nobody_who_came_first_is_delayed_by_who_comes_later(
        jobs in prop::collection::vec((1..10_u32, 1..200_u64), 1..20),
        later in (1..10_u32, 1..200_u64),
    ) {
        // All at once: the plan made then holds, whoever comes later.
        let starts = |more: bool| {
            let mut queue = Queue::new(10, Walltimes::Full, &[]);
            let ids: Vec<usize> = jobs.iter().map(|&(w, l)| queue.submit(w, l, l)).collect();
            if more {
                queue.submit(later.0, later.1, later.1);
            }
            let start = |id: &usize| queue.clone().until_started(*id, u64::MAX);
            ids.iter().map(start).collect::<Vec<_>>()
        };
        prop_assert_eq!(starts(false), starts(true));
    }
}
