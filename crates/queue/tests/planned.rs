//! Jobs as a plan wants them: the plan moves, what waits follows, what runs is never touched.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_queue::*;

fn plan(no: u64, jobs: u32, shape: &str) -> Adopted {
    Adopted {
        no,
        made: UnixS(START),
        why: "changed: gains 20.0 % (a job has ended)".into(),
        together: false,
        sites: vec![SitePlan {
            site: site(),
            shape: shape.into(),
            jobs,
            ahead: true,
            begin: None,
        }],
        promise: Promise {
            ended: "target".into(),
            ends: UnixS(START + 5 * HOUR),
            windows: 1000,
            rounds: 10,
            cost: GpuS(80 * HOUR),
        },
    }
}

fn elsewhere(no: u64) -> Adopted {
    Adopted {
        sites: Vec::new(),
        ..plan(no, 0, "small")
    }
}

impl Desk {
    fn adopt(&mut self, plan: Adopted) -> Result<(), QueueRefusal> {
        let now = self.now();
        let handled = self.machine.adopt(plan, &self.run, now);
        let at = UnixS(self.now_s);
        let events = handled.events.into_iter().map(|event| (at, event));
        self.journal.extend(events);
        handled.reply
    }
}

/// The planner decides, and has not yet.
fn open() -> Desk {
    let mut desk = Desk::open(SiteProfile {
        wanted_jobs: 0,
        ..profile()
    });
    desk.run.planning = Planning::Auto;
    let mut request = desk.request(Vec::new());
    request.profile = Some(profile());
    desk.call(request).unwrap();
    desk
}

fn cancels(orders: &[Order]) -> Vec<(u64, String)> {
    let of = |order: &Order| match order {
        Order::Recall { intent, why, .. } => Some((intent.0, why.to_string())),
        _ => None,
    };
    orders.iter().filter_map(of).collect()
}

#[test]
fn before_the_first_plan_nothing_is_submitted_and_the_reason_is_told_once() {
    let mut desk = open();
    assert_eq!(desk.say(Vec::new()), []);
    assert_eq!(desk.say(Vec::new()), []);
    let told = desk.decisions();
    assert_eq!(told.matches("has made no plan yet").count(), 1, "{told}");
    desk.adopt(plan(1, 1, "short")).unwrap();
    assert_eq!(submissions(&desk.say(Vec::new())).len(), 1);
    assert_eq!(desk.intent(1).intention.shape.name.as_str(), "short");
    assert!(desk.decisions().contains("plan 1 wants a job"));
}

#[test]
fn a_plan_of_another_number_is_refused() {
    let mut desk = open();
    desk.adopt(plan(1, 1, "small")).unwrap();
    let refused = desk.adopt(plan(1, 2, "small")).unwrap_err();
    assert_eq!(refused, QueueRefusal::OtherPlan { found: 1, due: 2 });
}

#[test]
fn when_the_plan_moves_waiting_jobs_are_cancelled_and_running_ones_end_by_themselves() {
    let mut desk = open();
    desk.adopt(plan(1, 2, "small")).unwrap();
    desk.say(vec![submitted(1, "11"), submitted(2, "12")]);
    let running = desk.running(1, "11");
    // Its successor waits, too.
    let orders = desk.say(vec![running]);
    assert_eq!(submissions(&orders)[0].0, 3);
    desk.say(vec![submitted(3, "13")]);

    desk.adopt(elsewhere(2)).unwrap();
    let cancelled = cancels(&desk.say(Vec::new()));
    let why = "plan 2 wants fewer jobs here".to_owned();
    assert_eq!(cancelled, [(2, why.clone()), (3, why)]);
    assert!(desk.intent(1).is_running() && desk.intent(1).cancel.is_none());
    // It is over, and nothing follows it.
    desk.wait(2 * HOUR);
    let timeout = Report::Job(desk.ended(1, "11", "TIMEOUT", 2 * HOUR));
    assert_eq!(submissions(&desk.say(vec![timeout])), []);
}

#[test]
fn a_running_job_counts_first_whatever_its_number() {
    let mut desk = open();
    desk.adopt(plan(1, 2, "small")).unwrap();
    desk.say(vec![submitted(1, "11"), submitted(2, "12")]);
    let running = desk.running(2, "12");
    desk.say(vec![running]);
    desk.adopt(plan(2, 1, "small")).unwrap();
    let cancelled = cancels(&desk.say(Vec::new()));
    assert_eq!(cancelled[0].0, 1, "r2 runs, so r1 is one too many");
    assert_eq!(cancelled.len(), 1);
}

