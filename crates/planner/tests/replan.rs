//! A plan made again: kept, changed, and what would change it; and what is worth making one again for.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{HOUR, LUMI, MINUTE, NOW, SNELLIUS, shape, snapshot};
use hansa_base::Windows;
use hansa_planner::{
    Answer, Ask, ChainPolicy, Change, Flip, Held, HeldPick, Job, JobState, News, Objective,
    Quantile, Snapshot, Verdict, WallMs, news, plan, replan, sensitivity,
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
    let kept = replan(&calm, &ask(), &first.held(), 0.25).unwrap();
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
    let eager = replan(&calm, &ask(), &first.held(), 0.01).unwrap();
    assert!(matches!(eager.verdict, Verdict::Changed { gain } if gain > 0.01));
    assert_eq!(eager.plan.picks[0].candidate.shape.name, "h100-1h".into());

    // And if nothing has changed nothing does, whatever the margin.
    let same = replan(&queues(HOUR, 50 * HOUR), &ask(), &first.held(), 0.0).unwrap();
    assert!(matches!(same.verdict, Verdict::Kept { gain: 0.0, .. }));
    assert_eq!(same.plan.outcome, first.outcome);
}

#[test]
fn a_plan_that_cannot_be_followed_is_left() {
    let first = plan(&queues(HOUR, 2 * HOUR), &ask()).unwrap();
    let mut down = queues(HOUR, 2 * HOUR);
    down.sites[0].shapes[0].probe.as_mut().unwrap().value = Answer::Refused("DOWN".to_owned());
    let gone = replan(&down, &ask(), &first.held(), 0.5).unwrap();
    assert_eq!(
        gone.verdict.to_string(),
        "changed: h100-8h at snellius cannot be used as planned any more"
    );
    assert_eq!(gone.plan.picks[0].candidate.shape.name, "h100-1h".into());

    let soon = Ask {
        deadline: 12 * HOUR,
        ..ask()
    };
    let late = replan(&queues(11 * HOUR, 10 * MINUTE), &soon, &first.held(), 0.9).unwrap();
    assert_eq!(late.verdict, Verdict::Rescued);
}

