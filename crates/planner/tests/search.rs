//! Decisions on the paper's two sites and on many made-up ones.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{HOUR, LUMI, SNELLIUS, SiteOf, shape, snapshot, stated};
use hansa_base::Windows;
use hansa_planner::{
    Ask, Budget, ChainPolicy, Cost, Ended, Exclusion, Job, JobState, Objective, Plan, Site,
    Snapshot, Trap, Unplannable, WallMs, Why, plan,
};

use proptest::prelude::*;

fn both(wait_snellius: Duration, wait_lumi: Duration) -> Snapshot {
    let mut both = snapshot(vec![
        SNELLIUS.with(&[shape("h100-8h", 4, 8 * HOUR, wait_snellius)]),
        LUMI.with(&[shape("g-8h", 8, 8 * HOUR, wait_lumi)]),
    ]);
    // A billion tokens: some five hours of Snellius alone.
    both.run.target = Windows(488_281);
    both
}

/// One replica at a site, the recipe's accumulation, ten days.
fn ask(objective: Objective) -> Ask {
    Ask {
        replicas_max: 1,
        accumulation_max: 1,
        ..Ask::new(objective, 240 * HOUR)
    }
}

/// Checks what holds for every plan, and returns it.
fn decide(snapshot: &Snapshot, ask: &Ask) -> Plan {
    snapshot.validate().unwrap();
    let plan = plan(snapshot, ask).unwrap();
    assert_eq!(
        plan,
        hansa_planner::plan(snapshot, ask).unwrap(),
        "same input"
    );
    assert!(plan.outcome.ends_in <= ask.deadline);
    for (i, site) in snapshot.sites.iter().enumerate() {
        let members = plan.members.iter().zip(&plan.outcome.members);
        let here = members.filter(|(m, _)| m.site == i && !m.first.paid);
        let gpu_s: f64 = here
            .map(|(m, t)| t.billed.as_secs_f64() * m.all_gpus())
            .sum();
        let nodes = |p: &&hansa_planner::Pick| p.candidate.site_index == i;
        let picks = plan.picks.iter().filter(nodes);
        let nodes: u32 = picks
            .map(|p| p.terms.replicas * p.candidate.shape.nodes)
            .sum();
        if let Some(limit) = &site.limits.nodes {
            assert!(nodes + site.taken().0 <= limit.value);
        }
        if let Some(budget) = &site.budget {
            assert!(gpu_s <= budget.spendable_gpu_s() + 1e-6);
        }
    }
    let sum: u64 = plan.outcome.members.iter().map(|m| m.windows.0).sum();
    assert_eq!(sum, plan.outcome.windows.0, "windows sum");
    for pick in &plan.picks {
        let candidate = &pick.candidate;
        assert!(pick.terms.replicas <= ask.replicas_max);
        assert!(candidate.walltime <= candidate.shape.walltime);
        let queue = snapshot.sites[candidate.site_index].partition(&candidate.shape.partition);
        if let Some(cap) = queue.and_then(|queue| queue.walltime_max.as_ref()) {
            assert!(candidate.walltime <= cap.value);
        }
    }
    let parts = plan.outcome.stretches.iter().flat_map(|s| &s.parts);
    assert!(
        parts
            .clone()
            .all(|p| p.accumulation <= ask.accumulation_max)
    );
    plan
}

/// The sites picked, and the largest accumulation of each.
fn picked(plan: &Plan) -> Vec<(&str, u32)> {
    let there = plan.members.len() - plan.picks.len();
    let picks = plan.picks.iter().zip(there..);
    let largest = |i: usize| {
        let parts = plan.outcome.stretches.iter().flat_map(|s| &s.parts);
        parts
            .filter(|p| p.member == i)
            .map(|p| p.accumulation)
            .max()
    };
    let accumulation = |i| largest(i).unwrap_or(0);
    picks
        .map(|(p, i)| (p.candidate.site.as_str(), accumulation(i)))
        .collect()
}

