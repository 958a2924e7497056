//! Rounds as they were measured, and as jobs, data and budgets shape them.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{HOUR, LUMI, MINUTE, SNELLIUS, cost, secs, shape, snapshot};
use hansa_base::{Steps, Windows};
use hansa_planner::{
    Balance, Bounds, ChainPolicy, Ended, Exchange, FirstJob, Member, Outcome, Site, Terms, Then,
    Unplannable, World, candidates, simulate,
};

const TERMS: Terms = Terms {
    replicas: 1,
    chain: ChainPolicy::Single,
    jobs_max: 99,
    begins_in: Duration::ZERO,
};

/// One replica in the first shape of each of the paper's sites.
fn cast(sites: Vec<Site>) -> (World, Vec<Member>) {
    let snapshot = snapshot(sites);
    let (fit, excluded) = candidates(&snapshot);
    assert!(excluded.is_empty(), "{excluded:?}");
    let members = fit.iter().map(|c| Member::of(&snapshot, c, TERMS).unwrap());
    let members = members.collect();
    (World::of(&snapshot, 999 * HOUR).unwrap(), members)
}

fn snellius() -> Site {
    SNELLIUS.with(&[shape("h100-24h", 4, 24 * HOUR, Duration::ZERO)])
}

fn lumi() -> Site {
    LUMI.with(&[shape("g-24h", 8, 24 * HOUR, Duration::ZERO)])
}

/// The period of the first round in which all members take part.
fn full_round(outcome: &Outcome, members: usize) -> Duration {
    let mut full = outcome
        .stretches
        .iter()
        .filter(|s| s.parts.len() == members && s.parts.iter().all(|p| p.steps == Steps(100)));
    full.next().unwrap().period
}

fn within_5_percent(predicted: Duration, measured_s: f64) {
    let error = predicted.as_secs_f64() / measured_s - 1.0;
    assert!(
        error.abs() < 0.05,
        "{predicted:?} for {measured_s} s measured: {error:+.3}"
    );
}

#[test]
fn one_site_takes_as_long_as_it_took() {
    let (world, members) = cast(vec![snellius()]);
    let period = full_round(&simulate(&world, &members), 1);
    // 100 steps of 32/89.8 s; transfer; evaluation, fixed and 512 windows at 3·89.8/s; merge.
    let by_hand = 100.0 * 32.0 / 89.8 + 33.5 + (23.6 + 512.0 / (3.0 * 89.8)) + 17.0;
    assert!((by_hand - 111.6_f64).abs() < 0.1, "{by_hand}");
    assert!((period.as_secs_f64() - by_hand).abs() < 1e-6);
    within_5_percent(period, 113.0);
}

#[test]
fn two_sites_take_as_long_as_they_took() {
    let (world, members) = cast(vec![snellius(), lumi()]);
    let outcome = simulate(&world, &members);
    let period = full_round(&outcome, 2);
    // The slower site's 100 steps of 64/38.2 s, then both transfers and evaluations, one after the
    // other, and the merge. All but the steps is 179 s, as was measured.
    let steps = 100.0 * (32.0 / 89.8_f64).max(64.0 / 38.2);
    let transfers = 33.5 + 64.2;
    let evaluations = 23.6 + 512.0 / (3.0 * 89.8) + 34.7 + 512.0 / (3.0 * 38.2);
    let by_hand = steps + transfers + evaluations + 17.0;
    assert!((by_hand - 347.0).abs() < 0.1, "{by_hand}");
    assert!((by_hand - steps - 179.0).abs() < 1.0);
    assert!((period.as_secs_f64() - by_hand).abs() < 1e-6);
    within_5_percent(period, 353.0);
}

