//! An operator's orders: pause, resume, drain, evict, stop.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::{Generation, WallS, Windows};
use hansa_protocol::*;

fn why() -> String {
    "the room is too warm".to_owned()
}

fn pause() -> Order {
    Order::Pause { why: why() }
}

fn resume() -> Order {
    Order::Resume { why: why() }
}

fn drain(site: &str) -> Order {
    let site = site.parse().unwrap();
    let (why, until) = (why(), None);
    Order::Drain { site, why, until }
}

fn undrain(site: &str) -> Order {
    let site = site.parse().unwrap();
    Order::Undrain { site, why: why() }
}

fn evict(name: &str) -> Order {
    let replica = id(name);
    Order::Evict {
        replica,
        why: why(),
    }
}

fn readmit(name: &str) -> Order {
    let replica = id(name);
    Order::Readmit {
        replica,
        why: why(),
    }
}

fn stop() -> Order {
    Order::Stop { why: why() }
}

impl Story {
    fn order(&mut self, order: Order) {
        assert_eq!(self.send(Command::Operate(order)), Ok(Reply::Done));
    }

    fn refused(&mut self, order: Order) -> String {
        let refusal = self.send(Command::Operate(order)).unwrap_err();
        refusal.to_string()
    }
}

#[test]
fn a_pause_stops_the_clocks_and_the_closing_but_not_what_is_under_way() {
    let mut story = Story::new();
    story.register("a");
    story.register("b");
    let grant = story.grant("a");
    story.grant("b");
    story.order(pause());

    // Nobody says anything for an hour, and nobody is given up.
    story.pass(3600, &[]);
    assert_eq!(story.state().leases.len(), 2);
    assert_eq!(story.state().live().count(), 2);

    // A phase that was under way ends and is staged; the round stays open, whatever the grace.
    let parts = story.parts(&grant, grant.plan.windows.0);
    assert_eq!(story.announce("a", &parts), Ok(Verdict::Upload));
    assert_eq!(story.complete(parts.id()), Ok(Verdict::Staged));
    story.pass(60, &["b"]);
    assert_eq!(story.state().round.phase, RoundPhase::Open);
    let LeaseAnswer::Wait(Wait::Paused(text)) = story.ask("a") else {
        panic!("it gets work");
    };
    assert!(text.contains("too warm"), "{text}");
}

#[test]
fn after_a_pause_every_deadline_is_fresh() {
    let mut story = Story::new();
    story.register("a");
    story.register("b");
    story.grant("b");
    story.contribute("a");
    story.order(pause());
    story.pass(3600, &[]);
    story.order(resume());
    // Not even the grace window, of which 3600 s passed.
    story.pass(7, &["b"]);
    assert_eq!(story.state().round.phase, RoundPhase::Open);
    story.pass(2, &["b"]);
    assert!(matches!(story.state().round.phase, RoundPhase::Closed(_)));
}

#[test]
fn a_run_is_paused_across_a_restart_and_its_merge_ends_meanwhile() {
    let mut story = Story::new();
    story.register("a");
    story.contribute("a");
    story.order(pause());
    story.restart(500);
    story.merge();
    story.pass(100, &[]);
    assert!(matches!(story.ask("a"), LeaseAnswer::Wait(Wait::Paused(_))));
    story.order(resume());
    story.grant("a");
}

#[test]
fn orders_that_make_no_sense_are_refused_with_the_reason() {
    let mut story = Story::new();
    story.register("a");
    let text = story.refused(resume());
    assert!(text.contains("the run is not paused"), "{text}");
    story.order(pause());
    let text = story.refused(pause());
    assert!(
        text.contains("paused already") && text.contains("too warm"),
        "{text}"
    );
    let text = story.refused(drain("mars"));
    assert!(text.contains("no replica of site mars"), "{text}");
    let text = story.refused(undrain("lumi"));
    assert!(text.contains("site lumi is not drained"), "{text}");
    let text = story.refused(evict("x"));
    assert!(text.contains("lumi/x is not registered"), "{text}");
    let text = story.refused(readmit("a"));
    assert!(text.contains("lumi/a is not evicted"), "{text}");
    // What is so already is done.
    story.order(drain("lumi"));
    story.order(evict("a"));
    let length = story.journal.len();
    story.order(drain("lumi"));
    story.order(evict("a"));
    assert_eq!(story.journal.len(), length);
}

