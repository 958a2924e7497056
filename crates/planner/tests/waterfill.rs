//! The paper's waterfill on its own two sites.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{HOUR, LUMI, MINUTE, SNELLIUS, shape, snapshot, stated};
use hansa_base::Windows;
use hansa_planner::{Budget, Exclusion, Lost, Request, Snapshot, Waterfill, waterfill};

/// A unit is a round of the base phase at Snellius: 3,200 windows, 35.6 s there, 83.8 s at LUMI.
fn plan(snapshot: &Snapshot, units: u64) -> Waterfill {
    let windows_per_unit = Windows(3200);
    let plan = waterfill(
        snapshot,
        Request {
            units,
            windows_per_unit,
        },
    );
    let placed: u64 = plan.shares.iter().map(|s| s.units).sum();
    assert_eq!(placed + plan.left, units, "units sum to the request");
    for share in &plan.shares {
        assert!(
            share.walltime <= share.candidate.shape.walltime,
            "{share:#?}"
        );
    }
    plan
}

fn two_sites(wait_snellius: Duration, wait_lumi: Duration) -> Snapshot {
    snapshot(vec![
        SNELLIUS.with(&[shape("h100-8h", 4, 8 * HOUR, wait_snellius)]),
        LUMI.with(&[shape("g-8h", 8, 8 * HOUR, wait_lumi)]),
    ])
}

fn units(plan: &Waterfill) -> Vec<(&str, u64)> {
    let shares = plan.shares.iter();
    shares
        .map(|s| (s.candidate.site.as_str(), s.units))
        .collect()
}

#[test]
fn free_sites_share_by_speed_and_a_late_one_gets_less() {
    // 89.8 to 38.2, and LUMI starts up 108 s later: 284 and 119, where 403·89.8/128 is 282.7.
    let free = plan(&two_sites(Duration::ZERO, Duration::ZERO), 403);
    assert_eq!(units(&free), [("snellius", 284), ("lumi", 119)]);
    // After two hours Snellius alone has done 199.
    let late = plan(&two_sites(Duration::ZERO, 2 * HOUR), 403);
    assert_eq!(units(&late), [("snellius", 344), ("lumi", 59)]);
    assert!(late.done_in > free.done_in);
    let level = late.level_in.unwrap();
    assert!(level <= late.done_in && late.done_in < level + 2 * MINUTE);
}

#[test]
fn a_job_is_no_longer_than_the_shape_that_was_probed() {
    // A probe for eight hours says nothing about twelve: Snellius is full at 805 units, LUMI at 341.
    let plan = plan(&two_sites(Duration::ZERO, Duration::ZERO), 2000);
    assert_eq!(units(&plan), [("snellius", 805), ("lumi", 341)]);
    assert_eq!((plan.left, plan.level_in), (854, None));
}

#[test]
fn the_walltime_asked_for_is_what_is_needed_and_the_reserve() {
    let mut two = two_sites(Duration::ZERO, 99 * HOUR);
    let share = plan(&two, 100).shares.remove(0);
    // 108 s + 100 · 35.6 s = 61 minutes and a bit.
    assert_eq!((share.walltime, share.units), (62 * MINUTE, 100));
    assert!((share.gpu_hours - 62.0 / 60.0 * 4.0).abs() < 1e-9);
    two.policy.reserve = HOUR;
    assert_eq!(plan(&two, 100).shares[0].walltime, 122 * MINUTE);
    // The reserve also comes off what a job can hold: (8 h − 1 h − 108 s) / 35.6 s.
    two.sites.truncate(1);
    assert_eq!(units(&plan(&two, 9999)), [("snellius", 704)]);
}

#[test]
fn a_budget_is_never_overspent() {
    let mut two = two_sites(Duration::ZERO, 99 * HOUR);
    two.sites[0].budget = Some(Budget {
        gpu_hours: stated(10.0),
        keep_gpu_hours: 2.0,
        ends: None,
    });
    two.sites.truncate(1);
    let plan = plan(&two, 9999);
    assert!(
        plan.shares[0].gpu_hours <= 8.0,
        "{}",
        plan.shares[0].gpu_hours
    );
    assert_eq!(units(&plan), [("snellius", 199)], "two hours less start-up");
}

#[test]
fn what_was_not_used_says_why() {
    let shapes = [
        shape("soon-1h", 4, HOUR, Duration::ZERO),
        shape("late-8h", 4, 8 * HOUR, 20 * HOUR),
    ];
    let mut two = snapshot(vec![
        SNELLIUS.with(&shapes),
        LUMI.with(&[shape("g-8h", 8, 8 * HOUR, 9 * HOUR)]),
    ]);
    let soon = plan(&two, 50);
    let reasons: Vec<&Lost> = soon.passed_over.iter().map(|p| &p.reason).collect();
    assert!(
        matches!(reasons[0], Lost::ToShape { units: 50, .. }),
        "{reasons:?}"
    );
    assert!(matches!(reasons[1], Lost::TooLate { .. }), "{reasons:?}");

    two.policy.units_min = 99;
    let fewer = plan(&two, 100);
    assert_eq!(
        units(&fewer),
        [("lumi", 100)],
        "an hour holds 97 units, below the minimum"
    );
    let reason = &fewer.excluded[0].reason;
    assert_eq!(
        reason.to_string(),
        "a job would hold 97 units; 99 are worth one"
    );
    assert!(matches!(
        reason,
        Exclusion::TooFewUnits { units: 97, min: 99 }
    ));
}

#[test]
fn equal_snapshots_give_equal_plans() {
    let two = two_sites(HOUR, Duration::ZERO);
    assert_eq!(plan(&two, 777), plan(&two.clone(), 777));
    assert!(plan(&two, 0).shares.is_empty());
}
