//! Explores larger bounds: `cargo run --release -p hansa-model --example explore -- --replicas 2
//! --windows 4 --steps 2 --faults 3 --jobs 2`. Exits 1 if a rule is broken.

use hansa_model::{Bounds, explore};
use std::time::Instant;

fn asked() -> Option<Bounds> {
    let mut bounds = Bounds {
        replicas: 2,
        windows: 4,
        steps: 2,
        faults: 2,
        jobs: 2,
        mutation: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let number: u64 = words.next()?.parse().ok()?;
        match word.as_str() {
            "--replicas" => bounds.replicas = number as u32,
            "--windows" => bounds.windows = number,
            "--steps" => bounds.steps = number,
            "--faults" => bounds.faults = number as u8,
            "--jobs" => bounds.jobs = number as usize,
            _ => return None,
        }
    }
    Some(bounds)
}

fn main() {
    let Some(bounds) = asked() else {
        eprintln!(
            "usage: explore [--replicas N] [--windows N] [--steps N] [--faults N] [--jobs N]"
        );
        std::process::exit(2);
    };
    let began = Instant::now();
    let report = explore(bounds);
    println!(
        "{bounds:?}\n{report:#?}\n{:.1} s",
        began.elapsed().as_secs_f64()
    );
    std::process::exit(i32::from(report.broken.is_some()));
}
