//! What happens to wanted jobs, told one at a time.
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
fn a_site_gets_the_jobs_that_its_profile_wants_and_each_order_until_it_is_done() {
    let mut desk = Desk::open(profile());
    let orders = desk.say(Vec::new());
    let both = [
        (1, "r1".to_owned(), Begin::Now, false),
        (2, "r2".to_owned(), Begin::Now, false),
    ];
    assert_eq!(submissions(&orders), both);
    let orders = desk.say(vec![submitted(1, "11")]);
    assert_eq!(submissions(&orders), both[1..]);
    assert_eq!(desk.say(vec![submitted(2, "12")]), []);
    assert_eq!(desk.wait(HOUR), []);
}

#[test]
fn a_chain_goes_on_through_walltime_ends() {
    let mut desk = one(profile());
    desk.say(vec![submitted(1, "11")]);
    desk.now_s += 100;
    let running = desk.running(1, "11");
    let orders = desk.say(vec![running]);
    let end = Begin::At(UnixS(desk.now_s + 2 * HOUR));
    assert_eq!(submissions(&orders), [(2, "r1".to_owned(), end, false)]);
    assert_eq!(desk.say(vec![submitted(2, "12")]), []);

    desk.wait(2 * HOUR);
    let timeout = Report::Job(desk.ended(1, "11", "TIMEOUT", 2 * HOUR));
    let running = desk.running(2, "12");
    let orders = desk.say(vec![timeout, running]);
    assert_eq!(submissions(&orders)[0].0, 3);
    assert_eq!(desk.intent(3).intention.link, 3);
    assert_eq!(desk.intent(3).intention.why, Why::Chained);
    assert_eq!(desk.here().quick_failures, 0);
}

#[test]
fn a_successor_is_released_when_its_link_ends_early() {
    let mut desk = one(profile());
    desk.say(vec![submitted(1, "11")]);
    let running = desk.running(1, "11");
    desk.say(vec![running]);
    desk.say(vec![submitted(2, "12")]);
    desk.wait(HOUR);
    let ended = Report::Job(desk.ended(1, "11", "COMPLETED", HOUR));
    let release = Order::Release {
        intent: IntentId(2),
        job: "12".into(),
    };
    assert_eq!(desk.say(vec![ended]), std::slice::from_ref(&release));
    assert_eq!(desk.say(Vec::new()), [release]);
    let released = Report::Released {
        intent: IntentId(2),
        job: "12".into(),
    };
    assert_eq!(desk.say(vec![released]), []);
}

#[test]
fn a_singleton_chain_has_no_begin_time() {
    let mut profile = profile();
    profile.chain = Chain::Singleton;
    let mut desk = one(profile);
    desk.say(vec![submitted(1, "11")]);
    let running = desk.running(1, "11");
    let orders = desk.say(vec![running]);
    assert_eq!(submissions(&orders)[0].2, Begin::Singleton);
    // Its predecessor ends before it is submitted: it need not wait for anything.
    desk.wait(HOUR);
    let ended = Report::Job(desk.ended(1, "11", "COMPLETED", HOUR));
    let orders = desk.say(vec![ended]);
    assert_eq!(submissions(&orders)[0].2, Begin::Now);
}

#[test]
fn one_process_runs_a_site_and_another_may_take_over() {
    let mut desk = two_in_the_queue();
    let first = desk.lease;
    desk.holder = "uan03 2 bbbb".to_owned();
    desk.lease = None;
    let request = desk.request(Vec::new());
    let error = desk.call(request.clone()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("uan02 1 aaaa runs the site process of lumi since"),
        "{error}"
    );
    let reply = desk
        .call(SyncRequest {
            take_over: true,
            ..request
        })
        .unwrap();
    assert!(Some(reply.lease) > first);

    // The first one is fenced, whatever it asks for next.
    desk.holder = "uan02 1 aaaa".to_owned();
    desk.lease = first;
    let request = desk.request(Vec::new());
    let error = desk.call(request.clone()).unwrap_err();
    assert!(matches!(error, QueueRefusal::Fenced { .. }), "{error}");
    let request = SyncRequest {
        lease: None,
        ..request
    };
    let error = desk.call(request).unwrap_err();
    assert!(matches!(error, QueueRefusal::Busy { .. }), "{error}");
}

