//! The replica's half at its reserve mark.
#![allow(clippy::unwrap_used)]

mod common;

use common::process::*;
use common::*;
use hansa_base::Windows;
use hansa_protocol::replica::*;
use hansa_protocol::*;

/// Of a lease of which so many windows are reserved.
fn marked(mark: u64) -> LeaseView {
    LeaseView {
        mark: Windows(mark),
        seq: mark + 1,
        ..lease(0)
    }
}

fn marked_grant(mark: u64) -> Reply {
    let Reply::Lease(LeaseAnswer::Train(grant)) = grant(0, 0) else {
        unreachable!()
    };
    let lease = marked(mark);
    Reply::Lease(LeaseAnswer::Train(Grant { lease, ..grant }))
}

fn order(process: &Process) -> Option<TrainOrder> {
    process.actions.iter().find_map(|action| match action {
        Action::Train(order) => Some(order.clone()),
        _ => None,
    })
}

impl Process {
    /// Was told to train a phase of which only the first step is reserved.
    fn training_to_a_mark() -> Self {
        let mut process = Self::joined(Found::default(), registered(None, None));
        process.reply(Reply::Lease(LeaseAnswer::Adopt(current(0))));
        process.tell(Input::Loaded).reply(marked_grant(2));
        assert_eq!(order(&process).unwrap().spans, [span(0, 2)]);
        process.step().pulse(unreachable());
        process
    }
}

#[test]
fn without_the_coordinator_it_trains_to_its_mark_and_then_waits() {
    let mut process = Process::training_to_a_mark();
    process.tell(Input::TrainingEnded);
    assert!(process.has(|action| *action == Action::Tell(Notice::AtMark)));
    assert_eq!(process.machine.activity(), Activity::Waiting);
    for _ in 0..5 {
        process.pulse(unreachable());
        process.now = process.machine.wake_at().unwrap();
        process.tell(Input::Wake);
        assert_eq!(order(&process), None);
    }
    // It is heard of, and may go on, from the next window.
    let raised = standing(Some(marked(4)), current(0));
    process.pulse(Ok(Reply::Standing(raised)));
    let order = order(&process).unwrap();
    assert_eq!((order.spans, order.steps_done.0), (vec![span(2, 4)], 1));
}

#[test]
fn a_mark_that_is_raised_in_time_stops_nothing() {
    let mut process = Process::training_to_a_mark();
    process.beat(standing(Some(marked(4)), current(0)));
    assert!(process.actions.is_empty());
    process.tell(Input::TrainingEnded);
    assert_eq!(order(&process).unwrap().spans, [span(2, 4)]);
}

#[test]
fn an_old_view_of_the_lease_takes_nothing_back() {
    let mut process = Process::training_to_a_mark();
    process.beat(standing(Some(marked(4)), current(0)));
    process.beat(standing(Some(marked(2)), current(0)));
    process.tell(Input::TrainingEnded);
    assert_eq!(order(&process).unwrap().spans, [span(2, 4)]);
}

#[test]
fn a_phase_whose_tail_was_taken_ends_at_what_is_left() {
    let mut process = Process::training_to_a_mark();
    let (spans, seq) = (vec![span(0, 2)], 9);
    let cut = LeaseView {
        spans,
        seq,
        ..marked(2)
    };
    process.beat(standing(Some(cut), current(0)));
    process.tell(Input::TrainingEnded);
    let base = current(0);
    assert_eq!(process.actions, [Action::Encode { base }]);
}

#[test]
fn a_stop_at_the_mark_contributes_what_is_trained() {
    let mut process = Process::training_to_a_mark();
    process.tell(Input::TrainingEnded).tell(Input::Stop);
    let base = current(0);
    assert!(process.has(|action| *action == Action::Encode { base }));
}
