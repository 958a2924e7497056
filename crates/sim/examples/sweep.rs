//! Runs many seeds and says how many steps that were: `cargo run --release -p hansa-sim --example
//! sweep -- --seeds 10000 --from 0 --jobs 2`.
//!
//! Every tenth seed is run twice, and must give the same trace. A seed that fails is printed with the
//! command that tells its story. Exits 1 if any did, or if some kind of fault was never seen.

use hansa_sim::{Options, Report, Seen, run};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// One in so many is run twice.
const TWICE: u64 = 10;
/// Seeds between two lines of progress.
const LINE: u64 = 500;

struct Asked {
    seeds: u64,
    from: u64,
    jobs: u64,
}

#[derive(Default)]
struct Sum {
    seen: Seen,
    seeds: u64,
    steps: u64,
    twice: u64,
    virtual_s: f64,
    failed: Vec<u64>,
}

fn asked() -> Option<Asked> {
    let mut asked = Asked {
        seeds: 1000,
        from: 0,
        jobs: 2,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let number = words.next()?.parse().ok()?;
        match word.as_str() {
            "--seeds" => asked.seeds = number,
            "--from" => asked.from = number,
            "--jobs" => asked.jobs = number,
            _ => return None,
        }
    }
    Some(asked)
}

fn main() {
    let Some(asked) = asked() else {
        eprintln!("usage: sweep [--seeds NUMBER] [--from SEED] [--jobs NUMBER]");
        std::process::exit(2);
    };
    let (next, sum) = (AtomicU64::new(0), Mutex::new(Sum::default()));
    let began = Instant::now();
    let work = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= asked.seeds {
                return;
            }
            let (report, twice) = run_seed(asked.from + n);
            let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
            add(&mut sum, &report, twice);
            if sum.seeds.is_multiple_of(LINE) {
                progress(&sum, began);
            }
        }
    };
    std::thread::scope(|scope| {
        (0..asked.jobs.max(1)).for_each(|_| {
            scope.spawn(work);
        });
    });
    let sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    progress(&sum, began);
    println!("{:#?}", sum.seen);
    let missing = sum.seen.missing();
    if !missing.is_empty() {
        println!("never seen: {missing:?}");
    }
    let good = sum.failed.is_empty() && missing.is_empty();
    std::process::exit(i32::from(!good));
}

fn run_seed(seed: u64) -> (Report, u64) {
    let mut report = run(seed, Options::default());
    if !seed.is_multiple_of(TWICE) {
        return (report, 0);
    }
    let again = run(seed, Options::default());
    if again.trace != report.trace {
        let what = "the same seed ran differently a second time".to_owned();
        report.failure.get_or_insert(what);
    }
    (report, again.steps)
}

fn add(sum: &mut Sum, report: &Report, twice: u64) {
    sum.seen.add(&report.seen);
    sum.seeds += 1;
    sum.steps += report.steps + twice;
    sum.twice += u64::from(twice > 0);
    sum.virtual_s += report.time_ms as f64 / 1e3;
    if report.failure.is_some() {
        sum.failed.push(report.seed);
        let seed = report.seed;
        println!("{report}\n    cargo run --release -p hansa-sim --example seed -- {seed}");
    }
}

fn progress(sum: &Sum, began: Instant) {
    let s = began.elapsed().as_secs_f64();
    println!(
        "{} seeds ({} twice), {} steps in {s:.1} s ({:.0}/s), {:.0} h of virtual time, {} failed {:?}",
        sum.seeds,
        sum.twice,
        sum.steps,
        sum.steps as f64 / s,
        sum.virtual_s / 3600.0,
        sum.failed.len(),
        sum.failed.iter().take(10).collect::<Vec<_>>(),
    );
}
