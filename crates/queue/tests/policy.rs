//! When jobs are wanted, and what holds them back.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_queue::*;

/// Two jobs submitted, 11 and 12 for intents 1 and 2.
fn two_in_the_queue() -> Desk {
    let mut desk = Desk::open(profile());
    desk.say(vec![submitted(1, "11"), submitted(2, "12")]);
    desk
}

fn one(mut profile: SiteProfile) -> Desk {
    profile.wanted_jobs = 1;
    Desk::open(profile)
}

#[test]
fn another_profile_ends_a_pause_but_not_an_operators() {
    let mut desk = one(profile());
    desk.say(vec![not_submitted(1, "time-limit", true)]);
    assert!(desk.here().paused.is_some());
    let mut request = desk.request(Vec::new());
    request.profile = Some(SiteProfile {
        wanted_jobs: 1,
        preferred: "short".into(),
        ..profile()
    });
    let orders = desk.call(request).unwrap().orders;
    assert_eq!(submissions(&orders).len(), 1);

    let pause = QueueOrder::Pause {
        site: site(),
        why: "".into(),
    };
    desk.order(pause).unwrap();
    let mut request = desk.request(Vec::new());
    request.profile = Some(profile());
    desk.call(request).unwrap();
    assert_eq!(
        desk.here().paused.clone().unwrap().why.to_string(),
        "by an operator"
    );
}

#[test]
fn an_exhausted_allocation_is_called_that() {
    let mut desk = one(profile());
    desk.say(vec![not_submitted(1, "allocation-exhausted", true)]);
    assert!(
        desk.decisions()
            .contains("the allocation is exhausted: said Slurm")
    );
    // So is a job that waits for it for ever.
    let mut desk = two_in_the_queue();
    let waits = JobReport {
        reason: "AssocGrpGRESMinutes".into(),
        ..desk.job(1, "11", "PENDING")
    };
    desk.say(vec![Report::Job(waits)]);
    let why = desk.here().paused.clone().unwrap().why.to_string();
    assert!(
        why.contains("exhausted: job 11 waits with reason AssocGrpGRESMinutes"),
        "{why}"
    );
    assert!(desk.intent(1).is_live() && desk.intent(1).cancel.is_none());
}

#[test]
fn nothing_is_submitted_beyond_the_budget() {
    // One job costs 16 GPU-hours: 40 less 5 in reserve are enough for two, and not for their successors.
    let mut profile = profile();
    profile.budget.gpu_s_left = Some(GpuS(40 * HOUR));
    profile.budget.reserve_gpu_s = GpuS(5 * HOUR);
    let mut desk = Desk::open(profile);
    desk.say(vec![submitted(1, "11"), submitted(2, "12")]);
    let (a, b) = (desk.running(1, "11"), desk.running(2, "12"));
    assert_eq!(desk.say(vec![a, b]), []);
    assert!(
        desk.last_decision()
            .contains("it may cost 16.0 GPU-hours, and 3.0 GPU-hours are free"),
        "{}",
        desk.last_decision()
    );
    // One ends after half an hour: it used 4, so 15 are free. Then an operator finds 100 more.
    desk.wait(HOUR / 2);
    let ended = Report::Job(desk.ended(1, "11", "COMPLETED", HOUR / 2));
    assert_eq!(submissions(&desk.say(vec![ended])), []);
    let change = BudgetChange {
        left: Some(Left::Counted(GpuS(100 * HOUR))),
        ..BudgetChange::default()
    };
    desk.order(QueueOrder::Budget {
        site: site(),
        change,
    })
    .unwrap();
    assert_eq!(submissions(&desk.say(Vec::new())).len(), 2);
    // What he did not speak of is as the profile said.
    let said = *desk.here().budget_said();
    assert_eq!(said.reserve_gpu_s, GpuS(5 * HOUR));
}