#[test]
fn a_drained_site_contributes_what_it_has_and_comes_back_when_it_may() {
    let mut story = Story::new();
    story.register("a");
    let grant = story.grant("a");
    story.order(drain("lumi"));
    let standing = story.beat("a", Activity::Training, 1);
    assert!(standing.leave.unwrap().contains("too warm"));

    let parts = story.parts(&grant, 2);
    assert_eq!(story.announce("a", &parts), Ok(Verdict::Upload));
    assert_eq!(story.complete(parts.id()), Ok(Verdict::Staged));
    story.merge();
    assert_eq!(
        story.replica("a").plan,
        None,
        "the next round does not wait for it"
    );
    assert!(matches!(story.ask("a"), LeaseAnswer::Leave(_)));
    story.goodbye("a");
    let left = Presence::Left(LeftReason::Drained);
    assert_eq!(story.replica("a").presence, left);
    assert_eq!(story.counts().committed, Windows(2));
    assert_eq!(story.counts().leased, Windows(0));

    for name in ["a", "new"] {
        let refused = story.try_register(name, 77, None).unwrap_err();
        assert!(matches!(refused, Refusal::Drained { .. }), "{refused}");
    }
    story.order(undrain("lumi"));
    story.register("a");
    story.grant("a");
}

#[test]
fn a_drain_with_an_end_is_over_then_and_one_without_is_not() {
    let mut story = Story::new();
    story.register("a");
    let until = |until| Order::Drain {
        site: "lumi".parse().unwrap(),
        why: why(),
        until,
    };
    story.order(until(Some(WallS(1000))));
    assert_eq!(story.state().orders.lapsed(WallS(999)), []);
    // It takes longer; and a drain that is in force is not ordered twice.
    story.order(until(Some(WallS(2000))));
    story.order(until(None));
    assert_eq!(story.state().orders.lapsed(WallS(1999)), []);
    let lapsed = story.state().orders.lapsed(WallS(2000));
    assert!(matches!(&lapsed[..], [Order::Undrain { .. }]), "{lapsed:?}");
    assert!(story.try_register("b", 77, None).is_err());
    lapsed.into_iter().for_each(|order| story.order(order));
    story.register("b");
    // The end was that one's.
    story.order(drain("lumi"));
    assert_eq!(story.state().orders.lapsed(WallS(u64::MAX)), []);
}

#[test]
fn an_evicted_replica_is_fenced_at_once_and_that_is_no_failed_attempt() {
    let mut story = Story::new();
    story.register("a");
    story.register("b");
    let grant = story.grant("a");
    story.grant("b");
    let parts = story.parts(&grant, 4);
    assert_eq!(story.announce("a", &parts), Ok(Verdict::Upload));
    story.order(evict("a"));

    let request = story.ask_on("a", hash(0)).unwrap_err();
    assert!(matches!(request, Refusal::Evicted { .. }), "{request}");
    let announced = story.announce("a", &parts).unwrap_err();
    assert!(
        announced
            .to_string()
            .contains("hansa replica readmit lumi/a")
    );
    assert_ne!(story.complete(parts.id()), Ok(Verdict::Staged));
    let refused = story.try_register("a", 77, None).unwrap_err();
    assert!(matches!(refused, Refusal::Evicted { .. }), "{refused}");
    assert_eq!(story.replica("a").tally.failed, Windows(0));
    assert!(story.state().attempts.is_empty());
    assert_eq!(story.replica("a").lease, None);

    // Who never heard of it finds itself given up, and registers again.
    story.order(readmit("a"));
    let request = story.ask_on("a", hash(0)).unwrap_err();
    assert!(matches!(request, Refusal::Gone { .. }), "{request}");
    story.register("a");
    story.grant("a");
}

#[test]
fn what_an_evicted_replica_had_staged_is_merged() {
    let mut story = Story::new();
    story.register("a");
    story.register("b");
    story.grant("b");
    story.contribute("a");
    story.order(evict("a"));
    story.contribute("b");
    story.merge();
    assert_eq!(story.counts().committed, Windows(8));
}

#[test]
fn evicting_the_last_one_who_is_awaited_closes_the_round() {
    let mut story = Story::new();
    story.register("a");
    story.register("b");
    story.grant("b");
    story.contribute("a");
    story.order(evict("b"));
    assert!(matches!(story.state().round.phase, RoundPhase::Closed(_)));
}

#[test]
fn a_stopped_run_ends_with_the_open_round_and_is_evaluated() {
    let mut story = Story::with(|spec| spec.evaluate_every = 5);
    story.register("a");
    story.register("b");
    assert_eq!(story.ask("a"), LeaseAnswer::Evaluate(Generation(0)));
    story.evaluated("a", 0);
    let grant = story.grant("a");
    story.order(stop());

    // Who has not begun does not begin; who has, ends its phase.
    assert_eq!(story.ask("b"), LeaseAnswer::Wait(Wait::Ending));
    story.pass(5, &["a"]);
    let parts = story.parts(&grant, grant.plan.windows.0);
    assert_eq!(story.announce("a", &parts), Ok(Verdict::Upload));
    assert_eq!(story.complete(parts.id()), Ok(Verdict::Staged));
    story.merge();
    assert_eq!(story.state().ending, Some(EndReason::Stopped));
    assert_eq!(story.ask("b"), LeaseAnswer::Evaluate(Generation(1)));
    story.evaluated("b", 1);
    for name in ["a", "b"] {
        assert_eq!(story.ask(name), LeaseAnswer::Finish(EndReason::Stopped));
        story.goodbye(name);
    }
    assert!(story.state().ended);
    assert!(story.refused(pause()).contains("an operator stopped it"));
}

