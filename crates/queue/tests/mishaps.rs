//! What must not happen in long runs, busy queues and out-of-order reports.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_queue::*;

/// One job submitted, 11 for intent 1.
fn one_in_the_queue(mut profile: SiteProfile) -> Desk {
    profile.wanted_jobs = 1;
    let mut desk = Desk::open(profile);
    desk.say(vec![submitted(1, "11")]);
    desk
}

/// One job that runs, and its successor's intent, 2, which no job answers yet.
fn one_that_runs() -> Desk {
    let mut desk = one_in_the_queue(profile());
    let running = desk.running(1, "11");
    desk.say(vec![running]);
    desk
}

fn failed(desk: &Desk, intent: u64, job: &str) -> Report {
    Report::Job(JobReport {
        exit_code: Some(1),
        ..desk.ended(intent, job, "FAILED", HOUR)
    })
}

fn cancelled(intent: u64, job: &str) -> Report {
    Report::Cancelled {
        intent: IntentId(intent),
        job: job.into(),
    }
}

#[test]
fn a_job_that_outlives_a_hundred_refused_successors_is_judged_as_any_other() {
    let mut desk = one_that_runs();
    for intent in 2..140 {
        while !desk.machine.state().intents.contains_key(&IntentId(intent)) {
            desk.wait(60);
        }
        desk.say(vec![not_submitted(intent, "job-limit", false)]);
    }
    let failed = failed(&desk, 1, "11");
    let orders = desk.say(vec![failed]);
    // Its last lines are wanted, and the site is asked for them until they are there.
    let asked = |order: &Order| matches!(order, Order::Tail { intent, .. } if intent.0 == 1);
    assert!(orders.iter().any(asked), "{orders:?}");
    assert!(!desk.intent(1).is_live());
    // The oldest ends went.
    let ended = desk.machine.state().intents.values();
    assert_eq!(ended.filter(|intent| !intent.is_live()).count(), 100);
    desk.restart();
    let tail = Report::Tail {
        intent: IntentId(1),
        job: "11".into(),
        text: "out of luck".into(),
    };
    desk.say(vec![tail]);
    assert_eq!(desk.intent(1).tail, Tail::Got("out of luck".into()));
}

#[test]
fn a_full_queue_is_asked_less_and_less_often_and_no_failure_is_counted() {
    let mut desk = one_that_runs();
    let mut waits = Vec::new();
    for intent in 2..9 {
        let from = desk.now_s;
        let mut orders = desk.say(vec![not_submitted(intent, "job-limit", false)]);
        while submissions(&orders).is_empty() {
            orders = desk.wait(20);
        }
        waits.push(desk.now_s - from);
    }
    assert_eq!(waits, [60, 120, 240, 480, 900, 900, 900]);
    let slot = desk.here().slots.values().next().unwrap();
    assert_eq!(slot.failures, 0);
    // One that is taken wipes the slate.
    desk.say(vec![submitted(9, "12")]);
    let timeout = Report::Job(desk.ended(1, "11", "TIMEOUT", 2 * HOUR));
    let running = desk.running(9, "12");
    desk.say(vec![timeout, running]);
    let from = desk.now_s;
    let mut orders = desk.say(vec![not_submitted(10, "job-limit", false)]);
    while submissions(&orders).is_empty() {
        orders = desk.wait(20);
    }
    assert_eq!(desk.now_s - from, 60);
}

#[test]
fn a_replica_without_a_job_comes_before_the_successors_of_others() {
    let mut desk = Desk::open(SiteProfile {
        wanted_jobs: 3,
        max_pending: 2,
        ..profile()
    });
    desk.say(vec![submitted(1, "11"), submitted(2, "12")]);
    let (a, b) = (desk.running(1, "11"), desk.running(2, "12"));
    let orders = desk.say(vec![a]);
    assert_eq!(submissions(&orders)[0].1, "r3");
    desk.say(vec![submitted(3, "13")]);
    // The other place is for a successor.
    let orders = desk.say(vec![b]);
    assert_eq!(submissions(&orders).len(), 1);
    assert_ne!(submissions(&orders)[0].2, Begin::Now);
}

#[test]
fn a_successor_gives_its_place_to_a_replica_that_has_lost_its_job() {
    let mut desk = Desk::open(SiteProfile {
        max_pending: 1,
        ..profile()
    });
    desk.say(vec![submitted(1, "11")]);
    let running = desk.running(1, "11");
    desk.say(vec![running]);
    desk.say(vec![submitted(2, "12")]);
    let running = desk.running(2, "12");
    desk.say(vec![running]);
    // Both run, and the place is a successor's.
    desk.say(vec![submitted(3, "13")]);
    assert_eq!(desk.intent(3).intention.why, Why::Chained);
    let replica = desk.intent(3).intention.replica.clone();
    let other = [1, 2]
        .into_iter()
        .find(|id| desk.intent(*id).intention.replica != replica);
    let other = other.unwrap();
    let ended = desk.ended(other, &format!("1{other}"), "TIMEOUT", 2 * HOUR);
    let orders = desk.say(vec![Report::Job(ended)]);
    assert!(
        matches!(
            &orders[..],
            [Order::Recall {
                intent: IntentId(3),
                ..
            }]
        ),
        "{orders:?}"
    );
    let gone = Report::Job(desk.ended(3, "13", "CANCELLED", 0));
    let orders = desk.say(vec![cancelled(3, "13"), gone]);
    let next = submissions(&orders);
    assert_eq!((next.len(), next[0].2), (1, Begin::Now), "{next:?}");
    assert_ne!(next[0].1, replica.to_string());
    assert_eq!(desk.wait(HOUR).len(), 1, "and nothing is taken back again");
}

