//! Runs one seed and tells its story: `cargo run -p hansa-sim --example seed -- 42`.

use hansa_sim::{Options, run};

fn main() {
    let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok());
    let Some(seed) = seed else {
        eprintln!("usage: seed NUMBER");
        std::process::exit(2);
    };
    let options = Options {
        verbose: true,
        ..Options::default()
    };
    let report = run(seed, options);
    report.story.iter().for_each(|line| println!("{line}"));
    eprintln!("{report}");
    std::process::exit(i32::from(report.failure.is_some()));
}