#[test]
fn a_lapsed_lease_goes_to_who_asks_and_what_was_told_before_counts_as_tried() {
    let mut desk = Desk::open(profile());
    assert!(!submissions(&desk.say(Vec::new()))[0].3);
    desk.now_s += ttl_s() + 1;
    desk.holder = "uan03 2 bbbb".to_owned();
    desk.lease = None;
    let orders = desk.say(Vec::new());
    assert!(
        submissions(&orders).iter().all(|order| order.3),
        "{orders:?}"
    );
    // A process that comes back under its own name keeps its lease: a reply was lost.
    let again = desk.say(Vec::new());
    assert_eq!(again, orders);
}

#[test]
fn after_a_restart_of_the_coordinator_the_holder_has_a_whole_ttl() {
    let mut desk = two_in_the_queue();
    desk.now_s += ttl_s() - 1;
    desk.restart();
    let lease = desk.lease;
    desk.now_s += ttl_s() - 1;
    desk.holder = "uan03 2 bbbb".to_owned();
    desk.lease = None;
    let request = desk.request(Vec::new());
    assert!(matches!(desk.call(request), Err(QueueRefusal::Busy { .. })));
    desk.holder = "uan02 1 aaaa".to_owned();
    desk.lease = lease;
    desk.say(Vec::new());
}

#[test]
fn a_report_counts_once() {
    let mut desk = Desk::open(profile());
    let request = desk.request(vec![submitted(1, "11")]);
    desk.call(request.clone()).unwrap();
    let before = desk.machine.state().clone();
    let reply = desk.call(request).unwrap();
    assert_eq!(reply.accepted_through, 1);
    assert_eq!(desk.machine.state(), &before);
}

#[test]
fn a_second_job_for_an_intent_is_loud_and_cancelled() {
    let mut desk = two_in_the_queue();
    let orders = desk.say(vec![submitted(1, "99")]);
    assert!(
        desk.last_decision()
            .starts_with("DEFECT: intent 1 was submitted twice")
    );
    assert!(
        matches!(&orders[..], [Order::Cancel { job, .. }] if job.as_str() == "99"),
        "{orders:?}"
    );
    let cancelled = Report::Cancelled {
        intent: IntentId(1),
        job: "99".into(),
    };
    assert_eq!(desk.say(vec![cancelled]), []);
    assert!(desk.intent(1).is_live());
}

#[test]
fn a_job_that_appears_after_its_intent_was_given_up_is_cancelled() {
    let mut desk = one(profile());
    desk.say(vec![not_submitted(1, "policy", false)]);
    let orders = desk.say(vec![submitted(1, "11")]);
    assert!(matches!(&orders[..], [Order::Cancel { .. }]), "{orders:?}");
    assert!(
        desk.decisions()
            .contains("job 11 is there for intent 1, which was given up")
    );
}

#[test]
fn a_job_of_another_history_is_named_once() {
    let mut desk = two_in_the_queue();
    let next_intent = desk.machine.state().after_a_restore();
    desk.restore_with(Event::Restored { next_intent });
    let stray = Report::Job(desk.job(999_999, "77", "RUNNING"));
    desk.say(vec![stray.clone()]);
    desk.say(vec![stray]);
    assert_eq!(
        desk.decisions()
            .matches("job 77 is for intent 999999")
            .count(),
        1
    );
    assert!(desk.machine.state().next_intent.0 > 100_000);
}

#[test]
fn what_somebody_cancels_is_not_fought_over() {
    let mut desk = one(profile());
    desk.say(vec![submitted(1, "11")]);
    let cancelled = JobReport {
        cancelled_by: Some(1000),
        ..desk.ended(1, "11", "CANCELLED", HOUR)
    };
    assert_eq!(desk.say(vec![Report::Job(cancelled)]), []);
    assert!(
        desk.decisions()
            .contains("intent 1: cancelled by user 1000; the next one waits until")
    );
    assert!(
        desk.last_decision().contains("waiting until"),
        "{}",
        desk.last_decision()
    );
    let orders = desk.wait(61);
    assert_eq!(submissions(&orders).len(), 1);
}

#[test]
fn failures_wait_longer_each_time() {
    let mut desk = one(profile());
    let mut waits = Vec::new();
    for id in 1..=4_u64 {
        let job = format!("{id}");
        desk.say(vec![submitted(id, &job)]);
        let failed = JobReport {
            exit_code: Some(1),
            ..desk.ended(id, &job, "FAILED", HOUR)
        };
        let mut orders = desk.say(vec![Report::Job(failed)]);
        let from = desk.now_s;
        while submissions(&orders).is_empty() {
            orders = desk.wait(20);
        }
        waits.push(desk.now_s - from);
    }
    assert_eq!(waits, [60, 120, 240, 480]);
    // A long run that reaches its walltime wipes the slate.
    desk.say(vec![submitted(5, "5")]);
    let timeout = Report::Job(desk.ended(5, "5", "TIMEOUT", 2 * HOUR));
    let orders = desk.say(vec![timeout]);
    assert_eq!(submissions(&orders).len(), 1);
}

