//! The replica's half, told what came back and asked what it does.
#![allow(clippy::unwrap_used)]

mod common;

use common::process::*;
use common::*;
use hansa_base::{Bytes, Generation, MonoMs, Steps, Tokens, Windows};
use hansa_protocol::replica::*;
use hansa_protocol::*;

#[test]
fn nonce_and_token_are_durable_before_they_are_used() {
    let mut process = Process::start(Found::default());
    let [Action::Save(record)] = &process.actions[..] else {
        panic!("{:?}", process.actions)
    };
    let nonce = record.nonce.unwrap();
    let (_, call) = process.tell(Input::Saved).call();
    assert_eq!(
        call,
        Call::Register {
            nonce,
            resume: None,
            held: None,
        }
    );
    process.reply(registered(None, None));
    let [Action::Save(record)] = &process.actions[..] else {
        panic!("{:?}", process.actions)
    };
    assert_eq!((record.token, record.nonce), (Some(hash(0x22)), None));
    let (_, call) = process.tell(Input::Saved).call();
    assert!(matches!(call, Call::Lease(_)));
}

#[test]
fn a_registration_that_was_under_way_is_sent_again_with_its_nonce() {
    let record = RegistrationRecord {
        run: spec().run,
        replica: id("a"),
        held: Some(held()),
        token: Some(hash(4)),
        nonce: Some(hash(5)),
    };
    let mut process = Process::start(Found {
        registration: Some(record),
        ..Found::default()
    });
    let (_, call) = process.tell(Input::Saved).call();
    let (nonce, resume) = (hash(5), Some(hash(4)));
    let held = Some(held());
    assert_eq!(
        call,
        Call::Register {
            nonce,
            resume,
            held
        }
    );
}

#[test]
fn a_phase_is_encoded_then_durable_then_announced_then_uploaded() {
    let mut process = Process::training();
    process.step().tell(Input::TrainingEnded);
    let base = current(0);
    assert_eq!(process.actions, [Action::Encode { base }]);
    let (payload, bytes) = (hash(9), Bytes(10));
    process.tell(Input::Encoded { payload, bytes });
    let [Action::Checkpoint(state)] = &process.actions[..] else {
        panic!("{:?}", process.actions)
    };
    let parts = state.contribution.clone().unwrap();
    assert_eq!((parts.tokens, parts.steps), (Tokens(32), Steps(2)));
    assert_eq!(parts.spans, [span(0, 4)]);
    let (_, call) = process.tell(Input::CheckpointDurable).call();
    assert!(matches!(call, Call::Announce(announce) if announce.parts == parts));
    let (_, call) = process.reply(Reply::Verdict(Verdict::Upload)).call();
    assert!(matches!(call, Call::Upload { id, .. } if id == parts.id()));
    process.reply(Reply::Verdict(Verdict::Staged));
    assert_eq!(process.actions[0], Action::Promote);
    // The moments stay in memory when the next generation is loaded.
    process.reply(Reply::Lease(LeaseAnswer::Adopt(current(1))));
    let (generation, moments) = (current(1), Moments::Keep);
    assert!(process.actions.contains(&Action::Load {
        generation,
        moments
    }));
}

#[test]
fn after_a_refusal_the_moments_go_back_and_the_lease_starts_at_its_front() {
    let mut process = Process::training();
    process.step().wrap_up();
    process.refuse(Refusal::Stale {
        base: Generation(0),
        current: Generation(1),
    });
    assert!(process.has(|action| matches!(action, Action::Tell(Notice::Void(_)))));
    process.reply(Reply::Lease(LeaseAnswer::Adopt(current(1))));
    let (generation, moments) = (current(1), Moments::Fresh);
    assert!(process.actions.contains(&Action::Load {
        generation,
        moments
    }));
    process.tell(Input::Loaded).reply(grant(1, 0));
    let train = process.actions.iter().find_map(|action| match action {
        Action::Train(order) => Some(order.clone()),
        _ => None,
    });
    let order = train.unwrap();
    assert_eq!(
        (order.spans, order.steps_done),
        (vec![span(0, 4)], Steps(0))
    );
}