#[test]
fn accumulation_of_five_balances_the_barrier() {
    // 5 · 35.6 s = 178 s against LUMI's 167.5 s: five times the windows for 10 s.
    let (mut world, mut members) = cast(vec![snellius(), lumi()]);
    let plain = full_round(&simulate(&world, &members), 2);
    members[0].accumulation = 5;
    let fixed = full_round(&simulate(&world, &members), 2);
    assert!(fixed > plain && fixed < plain + secs(11.0));

    // Left to the coordinator it is five when LUMI is there, and one while Snellius is alone.
    members[0].accumulation = 1;
    (world.balance, world.accumulation_max) = (Balance::Nearest, 8);
    let outcome = simulate(&world, &members);
    assert_eq!(full_round(&outcome, 2), fixed);
    let of_snellius = |s: &hansa_planner::Stretch| (s.parts.len(), s.parts[0].accumulation);
    let used: Vec<(usize, u32)> = outcome.stretches.iter().map(of_snellius).collect();
    assert!(used.contains(&(1, 1)) && used.contains(&(2, 5)), "{used:?}");
    // Only what fits: four times 35.6 s, and the barrier stays where it is.
    world.balance = Balance::Within;
    assert_eq!(full_round(&simulate(&world, &members), 2), plain);
}

#[test]
fn exchanges_that_overlap_cost_the_longest_only() {
    let (mut world, members) = cast(vec![snellius(), lumi()]);
    world.exchange = Exchange::Overlapped;
    let period = full_round(&simulate(&world, &members), 2);
    let lumi = 100.0 * 64.0 / 38.2 + 64.2 + 34.7 + 512.0 / (3.0 * 38.2);
    assert!((period.as_secs_f64() - lumi - 17.0).abs() < 1e-6);
}

#[test]
fn a_merge_that_nobody_knows_is_not_made_up() {
    let mut snapshot = snapshot(vec![snellius()]);
    snapshot.run.merge = hansa_planner::Cost::UNKNOWN;
    assert_eq!(World::of(&snapshot, HOUR), Err(Unplannable::NoMerge));
    snapshot.run.merge = cost(1.0);
    assert!(World::of(&snapshot, HOUR).is_ok());
}

/// A member of round numbers: steps of one second and one window, four accelerators, ready at once
/// for ten hours, no exchange.
fn plain() -> Member {
    Member {
        site: 0,
        replicas: 1,
        gpus: 4,
        micro_windows: Windows(1),
        micro_step: secs(1.0),
        accumulation: 1,
        exchange: Duration::ZERO,
        first: FirstJob {
            starts_in: Duration::ZERO,
            ready_in: Duration::ZERO,
            ends_in: 10 * HOUR,
            paid: false,
        },
        walltime: HOUR,
        startup: Duration::ZERO,
        then: Then::Nothing,
        jobs_max: 99,
    }
}

fn from(start_s: u32, member: Member) -> Member {
    let first = FirstJob {
        starts_in: secs(start_s.into()),
        ready_in: secs(start_s.into()) + member.startup,
        ends_in: secs(start_s.into()) + member.walltime,
        paid: false,
    };
    Member { first, ..member }
}

/// Rounds of a hundred steps, no merge, data without end.
fn world() -> World {
    World {
        steps: Steps(100),
        target: Windows(1_000_000),
        corpus: Windows(u64::MAX),
        merge: Duration::ZERO,
        exchange: Exchange::Overlapped,
        balance: Balance::Off,
        accumulation_max: 8,
        horizon: 10 * HOUR,
        sites: vec![Bounds::default()],
    }
}

/// Checks what holds for every outcome, and returns it.
fn run(world: &World, members: &[Member]) -> Outcome {
    let outcome = simulate(world, members);
    let of_members: Windows = outcome.members.iter().map(|m| m.windows).sum();
    assert_eq!(of_members, outcome.windows, "every window is somebody's");
    assert!(outcome.windows <= world.target.min(world.corpus));
    assert!(outcome.ends_in <= world.horizon);
    for (member, tally) in members.iter().zip(&outcome.members) {
        assert!(tally.computing <= tally.active && tally.active <= tally.billed);
        assert!(tally.jobs <= member.jobs_max.saturating_mul(member.replicas));
    }
    for pair in outcome.stretches.windows(2) {
        let closes = pair[0].opens_in + pair[0].period * u32::try_from(pair[0].rounds).unwrap();
        assert!(closes <= pair[1].opens_in, "{pair:#?}");
    }
    assert_eq!(outcome, simulate(world, members));
    outcome
}