#[test]
fn a_limit_on_what_runs_passes_and_the_site_is_not_paused_for_it() {
    let paused_by = |reason: &str| {
        let mut desk = one_in_the_queue(profile());
        let waits = JobReport {
            reason: reason.into(),
            ..desk.job(1, "11", "PENDING")
        };
        desk.say(vec![Report::Job(waits)]);
        desk.here().paused.is_some()
    };
    for reason in [
        "AssocGrpCPUMinutesLimit",
        "AssocGrpGRESMinutes",
        "AssocGrpBillingMinutes",
        "AssocGrpNodeMinutes",
        "AssocGrpWallLimit",
        "QOSGrpCPUMinutesLimit",
        "QOSGrpGRESMinutes",
        "QOSGrpWallLimit",
        "QOSGrpBillingMinutes",
    ] {
        assert!(paused_by(reason), "{reason}");
    }
    for reason in [
        "Priority",
        "AssocGrpCPURunMinutesLimit",
        "AssocGrpGRESRunMinutes",
        "AssocGrpBillingRunMinutes",
        "QOSGrpCPURunMinutesLimit",
        "QOSGrpBillingRunMinutes",
        "QOSMaxCPUMinutesPerJobLimit",
        "AssocMaxWallDurationPerJobLimit",
        "QOSMaxWallDurationPerJobLimit",
        "AssocGrpNodeLimit",
        "AssocGrpJobsLimit",
    ] {
        assert!(!paused_by(reason), "{reason}");
    }
}

#[test]
fn what_happens_during_an_operators_pause_stands_beside_it_and_does_not_end_it() {
    let mut desk = one_that_runs();
    let pause = QueueOrder::Pause {
        site: site(),
        why: "new nodes".into(),
    };
    desk.order(pause).unwrap();
    let oom = Report::Job(desk.ended(1, "11", "OUT_OF_MEMORY", HOUR));
    // The successor would only run into it, too.
    let orders = desk.say(vec![oom]);
    assert!(matches!(orders[1], Order::Withdraw { .. }), "{orders:?}");
    desk.say(vec![not_submitted(2, "withdrawn", true)]);
    let said = desk.here().paused.clone().unwrap().to_string();
    assert_eq!(
        said,
        "by an operator: new nodes; and a job ran out of memory: the shape is too small for the model"
    );
    // Another profile may be the cure for that, and not for the operator's order.
    let mut request = desk.request(Vec::new());
    request.profile = Some(SiteProfile {
        wanted_jobs: 1,
        preferred: "short".into(),
        ..profile()
    });
    assert_eq!(submissions(&desk.call(request).unwrap().orders), []);
    let said = desk.here().paused.clone().unwrap().to_string();
    assert_eq!(said, "by an operator: new nodes");
    desk.restart();
    let resume = QueueOrder::Resume {
        site: site(),
        why: "".into(),
    };
    desk.order(resume).unwrap();
    assert_eq!(submissions(&desk.say(Vec::new())).len(), 1);
}

#[test]
fn a_singleton_successor_counts_from_the_end_of_its_link() {
    // Two hours each: the first ends at 2 h, the second could at 4 h, the allocation ends at 3 h.
    let mut profile = profile();
    profile.chain = Chain::Singleton;
    profile.budget.ends_at = Some(UnixS(START + 3 * HOUR));
    let mut desk = one_in_the_queue(profile);
    let running = desk.running(1, "11");
    assert_eq!(desk.say(vec![running]), []);
    assert!(desk.last_decision().contains("the allocation ends"));
}

#[test]
fn losing_contact_does_not_end_an_interrupted_job() {
    let mut desk = one_in_the_queue(profile());
    let running = desk.running(1, "11");
    desk.say(vec![running]);
    desk.say(vec![submitted(2, "12")]);
    let interrupted = Report::Job(desk.ended(1, "11", "NODE_FAIL", HOUR));
    desk.say(vec![interrupted]);
    // The login node goes down, too. The coordinator ticks on, and knows nothing.
    desk.tick_for(6 * HOUR);
    assert!(desk.intent(1).is_live());
    // The process is back, and first sends what it has.
    desk.holder = "uan03 2 bbbb".to_owned();
    desk.lease = None;
    desk.say(Vec::new());
    assert!(desk.intent(1).is_live());
    desk.wait(60);
    let pending = JobReport {
        restarts: 1,
        ..desk.job(1, "11", "PENDING")
    };
    desk.say(vec![Report::Job(pending)]);
    desk.wait(HOUR);
    assert!(desk.intent(1).is_live());
}

