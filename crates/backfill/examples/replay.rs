//! Waits and plans on replays of real traces; see `experiments/replay`.
//!
//! ```sh
//! HANSA_TEST_DATA=DIR cargo run --release -p hansa-backfill --example replay [PROBES STARTS]
//! ```
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use common::{DAY_S, Traces};
use hansa_backfill::{Estimator, Strategy, Walltimes, campaign, estimates, quantile_s};
use hansa_base::Windows;

fn main() {
    let Some(traces) = Traces::read() else {
        eprintln!(
            "set it to a folder with data/traces/ as experiments/replay/README.md lists them"
        );
        std::process::exit(1);
    };
    let mut counts = std::env::args().skip(1).map(|text| text.parse().unwrap());
    let (probes, starts) = (counts.next().unwrap_or(400), counts.next().unwrap_or(100));
    waits(&traces, u32::try_from(probes).unwrap());
    for target in [60_000_000, 500_000_000] {
        plans(&traces, starts, Windows(target));
    }
}

/// Estimates against what came of them.
fn waits(traces: &Traces, probes: u32) {
    let estimators = [
        Estimator::Discount(0.0),
        Estimator::Discount(0.5),
        Estimator::Discount(1.0),
        Estimator::Learned,
    ];
    println!(
        "| trace | jobs run | estimate | probes | waited | median error | of those that waited | bias | below p90 |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for trace in traces.all() {
        for walltimes in [Walltimes::Full, Walltimes::Realised] {
            let (queue, setting) = trace.probed(walltimes, probes);
            for quality in estimates(queue, &setting, &estimators) {
                let jobs = match walltimes {
                    Walltimes::Full => "to their limit",
                    Walltimes::Realised => "as they did",
                };
                let estimate = match quality.estimator {
                    Estimator::Discount(0.0) => "test-only".to_owned(),
                    Estimator::Discount(s) => format!("discount {s}"),
                    Estimator::Learned => "learned".to_owned(),
                };
                println!(
                    "| {} | {jobs} | {estimate} | {} | {} | {:.0} s | {:.0} s | {:+.0} s | {:.0} % |",
                    trace.name,
                    quality.probes,
                    quality.waited,
                    quality.error_s,
                    quality.error_of_waiting_s,
                    quality.bias_s,
                    quality.coverage * 100.0
                );
            }
        }
    }
}

/// Time to a token target.
fn plans(traces: &Traces, starts: u64, target: Windows) {
    let begun = Instant::now();
    let scene = traces.scene(target);
    // Every other start meets another time of day.
    let starts_s: Vec<u64> = (0..starts).map(|i| i * DAY_S * 160 / starts).collect();
    let finishes = campaign(&scene, &starts_s);
    let of = |strategy| -> Vec<Option<f64>> {
        let mine = finishes.iter().filter(|finish| finish.strategy == strategy);
        mine.map(|finish| finish.took_s).collect()
    };
    let (split, oracle) = (of(Strategy::StaticSplit), of(Strategy::Oracle));
    let median = |took: &[Option<f64>]| quantile_s(took, 1, 2).unwrap_or(f64::INFINITY);
    println!(
        "\n| strategy | p10 | median | p90 | missed | against the split | above the oracle | start by start |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for strategy in [
        Strategy::AllLargest,
        Strategy::FastestSite,
        Strategy::StaticSplit,
        Strategy::Waterfill,
        Strategy::Planner,
        Strategy::Loop,
        Strategy::Oracle,
    ] {
        let took = of(strategy);
        let hours = |s: Option<f64>| s.map_or("–".to_owned(), |s| format!("{:.1} h", s / 3600.0));
        let ratios: Vec<Option<f64>> = took
            .iter()
            .zip(&oracle)
            .map(|(took, best)| Some(took.as_ref()? / best.as_ref()? - 1.0))
            .collect();
        println!(
            "| {strategy:?} | {} | {} | {} | {} | {:+.1} % | {:+.1} % | {:+.1} % |",
            hours(quantile_s(&took, 1, 10)),
            hours(quantile_s(&took, 1, 2)),
            hours(quantile_s(&took, 9, 10)),
            took.iter().filter(|took| took.is_none()).count(),
            (median(&took) / median(&split) - 1.0) * 100.0,
            (median(&took) / median(&oracle) - 1.0) * 100.0,
            median(&ratios) * 100.0,
        );
    }
    eprintln!("{starts} starts took {:?}", begun.elapsed());
}