#[test]
fn a_run_that_nobody_trains_stops_at_once_and_a_paused_one_does_too() {
    let mut story = Story::new();
    story.order(stop());
    assert!(story.state().ended);

    let mut story = Story::new();
    story.register("a");
    story.contribute("a");
    story.merge();
    // It is a member of the next round, but has not begun.
    story.order(pause());
    story.order(stop());
    assert!(story.state().ended);
    assert_eq!(story.state().orders.paused, None);
}

#[test]
fn stopping_waits_for_a_member_only_until_its_lease_ends() {
    let mut story = Story::new();
    story.register("a");
    story.grant("a");
    story.order(stop());
    story.pass(60, &[]);
    assert!(story.state().ended);
}

#[test]
fn stopping_twice_is_stopping_and_a_stopping_run_is_not_paused() {
    let mut story = Story::new();
    story.register("a");
    story.grant("a");
    story.order(stop());
    story.order(stop());
    assert!(story.refused(pause()).contains("being stopped"));
}

/// The replica's half.
mod replica {
    use super::common::process::*;
    use super::common::*;
    use hansa_base::MonoMs;
    use hansa_protocol::replica::*;
    use hansa_protocol::*;

    fn leave() -> Standing {
        Standing {
            leave: Some("site lumi is drained".to_owned()),
            ..standing(Some(lease(0)), current(0))
        }
    }

    #[test]
    fn told_to_leave_it_contributes_says_goodbye_and_ends_well() {
        let mut process = Process::training();
        process.beat(leave());
        assert!(process.has(|action| *action == Action::Halt));
        assert!(process.has(|action| matches!(action, Action::Tell(Notice::Leaving(_)))));
        process.wrap_up();
        assert!(matches!(process.call().1, Call::Announce(_)));
        process.reply(Reply::Verdict(Verdict::Staged));
        assert!(matches!(process.call().1, Call::Goodbye(_)));
        process.reply(Reply::Done);
        let why = "site lumi is drained".to_owned();
        let exit = Action::Exit(ExitReason::Drained(why));
        assert_eq!(process.actions, [exit]);
    }

    #[test]
    fn told_to_leave_without_work_it_leaves_at_once_and_a_signal_changes_nothing() {
        let mut process = Process::joined(Found::default(), registered(None, None));
        let answer = LeaseAnswer::Leave("enough".to_owned());
        process.reply(Reply::Lease(answer));
        let goodbye = process.call();
        process.tell(Input::Stop);
        assert!(!process.has(|action| matches!(action, Action::Exit(_))));
        let answer = Ok(Reply::Done);
        let no = goodbye.0;
        process.tell(Input::Answered { no, answer });
        let exit = Action::Exit(ExitReason::Drained("enough".to_owned()));
        assert_eq!(process.actions, [exit]);
    }

    #[test]
    fn evicted_it_ends_with_the_reason() {
        let mut process = Process::training();
        let evicted = Refusal::Evicted {
            replica: id("a"),
            why: "experiments".to_owned(),
        };
        process.now = process.now.after(s(5));
        process.tell(Input::Wake);
        process.pulse(Err(CallFailed::Refused(evicted.clone())));
        assert!(process.has(|action| *action == Action::Halt));
        let exit = Action::Exit(ExitReason::Evicted(evicted));
        assert!(process.has(|action| *action == exit));
    }

    #[test]
    fn while_the_run_is_paused_it_asks_no_more_often_than_it_must() {
        let mut process = Process::joined(Found::default(), registered(None, None));
        let before: MonoMs = process.now;
        let paused = Wait::Paused("for repairs".to_owned());
        process.reply(Reply::Lease(LeaseAnswer::Wait(paused.clone())));
        let told = Action::Tell(Notice::Waiting(paused));
        assert!(process.has(|action| *action == told));
        let asks = |process: &Process| {
            process.has(|action| {
                matches!(
                    action,
                    Action::Call {
                        call: Call::Lease(_),
                        ..
                    }
                )
            })
        };
        process.now = before.after(s(1));
        process.tell(Input::Wake);
        assert!(!asks(&process), "it polls as if the run went on");
        process.now = before.after(s(3));
        process.tell(Input::Wake);
        assert!(asks(&process));
    }
}
