//! A plan that is made again, where the queues do not do what they promised.
#![allow(clippy::unwrap_used)]

mod common;

use common::{HOUR_S, lumi, place, scene, snellius};
use hansa_backfill::{Queue, Strategy, TraceJob, Walltimes, campaign};
use hansa_base::Windows;

/// 48 nodes, all taken for an hour already by a job that may run so long, and really does so long.
fn full(limit_s: u64, run_s: u64) -> Queue {
    let job = TraceJob {
        submit_s: 0,
        width: 48,
        limit_s,
        run_s,
    };
    Queue::found(48, HOUR_S, &[(job, 0)], &[])
}

fn took_s(first: &Queue, second: &Queue, strategy: Strategy) -> f64 {
    let places = vec![
        place(snellius(), first, HOUR_S, 1),
        place(lumi(), second, HOUR_S, 1),
    ];
    let finishes = campaign(&scene(Windows(10_000_000), places), &[0]);
    let mine = finishes.iter().find(|finish| finish.strategy == strategy);
    mine.unwrap().took_s.unwrap()
}

#[test]
fn the_loop_moves_to_a_queue_that_empties_early() {
    // The first has the better promise and keeps it; the second ends 28 hours before its limit.
    let (kept, early) = (
        full(20 * HOUR_S, 20 * HOUR_S),
        full(30 * HOUR_S, 2 * HOUR_S),
    );
    let hour_s = 3600.0;
    let once_s = took_s(&kept, &early, Strategy::Planner);
    assert!(once_s > 19.0 * hour_s, "{once_s}");
    let again_s = took_s(&kept, &early, Strategy::Loop);
    let room_s = 1.0 * hour_s;
    assert!((room_s..6.0 * hour_s).contains(&again_s), "{again_s}");
}

#[test]
fn the_loop_keeps_a_place_that_is_worth_it() {
    // Nothing happens that was not promised, so nothing is gained; and nothing is lost.
    let kept = full(6 * HOUR_S, 6 * HOUR_S);
    let once_s = took_s(&kept, &kept, Strategy::Planner);
    let again_s = took_s(&kept, &kept, Strategy::Loop);
    assert!((again_s / once_s - 1.0).abs() < 0.02, "{again_s} {once_s}");
}

#[test]
fn jobs_follow_one_another_until_the_target_is_reached() {
    // Free nodes, and a target that takes several walltimes.
    let free = Queue::new(48, Walltimes::Realised, &[]);
    let places = vec![place(lumi(), &free, 0, 1)];
    let finishes = campaign(&scene(Windows(600_000_000), places), &[0]);
    let of = |strategy| {
        let mine = finishes.iter().find(|finish| finish.strategy == strategy);
        mine.unwrap().took_s.unwrap()
    };
    let (again_s, oracle_s) = (of(Strategy::Loop), of(Strategy::Oracle));
    assert!(again_s > 24.0 * 3600.0, "{again_s}");
    assert!(again_s < 1.1 * oracle_s, "{again_s} {oracle_s}");
}