#[test]
fn what_ended_within_the_lag_of_accounting_is_not_in_the_sites_figure() {
    let spent_after = |lag: Option<u64>| {
        let mut profile = profile();
        profile.budget.gpu_s_left = Some(GpuS(100 * HOUR));
        profile.accounting_lag_s = lag;
        let mut desk = one(profile);
        desk.say(vec![submitted(1, "11")]);
        let timeout = Report::Job(desk.ended(1, "11", "TIMEOUT", 2 * HOUR));
        desk.say(vec![timeout]);
        desk.wait(3 * HOUR);
        let report = Report::Budget(BudgetReport {
            gpu_s_left: Some(GpuS(100 * HOUR)),
            ends_at: None,
            source: "saldo".into(),
        });
        desk.say(vec![report]);
        let spent = desk.here().budget.spent.values();
        spent.map(|cost| cost.0).sum::<u64>()
    };
    assert_eq!(spent_after(None), 0);
    assert_eq!(spent_after(Some(6 * HOUR)), 16 * HOUR);
}

#[test]
fn a_maintenance_that_is_called_off_is_forgotten() {
    let mut desk = two_in_the_queue();
    let maintenance = |start: u64, end: u64| {
        Report::Reservation(ReservationReport {
            name: "maint".into(),
            start: UnixS(start),
            end: UnixS(end),
            nodes: "ALL".into(),
            maintenance: true,
            raw: "".into(),
        })
    };
    desk.say(vec![maintenance(START + HOUR, START + 9 * HOUR)]);
    assert_eq!(desk.here().reservations.len(), 1);
    desk.now_s += 60;
    let now = desk.now_s;
    desk.say(vec![maintenance(now, now)]);
    assert_eq!(desk.here().reservations.len(), 0);
}

#[test]
fn what_an_operator_does_not_say_of_an_allocation_stays() {
    let mut profile = profile();
    profile.budget = Budget {
        gpu_s_left: Some(GpuS(40 * HOUR)),
        reserve_gpu_s: GpuS(5 * HOUR),
        ends_at: Some(UnixS(START + 30 * HOUR)),
    };
    let before = profile.budget;
    let mut desk = one(profile);
    desk.say(vec![submitted(1, "11")]);
    let timeout = Report::Job(desk.ended(1, "11", "TIMEOUT", 2 * HOUR));
    desk.say(vec![timeout]);
    let spent = desk.here().budget.spent.clone();
    let mut change = |change| {
        let order = QueueOrder::Budget {
            site: site(),
            change,
        };
        desk.order(order).unwrap();
        desk.restart();
        let budget = desk.here().budget.clone();
        (budget.said, budget.spent)
    };
    let longer = BudgetChange {
        ends: Some(Ends::At(UnixS(START + 60 * HOUR))),
        ..BudgetChange::default()
    };
    let said = Budget {
        ends_at: Some(UnixS(START + 60 * HOUR)),
        ..before
    };
    assert_eq!(change(longer), (said, spent));
    let more = BudgetChange {
        left: Some(Left::Counted(GpuS(90 * HOUR))),
        ..BudgetChange::default()
    };
    let said = Budget {
        gpu_s_left: Some(GpuS(90 * HOUR)),
        ..said
    };
    // What was used before is in the new figure.
    assert_eq!(change(more), (said, [].into()));
    let none = BudgetChange {
        left: Some(Left::Uncounted),
        reserve_gpu_s: Some(GpuS(0)),
        ends: Some(Ends::Never),
    };
    assert_eq!(change(none), (Budget::default(), [].into()));
}

#[test]
fn no_job_reaches_beyond_the_end_of_the_allocation() {
    let mut profile = profile();
    profile.budget.ends_at = Some(UnixS(START + 3 * HOUR));
    let mut desk = one(profile);
    desk.say(vec![submitted(1, "11")]);
    let running = desk.running(1, "11");
    assert_eq!(desk.say(vec![running]), []);
    assert!(desk.last_decision().contains("the allocation ends"));
}