#[test]
fn without_the_coordinator_it_trains_to_the_end_of_its_plan_and_then_retries() {
    let mut process = Process::training();
    for _ in 0..5 {
        process.now = process.now.after(s(5));
        process.tell(Input::Wake).pulse(unreachable());
        assert!(process.actions.is_empty());
    }
    process.step().wrap_up();
    let (no, first) = process.call();
    let answer = unreachable();
    process.tell(Input::Answered { no, answer });
    assert!(process.has(|action| matches!(action, Action::Tell(Notice::Retrying { .. }))));
    process.now = process.machine.wake_at().unwrap();
    let (again, second) = process.tell(Input::Wake).call();
    assert!(second == first && again != no);
}

#[test]
fn a_heartbeat_that_is_answered_ends_the_back_off() {
    let mut process = Process::training();
    process.now = process.now.after(s(5));
    process.step().wrap_up();
    let (no, first) = process.call();
    process.tell(Input::Answered {
        no,
        answer: unreachable(),
    });
    let is_call = |action: &Action| matches!(action, Action::Call { .. });
    assert!(!process.has(is_call));
    process.pulse(Ok(Reply::Standing(standing(Some(lease(0)), current(0)))));
    let (again, second) = process.call();
    assert!(second == first && again != no);
}

#[test]
fn an_answer_makes_the_next_back_off_short_again() {
    let mut process = Process::joined(Found::default(), registered(None, None));
    process.reply(Reply::Lease(LeaseAnswer::Adopt(current(0))));
    // Its heartbeat stays under way: the clock is only for the call.
    process.tell(Input::Loaded);
    let mut next_attempt = |answer: Result<Reply, CallFailed>| {
        let (no, _) = process.call();
        process.tell(Input::Answered { no, answer });
        let answered = process.now;
        process.now = process.machine.wake_at().unwrap();
        let delay = process.now.since(answered);
        process.tell(Input::Wake);
        delay
    };
    let delays: Vec<_> = (0..5).map(|_| next_attempt(unreachable())).collect();
    assert!(delays[4] > 4 * delays[0], "{delays:?}");
    next_attempt(Ok(Reply::Lease(LeaseAnswer::Wait(Wait::Merging))));
    let delay = next_attempt(unreachable());
    assert!(delay < 2 * delays[0], "{delay:?} after {delays:?}");
}

#[test]
fn it_stops_training_what_cannot_count() {
    let cases = [
        standing(None, current(0)),
        standing(Some(lease(4)), current(0)),
        standing(Some(lease(0)), current(1)),
        Standing {
            merging: true,
            ..standing(Some(lease(0)), current(0))
        },
    ];
    for bad in cases {
        let mut process = Process::training();
        process.beat(standing(Some(lease(0)), current(0)));
        assert!(process.actions.is_empty(), "all is well");
        process.beat(bad);
        assert!(process.actions.contains(&Action::Halt));
        // What is trained before it halts is lost too.
        process.step().tell(Input::TrainingEnded);
        assert!(matches!(process.call().1, Call::Lease(_)));
        process.reply(grant(0, 0));
        let moments = Moments::Fresh;
        let generation = current(0);
        assert!(process.actions.contains(&Action::Load {
            generation,
            moments
        }));
    }
}

#[test]
fn a_checkpoint_within_a_phase_says_exactly_what_is_trained() {
    let mut process = Process::joined(Found::default(), registered(None, None));
    process.reply(Reply::Lease(LeaseAnswer::Adopt(current(0))));
    process.tell(Input::Loaded).reply(grant(0, 0));
    process.now = process.now.after(s(61));
    process.step();
    assert!(process.actions.contains(&Action::Halt));
    process.tell(Input::TrainingEnded);
    let [Action::Checkpoint(state)] = &process.actions[..] else {
        panic!("{:?}", process.actions)
    };
    assert_eq!((state.cursor, state.steps), (Windows(2), Steps(1)));
    process.tell(Input::CheckpointDurable);
    let [Action::Train(order)] = &process.actions[..] else {
        panic!("{:?}", process.actions)
    };
    assert_eq!(
        (&order.spans[..], order.steps_done),
        (&[span(2, 4)][..], Steps(1))
    );
}

