//! A shape is used only if every number about it is there and fresh; else it says what is missing.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{HOUR, LUMI, MINUTE, NOW, SNELLIUS, shape, snapshot, stated};
use hansa_planner::{
    Answer, Basis, Budget, Closed, Cost, Exclusion, Job, JobState, RateOf, ShapeState, Site,
    WallMs, WindowsPerGpuS, candidates,
};

/// Changes one thing at Snellius; the reason for excluding its only shape.
fn reason(change: impl FnOnce(&mut Site)) -> Exclusion {
    let mut site = SNELLIUS.with(&[shape("h100-8h", 4, 8 * HOUR, HOUR)]);
    change(&mut site);
    let (fit, excluded) = candidates(&snapshot(vec![site]));
    assert!(fit.is_empty(), "{fit:#?}");
    excluded[0].reason.clone()
}

#[test]
fn what_is_missing_is_named_with_the_line_that_would_mend_it() {
    let never = reason(|site| site.shapes[0].probe = None);
    assert_eq!(never.to_string(), "never probed");
    let name = "h100-8h".into();
    let fix = never.fix(&name).unwrap();
    assert_eq!(fix, "[watch] probe_every_s = 600");

    let old = reason(|site| site.shapes[0].probe.as_mut().unwrap().at.0 -= 7 * 3_600_000);
    let text = "its newest probe is 7 h 10 min old; at most 6 h is used";
    assert_eq!(old.to_string(), text);
    assert_eq!(old.fix(&name).unwrap(), "[watch] probe_every_s = 600");

    let slow = reason(|site| site.rate = None);
    assert_eq!(slow, Exclusion::NoRate);
    let fix = slow.fix(&name).unwrap();
    assert_eq!(
        fix,
        "[[shape]] name = \"h100-8h\", windows_per_gpu_s = MEASURED"
    );

    let long = reason(|site| {
        let queue = site.partitions.values_mut().next().unwrap();
        queue.walltime_max = Some(stated(5 * HOUR));
    });
    assert_eq!(
        long.to_string(),
        "it asks for 8 h; the partition grants 5 h"
    );
    assert_eq!(
        long.fix(&name).unwrap(),
        "[[shape]] name = \"h100-8h\", walltime = \"05:00:00\""
    );

    assert_eq!(
        reason(|site| site.startup = Cost::UNKNOWN),
        Exclusion::NoStartup
    );
}

#[test]
fn refusals_and_limits_are_reasons_too() {
    let words = "Job violates accounting/QOS policy";
    let refused = |site: &mut Site| {
        site.shapes[0].probe.as_mut().unwrap().value = Answer::Refused(words.to_owned());
    };
    assert!(reason(refused).to_string().ends_with(words));

    let running = Job {
        shape: "h100-8h".into(),
        state: JobState::Running {
            started: WallMs(NOW.0 - 1),
        },
    };
    let full = |site: &mut Site| {
        site.jobs = vec![running.clone()];
        site.limits.nodes = Some(stated(1));
    };
    let expected = Exclusion::OverNodeLimit {
        nodes: 1,
        free: 0,
        limit: 1,
    };
    assert_eq!(reason(full), expected);
    let jobs = |site: &mut Site| {
        site.jobs = vec![running.clone()];
        site.limits.jobs = Some(stated(1));
    };
    assert_eq!(reason(jobs), Exclusion::OverJobLimit { limit: 1 });
}

#[test]
fn an_allocation_that_is_spent_or_over_is_not_planned_with() {
    let budget = |gpu_hours, ends_in: Duration| Budget {
        gpu_hours: stated(gpu_hours),
        keep_gpu_hours: 10.0,
        ends: Some(stated(NOW.after(ends_in))),
    };
    let spent = reason(|site| site.budget = Some(budget(10.1, 99 * HOUR)));
    let text = "the budget has 0.1 GPU-hours left";
    assert_eq!(
        spent.to_string(),
        text,
        "108 s of start-up on four GPUs cost more"
    );
    let over = reason(|site| site.budget = Some(budget(500.0, HOUR)));
    assert_eq!(over, Exclusion::AllocationEnds { ends_in: HOUR });

    // Three hours are left after an hour in the queue: the job is cut to them.
    let mut site = SNELLIUS.with(&[shape("h100-8h", 4, 8 * HOUR, HOUR)]);
    site.budget = Some(budget(500.0, 4 * HOUR));
    let (fit, _) = candidates(&snapshot(vec![site]));
    assert_eq!(fit[0].walltime, 3 * HOUR);
    assert_eq!(fit[0].spendable_gpu_s, Some(490.0 * 3600.0));
}