#[test]
fn another_shape_follows_the_job_that_runs() {
    let mut desk = open();
    desk.adopt(plan(1, 1, "small")).unwrap();
    desk.say(vec![submitted(1, "11")]);
    let running = desk.running(1, "11");
    desk.say(vec![running]);
    desk.say(vec![submitted(2, "12")]);
    desk.adopt(plan(2, 1, "short")).unwrap();
    let orders = desk.say(Vec::new());
    assert_eq!(
        cancels(&orders),
        [(2, "plan 2 wants shape short".to_owned())]
    );
    // When the old successor has gone, the new one waits for the same end.
    let gone = JobReport {
        started: None,
        ..desk.ended(2, "12", "CANCELLED", 0)
    };
    let orders = desk.say(vec![
        Report::Cancelled {
            intent: IntentId(2),
            job: "12".into(),
        },
        Report::Job(gone),
    ]);
    let end = UnixS(START + 2 * HOUR);
    let next = &submissions(&orders)[0];
    assert_eq!((next.0, next.2), (3, Begin::At(end)));
    assert_eq!(desk.intent(3).intention.shape.name.as_str(), "short");
    assert!(desk.intent(1).is_running());
}

#[test]
fn a_job_that_a_plan_holds_back_begins_then_and_a_later_plan_lets_it_go() {
    let mut desk = open();
    let mut held = plan(1, 1, "small");
    held.sites[0].begin = Some(UnixS(START + HOUR));
    desk.adopt(held).unwrap();
    let orders = desk.say(Vec::new());
    assert_eq!(submissions(&orders)[0].2, Begin::At(UnixS(START + HOUR)));
    let waits = Report::Job(desk.job(1, "11", "PENDING"));
    assert_eq!(desk.say(vec![submitted(1, "11"), waits]), []);
    desk.adopt(plan(2, 1, "small")).unwrap();
    let orders = desk.say(Vec::new());
    assert!(matches!(&orders[..], [Order::Release { .. }]), "{orders:?}");
}

#[test]
fn a_restart_keeps_the_plan() {
    let mut desk = open();
    desk.adopt(plan(1, 1, "short")).unwrap();
    desk.restart();
    assert_eq!(desk.machine.state().plan, Some(plan(1, 1, "short")));
    desk.lease = None;
    desk.holder = "uan02 2 bbbb".to_owned();
    let mut request = desk.request(Vec::new());
    request.take_over = true;
    let orders = desk.call(request).unwrap().orders;
    assert_eq!(submissions(&orders)[0].0, 1);
}

#[test]
fn advice_is_followed_once_it_is_applied_and_fixed_runs_follow_their_profiles() {
    let mut desk = Desk::open(profile());
    desk.run.planning = Planning::Advise;
    assert_eq!(submissions(&desk.say(Vec::new())).len(), 2, "the profile's");
    desk.adopt(plan(1, 1, "small")).unwrap();
    let orders = desk.say(Vec::new());
    assert!(
        matches!(&orders[..], [Order::Submit(_), Order::Withdraw { .. }]),
        "{orders:?}"
    );
    desk.run.planning = Planning::Fixed;
    desk.wait(60);
    assert_eq!(desk.here().profile.as_ref().unwrap().wanted_jobs, 2);
    let wanted = desk.machine.state().live(&site()).count();
    assert_eq!(wanted, 2);
}

#[test]
fn an_operators_job_is_no_part_of_a_plan() {
    let mut desk = open();
    desk.adopt(elsewhere(1)).unwrap();
    desk.order(QueueOrder::Submit {
        site: site(),
        shape: None,
        why: "to measure".into(),
    })
    .unwrap();
    desk.say(vec![submitted(1, "11")]);
    desk.adopt(elsewhere(2)).unwrap();
    assert_eq!(desk.say(Vec::new()), []);
    assert!(desk.intent(1).is_live() && desk.intent(1).cancel.is_none());
}

#[test]
fn a_job_that_starts_before_it_can_be_cancelled_runs_on() {
    let mut desk = open();
    desk.adopt(plan(1, 1, "small")).unwrap();
    desk.say(vec![submitted(1, "11")]);
    desk.adopt(elsewhere(2)).unwrap();
    assert_eq!(cancels(&desk.say(Vec::new())).len(), 1);
    // The site has called scancel, which found it running.
    let cancelled = Report::Cancelled {
        intent: IntentId(1),
        job: "11".into(),
    };
    let running = desk.running(1, "11");
    let orders = desk.say(vec![cancelled, running]);
    assert_eq!(orders, []);
    let intent = desk.intent(1);
    assert!(intent.is_running() && !intent.is_leaving());
    // Wanted again, it gets a successor as any other.
    desk.adopt(plan(3, 1, "small")).unwrap();
    assert_eq!(submissions(&desk.say(Vec::new())).len(), 1);
}