#[test]
fn the_last_round_is_shared_by_speed() {
    let mut world = world();
    world.target = Windows(1_230);
    let fast = Member {
        micro_windows: Windows(3),
        ..plain()
    };
    let outcome = run(&world, &[fast, plain()]);
    assert_eq!(
        (outcome.ended, outcome.windows),
        (Ended::Target, Windows(1_230))
    );
    // Three rounds of 400; the last 30 windows go 3 to 1: 23 in 8 steps, and 7.
    assert_eq!(outcome.ends_in, secs(308.0));
    let last = &outcome.stretches.last().unwrap().parts;
    assert_eq!(
        (last[0].windows, last[1].windows),
        (Windows(23), Windows(7))
    );
}

#[test]
fn a_run_ends_with_its_corpus() {
    let mut world = world();
    world.corpus = Windows(250);
    let outcome = run(&world, &[plain()]);
    assert_eq!(
        (outcome.ended, outcome.windows),
        (Ended::Corpus, Windows(250))
    );
    assert_eq!(
        (outcome.ends_in, outcome.solo_windows),
        (secs(250.0), Windows(250))
    );
    assert_eq!(outcome.members[0].billed, secs(250.0), "the job is let go");
}

#[test]
fn who_comes_in_the_middle_of_a_round_takes_what_fits() {
    let mut world = world();
    (world.exchange, world.horizon) = (Exchange::Series, HOUR);
    let late = from(130, plain());
    let outcome = run(&world, &[plain(), late.clone()]);
    let second = &outcome.stretches[1];
    assert_eq!(
        (second.opens_in, second.rounds, second.period),
        (secs(100.0), 1, secs(100.0))
    );
    let part = second.parts[1];
    assert_eq!((part.joins_after, part.steps), (secs(30.0), Steps(70)));
    assert_eq!(outcome.solo_windows, Windows(100), "only the first round");

    // Where exchanges overlap its own must fit too: 70 s less 20 s.
    world.exchange = Exchange::Overlapped;
    let exchanging = Member {
        exchange: secs(20.0),
        ..late
    };
    let outcome = run(&world, &[plain(), exchanging]);
    assert_eq!(outcome.stretches[1].parts[1].steps, Steps(50));
    assert_eq!(
        outcome.stretches[1].period,
        secs(100.0),
        "nobody waits for it"
    );
}

#[test]
fn a_walltime_that_ends_in_a_round_still_contributes() {
    let mut world = world();
    world.horizon = HOUR;
    let short = Member {
        walltime: secs(250.0),
        exchange: secs(10.0),
        ..plain()
    };
    let outcome = run(&world, &[from(0, short)]);
    // 110 s, 110 s, and 20 steps of the third before its exchange.
    assert_eq!(
        (outcome.ended, outcome.windows),
        (Ended::Nobody, Windows(220))
    );
    assert_eq!(outcome.ends_in, secs(250.0));
}

#[test]
fn chains_wait_after_the_end_or_ahead_of_it() {
    let mut world = world();
    world.horizon = 10 * HOUR;
    let wait = 30 * MINUTE;
    let chained = |then| {
        let member = Member {
            then,
            startup: 5 * MINUTE,
            jobs_max: 3,
            ..plain()
        };
        run(&world, &[from(0, member)])
    };
    let after = chained(Then::AfterEnd { wait });
    assert_eq!(after.members[0].jobs, 3);
    // 3 · (1 h − 5 min) of whole rounds; a gap of 30 + 5 minutes between jobs.
    assert_eq!(after.windows, Windows(3 * 3300));
    assert_eq!(after.ends_in, 3 * HOUR + 2 * wait);
    let ahead = chained(Then::Ahead { wait });
    assert_eq!(
        (ahead.windows, ahead.ends_in),
        (after.windows, 3 * HOUR),
        "no gap but start-up"
    );
    let longer = chained(Then::Ahead { wait: 90 * MINUTE });
    assert_eq!(
        longer.ends_in,
        4 * HOUR,
        "30 minutes of the 90 are left when a job ends"
    );
    assert_eq!(chained(Then::Nothing).members[0].jobs, 1);
}

