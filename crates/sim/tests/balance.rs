//! Replicas of different speed fill the barrier, and finish an epoch together.
#![allow(clippy::unwrap_used)]

use hansa_protocol::{PhaseTimes, State};
use hansa_sim::{Options, Rates, Report, run};

/// The published system's three sites: 5.5, 3.0 and 1.0 units of throughput.
const RATES: [f64; 3] = [5.5, 3.0, 1.0];

fn run_of_rates(seed: u64, windows: u64, balance: bool) -> Report {
    let step_ms = RATES.map(|rate| (2000.0 / rate) as u64);
    let rates = Rates {
        step_ms,
        windows,
        epochs: 2,
        balance,
    };
    let options = Options {
        rates: Some(rates),
        ..Options::default()
    };
    let report = run(seed, options);
    assert!(report.failure.is_none(), "{report}");
    report
}

/// Each site's part of everything committed, by host number.
fn shares(state: &State) -> [f64; 3] {
    let share = |n: usize| {
        let name = format!("site{}/r{n}", n % 2).parse().unwrap();
        let (_, replica) = state.find(&name).unwrap();
        replica.tally.committed.0 as f64 / state.committed().0 as f64
    };
    [share(0), share(1), share(2)]
}

#[test]
fn committed_shares_follow_the_rates_without_any_configured_share() {
    let all: f64 = RATES.iter().sum();
    for (seed, windows) in [(1, 4000), (2, 3999), (3, 4321), (4, 5000)] {
        let shares = shares(&run_of_rates(seed, windows, true).state);
        for (share, rate) in shares.iter().zip(RATES) {
            let off = share / (rate / all) - 1.0;
            assert!(off.abs() < 0.1, "seed {seed}: shares {shares:?}");
        }
    }
}

#[test]
fn without_balance_everybody_takes_the_base_phase() {
    let state = run_of_rates(1, 4000, false).state;
    let plans = state.rounds.iter().take(10);
    for merged in plans.flat_map(|round| &round.merged) {
        assert_eq!((merged.2.0, merged.4.0), (20, 10));
    }
}

#[test]
fn at_an_epochs_end_nobody_waits_longer_than_a_phase_of_its_own() {
    for seed in 0..20 {
        let state = run_of_rates(seed, 2000 + 37 * seed, true).state;
        let phase_ms = |times: &PhaseTimes| times.train_ms + times.checkpoint_ms + times.upload_ms;
        // After its first rounds a replica is measured; and a short last one is no phase.
        let measured = state.rounds.iter().skip(3);
        let mut longest = vec![0; state.replicas.len()];
        for (key, times) in measured.flat_map(|round| &round.times) {
            let longest = &mut longest[key.0 as usize];
            *longest = phase_ms(times).max(*longest);
        }
        let mut done = 0;
        for round in &state.rounds {
            let before = done;
            done += round.merged.iter().map(|merged| merged.2.0).sum::<u64>();
            let windows = 2000 + 37 * seed;
            if done / windows == before / windows {
                continue;
            }
            assert_eq!(round.merged.len(), 3, "seed {seed}: all finish together");
            for (key, times) in &round.times {
                let phase_ms = longest[key.0 as usize];
                let wait_ms = times.wait_ms;
                assert!(
                    wait_ms <= phase_ms,
                    "seed {seed}: {wait_ms} of {phase_ms} ms"
                );
            }
        }
    }
}