#[test]
fn a_paused_run_a_drained_site_and_a_finished_epoch_submit_nothing() {
    let open = || {
        let mut desk = one(profile());
        desk.say(vec![submitted(1, "11")]);
        desk
    };
    let check = |change: fn(&mut RunView), word: &str| {
        let mut desk = open();
        change(&mut desk.run);
        let timeout = Report::Job(desk.ended(1, "11", "TIMEOUT", 2 * HOUR));
        assert_eq!(desk.say(vec![timeout]), []);
        assert!(
            desk.last_decision().contains(word),
            "{}",
            desk.last_decision()
        );
    };
    check(
        |run| run.paused = Some("new data".into()),
        "the run is paused: new data",
    );
    check(|run| run.windows_left = 0, "all windows are committed");
    let drain = |run: &mut RunView| {
        run.drained.insert(site(), "maintenance".into());
    };
    check(drain, "the site is drained: maintenance");
}

#[test]
fn when_the_run_ends_waiting_jobs_are_cancelled_and_running_ones_leave_by_themselves() {
    let mut desk = Desk::open(SiteProfile {
        wanted_jobs: 3,
        ..profile()
    });
    desk.say(vec![submitted(1, "11"), submitted(2, "12")]);
    let running = desk.running(1, "11");
    desk.say(vec![running]);
    desk.run.ended = true;
    let orders = desk.say(Vec::new());
    let cancels = orders.iter().filter(|o| matches!(o, Order::Recall { .. }));
    let withdrawals = orders
        .iter()
        .filter(|o| matches!(o, Order::Withdraw { .. }));
    assert_eq!((cancels.count(), withdrawals.count()), (1, 2), "{orders:?}");
    assert_eq!(submissions(&orders), []);
    assert!(desk.intent(1).cancel.is_none());
    let withdrawn = |intent| not_submitted(intent, "withdrawn", true);
    let cancelled = Report::Cancelled {
        intent: IntentId(2),
        job: "12".into(),
    };
    assert_eq!(desk.say(vec![withdrawn(3), withdrawn(4), cancelled]), []);
    assert!(desk.machine.is_quiet(desk.now().mono));
}

#[test]
fn a_refused_probe_or_a_partition_with_a_lower_cap_holds_the_shape_back() {
    let probe = Report::Probe(ProbeReport {
        shape: "small".into(),
        prober: "ada".into(),
        took_ms: 10,
        answer: ProbeAnswer::Refused(refusal("shape", true)),
        partition: None,
        raw: "".into(),
    });
    let mut desk = two_in_the_queue();
    let timeout = Report::Job(desk.ended(1, "11", "TIMEOUT", 2 * HOUR));
    assert_eq!(desk.say(vec![probe, timeout]), []);
    assert!(
        desk.last_decision()
            .contains("the shape is refused: shape: said Slurm")
    );
    // An old refusal is no refusal.
    let orders = desk.wait(HOUR);
    assert_eq!(submissions(&orders).len(), 1);

    let mut desk = two_in_the_queue();
    let cap = Report::Partition(PartitionReport {
        name: "small-g".into(),
        state: "UP".into(),
        walltime_max_s: Some(HOUR),
        raw: "".into(),
    });
    let timeout = Report::Job(desk.ended(1, "11", "TIMEOUT", 2 * HOUR));
    assert_eq!(desk.say(vec![cap, timeout]), []);
    assert!(
        desk.last_decision()
            .contains("small-g takes jobs of at most 3600 s")
    );
}

