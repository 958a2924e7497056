//! Runs a range of seeds and reports the failures: `cargo run -p hansa-sim --example seeds -- 0 9999`.

use hansa_sim::{Options, Seen, run};

fn main() {
    let numbers: Vec<u64> = std::env::args()
        .skip(1)
        .filter_map(|n| n.parse().ok())
        .collect();
    let &[first, last] = numbers.as_slice() else {
        eprintln!("usage: seeds FIRST LAST");
        std::process::exit(2);
    };
    let (mut seen, mut failed) = (Seen::default(), 0);
    for seed in first..=last {
        let report = run(seed, Options::default());
        seen.add(&report.seen);
        if report.failure.is_some() {
            failed += 1;
            println!("{report}");
        }
    }
    println!("{failed} of {} seeds failed; {seen:?}", last + 1 - first);
    std::process::exit(i32::from(failed > 0));
}
