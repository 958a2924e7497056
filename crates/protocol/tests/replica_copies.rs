//! What a replica does beside a restored, an older or another copy of its run.
#![allow(clippy::unwrap_used)]

mod common;

use common::process::*;
use common::*;
use hansa_base::{Generation, Timeline};
use hansa_protocol::replica::*;
use hansa_protocol::*;

#[test]
fn a_restore_voids_what_was_trained_and_the_replica_goes_on_as_a_newcomer() {
    let mut process = Process::training();
    process.step().wrap_up();
    let timeline = Timeline(9);
    process.refuse(Refusal::Restored { timeline });
    let [told, Action::Forget, Action::Save(record)] = &process.actions[..] else {
        panic!("{:?}", process.actions)
    };
    assert_eq!(*told, Action::Tell(Notice::Void(Void::Restored)));
    assert_eq!((&record.held, record.token), (&None, None));
    let (_, call) = process.tell(Input::Saved).call();
    let (resume, held) = (None, None);
    assert!(
        matches!(call, Call::Register { resume: r, held: h, .. } if (r, &h) == (resume, &held))
    );
    // The restored copy is at an earlier generation than this replica was: that is its right.
    process.reply(registered(None, None));
    process.tell(Input::Saved);
    process.reply(Reply::Lease(LeaseAnswer::Adopt(current(0))));
    let moments = Moments::Fresh;
    let generation = current(0);
    assert_eq!(
        process.actions,
        [Action::Load {
            generation,
            moments
        }]
    );
}

#[test]
fn a_successor_of_a_history_that_is_no_more_forgets_it_before_it_registers() {
    let record = RegistrationRecord {
        run: spec().run,
        replica: id("a"),
        held: Some(held()),
        token: Some(hash(4)),
        nonce: None,
    };
    let mut process = Process::start(Found {
        registration: Some(record),
        latest: Some(mid_phase()),
        accepted: true,
    });
    process.tell(Input::Saved);
    let timeline = Timeline(9);
    process.refuse(Refusal::Restored { timeline });
    let forgets = process.actions.contains(&Action::Forget);
    assert!(forgets, "{:?}", process.actions);
    process.tell(Input::Saved);
    process.reply(registered(None, None));
    process.tell(Input::Saved);
    process.reply(grant(0, 0));
    assert!(matches!(
        process.actions[..],
        [Action::Load {
            moments: Moments::Fresh,
            ..
        }]
    ));
}

#[test]
fn a_coordinator_that_goes_back_within_one_history_is_refused() {
    let mut process = Process::training();
    process.step().wrap_up();
    process.reply(Reply::Verdict(Verdict::Staged));
    process.reply(Reply::Lease(LeaseAnswer::Adopt(current(7))));
    process.tell(Input::Loaded);
    process.reply(Reply::Lease(LeaseAnswer::Adopt(current(5))));
    let (ours, theirs) = (Generation(7), Generation(5));
    assert_eq!(
        process.actions,
        [Action::Exit(ExitReason::OlderCopy { ours, theirs })]
    );
}

#[test]
fn what_serves_another_history_ends_the_process() {
    let (ours, theirs) = (Timeline(1), Timeline(2));
    for refusal in [
        Refusal::OtherHistory { ours, theirs },
        Refusal::NotSealed { replica: id("a") },
        Refusal::OtherRun {
            ours: hash(1),
            theirs: hash(2),
        },
    ] {
        let mut process = Process::training();
        process.step().wrap_up();
        process.refuse(refusal.clone());
        assert_eq!(
            process.actions,
            [Action::Exit(ExitReason::Refused(refusal))]
        );
    }
}
