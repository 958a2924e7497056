//! Time per plan: `cargo bench -p hansa-planner`. The goal is 100 ms for ten sites of ten shapes over
//! fourteen days.
#![allow(clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/many.rs"]
mod many;

use std::time::Duration;

use hansa_planner::{Ask, Objective, plan};

fn main() {
    divan::main();
}

fn decide(bencher: divan::Bencher<'_, '_>, objective: Objective, sites: usize) {
    let snapshot = many::many(sites, 10);
    let ask = Ask::new(objective, Duration::from_secs(14 * 86_400));
    let once = plan(&snapshot, &ask).unwrap();
    let sites_used = once.picks.len();
    eprintln!(
        "{objective:?}, {sites} sites: {} simulations, {sites_used} sites used, exact {}, ends {:?} in {:?}",
        once.simulations, once.exact, once.outcome.ended, once.outcome.ends_in
    );
    bencher.bench_local(|| plan(divan::black_box(&snapshot), &ask));
}

#[divan::bench(args = [3, 10], max_time = 5)]
fn earliest_finish(bencher: divan::Bencher<'_, '_>, sites: usize) {
    decide(bencher, Objective::EarliestFinish, sites);
}

#[divan::bench(args = [10], max_time = 5)]
fn most_tokens(bencher: divan::Bencher<'_, '_>, sites: usize) {
    decide(bencher, Objective::MostTokens, sites);
}

#[divan::bench(args = [10], max_time = 5)]
fn fewest_gpu_hours(bencher: divan::Bencher<'_, '_>, sites: usize) {
    decide(bencher, Objective::FewestGpuHours, sites);
}