#[test]
fn a_slow_site_is_left_out_until_accumulation_fills_the_barrier() {
    let free = both(Duration::ZERO, Duration::ZERO);
    // Alone 3,200 windows in 111.6 s; together 9,600 in 347.0 s: 28.7/s against 27.7/s.
    let alone = decide(&free, &ask(Objective::EarliestFinish));
    assert!(alone.exact);
    assert_eq!(picked(&alone), [("snellius", 1)]);
    assert_eq!(alone.outcome.solo_windows, free.run.target);
    let lumi = alone
        .alternatives
        .iter()
        .find(|a| a.site.as_str() == "lumi")
        .unwrap();
    assert!(
        matches!(lumi.why, Why::SlowsOthers { .. }),
        "{:?}",
        lumi.why
    );
    let text = lumi.why.to_string();
    assert!(
        text.starts_with("slows the others: rounds of 5 min 46 s for 111 s"),
        "{text}"
    );

    // With five micro-batches a step at Snellius: 22,400 windows in 357 s.
    let more = Ask {
        accumulation_max: 8,
        ..ask(Objective::EarliestFinish)
    };
    let filled = decide(&free, &more);
    assert_eq!(picked(&filled), [("snellius", 5), ("lumi", 1)]);
    assert!(filled.outcome.ends_in < alone.outcome.ends_in);
    let reason = |site: &str| {
        let mut lost = filled.alternatives.iter().filter(|a| a.shape.is_none());
        lost.find(|a| a.site.as_str() == site).unwrap().why.clone()
    };
    assert!(matches!(
        reason("lumi"),
        Why::Later { .. } | Why::CannotBeBetter
    ));
}

#[test]
fn federating_can_be_worth_something_in_itself() {
    let free = both(Duration::ZERO, Duration::ZERO);
    let federal = Ask {
        solo_penalty: 0.2,
        ..ask(Objective::EarliestFinish)
    };
    assert_eq!(
        picked(&decide(&free, &federal)),
        [("snellius", 1), ("lumi", 1)]
    );
}

#[test]
fn the_objective_decides() {
    let mut free = both(Duration::ZERO, 20 * HOUR);
    let soon = decide(&free, &ask(Objective::EarliestFinish));
    // LUMI's GPU-hours buy 2.4 sequences a second each, Snellius' 22.
    let cheap = decide(&free, &ask(Objective::FewestGpuHours));
    assert_eq!(
        (picked(&soon), picked(&cheap)),
        (vec![("snellius", 1)], vec![("snellius", 1)])
    );
    let why: Vec<&Why> = soon.alternatives.iter().map(|a| &a.why).collect();
    assert!(
        matches!(
            why[..],
            [
                Why::NotReached { .. } | Why::CannotBeBetter,
                Why::TooLate { .. }
            ]
        ),
        "{why:?}"
    );

    // Until a deadline before the target: whoever trains most.
    free.run.target = Windows(u64::MAX >> 12);
    free.run.corpus = free.run.target;
    let most = Ask {
        deadline: 6 * HOUR,
        accumulation_max: 8,
        ..ask(Objective::MostTokens)
    };
    let most = decide(&free, &most);
    assert_eq!(
        picked(&most),
        [("snellius", 1)],
        "LUMI comes after the deadline"
    );
    assert_eq!(most.outcome.ended, Ended::Horizon);
}

#[test]
fn walltimes_are_chained_as_far_as_the_site_allows() {
    let mut free = both(HOUR, 99 * HOUR);
    free.run.target = Windows(2_000_000);
    free.sites[1].shapes.clear();
    let chain = |free: &Snapshot| {
        let plan = decide(free, &ask(Objective::EarliestFinish));
        (
            plan.picks[0].terms.chain,
            plan.outcome.members[0].jobs,
            plan.outcome.ended,
        )
    };
    assert_eq!(chain(&free), (ChainPolicy::Ahead, 3, Ended::Target));
    free.sites[0].limits.jobs = Some(stated(1));
    assert_eq!(chain(&free), (ChainPolicy::AfterEnd, 3, Ended::Target));
    free.sites[0].chain = stated(ChainPolicy::Single);
    assert_eq!(chain(&free), (ChainPolicy::Single, 1, Ended::Nobody));
}

#[test]
fn traps_are_named() {
    // A running job of LUMI's finishes the corpus before Snellius could arrive, and the corpus is
    // smaller than the target.
    let mut late = both(30 * HOUR, 40 * HOUR);
    late.run.corpus = Windows(100_000);
    late.sites[1].jobs = vec![Job {
        shape: "g-8h".into(),
        state: JobState::Running {
            started: WallMs(common::NOW.0 - 3_600_000),
        },
    }];
    let plan = decide(&late, &ask(Objective::MostTokens));
    assert_eq!(plan.outcome.ended, Ended::Corpus);
    assert!(plan.picks.is_empty(), "what runs suffices");
    let missing = Windows(388_281);
    assert!(
        plan.traps.contains(&Trap::CorpusTooSmall { missing }),
        "{:?}",
        plan.traps
    );
    let snellius = plan
        .alternatives
        .iter()
        .find(|a| a.site.as_str() == "snellius");
    assert!(matches!(snellius.unwrap().why, Why::TooLate { .. }));

    // Two jobs that do not meet.
    let mut apart = both(12 * HOUR, Duration::ZERO);
    apart.run.target = Windows(1_400_000);
    for site in &mut apart.sites {
        site.chain = stated(ChainPolicy::Single);
    }
    let plan = decide(&apart, &ask(Objective::MostTokens));
    let trap = Trap::NeverTogether {
        a: "snellius".parse().unwrap(),
        b: "lumi".parse().unwrap(),
    };
    assert_eq!(plan.picks.len(), 2);
    assert!(plan.traps.contains(&trap), "{:?}", plan.traps);
}

