//! The published system's scheduling scenario: 100 billion tokens on LUMI and Snellius, at most four
//! nodes per site, one node per allocation, LUMI in jobs of 1 h and Snellius of 8 h, back to back. Its
//! queue waits are not known; ours are (0, 0), (24 h, 0) and (0, 24 h) for (LUMI, Snellius).
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{HOUR, LUMI, SNELLIUS, shape, snapshot, stated};
use hansa_base::{Steps, Windows};
use hansa_planner::{
    Ask, ChainPolicy, Ended, Exchange, Member, Objective, Snapshot, Tally, Terms, Then, World,
    candidates, plan, simulate, without_barrier,
};

/// 100 billion tokens in windows of 2,048.
const TARGET: Windows = Windows(48_828_125);

/// Four replicas each, with the recipe's accumulation.
fn scenario(lumi_wait: Duration, snellius_wait: Duration) -> (Snapshot, World, Vec<Member>) {
    let mut snapshot = snapshot(vec![
        LUMI.with(&[shape("g-1h", 8, HOUR, lumi_wait)]),
        SNELLIUS.with(&[shape("h100-8h", 4, 8 * HOUR, snellius_wait)]),
    ]);
    (snapshot.run.target, snapshot.run.corpus) = (TARGET, TARGET);
    snapshot.run.evaluation = None;
    let (fit, excluded) = candidates(&snapshot);
    assert!(excluded.is_empty());
    let terms = Terms {
        replicas: 4,
        chain: ChainPolicy::AfterEnd,
        jobs_max: u32::MAX,
        begins_in: Duration::ZERO,
    };
    let cast = |c| Member {
        // No gap between jobs.
        then: Then::AfterEnd {
            wait: Duration::ZERO,
        },
        ..Member::of(&snapshot, c, terms).unwrap()
    };
    let members = fit.iter().map(cast).collect();
    let world = World::of(&snapshot, 60 * 24 * HOUR).unwrap();
    (snapshot, world, members)
}

/// Without start-up, as the table has it.
fn free(member: &Member) -> Member {
    let mut member = member.clone();
    member.startup = Duration::ZERO;
    member.first.ready_in = member.first.starts_in;
    member
}

fn billions(tally: &Tally) -> f64 {
    tally.windows.0 as f64 * 2048.0 / 1e9
}

/// Hours on nodes, jobs, billions of tokens.
fn row(tally: &Tally) -> (f64, u32, f64) {
    let hours = tally.active.as_secs_f64() / 3600.0;
    let round = |x: f64| (x * 10.0).round() / 10.0;
    (round(hours), tally.jobs, round(billions(tally)))
}

#[test]
fn without_a_barrier_the_faster_site_takes_the_larger_share() {
    let waits = [(0, 0), (24, 0), (0, 24)];
    let rows = waits.map(|(lumi, snellius)| {
        let (_, world, members) = scenario(lumi * HOUR, snellius * HOUR);
        let members: Vec<Member> = members.iter().map(free).collect();
        let fluid = without_barrier(&world, &members);
        assert_eq!((fluid.ended, fluid.windows), (Ended::Target, TARGET));
        [row(&fluid.members[0]), row(&fluid.members[1])]
    });
    // Four nodes are 4·38.2·2048 = 313 k and 4·89.8·2048 = 736 k tokens/s: 1.049 M together, so
    // 100 B take 26.5 h; with LUMI 24 h late, (100 B + 24 h · 313 k)/1.049 M = 33.7 h.
    assert_eq!(rows[0], [(26.5, 4 * 27, 29.8), (26.5, 4 * 4, 70.2)]);
    assert_eq!(rows[1], [(9.7, 4 * 10, 10.9), (33.7, 4 * 5, 89.1)]);
    assert_eq!(rows[2], [(43.3, 4 * 44, 48.8), (19.3, 4 * 3, 51.2)]);
}

#[test]
fn the_barrier_costs_what_the_table_leaves_out() {
    for (lumi, snellius) in [(0, 0), (24, 0), (0, 24)] {
        let (_, world, members) = scenario(lumi * HOUR, snellius * HOUR);
        let with = simulate(&world, &members);
        let without = without_barrier(&world, &members);
        assert_eq!((with.ended, with.windows), (Ended::Target, TARGET));
        assert!(with.ends_in > without.ends_in, "{:?}", with.ends_in);
        let late = lumi.max(snellius) * HOUR;
        assert!(with.solo_windows.0 == 0, "four replicas are never solo");
        assert!(
            with.stretches[0].opens_in < late.max(HOUR),
            "who is free starts"
        );
        // Eight exchanges in a row take longer than a hundred steps.
        assert!(with.ends_in > 4 * without.ends_in, "{:?}", with.ends_in);
        assert!(with.idle_share(&members) > 0.7);
    }
}

/// What the planner makes of it: hours, and the replicas of LUMI and Snellius.
fn planned(waits: (u32, u32), steps: u64, exchange: Exchange) -> (f64, Vec<u32>) {
    let (mut snapshot, ..) = scenario(waits.0 * HOUR, waits.1 * HOUR);
    (snapshot.run.phase.steps, snapshot.policy.exchange) = (Steps(steps), exchange);
    for site in &mut snapshot.sites {
        site.limits.nodes = Some(stated(4));
    }
    let ask = Ask::new(Objective::EarliestFinish, 60 * 24 * HOUR);
    let plan = plan(&snapshot, &ask).unwrap();
    assert!(plan.exact && plan.outcome.ended == Ended::Target);
    let at = |name: &str| {
        let here = plan
            .picks
            .iter()
            .find(|p| p.candidate.site.as_str() == name);
        here.map_or(0, |p| p.terms.replicas)
    };
    let replicas = vec![at("lumi"), at("snellius")];
    (plan.outcome.ends_in.as_secs_f64() / 3600.0, replicas)
}

#[test]
fn the_planner_keeps_most_of_what_the_barrier_would_cost() {
    // In series one LUMI replica is worth its exchange, four are not.
    let (hours, replicas) = planned((0, 0), 100, Exchange::Series);
    assert!((70.0..85.0).contains(&hours), "{hours}");
    assert_eq!(replicas, [1, 4]);
    // Long phases and exchanges that overlap come within a tenth of no barrier at all: 27 h.
    let (hours, replicas) = planned((0, 0), 1000, Exchange::Overlapped);
    assert!((27.0..30.0).contains(&hours), "{hours}");
    assert_eq!(replicas, [4, 4]);
}