#[test]
fn a_budget_is_spent_to_the_minute_and_never_over() {
    let mut world = world();
    // Two replicas of four GPUs; six GPU-hours are one full job each but half of one.
    world.sites[0].budget_gpu_s = Some(6.0 * 3600.0);
    let chained = Member {
        then: Then::AfterEnd {
            wait: Duration::ZERO,
        },
        ..plain()
    };
    let members = [from(0, chained.clone()), from(0, chained)];
    let outcome = run(&world, &members);
    assert_eq!(outcome.ended, Ended::Nobody);
    assert_eq!(outcome.members[0].billed, HOUR);
    assert_eq!(outcome.members[1].billed, 30 * MINUTE);
    assert!((outcome.gpu_hours(&members) - 6.0).abs() < 1e-9);
    // A job that is there already is paid for.
    let mut there = members.to_vec();
    there[0].first.paid = true;
    let outcome = run(&world, &there);
    assert!(outcome.gpu_hours(&there) <= 10.0);
}

#[test]
fn chains_keep_clear_of_maintenance_and_of_the_allocations_end() {
    let mut world = world();
    world.sites[0].closed = vec![(90 * MINUTE, 3 * HOUR)];
    world.sites[0].ends_in = Some(4 * HOUR + 30 * MINUTE);
    let wait = Duration::ZERO;
    let member = Member {
        then: Then::AfterEnd { wait },
        ..plain()
    };
    let outcome = run(&world, &[from(0, member)]);
    // One hour; the second would meet the maintenance and starts after it; the third is cut short.
    assert_eq!(outcome.ended, Ended::Nobody);
    assert_eq!(outcome.members[0].jobs, 3);
    assert_eq!(outcome.stretches[1].opens_in, 3 * HOUR);
    assert_eq!(outcome.ends_in, 4 * HOUR + 30 * MINUTE);
    assert_eq!(outcome.members[0].billed, 2 * HOUR + 30 * MINUTE);
}

#[test]
fn sites_that_never_overlap_never_federate() {
    let mut world = world();
    world.horizon = 9 * HOUR;
    let outcome = run(&world, &[from(0, plain()), from(7200, plain())]);
    assert_eq!(outcome.solo_windows, outcome.windows);
    assert_eq!(outcome.windows, Windows(7200));
    assert_eq!((outcome.ended, outcome.ends_in), (Ended::Nobody, 3 * HOUR));
}

#[test]
fn a_slow_site_slows_all_others() {
    let slow = Member {
        micro_step: secs(9.0),
        ..plain()
    };
    let alone = run(&world(), &[plain()]);
    let both = run(&world(), &[plain(), slow]);
    assert!(
        both.windows < alone.windows,
        "900 s a round for 200 windows"
    );
    let members = [plain(), plain()];
    assert!(
        both.idle_share(&members) > 0.4,
        "{}",
        both.idle_share(&members)
    );
}

#[test]
fn nobody_who_can_train_is_no_run_and_no_endless_loop() {
    let useless = Member {
        exchange: 2 * HOUR,
        then: Then::AfterEnd {
            wait: Duration::ZERO,
        },
        jobs_max: u32::MAX,
        ..plain()
    };
    let outcome = run(&world(), &[from(0, useless)]);
    assert_eq!(
        (outcome.ended, outcome.windows),
        (Ended::Nobody, Windows(0))
    );
    assert_eq!(run(&world(), &[]).ended, Ended::Nobody);
    let late = from(11 * 3600, plain());
    assert_eq!(run(&world(), &[late]).ended, Ended::Horizon);
}