#[test]
fn a_budget_keeps_a_plan_from_the_site_that_would_be_best() {
    let mut poor = both(Duration::ZERO, Duration::ZERO);
    let budget = |gpu_hours| Budget {
        gpu_hours: stated(gpu_hours),
        keep_gpu_hours: 0.0,
        ends: None,
    };
    poor.sites[0].budget = Some(budget(2.0));
    let plan = decide(&poor, &ask(Objective::EarliestFinish));
    assert_eq!(plan.outcome.ended, Ended::Target);
    assert!(picked(&plan).contains(&("lumi", 1)), "{:?}", picked(&plan));
    poor.sites[1].budget = Some(budget(0.1));
    let plan = decide(&poor, &ask(Objective::EarliestFinish));
    assert_eq!(plan.outcome.ended, Ended::Nobody);
    let reasons: Vec<String> = plan.excluded.iter().map(|e| e.reason.to_string()).collect();
    assert_eq!(reasons, ["the budget has 0.1 GPU-hours left"]);
}

#[test]
fn what_is_not_known_is_not_planned_with() {
    let mut blind = both(Duration::ZERO, Duration::ZERO);
    blind.sites[0].transfer = Cost::UNKNOWN;
    let plan = decide(&blind, &ask(Objective::EarliestFinish));
    assert_eq!(picked(&plan), [("lumi", 1)]);
    assert_eq!(plan.excluded[0].reason, Exclusion::NoTransfer);
    blind.run.merge = Cost::UNKNOWN;
    let error = hansa_planner::plan(&blind, &ask(Objective::EarliestFinish)).unwrap_err();
    assert_eq!(error, Unplannable::NoMerge);
    let nobody = decide(&snapshot(Vec::new()), &ask(Objective::EarliestFinish));
    assert_eq!(
        (nobody.picks.len(), nobody.outcome.ended),
        (0, Ended::Nobody)
    );
}

/// `sites` sites of `shapes` shapes each, all different.
fn many(sites: u32, shapes: u32) -> Snapshot {
    let site = |i: u32| {
        let shape = |j: u32| {
            let gpus = 4 + 4 * (j % 3);
            let walltime = (1 + 3 * j) * HOUR;
            let wait = Duration::from_secs(u64::from((i * 7919 + j * 104_729) % 90_000));
            shape(&format!("s{j}"), gpus, walltime, wait)
        };
        let of = SiteOf {
            name: "many",
            windows_per_gpu_s: 3.0 + f64::from(i * 5 % 11),
            startup_s: 100.0 + f64::from(i * 13 % 60),
            transfer_s: 20.0 + f64::from(i * 17 % 70),
            evaluation_s: 5.0,
        };
        let mut site = of.with(&(0..shapes).map(shape).collect::<Vec<_>>());
        site.name = format!("site{i}").parse().unwrap();
        site
    };
    let mut many = snapshot((0..sites).map(site).collect());
    many.policy.exchange = hansa_planner::Exchange::Overlapped;
    (many.run.target, many.run.corpus) = (Windows(48_828_125), Windows(48_828_125));
    many
}

#[test]
fn ten_sites_of_ten_shapes_are_bounded() {
    let many = many(10, 10);
    let ask = Ask::new(Objective::EarliestFinish, 14 * 24 * HOUR);
    let plan = decide(&many, &ask);
    assert!(!plan.exact);
    assert_eq!(plan.outcome.ended, Ended::Target);
    assert!(plan.picks.len() > 1);
    // Every shape that was not picked, and every picked site's absence, has its reason.
    assert_eq!(plan.alternatives.len(), 100);
}

