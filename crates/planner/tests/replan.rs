//! A plan made again: kept, changed, and what would change it.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{HOUR, LUMI, MINUTE, NOW, SNELLIUS, shape, snapshot};
use hansa_base::Windows;
use hansa_planner::{
    Answer, Ask, Change, Flip, Job, JobState, Objective, Quantile, Snapshot, Verdict, WallMs, plan,
    replan, sensitivity,
};

/// Snellius in jobs of eight hours and of one, which wait so long.
fn queues(long: Duration, short: Duration) -> Snapshot {
    let shapes = [
        shape("h100-8h", 4, 8 * HOUR, long),
        shape("h100-1h", 4, HOUR, short),
    ];
    let mut snapshot = snapshot(vec![
        SNELLIUS.with(&shapes),
        LUMI.with(&[shape("g-8h", 8, 8 * HOUR, 30 * HOUR)]),
    ]);
    snapshot.run.target = Windows(488_281);
    snapshot
}

fn ask() -> Ask {
    Ask {
        replicas_max: 1,
        ..Ask::new(Objective::EarliestFinish, 240 * HOUR)
    }
}

#[test]
fn a_plan_changes_only_for_more_than_the_margin() {
    let first = plan(&queues(HOUR, 50 * HOUR), &ask()).unwrap();
    assert_eq!(first.picks[0].candidate.shape.name, "h100-8h".into());

    // The short queue is better now, by less than an hour of nearly six.
    let calm = queues(HOUR, 5 * MINUTE);
    let kept = replan(&calm, &ask(), &first, 0.25).unwrap();
    assert!(matches!(kept.verdict, Verdict::Kept { gain, .. } if gain > 0.0 && gain < 0.25));
    assert_eq!(
        kept.plan.picks, first.picks,
        "the same, on what is known now"
    );
    assert!(
        kept.verdict
            .to_string()
            .starts_with("kept: the best plan gains")
    );
    let eager = replan(&calm, &ask(), &first, 0.01).unwrap();
    assert!(matches!(eager.verdict, Verdict::Changed { gain } if gain > 0.01));
    assert_eq!(eager.plan.picks[0].candidate.shape.name, "h100-1h".into());

    // And if nothing has changed nothing does, whatever the margin.
    let same = replan(&queues(HOUR, 50 * HOUR), &ask(), &first, 0.0).unwrap();
    assert!(matches!(same.verdict, Verdict::Kept { gain: 0.0, .. }));
    assert_eq!(same.plan.outcome, first.outcome);
}

#[test]
fn a_plan_that_cannot_be_followed_is_left() {
    let first = plan(&queues(HOUR, 2 * HOUR), &ask()).unwrap();
    let mut down = queues(HOUR, 2 * HOUR);
    down.sites[0].shapes[0].probe.as_mut().unwrap().value = Answer::Refused("DOWN".to_owned());
    let gone = replan(&down, &ask(), &first, 0.5).unwrap();
    assert_eq!(
        gone.verdict.to_string(),
        "changed: h100-8h at snellius cannot be used as planned any more"
    );
    assert_eq!(gone.plan.picks[0].candidate.shape.name, "h100-1h".into());

    let soon = Ask {
        deadline: 12 * HOUR,
        ..ask()
    };
    let late = replan(&queues(11 * HOUR, 10 * MINUTE), &soon, &first, 0.9).unwrap();
    assert_eq!(late.verdict, Verdict::Rescued);
}

#[test]
fn jobs_that_are_there_are_counted_and_not_touched() {
    let mut running = queues(HOUR, 50 * HOUR);
    let started = WallMs(NOW.0 - 3_600_000);
    running.sites[0].jobs = vec![Job {
        shape: "h100-8h".into(),
        state: JobState::Running { started },
    }];
    let plan = plan(&running, &ask()).unwrap();
    let there = &plan.members[0];
    assert!(there.first.paid);
    assert_eq!(
        (there.first.ready_in, there.first.ends_in),
        (Duration::ZERO, 7 * HOUR)
    );
    assert_eq!(plan.outcome.members[0].jobs, 1);

    // Submitted half an hour ago with an hour to wait.
    let submitted = WallMs(NOW.0 - 1_800_000);
    running.sites[0].jobs[0].state = JobState::Pending { submitted };
    let pending = hansa_planner::plan(&running, &ask()).unwrap();
    assert_eq!(pending.members[0].first.starts_in, 30 * MINUTE);

    // One whose shape has left the profile runs on, but nothing is known of it.
    running.sites[0].jobs[0].shape = "old".into();
    let blind = hansa_planner::plan(&running, &ask()).unwrap();
    let unknown = blind
        .excluded
        .iter()
        .find(|e| e.shape == "old".into())
        .unwrap();
    assert_eq!(
        unknown.reason.to_string(),
        "the site's profile has no such shape"
    );
}

#[test]
fn what_flips_a_plan_is_named() {
    // A good usage makes the long queue's raw wait of two hours look like one.
    let mut close = queues(2 * HOUR, 70 * MINUTE);
    for queue in close.sites[0].partitions.values_mut() {
        queue.usage.as_mut().unwrap().value = 0.0;
    }
    let current = plan(&close, &ask()).unwrap();
    let flips = sensitivity(&close, &ask(), &current).unwrap();
    let of = |change: &Change| -> &Flip { flips.iter().find(|f| f.change == *change).unwrap() };
    assert!(
        flips.iter().all(|f| f.change != Change::Strength(0.5)),
        "that is the plan"
    );
    let lost = of(&Change::SiteLost("snellius".parse().unwrap()));
    assert!(lost.flips);
    assert_eq!(lost.plan.picks[0].candidate.site.as_str(), "lumi");
    let cautious = of(&Change::Quantile(Quantile::P90));
    assert!(cautious.plan.outcome.ends_in > current.outcome.ends_in);
    for change in [Change::StartupDoubled, Change::TransferDoubled] {
        assert!(
            of(&change).plan.outcome.ends_in > current.outcome.ends_in,
            "{change}"
        );
    }
    assert_eq!(flips, sensitivity(&close, &ask(), &current).unwrap());
}