/// Steps may take as long as checkpoints are apart: then each heartbeat falls between a checkpoint
/// that is due and the end of the step.
#[test]
fn a_step_is_progress_while_a_checkpoint_is_due() {
    let mut process = Process::joined(Found::default(), registered(None, None));
    process.reply(Reply::Lease(LeaseAnswer::Adopt(current(0))));
    process.tell(Input::Loaded).reply(grant(0, 0));
    process.pulse(unreachable());
    process.now = process.now.after(s(61));
    process.step();
    assert!(process.has(|action| matches!(action, Action::Halt)));
    let says_so = |action: &Action| match action {
        Action::Call {
            call: Call::Heartbeat(Heartbeat { progress, .. }),
            ..
        } => (progress.activity, progress.counter) == (Activity::Training, 2),
        _ => false,
    };
    assert!(process.has(says_so), "{:?}", process.actions);
}

#[test]
fn a_successor_carries_on_inside_the_lease_that_it_inherits() {
    let found = Found {
        latest: Some(mid_phase()),
        ..Found::default()
    };
    let mut process = Process::joined(found, registered(Some(lease(0)), None));
    assert!(process.actions.contains(&Action::Restore));
    process.tell(Input::Loaded).reply(grant(0, 0));
    let train = |action: &Action| matches!(action, Action::Train(o) if o.spans == [span(2, 4)]);
    assert!(process.has(train));
}

#[test]
fn a_successor_without_the_lease_starts_from_the_current_generation() {
    for lease in [None, Some(lease(4))] {
        let found = Found {
            latest: Some(mid_phase()),
            accepted: true,
            ..Found::default()
        };
        let mut process = Process::joined(found, registered(lease, None));
        process.reply(Reply::Lease(LeaseAnswer::Adopt(current(0))));
        let (generation, moments) = (current(0), Moments::Accepted);
        assert!(process.actions.contains(&Action::Load {
            generation,
            moments
        }));
    }
}

#[test]
fn a_successor_announces_what_its_checkpoint_holds() {
    let mut process = Process::training();
    process.step().tell(Input::TrainingEnded);
    let (payload, bytes) = (hash(9), Bytes(10));
    process.tell(Input::Encoded { payload, bytes });
    let [Action::Checkpoint(state)] = &process.actions[..] else {
        panic!("{:?}", process.actions)
    };
    let found = Found {
        latest: Some(state.clone()),
        ..Found::default()
    };
    let id = state.contribution.as_ref().unwrap().id();
    let mut heir = Process::joined(found, registered(Some(lease(0)), Some(id)));
    assert!(matches!(heir.call().1, Call::Announce(announce) if announce.parts.id() == id));
    heir.reply(Reply::Verdict(Verdict::Merged(Generation(1))));
    assert_eq!(heir.actions[0], Action::Promote);
    heir.reply(Reply::Lease(LeaseAnswer::Adopt(current(1))));
    let (generation, moments) = (current(1), Moments::Accepted);
    assert!(heir.actions.contains(&Action::Load {
        generation,
        moments
    }));
}

#[test]
fn a_stop_contributes_what_is_trained_and_says_goodbye() {
    let mut process = Process::training();
    process.tell(Input::Stop);
    assert!(process.actions.contains(&Action::Halt));
    process.wrap_up();
    let (_, call) = process.call();
    assert!(matches!(call, Call::Announce(announce) if announce.parts.spans == [span(0, 2)]));
    process.reply(Reply::Verdict(Verdict::Upload));
    process.reply(Reply::Verdict(Verdict::Staged));
    assert!(matches!(process.call().1, Call::Goodbye(_)));
    process.reply(Reply::Done);
    let goodbye = true;
    assert_eq!(
        process.actions,
        [Action::Exit(ExitReason::Stopped { goodbye })]
    );
}