#[test]
fn three_quick_failures_pause_the_site_until_somebody_resumes_it() {
    let mut desk = one(profile());
    for id in 1..=3_u64 {
        let job = format!("{id}");
        desk.say(vec![submitted(id, &job)]);
        let failed = JobReport {
            exit_code: Some(1),
            ..desk.ended(id, &job, "FAILED", 5)
        };
        desk.say(vec![Report::Job(failed)]);
        desk.wait(600);
    }
    let paused = desk.here().paused.clone().unwrap();
    assert_eq!(paused.why, PauseWhy::QuickFailures(3));
    let orders = desk.wait(10 * HOUR);
    assert_eq!(submissions(&orders), []);
    // The last lines are asked for, and kept.
    assert!(matches!(orders[0], Order::Tail { .. }));
    let tail = Report::Tail {
        intent: IntentId(3),
        job: "3".into(),
        text: "no such module: rocm".into(),
    };
    desk.say(vec![tail]);
    assert_eq!(
        desk.intent(3).tail,
        Tail::Got("no such module: rocm".into())
    );
    let resume = QueueOrder::Resume {
        site: site(),
        why: "module fixed".into(),
    };
    desk.order(resume).unwrap();
    assert_eq!(submissions(&desk.say(Vec::new())).len(), 1);
    assert_eq!(desk.here().quick_failures, 0);
}

#[test]
fn a_requeued_job_goes_on_under_its_id() {
    let mut desk = one(profile());
    desk.say(vec![submitted(1, "11")]);
    let running = desk.running(1, "11");
    desk.say(vec![running]);
    desk.say(vec![submitted(2, "12")]);
    let preempted = desk.ended(1, "11", "PREEMPTED", HOUR);
    desk.say(vec![Report::Job(preempted)]);
    let pending = JobReport {
        restarts: 1,
        ..desk.job(1, "11", "PENDING")
    };
    desk.say(vec![Report::Job(pending)]);
    let decisions = desk.here().decisions.iter();
    let told: Vec<_> = decisions
        .filter(|decision| {
            decision
                .text
                .as_str()
                .contains("job 11 is back in the queue")
        })
        .collect();
    assert!(
        matches!(&told[..], [one] if one.text.as_str().contains("made room for another job")),
        "{told:?}"
    );
    desk.wait(HOUR);
    assert!(desk.intent(1).is_live());
    // sacct's late word of the interruption changes nothing.
    let late = desk.ended(1, "11", "PREEMPTED", HOUR);
    desk.say(vec![Report::Job(late)]);
    desk.wait(HOUR);
    assert!(desk.intent(1).is_live());
}

#[test]
fn a_failed_node_is_left_out_once_it_is_clear_that_the_job_is_not_requeued() {
    let mut desk = one(profile());
    desk.say(vec![submitted(1, "11")]);
    let failed = JobReport {
        nodes: vec!["nid005000".into()],
        ..desk.ended(1, "11", "NODE_FAIL", HOUR)
    };
    desk.say(vec![Report::Job(failed)]);
    assert!(desk.intent(1).is_live());
    desk.wait(120);
    let orders = desk.wait(120);
    let submission = orders.iter().find_map(|order| match order {
        Order::Submit(submission) => Some(submission),
        _ => None,
    });
    assert_eq!(submission.unwrap().exclude, [Line::new("nid005000")]);
}

#[test]
fn a_held_job_gets_no_second_one_beside_it() {
    let mut desk = one(profile());
    desk.say(vec![submitted(1, "11")]);
    let held = JobReport {
        reason: "JobHeldAdmin".into(),
        ..desk.job(1, "11", "PENDING")
    };
    assert!(Phase::is_held(&held));
    desk.say(vec![Report::Job(held)]);
    assert_eq!(desk.wait(10 * HOUR), []);
}

#[test]
fn unknown_states_are_alive_until_the_job_is_gone() {
    let mut desk = one(profile());
    desk.say(vec![submitted(1, "11")]);
    let odd = Report::Job(desk.job(1, "11", "QUANTUM_HOLD"));
    desk.say(vec![odd]);
    desk.wait(HOUR);
    assert!(desk.intent(1).is_live());
    let gone = Report::Gone {
        intent: IntentId(1),
        job: "11".into(),
    };
    desk.say(vec![gone]);
    assert_eq!(desk.intent(1).outcome.as_ref().unwrap().1, Outcome::Lost);
}