#[test]
fn a_cheaper_plan_needs_time_to_spare() {
    let cheapest = Ask {
        deadline: 40 * HOUR,
        ..Ask {
            objective: Objective::FewestGpuHours,
            ..ask()
        }
    };
    // One job of eight hours costs fewer start-ups than jobs of one hour, but waits long.
    let short = plan(&queues(200 * HOUR, 5 * MINUTE), &cheapest).unwrap();
    assert_eq!(short.picks[0].candidate.shape.name, "h100-1h".into());
    let again = |wait| replan(&queues(wait, 5 * MINUTE), &cheapest, &short.held(), 0.02).unwrap();
    let early = again(20 * HOUR);
    assert!(
        matches!(early.verdict, Verdict::Changed { .. }),
        "{early:?}"
    );
    // It ends half an hour before the deadline: the next delay would bring the dear one back.
    let nearly = 34 * HOUR + 40 * MINUTE;
    let best = plan(&queues(nearly, 5 * MINUTE), &cheapest).unwrap();
    assert_eq!(best.picks[0].candidate.shape.name, "h100-8h".into());
    let close = again(nearly);
    assert!(
        matches!(close.verdict, Verdict::TooClose { .. }),
        "{close:?}"
    );
    assert_eq!(close.plan.picks[0].candidate.shape.name, "h100-1h".into());
    let lost = close.plan.alternatives.iter().map(|a| a.why.to_string());
    assert!(
        lost.into_iter()
            .any(|why| why.starts_with("is better, but"))
    );
    // But who misses the deadline is left for whoever reaches it.
    let late = replan(
        &queues(39 * HOUR, 5 * MINUTE),
        &cheapest,
        &early.plan.held(),
        0.05,
    );
    assert_eq!(late.unwrap().verdict, Verdict::Rescued);
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
    // Overdue, it is counted on after as long again, and never later than a new one.
    for (minutes_ago, starts_in) in [(60, 0), (61, 1), (80, 20), (120, 60), (600, 60)] {
        running.sites[0].jobs = vec![waiting("h100-8h", minutes_ago * MINUTE)];
        let pending = hansa_planner::plan(&running, &ask()).unwrap();
        let first = pending.members[0].first;
        assert_eq!(first.starts_in, starts_in * MINUTE, "{minutes_ago}");
    }

    // A job and its shape, excluded for the same reason, are told once; and nothing is 0, not −0.
    let mut down = running.clone();
    down.sites[0].shapes[0].rate = None;
    down.sites[0].rate = None;
    let blind = hansa_planner::plan(&down, &ask()).unwrap();
    let told = |e: &&hansa_planner::Excluded| e.shape == "h100-8h".into();
    assert_eq!(blind.excluded.iter().filter(told).count(), 1);
    assert!(plan_of_nobody().outcome.gpu_hours(&[]).is_sign_positive());

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

fn plan_of_nobody() -> hansa_planner::Plan {
    let nobody = snapshot(Vec::new());
    plan(&nobody, &ask()).unwrap()
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

/// A job in a shape, in the queue since so long.
fn waiting(shape: &str, since: Duration) -> Job {
    let submitted = WallMs(NOW.0 - since.as_millis() as u64);
    Job {
        shape: shape.into(),
        state: JobState::Pending { submitted },
    }
}

fn running(shape: &str, since: Duration) -> Job {
    let started = WallMs(NOW.0 - since.as_millis() as u64);
    Job {
        shape: shape.into(),
        state: JobState::Running { started },
    }
}

/// One replica at Snellius in this shape.
fn one(shape: &str) -> Held {
    let mut first = plan(&queues(HOUR, 50 * HOUR), &ask()).unwrap().held();
    first.picks = vec![HeldPick {
        site: "snellius".parse().unwrap(),
        shape: shape.into(),
        replicas: 1,
        chain: ChainPolicy::Ahead,
    }];
    first
}

#[test]
fn a_queue_that_fills_up_moves_the_plan_and_takes_back_what_waits() {
    // The job has waited for longer than it was to, and a new one would wait for two days.
    let mut full = queues(50 * HOUR, 10 * MINUTE);
    full.sites[0].jobs = vec![waiting("h100-8h", 60 * HOUR)];
    let moved = replan(&full, &ask(), &one("h100-8h"), 0.1).unwrap();
    assert!(
        matches!(moved.verdict, Verdict::Changed { gain } if gain > 0.1),
        "{}",
        moved.verdict
    );
    let pick = &moved.plan.picks[0];
    assert_eq!(pick.candidate.shape.name, "h100-1h".into());
    assert_eq!(
        (pick.terms.replicas, pick.already),
        (1, 0),
        "what waits is of another shape"
    );
    let waits = moved.plan.members.iter().filter(|m| !m.first.paid).count();
    assert_eq!(waits, 1, "and is no member any more");

    // If it is due in ten minutes, it is kept.
    full.sites[0].jobs = vec![waiting("h100-8h", 50 * HOUR - 10 * MINUTE)];
    let kept = replan(&full, &ask(), &one("h100-8h"), 0.1).unwrap();
    assert!(
        matches!(kept.verdict, Verdict::Kept { .. }),
        "{}",
        kept.verdict
    );
    assert_eq!(kept.plan.picks[0].already, 1);
    assert_eq!(kept.plan.members[0].first.starts_in, 10 * MINUTE);
}

#[test]
fn a_site_that_is_lost_moves_the_plan_at_once_and_its_running_job_stays() {
    let mut shut = queues(HOUR, HOUR);
    shut.sites[0].jobs = vec![running("h100-8h", HOUR)];
    for state in &mut shut.sites[0].shapes {
        state.shut = Some(common::stated("the site's queue is paused".to_owned()));
    }
    let lost = replan(&shut, &ask(), &one("h100-8h"), 1e9).unwrap();
    assert!(
        matches!(lost.verdict, Verdict::Gone { .. }),
        "{}",
        lost.verdict
    );
    assert!(
        lost.plan
            .picks
            .iter()
            .all(|p| p.candidate.site.as_str() != "snellius")
    );
    let there = &lost.plan.members[0];
    assert_eq!(
        (there.site, there.first.paid, there.first.ends_in),
        (0, true, 7 * HOUR)
    );
}

#[test]
fn a_job_that_runs_keeps_its_place_and_another_shape_follows_it() {
    let mut busy = queues(HOUR, 5 * MINUTE);
    busy.run.target = Windows(2_000_000);
    busy.sites[0].jobs = vec![running("h100-8h", 7 * HOUR)];
    let held = replan(&busy, &ask(), &one("h100-1h"), 1e9).unwrap();
    let [there, next, ..] = &held.plan.members[..] else {
        panic!("{:?}", held.plan.members)
    };
    assert_eq!((there.first.ends_in, there.first.paid), (HOUR, true));
    assert_eq!((next.first.starts_in, next.walltime), (HOUR, HOUR));
    assert_eq!(held.plan.picks[0].already, 1);
    // Under a limit of one job there is room for it all the same.
    busy.sites[0].limits.jobs = Some(common::stated(1));
    let chained = plan(&busy, &ask()).unwrap();
    let here = chained
        .picks
        .iter()
        .find(|p| p.candidate.site.as_str() == "snellius");
    assert_eq!(here.unwrap().terms.replicas, 1);
}

#[test]
fn what_happened_is_told_and_what_is_small_is_not() {
    let before = queues(HOUR, 10 * MINUTE);
    assert_eq!(news(&before, &before), []);
    let probe = |snapshot: &mut Snapshot, wait: Duration| {
        let probe = snapshot.sites[0].shapes[0].probe.as_mut().unwrap();
        probe.value = Answer::StartsAt(probe.at.after(wait));
    };
    let mut after = before.clone();
    probe(&mut after, HOUR + 10 * MINUTE);
    assert_eq!(news(&before, &after), [], "a sixth more");
    probe(&mut after, 2 * HOUR);
    after.sites[0].jobs = vec![running("h100-1h", MINUTE)];
    after.sites[1].shapes[0].shut = Some(common::stated("drained".to_owned()));
    after.sites[1].startup = common::cost(900.0);
    let texts: Vec<String> = news(&before, &after).iter().map(News::to_string).collect();
    assert_eq!(
        texts,
        [
            "a job in h100-1h at snellius has started",
            "h100-8h at snellius would wait 2 h, not 60 min",
            "g-8h at lumi cannot be used: drained",
            "speed, start-up or transfer at lumi have changed",
        ]
    );
    let ended = news(&after, &before);
    assert!(
        ended.iter().any(|n| matches!(n, News::Ended { .. })),
        "{ended:?}"
    );
    let mut fewer = before.clone();
    fewer.sites.pop();
    assert_eq!(news(&before, &fewer), [News::Sites]);
}

#[test]
fn a_place_in_a_queue_that_costs_nothing_is_not_given_up_for_a_prediction() {
    let mut full = queues(50 * HOUR, 10 * MINUTE);
    full.sites[1].jobs = vec![waiting("g-8h", HOUR)];
    let mut both = one("h100-8h");
    both.picks.push(HeldPick {
        site: "lumi".parse().unwrap(),
        shape: "g-8h".into(),
        replicas: 1,
        chain: ChainPolicy::Ahead,
    });
    let moved = replan(&full, &ask(), &both, 0.1).unwrap();
    assert!(
        matches!(moved.verdict, Verdict::Changed { .. }),
        "{}",
        moved.verdict
    );
    let picks: Vec<(&str, &str, u32)> = (moved.plan.picks.iter())
        .map(|pick| {
            let (site, shape) = (&pick.candidate.site, &pick.candidate.shape.name);
            (site.as_str(), shape.0.as_str(), pick.already)
        })
        .collect();
    assert_eq!(picks, [("snellius", "h100-1h", 0), ("lumi", "g-8h", 1)]);
    let again = replan(&full, &ask(), &both, 0.1).unwrap();
    assert_eq!(again, moved, "the same input, the same plan");
    // A job that would have to be submitted first is none that waits.
    full.sites[1].jobs.clear();
    let moved = replan(&full, &ask(), &both, 0.1).unwrap();
    assert_eq!(moved.plan.picks.len(), 1);
}