#[test]
fn who_trains_what_is_not_finite_says_so_and_ends() {
    let mut process = Process::training();
    process.tell(Input::NotFinite("loss of window 7".to_owned()));
    let (_, call) = process.call();
    let told = |call: &Call| match call {
        Call::Goodbye(goodbye) => goodbye.not_finite,
        other => panic!("{other:?}"),
    };
    assert!(told(&call));
    // It is said again, should nothing come back: a successor would train the same.
    let (no, _) = process.call();
    let answer = unreachable();
    process.tell(Input::Answered { no, answer });
    process.now = process.machine.wake_at().unwrap();
    process.tell(Input::Wake);
    assert!(told(&process.call().1));
    process.reply(Reply::Done);
    let exit = Action::Exit(ExitReason::NotFinite("loss of window 7".to_owned()));
    assert!(process.actions.contains(&exit), "{:?}", process.actions);
    // If nobody hears it in time, people do.
    let mut process = Process::training();
    process.tell(Input::NotFinite("loss of window 7".to_owned()));
    process.tell(Input::Stop);
    process.tell(Input::Stop);
    assert!(process.actions.contains(&exit), "{:?}", process.actions);
    // Anything else that fails gives back what is leased.
    let mut process = Process::training();
    process.tell(Input::Failed("the disk is full".to_owned()));
    assert!(!told(&process.call().1));
}

#[test]
fn a_stop_ends_in_time_and_a_second_one_at_once() {
    let goodbye = false;
    let exit = Action::Exit(ExitReason::Stopped { goodbye });
    let mut process = Process::training();
    process.tell(Input::Stop);
    process.now = process.now.after(s(31));
    assert!(process.tell(Input::Wake).actions.contains(&exit));
    let mut process = Process::training();
    process.tell(Input::Stop);
    assert!(process.tell(Input::Stop).actions.contains(&exit));
    assert!(process.tell(Input::Loaded).actions.is_empty(), "it is over");
    assert_eq!(process.machine.wake_at(), None);
}

#[test]
fn a_fenced_process_stops_at_once() {
    let mut process = Process::training();
    process.step().wrap_up();
    process.refuse(Refusal::Fenced { replica: id("a") });
    assert_eq!(process.actions, [Action::Exit(ExitReason::Fenced)]);
}

#[test]
fn one_who_was_given_up_registers_again_with_its_token() {
    let mut process = Process::training();
    process.step().wrap_up();
    process.refuse(Refusal::Gone { replica: id("a") });
    let (_, call) = process.tell(Input::Saved).call();
    assert!(matches!(call, Call::Register { resume, .. } if resume == Some(hash(0x22))));
}

#[test]
fn another_process_of_the_name_is_waited_for_unless_that_is_not_wanted() {
    let busy = Refusal::Busy {
        replica: id("a"),
        retry: s(100),
    };
    let mut process = Process::start(Found::default());
    process.tell(Input::Saved).refuse(busy.clone());
    assert_eq!(process.actions, [Action::Tell(Notice::Busy(busy.clone()))]);
    process.now = process.machine.wake_at().unwrap();
    assert!(matches!(
        process.tell(Input::Wake).call().1,
        Call::Register { .. }
    ));
    let when_busy = WhenBusy::Exit;
    let options = Options {
        when_busy,
        ..options()
    };
    let (now, found) = (MonoMs(0), Found::default());
    process.machine = ReplicaMachine::start(spec(), id("a"), 1, options, found, now).0;
    process.tell(Input::Saved).refuse(busy.clone());
    assert_eq!(process.actions, [Action::Exit(ExitReason::Busy(busy))]);
}

#[test]
fn the_state_of_another_run_is_not_touched() {
    let latest = LocalState {
        run: hash(1),
        ..mid_phase()
    };
    let process = Process::start(Found {
        latest: Some(latest),
        ..Found::default()
    });
    assert!(matches!(
        process.actions[..],
        [Action::Exit(ExitReason::OtherState(_))]
    ));
}

#[test]
fn the_end_of_the_run_is_the_end_of_the_process() {
    let mut process = Process::joined(Found::default(), registered(None, None));
    process.reply(Reply::Lease(LeaseAnswer::Finish(EndReason::Rounds)));
    assert!(matches!(process.call().1, Call::Goodbye(_)));
    let (no, _) = process.call();
    let answer = unreachable();
    process.tell(Input::Answered { no, answer });
    let exit = Action::Exit(ExitReason::RunComplete(EndReason::Rounds));
    assert_eq!(process.actions, [exit]);
}