#[test]
fn an_interrupted_job_is_judged_once_its_site_had_the_time_to_say_otherwise() {
    let mut desk = one_that_runs();
    let interrupted = Report::Job(desk.ended(1, "11", "NODE_FAIL", HOUR));
    desk.say(vec![interrupted]);
    desk.tick_for(6 * HOUR);
    desk.holder = "uan03 2 bbbb".to_owned();
    desk.lease = None;
    let request = desk.request(Vec::new());
    desk.lease = Some(desk.call(request).unwrap().lease);
    desk.wait(180);
    let (_, outcome) = desk.intent(1).outcome.clone().unwrap();
    assert!(matches!(outcome, Outcome::NodeFailed { .. }), "{outcome}");
}

#[test]
fn a_job_that_comes_back_after_it_was_judged_is_cancelled() {
    let mut desk = one_that_runs();
    let interrupted = Report::Job(desk.ended(1, "11", "NODE_FAIL", HOUR));
    desk.say(vec![interrupted]);
    desk.wait(300);
    assert!(!desk.intent(1).is_live());
    // The word of accounting about its end changes nothing.
    let end = Report::Job(desk.ended(1, "11", "NODE_FAIL", HOUR));
    desk.say(vec![end]);
    assert!(!desk.decisions().contains("job 11 is there"));
    let back = Report::Job(JobReport {
        restarts: 1,
        started: Some(UnixS(desk.now_s)),
        ..desk.job(1, "11", "RUNNING")
    });
    let orders = desk.say(vec![back]);
    let cancel = |order: &Order| matches!(order, Order::Cancel { job, .. } if job.as_str() == "11");
    assert!(orders.iter().any(cancel), "{orders:?}");
    assert!(
        desk.decisions()
            .contains("job 11 is there for intent 1, which was given up"),
    );
    let leaving = Report::Job(JobReport {
        restarts: 1,
        started: Some(UnixS(desk.now_s)),
        ..desk.job(1, "11", "COMPLETING")
    });
    let orders = desk.say(vec![cancelled(1, "11"), leaving]);
    assert!(!orders.iter().any(cancel), "{orders:?}");
}

#[test]
fn a_late_word_of_a_recall_does_not_swallow_a_later_cancel() {
    let mut desk = one_in_the_queue(profile());
    let none = |jobs| SiteProfile {
        wanted_jobs: jobs,
        ..profile()
    };
    let mut request = desk.request(Vec::new());
    request.profile = Some(none(0));
    let orders = desk.call(request).unwrap().orders;
    assert!(matches!(&orders[..], [Order::Recall { .. }]), "{orders:?}");
    // It started first; the spool has that before the word that the recall was executed.
    let running = desk.running(1, "11");
    desk.say(vec![running, cancelled(1, "11")]);
    assert!(desk.intent(1).is_running());
    let cancel = || QueueOrder::Cancel {
        intent: IntentId(1),
        why: "enough".into(),
    };
    desk.order(cancel()).unwrap();
    let orders = desk.say(Vec::new());
    assert!(matches!(&orders[..], [Order::Cancel { .. }]), "{orders:?}");
    // The same order again is no order while the first is not executed, and one if it did not help.
    desk.order(cancel()).unwrap();
    assert_eq!(desk.say(vec![cancelled(1, "11")]), []);
    desk.order(cancel()).unwrap();
    let orders = desk.say(Vec::new());
    assert!(matches!(&orders[..], [Order::Cancel { .. }]), "{orders:?}");
}

#[test]
fn a_held_job_and_one_that_can_never_start_are_named_once() {
    let told = |reason: &str, state: &str| {
        let mut desk = one_in_the_queue(profile());
        let waits = JobReport {
            reason: reason.into(),
            ..desk.job(1, "11", state)
        };
        desk.say(vec![Report::Job(waits.clone())]);
        let told = desk.last_decision();
        desk.wait(HOUR);
        assert_eq!(desk.decisions().matches(&told).count(), 1, "{told}");
        assert_eq!(desk.wait(HOUR), [], "there is none beside it");
        // Somebody released or changed it.
        let waits = JobReport {
            reason: "Priority".into(),
            state: "PENDING".into(),
            ..waits
        };
        desk.say(vec![Report::Job(waits)]);
        assert_eq!(desk.here().slots.values().next().unwrap().held, None);
        told
    };
    for (reason, state) in [
        ("JobHeldAdmin", "PENDING"),
        ("JobHeldUser", "PENDING"),
        ("None", "REQUEUE_HOLD"),
    ] {
        let said = told(reason, state);
        assert!(
            said.contains(&format!("job 11 is held ({reason})")),
            "{said}"
        );
        assert!(said.contains("`scontrol release 11`"), "{said}");
        assert!(said.contains("`hansa queue cancel 1`"), "{said}");
    }
    for reason in [
        "PartitionTimeLimit",
        "BadConstraints",
        "QOSMaxWallDurationPerJobLimit",
    ] {
        let said = told(reason, "PENDING");
        assert!(
            said.contains(&format!("job 11 cannot start as it is ({reason})")),
            "{said}"
        );
    }
}
