//! Stories of backups, restores and old copies: what belongs to another history never mixes in.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::{Hash, Incarnation, Timeline, Windows};
use hansa_protocol::*;

/// A run whose directory has a key and begins with timeline 10.
fn begun() -> Story {
    let mut story = Story::new();
    story.begin(hash(0x77), Timeline(10));
    story
}

/// Another process of the coordinator, over a copy of its state.
fn copy(story: &Story) -> Story {
    let mut copy = begun();
    copy.take_over(story.state().clone());
    copy
}

fn restore(story: &mut Story, timeline: u64) {
    let timeline = Timeline(timeline);
    story.send(Command::Restored { timeline }).unwrap();
}

fn heartbeat(story: &mut Story, caller: &Caller) -> Result<Reply, Refusal> {
    story.send(Command::Goodbye(caller.clone().into()))
}

/// A registration of one who was somebody before.
fn come_back(story: &mut Story, held: &Caller, resume: Hash) -> Result<Reply, Refusal> {
    let name = held.replica.replica.to_string();
    let mut register = story.registration(&name, 0x99, Some(resume));
    register.held = Some(held.clone());
    story.send(Command::Register(register))
}

#[test]
fn a_restored_copy_gives_up_everybody_and_keeps_what_is_staged() {
    let mut story = begun();
    for name in ["a", "b", "c"] {
        story.register(name);
        story.grant(name);
    }
    story.contribute("a");
    let mut restored = copy(&story);
    restore(&mut restored, 20);
    let state = restored.state();
    assert_eq!(state.lineage.timelines(), [Timeline(10), Timeline(20)]);
    assert_eq!(state.live().count(), 0);
    let counts = state.ledger.counts();
    assert_eq!((counts.leased, counts.staged), (Windows(0), Windows(4)));
    // Nobody is awaited any more: what is staged is merged.
    assert!(restored.machine.merge_due().is_some());
    for name in ["b", "c"] {
        let tally = restored.replica(name).tally;
        let lost = (tally.reclaimed, tally.failed);
        assert_eq!(lost, (Windows(0), Windows(0)), "nobody is to blame");
    }
}

#[test]
fn who_was_at_work_before_a_restore_is_told_to_register_afresh() {
    let mut story = begun();
    story.register("a");
    let mut restored = copy(&story);
    // Ahead of the backup: an incarnation that the copy has not issued.
    let token = story.register("b").token;
    let (a, b) = (story.caller("a"), story.caller("b"));
    restore(&mut restored, 20);
    let timeline = Timeline(20);
    for caller in [&a, &b] {
        assert_eq!(
            heartbeat(&mut restored, caller),
            Err(Refusal::Restored { timeline })
        );
        assert_eq!(
            come_back(&mut restored, caller, token),
            Err(Refusal::Restored { timeline })
        );
    }
    // Incarnation 2 is issued once more, and is not the same one.
    let afresh = restored.register("c");
    assert_eq!(afresh.incarnation, b.incarnation);
    assert_eq!(afresh.timeline, timeline);
    assert_ne!(afresh.seal, b.seal);
}

#[test]
fn an_old_directory_that_is_served_again_is_shown_by_those_who_moved_on() {
    let mut old = begun();
    old.register("a");
    let mut restored = copy(&old);
    restore(&mut restored, 20);
    restored.try_register("a", 0x55, None).unwrap();
    let moved_on = restored.caller("a");
    let proved =
        |reply| matches!(reply, Err(Refusal::NeverIssued { what }) if what.contains("timeline 20"));
    assert!(proved(heartbeat(&mut old, &moved_on)));
    assert!(proved(come_back(&mut old, &moved_on, hash(1))));
}

#[test]
fn of_two_restores_of_one_backup_the_later_one_is_not_stopped_by_the_earlier() {
    let story = begun();
    let (mut first, mut second) = (copy(&story), copy(&story));
    restore(&mut first, 20);
    restore(&mut second, 30);
    first.register("a");
    second.register("a");
    let (ours, theirs) = (Timeline(30), Timeline(20));
    assert_eq!(
        heartbeat(&mut second, &first.caller("a")),
        Err(Refusal::OtherHistory { ours, theirs })
    );
    let stops = heartbeat(&mut first, &second.caller("a"));
    assert!(matches!(stops, Err(Refusal::NeverIssued { .. })));
}

#[test]
fn nothing_that_a_site_can_make_up_stops_the_run() {
    let mut story = begun();
    story.register("a");
    let good = story.caller("a");
    let incarnation = Incarnation(1 << 40);
    let mut forged = good.clone();
    forged.incarnation = incarnation;
    let replica = good.replica.clone();
    assert_eq!(
        heartbeat(&mut story, &forged),
        Err(Refusal::NotSealed { replica })
    );
    forged.timeline = Timeline(u64::MAX);
    let (ours, theirs) = (Timeline(10), Timeline(u64::MAX));
    let other = Err(Refusal::OtherHistory { ours, theirs });
    assert_eq!(heartbeat(&mut story, &forged), other);
    assert_eq!(come_back(&mut story, &forged, hash(1)), other);
    let mut of_another_run = good.clone();
    of_another_run.run = hash(1);
    let (ours, theirs) = (story.spec.run, hash(1));
    assert_eq!(
        heartbeat(&mut story, &of_another_run),
        Err(Refusal::OtherRun { ours, theirs })
    );
    // A seal is of one name.
    let mut namesake = good.clone();
    namesake.replica = id("b");
    assert!(matches!(
        heartbeat(&mut story, &namesake),
        Err(Refusal::NotSealed { .. })
    ));
    // And none of it did any harm.
    heartbeat(&mut story, &good).unwrap();
}

#[test]
fn a_run_begun_anew_from_the_same_recipe_is_another_history() {
    let mut story = begun();
    story.register("a");
    let mut anew = Story::new();
    anew.begin(hash(0x78), Timeline(40));
    let (ours, theirs) = (Timeline(40), Timeline(10));
    assert_eq!(
        heartbeat(&mut anew, &story.caller("a")),
        Err(Refusal::OtherHistory { ours, theirs })
    );
}

#[test]
fn a_restore_raises_the_timeline_or_is_none() {
    let mut story = begun();
    for timeline in [Timeline(10), Timeline(3)] {
        let outcome = story
            .machine
            .handle(story.now, Command::Restored { timeline });
        assert!(matches!(outcome.reply, Err(Refusal::Broken(_))));
        assert!(outcome.events.is_empty());
        let mut state = story.state().clone();
        let forged = state.apply(&story.spec, &Event::Restored { timeline });
        assert!(forged.unwrap_err().to_string().contains("does not raise"));
    }
    story.register("a");
    let timeline = Timeline(20);
    let mut state = story.state().clone();
    let forged = state.apply(&story.spec, &Event::Restored { timeline });
    assert!(forged.unwrap_err().to_string().contains("at work"));
}