#[test]
fn one_more_site_is_never_later_and_the_descent_never_beats_all_ways() {
    let ask = Ask {
        replicas_max: 1,
        simulations_max: 100_000,
        ..Ask::new(Objective::EarliestFinish, 60 * 24 * HOUR)
    };
    let mut before = Duration::MAX;
    for sites in 1..=3 {
        let some = many(sites, 3);
        let exact = decide(&some, &ask);
        assert!(exact.exact);
        assert!(exact.outcome.ends_in <= before);
        before = exact.outcome.ends_in;
        let bounded = Ask {
            simulations_max: 40,
            ..ask
        };
        let descended = decide(&some, &bounded);
        assert!(descended.outcome.ends_in >= exact.outcome.ends_in);
    }
}

/// A site of two shapes, from a handful of coarse numbers.
fn some_site() -> impl Strategy<Value = Site> {
    let one = (1..4_u32, 1..9_u64, 0..6_u64);
    let rest = (1..20_u32, 1..40_u32, prop::option::of(1..200_u32), 1..4_u32);
    ((one.clone(), one), rest).prop_map(|((a, b), (speed, transfer, budget, nodes))| {
        let of = |name: &str, (gpus, walltime, wait): (u32, u64, u64)| {
            let hours = |n: u64| Duration::from_secs(3600 * n);
            shape(name, gpus, hours(walltime), hours(wait))
        };
        let site = SiteOf {
            name: "some",
            windows_per_gpu_s: f64::from(speed),
            startup_s: 60.0,
            transfer_s: f64::from(transfer),
            evaluation_s: 0.0,
        };
        let mut site = site.with(&[of("a", a), of("b", b)]);
        site.limits.nodes = Some(stated(nodes));
        site.budget = budget.map(|gpu_hours| Budget {
            gpu_hours: stated(gpu_hours.into()),
            keep_gpu_hours: 1.0,
            ends: None,
        });
        site
    })
}

/// Sites of these, named, with a target that two days may reach or not.
fn named(sites: Vec<Site>) -> Snapshot {
    let mut snapshot = snapshot(sites);
    for (i, site) in snapshot.sites.iter_mut().enumerate() {
        site.name = format!("site{i}").parse().unwrap();
    }
    snapshot.run.target = Windows(500_000);
    snapshot
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn another_shape_at_a_site_is_never_later(
        sites in prop::collection::vec(some_site(), 1..3),
        wait in 0..30_u32,
        walltime in 1..12_u32,
        gpus in 1..5_u32,
    ) {
        let ask = Ask {
            replicas_max: 2,
            simulations_max: 1_000_000,
            ..Ask::new(Objective::EarliestFinish, 48 * HOUR)
        };
        let fewer = decide(&named(sites.clone()), &ask);
        let mut more = named(sites);
        more.sites[0].shapes.push(shape("another", gpus, walltime * HOUR, wait * HOUR));
        let more = decide(&more, &ask);
        prop_assert!(fewer.exact && more.exact);
        prop_assert!(more.outcome.windows >= fewer.outcome.windows);
        if fewer.outcome.ended == Ended::Target {
            prop_assert_eq!(more.outcome.ended, Ended::Target);
            prop_assert!(more.outcome.ends_in <= fewer.outcome.ends_in);
        }
    }

    #[test]
    fn more_free_capacity_is_never_later(
        sites in prop::collection::vec(some_site(), 1..3),
        extra in some_site(),
        objective in prop::sample::select(vec![
            Objective::EarliestFinish, Objective::MostTokens, Objective::FewestGpuHours,
        ]),
    ) {
        let ask = Ask {
            replicas_max: 3,
            simulations_max: 1_000_000,
            ..Ask::new(objective, 48 * HOUR)
        };
        let fewer = decide(&named(sites.clone()), &ask);
        let all = sites.into_iter().chain([extra]).collect();
        let more = decide(&named(all), &ask);
        prop_assert!(fewer.exact && more.exact);
        prop_assert!(more.outcome.windows >= fewer.outcome.windows);
        for pick in &more.picks {
            prop_assert!(pick.terms.replicas <= 3);
        }
        if fewer.outcome.ended == Ended::Target {
            prop_assert_eq!(more.outcome.ended, Ended::Target);
            let (few, many) = (&fewer.outcome, &more.outcome);
            match objective {
                Objective::EarliestFinish => prop_assert!(many.ends_in <= few.ends_in),
                Objective::MostTokens | Objective::FewestGpuHours => {
                    let (few, many) = (few.gpu_hours(&fewer.members), many.gpu_hours(&more.members));
                    prop_assert!(many <= few + 1e-9);
                }
            }
        }
    }
}
