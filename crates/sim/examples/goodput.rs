//! What faults cost: `cargo run --release -p hansa-sim --example goodput -- [SEEDS]`.
//!
//! Eight replicas; phase 60 s, exchange about 2 s, grace 10 s, a checkpoint every 10 s. Goodput is
//! committed windows over what live replicas could have trained; "beside exchange" leaves 2 s of each
//! 62 s out of what they could. What the rest went into is in per cent of all live replica time.

use hansa_sim::{Options, Report, Weather, run};

const EXCHANGE: f64 = 60.0 / 62.0;

fn main() {
    let seeds = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(10);
    let kinds = [
        ("no faults", 0.0, 0),
        ("12 faults/h, back after 5 min", 12.0, 300_000),
        ("125 faults/h, back after 30 s", 125.0, 30_000),
    ];
    for production in [false, true] {
        let floor = if production {
            "TTL 60 s to 30 min"
        } else {
            "TTL floor 10 s"
        };
        for (name, faults_per_hour, back_ms) in kinds {
            let weather = Weather {
                faults_per_hour,
                back_ms,
                production,
                hours: 1,
            };
            println!("{floor}, {name}, {seeds} seeds:");
            let reports: Vec<Report> = (0..seeds).map(|seed| run_in(seed, weather)).collect();
            print(&reports);
        }
    }
}

fn run_in(seed: u64, weather: Weather) -> Report {
    let options = Options {
        weather: Some(weather),
        ..Options::default()
    };
    let report = run(seed, options);
    if let Some(what) = &report.failure {
        eprintln!("seed {seed}: {what}");
        std::process::exit(1);
    }
    report
}

fn print(reports: &[Report]) {
    let of = |f: &dyn Fn(&Report) -> f64| {
        let all: Vec<f64> = reports.iter().map(|report| 100.0 * f(report)).collect();
        let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
        let worst = all.iter().copied().fold(f64::INFINITY, f64::min);
        (mean, worst)
    };
    let goodput = |r: &Report| r.spent.goodput(r.state.committed());
    let line = |name: &str, (mean, worst): (f64, f64)| {
        println!("  {name:<28} {mean:6.2} %   worst seed {worst:6.2} %");
    };
    line("goodput", of(&goodput));
    line("goodput beside exchange", of(&|r| goodput(r) / EXCHANGE));
    line("participation", of(&|r| r.spent.participation()));
    let part = |name: &str, ms: &dyn Fn(&Report) -> u64| {
        let (mean, _) = of(&|r| ms(r) as f64 / r.spent.live_ms as f64);
        println!("    {name:<32} {mean:6.2} %");
    };
    part("trained, but lost", &|r| {
        r.spent.lost_ms(r.state.committed())
    });
    part("starting", &|r| r.spent.starting_ms);
    part("downloading", &|r| r.spent.downloading_ms);
    part("checkpoints and encoding", &|r| r.spent.checkpointing_ms);
    part("uploading", &|r| r.spent.uploading_ms);
    part("waiting for others", &|r| r.spent.barrier_ms);
    part("waiting for the merge", &|r| r.spent.merge_ms);
    part("waiting for a round to join", &|r| r.spent.idle_ms);
    let deaths: u64 = reports.iter().map(|r| r.spent.deaths).sum();
    let rounds: usize = reports.iter().map(|r| r.spent.rounds.len()).sum();
    println!("    {deaths} deaths in {rounds} rounds");
}