#[test]
fn maintenance_moves_the_job_that_would_meet_it() {
    let shapes: [ShapeState; 2] = [
        shape("8h", 4, 8 * HOUR, HOUR),
        shape("2h", 4, 2 * HOUR, HOUR),
    ];
    let mut site = SNELLIUS.with(&shapes);
    let closed = |from: u32, until: u32| {
        stated(Closed {
            from: NOW.after(from * HOUR),
            until: NOW.after(until * HOUR),
        })
    };
    // In an order that no list of reservations promises.
    site.closed = vec![closed(12, 14), closed(4, 6)];
    let (fit, _) = candidates(&snapshot(vec![site]));
    assert_eq!(
        fit[0].starts_in,
        14 * HOUR,
        "6 + 8 would run into the second"
    );
    assert_eq!(
        fit[0].moved_by.as_ref().unwrap().value.until,
        NOW.after(14 * HOUR)
    );
    assert_eq!(fit[1].starts_in, HOUR, "it is over before the first");
    assert_eq!(fit[1].moved_by, None);
}

#[test]
fn every_number_says_where_it_comes_from() {
    let mut own = shape("own", 4, HOUR, HOUR);
    own.rate = Some(stated(WindowsPerGpuS(20.0)));
    let mut site = LUMI.with(&[own, shape("any", 8, HOUR, HOUR)]);
    site.transfer = Cost::UNKNOWN;
    site.partitions.clear();
    let (fit, _) = candidates(&snapshot(vec![site]));
    assert_eq!(
        (fit[0].speed.rate.value.0, fit[0].speed.rate_of),
        (20.0, RateOf::ThisShape)
    );
    assert_eq!(fit[1].speed.rate_of, RateOf::AnyShape);
    assert_eq!(fit[0].wait.basis, Basis::Undiscounted { pairs: 0 });
    let raw = &fit[0].wait.raw;
    assert_eq!(
        raw.value, HOUR,
        "as asked: ten minutes of age do not shorten it"
    );
    assert_eq!(raw.provenance(NOW), "probe by anna/acc1; 10 min old");
    assert_eq!(
        fit[0].speed.exchange,
        Err(Exclusion::NoTransfer),
        "the waterfill needs none"
    );
}

#[test]
fn numbers_that_cannot_be_are_refused_by_name() {
    let good = snapshot(vec![SNELLIUS.with(&[shape("a", 4, HOUR, HOUR)])]);
    assert_eq!(good.validate(), Ok(()));
    let mut bad = good.clone();
    bad.sites[0].rate = Some(stated(WindowsPerGpuS(f64::NAN)));
    let error = bad.validate().unwrap_err().to_string();
    assert!(
        error.contains("site snellius: rate of any shape is NaN"),
        "{error}"
    );
    let mut bad = good.clone();
    bad.sites[0].partitions.values_mut().next().unwrap().usage = Some(stated(1.2));
    let error = bad.validate().unwrap_err().to_string();
    assert!(error.contains("must lie between 0 and 1"), "{error}");
    let mut bad = good.clone();
    bad.run.phase.steps.0 = 0;
    let error = bad.validate().unwrap_err().to_string();
    assert!(error.contains("run.phase.steps"), "{error}");
    for (nodes, minutes, named) in [(0, 60, "nodes of a"), (1, 0, "walltime in minutes of a")] {
        let mut bad = good.clone();
        bad.sites[0].shapes[0].shape.nodes = nodes;
        bad.sites[0].shapes[0].shape.walltime = minutes * MINUTE;
        let error = bad.validate().unwrap_err().to_string();
        assert!(
            error.contains(&format!("{named} is 0, but must be at least 1")),
            "{error}"
        );
    }
}

#[test]
fn what_is_listed_twice_is_refused() {
    let good = snapshot(vec![SNELLIUS.with(&[shape("a", 4, HOUR, HOUR)])]);
    let mut twice = good.clone();
    twice.sites.push(twice.sites[0].clone());
    let error = twice.validate().unwrap_err().to_string();
    assert!(error.contains("entries of site snellius is 2"), "{error}");
    let mut twice = good;
    let again = twice.sites[0].shapes[0].clone();
    twice.sites[0].shapes.push(again);
    let error = twice.validate().unwrap_err().to_string();
    assert!(error.contains("site snellius: shape a is 2"), "{error}");
}
