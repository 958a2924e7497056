//! A short form of `experiments/replay` on real traces.
#![allow(clippy::unwrap_used)]

mod common;

use common::{DAY_S, Traces};
use hansa_backfill::{Estimator, Strategy, Walltimes, campaign, estimates, quantile_s};
use hansa_base::Windows;

#[test]
fn learned_quantiles_cover_what_they_promise_on_a_busy_queue() {
    let Some(traces) = Traces::read() else { return };
    let (queue, setting) = traces.kth.probed(Walltimes::Realised, 200);
    let estimators = [Estimator::Discount(0.0), Estimator::Learned];
    let quality = estimates(queue, &setting, &estimators);
    let [test_only, learned] = [quality[0], quality[1]];
    assert!(test_only.waited > 50, "{test_only:?}");
    assert!(
        learned.error_of_waiting_s < test_only.error_of_waiting_s,
        "{quality:?}"
    );
    assert!(learned.coverage > 0.85, "{learned:?}");
    assert!(
        test_only.bias_s > 0.0,
        "Slurm is pessimistic about limits: {test_only:?}"
    );
}

#[test]
fn a_plan_is_far_better_than_a_static_split_and_near_the_oracle() {
    let Some(traces) = Traces::read() else { return };
    let scene = traces.scene(Windows(60_000_000));
    let starts_s: Vec<u64> = (0..5).map(|i| i * DAY_S * 32).collect();
    let finishes = campaign(&scene, &starts_s);
    let again = campaign(&scene, &starts_s[..1]);
    assert_eq!(finishes[..again.len()], again, "same input");
    let median_s = |strategy| {
        let mine = finishes.iter().filter(|finish| finish.strategy == strategy);
        let took: Vec<Option<f64>> = mine.map(|finish| finish.took_s).collect();
        quantile_s(&took, 1, 2).unwrap()
    };
    let planner_s = median_s(Strategy::Planner);
    let (split_s, oracle_s) = (median_s(Strategy::StaticSplit), median_s(Strategy::Oracle));
    assert!(planner_s < 0.6 * split_s, "{planner_s} s, {split_s} s");
    assert!(planner_s < 1.3 * oracle_s, "{planner_s} s, {oracle_s} s");
    let loop_s = median_s(Strategy::Loop);
    assert!(loop_s <= planner_s, "{loop_s} s, {planner_s} s");
    assert!(loop_s < 1.15 * oracle_s, "{loop_s} s, {oracle_s} s");
}