#[test]
fn a_start_is_compared_with_what_the_probe_had_promised() {
    let mut desk = Desk::open(profile());
    let usage = Report::Usage(UsageReport {
        partition: "small-g".into(),
        window_s: 172_800,
        jobs: 100,
        realised_s: 16,
        requested_s: 100,
        realised_cpu_s: 1,
        requested_cpu_s: 2,
        own_only: false,
    });
    let probe = |start: u64| {
        Report::Probe(ProbeReport {
            shape: "small".into(),
            prober: "ada".into(),
            took_ms: 10,
            answer: ProbeAnswer::Starts(UnixS(start)),
            partition: None,
            raw: "".into(),
        })
    };
    desk.say(vec![usage, probe(START + 5000)]);
    desk.now_s += 10;
    let submitted_at = desk.now_s;
    desk.say(vec![submitted(1, "11")]);
    desk.now_s += 10;
    // A later probe is not what was known at the submission.
    desk.say(vec![probe(START + 9000)]);
    desk.now_s += 500;
    let running = JobReport {
        submitted: Some(UnixS(submitted_at)),
        started: Some(UnixS(desk.now_s)),
        ..desk.job(1, "11", "RUNNING")
    };
    desk.say(vec![Report::Job(running.clone())]);
    desk.say(vec![Report::Job(running)]);
    let joined = &desk.here().joined;
    assert_eq!(joined.len(), 1);
    let (_, joined) = &joined[0];
    assert_eq!(
        (joined.predicted_wait_s(), joined.real_wait_s()),
        (4990, 510)
    );
    assert_eq!((joined.usage_permille, joined.deferred), (Some(160), false));
}

#[test]
fn an_operator_gets_one_more_job_but_not_beyond_what_holds_everybody_back() {
    let mut desk = two_in_the_queue();
    let more = |shape: &str| QueueOrder::Submit {
        site: site(),
        shape: Some(shape.into()),
        why: "a test".into(),
    };
    desk.order(more("short")).unwrap();
    let orders = desk.say(Vec::new());
    assert_eq!(submissions(&orders)[0].1, "r3");
    // It is beyond the wanted number, and stays all the same; it has no successor.
    desk.say(vec![submitted(3, "13")]);
    let running = desk.running(3, "13");
    assert_eq!(desk.say(vec![running]), []);
    let error = desk.order(more("huge")).unwrap_err().to_string();
    assert_eq!(
        error,
        "lumi has no shape huge; its profile has small, short"
    );
    desk.run.paused = Some("new data".into());
    let error = desk.order(more("short")).unwrap_err().to_string();
    assert_eq!(
        error,
        "nothing is submitted at lumi: the run is paused: new data"
    );
}

#[test]
fn a_smaller_number_of_wanted_jobs_cancels_what_waits_and_lets_run_what_runs() {
    let mut desk = two_in_the_queue();
    let mut request = desk.request(Vec::new());
    request.profile = Some(SiteProfile {
        wanted_jobs: 0,
        ..profile()
    });
    let running = desk.running(1, "11");
    desk.say(vec![running]);
    desk.say(vec![submitted(3, "13")]);
    let orders = desk.call(request).unwrap().orders;
    let cancelled = orders.iter().map(|order| match order {
        Order::Recall { job, why, .. } => format!("{job}: {why}"),
        other => format!("{other:?}"),
    });
    let cancelled: Vec<_> = cancelled.collect();
    let why = "the profile wants fewer jobs";
    assert_eq!(cancelled, [format!("12: {why}"), format!("13: {why}")]);
}

#[test]
fn jobs_that_a_drained_site_sends_away_are_no_failures() {
    let mut desk = Desk::open(SiteProfile {
        wanted_jobs: 4,
        ..profile()
    });
    let jobs = 1..=4_u64;
    let all = jobs.clone().map(|id| submitted(id, &id.to_string()));
    let all = all.collect();
    desk.say(all);
    desk.run.drained.insert(site(), "maintenance".into());
    for id in jobs {
        let refused = JobReport {
            exit_code: Some(1),
            ..desk.ended(id, &id.to_string(), "FAILED", 4)
        };
        desk.say(vec![Report::Job(refused)]);
    }
    assert!(desk.here().paused.is_none() && desk.here().quick_failures == 0);
    desk.run.drained.clear();
    assert_eq!(submissions(&desk.say(Vec::new())).len(), 4);
}
