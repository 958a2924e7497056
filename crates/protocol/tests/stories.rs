//! Failure stories, told with both machines: whatever happens, every window is in the weights once.
#![allow(clippy::unwrap_used)]

mod common;

use common::tale::Tale;
use common::*;
use hansa_base::{Steps, Tokens, Windows};
use hansa_protocol::replica::{ExitReason, Notice, Void};
use hansa_protocol::*;

/// One epoch of so many windows in blocks of 4; a phase is 2 steps of 2 windows.
fn epoch_of(windows: u64) -> Tale {
    epoch_in_phases_of(windows, 2)
}

fn epoch_in_phases_of(windows: u64, steps: u64) -> Tale {
    Tale::new(|spec| {
        spec.digest.windows = Windows(windows);
        spec.phase.steps = Steps(steps);
        spec.end = End::Epochs(1);
        spec.phase.balance = false;
    })
}

fn voids(tale: &mut Tale, name: &'static str) -> Vec<Void> {
    let told = tale.site(name).told.iter();
    let voids = told.filter_map(|notice| match notice {
        Notice::Void(why) => Some(why.clone()),
        _ => None,
    });
    voids.collect()
}

#[test]
fn a_lease_is_lost_and_retrained_while_its_first_holder_comes_back_in_the_same_round() {
    let mut tale = epoch_in_phases_of(96, 8);
    tale.start("a");
    tale.start("c");
    tale.pass(1, &["a", "c"]);
    tale.site("a").online = false;
    for _ in 0..3 {
        tale.pass(3, &[]);
        tale.step("c");
    }
    assert_eq!(tale.story.replica("a").lease, None, "its lease is lost");
    // What it had goes to b, and b's contribution is in.
    tale.start("b");
    tale.pass(4, &["b"]);
    tale.step("c");
    tale.pass(4, &["b"]);
    assert!(tale.story.replica("b").contributed.is_some());
    // It comes back, having trained some of that, while the round is still open for c.
    tale.step("a");
    tale.site("a").online = true;
    tale.pass(2, &["a", "c"]);
    assert_eq!(tale.story.state().current.generation.0, 0);
    assert!(matches!(
        voids(&mut tale, "a")[..],
        [Void::LeaseLost(Some(FreedCause::LeaseExpired))]
    ));
    tale.pass(200, &["a", "b", "c"]);
    assert!(tale.story.state().ended);
    tale.all_is_committed();
}

#[test]
fn an_outage_that_nobody_used_costs_nothing() {
    let mut tale = epoch_of(12);
    tale.start("a");
    tale.pass(1, &["a"]);
    tale.site("a").online = false;
    tale.pass(10, &[]);
    assert_eq!(tale.story.replica("a").tally.reclaimed, Windows(4));
    assert!(!tale.story.state().attempts.is_empty());
    tale.step("a");
    tale.site("a").online = true;
    tale.pass(2, &[]);
    assert!(voids(&mut tale, "a").is_empty());
    assert_eq!(tale.story.replica("a").tally.revived, Windows(4));
    assert!(
        tale.story.state().attempts.is_empty(),
        "and was nobody's data"
    );
    assert_eq!(tale.story.state().current.generation.0, 1);
    tale.pass(20, &["a"]);
    assert_eq!(tale.site("a").trained, 12, "nothing was trained twice");
    tale.all_is_committed();
}

#[test]
fn a_lease_that_was_lost_lives_again_after_the_coordinator_was_killed() {
    let mut tale = epoch_of(12);
    tale.start("a");
    tale.pass(1, &["a"]);
    tale.site("a").online = false;
    tale.pass(10, &[]);
    tale.story.restart(5);
    tale.site("a").online = true;
    tale.pass(20, &["a"]);
    assert_eq!(tale.site("a").trained, 12);
    tale.all_is_committed();
}

#[test]
fn the_reply_is_lost_between_staging_and_a_crash() {
    let mut tale = epoch_of(12);
    tale.start("a");
    tale.start("b");
    tale.site("a").loses_answers = true;
    tale.pass(2, &["a"]);
    assert!(
        tale.story.replica("a").contributed.is_some(),
        "it is staged"
    );
    tale.crash("a");
    tale.pass(1, &[]);
    // The successor finds the contribution in the checkpoint, and asks what became of it.
    tale.start("a");
    let accepted = |notice: &Notice| matches!(notice, Notice::Accepted { .. });
    assert!(tale.site("a").told.iter().any(accepted));
    assert_eq!(tale.site("a").trained, 0);
    tale.pass(20, &["a", "b"]);
    assert_eq!(tale.story.state().rounds[0].merged.len(), 2);
    tale.all_is_committed();
}

/// Phases of 20 steps of 2 windows, marks 3 s ahead; `a` has trained its first step.
fn long_phase() -> Tale {
    let mut tale = Tale::new(|spec| {
        spec.digest.windows = Windows(40);
        spec.phase.steps = Steps(20);
        spec.phase.balance = false;
        spec.timing.mark_lead = s(3);
        spec.end = End::Epochs(1);
    });
    tale.start("a");
    tale
}

fn mark(tale: &Tale, name: &str) -> (u64, u64) {
    let lease = tale.story.state().lease_of(tale.story.key(name)).unwrap();
    (lease.mark.0, lease.end().0)
}

/// The same, in a second epoch, when `a`'s rate is known.
fn long_phase_of_known_rate() -> Tale {
    let mut tale = Tale::new(|spec| {
        spec.digest.windows = Windows(80);
        spec.phase.steps = Steps(20);
        spec.phase.balance = false;
        spec.timing.mark_lead = s(3);
        spec.timing.grace = s(30);
        spec.end = End::Epochs(1);
    });
    tale.start("a");
    tale.pass(20, &["a"]);
    assert_eq!(tale.story.state().current.generation.0, 1);
    tale.pass(1, &[]);
    tale
}

#[test]
fn the_coordinator_is_killed_after_a_mark_was_raised() {
    let mut tale = long_phase_of_known_rate();
    let (first, end) = mark(&tale, "a");
    tale.pass(6, &["a"]);
    let (raised, _) = mark(&tale, "a");
    assert!(first < raised && raised < end);
    tale.story.restart(3);
    assert_eq!(mark(&tale, "a").0, raised, "it is in the journal");
    // Until its holder is heard of, all of the lease counts as reserved.
    tale.site("a").online = false;
    tale.start("b");
    tale.pass(1, &[]);
    assert_eq!(tale.events(|event| matches!(event, Event::Stolen(_))), 0);
    // The holder trains to its mark and waits there.
    tale.pass(15, &["a"]);
    assert!(tale.site("a").told.contains(&Notice::AtMark));
    assert_eq!(tale.site("a").trained, raised);
    tale.site("a").online = true;
    tale.pass(60, &["a", "b"]);
    tale.all_is_committed();
}

#[test]
fn the_coordinator_is_killed_with_a_raise_that_it_did_not_journal() {
    let mut tale = long_phase_of_known_rate();
    tale.pass(3, &["a"]);
    tale.site("a").online = false;
    tale.step("a");
    // The heartbeat raises the mark; the process dies before the journal has it, and so before the
    // answer.
    let (known, before) = (tale.story.journal.len(), tale.story.machine.clone());
    let replica = tale.story.replica("a");
    let (lease, incarnation) = (replica.lease.unwrap(), replica.incarnation);
    let heartbeat = Heartbeat {
        caller: tale.story.caller_as("a", incarnation),
        progress: Progress {
            activity: Activity::Training,
            counter: 48,
            step: Some(s(1)),
            rtt: None,
            loss: None,
            tokens_per_s: None,
        },
        at: Some((lease, Windows(48))),
    };
    tale.story.send(Command::Heartbeat(heartbeat)).unwrap();
    let (forgotten, _) = mark(&tale, "a");
    tale.story.journal.truncate(known);
    tale.story.machine = before;
    tale.story.restart(1);
    assert!(mark(&tale, "a").0 < forgotten);
    tale.site("a").online = true;
    tale.start("b");
    tale.pass(80, &["a", "b"]);
    assert!(tale.story.state().ended);
    tale.all_is_committed();
}

#[test]
fn an_idle_replica_takes_the_tail_beyond_the_mark_and_the_victims_phase_ends_sooner() {
    let mut tale = long_phase_of_known_rate();
    tale.pass(4, &["a"]);
    let (mark_before, end_before) = mark(&tale, "a");
    tale.start("b");
    let (mark_after, end_after) = mark(&tale, "a");
    let beyond = end_before - mark_before;
    assert_eq!(mark_before, mark_after);
    assert_eq!(end_before - end_after, beyond / 2 / 2 * 2);
    let (a, b) = (tale.story.replica("a"), tale.story.replica("b"));
    assert_eq!(a.tally.stolen.0, end_before - end_after);
    assert_eq!(a.plan.unwrap().windows.0, 40 - (end_before - end_after));
    assert_eq!(b.plan.unwrap().windows.0, end_before - end_after);
    tale.pass(40, &["a", "b"]);
    assert!(tale.story.state().ended);
    tale.all_is_committed();
    assert_eq!(
        tale.site("a").trained + tale.site("b").trained,
        80,
        "nothing twice"
    );
    assert_eq!(tale.story.state().rounds[1].merged.len(), 2);
}

#[test]
fn who_has_contributed_steals_nothing_and_nor_does_one_for_a_step_or_two() {
    let mut tale = long_phase();
    tale.start("b");
    // All is leased to a, whose rate is not known: all of its plan is reserved.
    tale.pass(3, &["a", "b"]);
    assert_eq!(tale.events(|event| matches!(event, Event::Stolen(_))), 0);
    let mut tale = long_phase_of_known_rate();
    tale.pass(14, &["a"]);
    let (mark, end) = mark(&tale, "a");
    assert!(end - mark < 8);
    tale.start("b");
    assert_eq!(tale.events(|event| matches!(event, Event::Stolen(_))), 0);
    tale.pass(40, &["a", "b"]);
    tale.all_is_committed();
}

#[test]
fn the_coordinator_is_killed_between_close_and_merge() {
    let mut tale = epoch_of(8);
    tale.holds_merges = true;
    tale.start("a");
    tale.pass(2, &["a"]);
    let record = tale.story.machine.merge_due().unwrap().clone();
    tale.story.restart(7);
    assert_eq!(
        tale.story.machine.merge_due(),
        Some(&record),
        "it is done again"
    );
    tale.holds_merges = false;
    tale.pass(10, &["a"]);
    assert!(tale.story.state().ended);
    tale.all_is_committed();
}

#[test]
fn an_upload_is_slower_than_the_grace_window() {
    let mut tale = epoch_of(8);
    tale.start("a");
    tale.start("b");
    tale.site("a").slow = true;
    tale.pass(2, &["a", "b"]);
    assert!(tale.story.replica("b").contributed.is_some());
    // Grace is 8 s, the lease lives for 6 s; but bytes arrive.
    for n in 1..10 {
        tale.pass(2, &[]);
        tale.arrive("a", 10 * n).unwrap();
    }
    assert_eq!(tale.story.state().current.generation.0, 0);
    tale.complete("a");
    assert_eq!(tale.story.state().rounds[0].merged.len(), 2);
    tale.all_is_committed();
}

#[test]
fn an_upload_that_takes_more_than_twice_its_time_is_refused_and_the_round_goes_on() {
    let mut tale = epoch_of(16);
    tale.start("a");
    tale.start("b");
    tale.site("a").slow = true;
    tale.pass(2, &["a", "b"]);
    // 40 of 100 bytes in 8 seconds: all of it should take 20 s, and may take 40.
    tale.pass(4, &[]);
    tale.arrive("a", 1).unwrap();
    tale.pass(4, &[]);
    tale.arrive("a", 41).unwrap();
    for n in 0..20 {
        tale.pass(2, &[]);
        if tale.arrive("a", 42 + n).is_err() {
            break;
        }
    }
    let slow = |event: &Event| {
        matches!(
            event,
            Event::Refused {
                because: RefusedBecause::TooSlow,
                ..
            }
        )
    };
    assert_eq!(tale.events(slow), 1);
    assert_eq!(tale.story.state().rounds[0].merged.len(), 1, "without it");
    tale.site("a").slow = false;
    tale.complete("a");
    tale.pass(90, &["a", "b"]);
    assert!(tale.story.state().ended);
    tale.all_is_committed();
}

#[test]
fn a_requeued_and_a_chained_job_share_one_directory() {
    let mut tale = epoch_of(12);
    tale.start("a");
    tale.pass(1, &["a"]);
    // Slurm requeues the job while its chained successor has begun: both find the same files.
    let disk = tale.site("a").disk.clone();
    tale.start_on("a'requeued", 1, disk.clone());
    tale.pass(2, &[]);
    assert_eq!(tale.site("a").exit, Some(ExitReason::Fenced));
    tale.start_on("a'chained", 1, disk);
    let busy = |notice: &Notice| matches!(notice, Notice::Busy(Refusal::Busy { .. }));
    assert!(
        tale.site("a'chained").told.iter().any(busy),
        "a token is used once"
    );
    tale.pass(8, &["a", "a'requeued", "a'chained"]);
    assert_eq!(tale.site("a'chained").trained, 0);
    tale.pass(20, &["a'requeued"]);
    tale.all_is_committed();
}

#[test]
fn three_outages_of_links_on_the_same_span_condemn_no_window() {
    let mut tale = epoch_of(1);
    for (name, comes_back) in [("a", false), ("b", false), ("a", true)] {
        if comes_back {
            // It hears that it was given up; its trainer ends its step, and it joins once more.
            tale.site(name).online = true;
            tale.pass(2, &[]);
            tale.step(name);
        } else {
            tale.start(name);
        }
        tale.pass(2, &[]);
        assert!(tale.story.replica(name).lease.is_some(), "{name}");
        tale.site(name).online = false;
        tale.pass(30, &[]);
        assert!(matches!(
            tale.story.replica(name).presence,
            Presence::Left(_)
        ));
        assert!(
            !tale.story.state().attempts.is_empty(),
            "it may have crashed"
        );
    }
    assert_eq!(tale.story.counts().quarantined, Windows(0));
    for name in ["a", "b"] {
        tale.site(name).online = true;
        tale.pass(2, &[]);
    }
    assert!(tale.story.state().attempts.is_empty(), "nobody did");
    tale.pass(20, &["a", "b"]);
    tale.all_is_committed();
}

#[test]
fn the_last_step_of_an_epoch_is_ragged() {
    let mut tale = epoch_of(7);
    tale.start("a");
    tale.pass(10, &["a"]);
    assert!(tale.story.state().ended);
    tale.all_is_committed();
    let rounds = &tale.story.state().rounds;
    let windows: u64 = rounds.iter().flat_map(|r| &r.merged).map(|m| m.2.0).sum();
    let tokens: u64 = rounds.iter().flat_map(|r| &r.merged).map(|m| m.3.0).sum();
    let steps: u64 = rounds.iter().flat_map(|r| &r.merged).map(|m| m.4.0).sum();
    assert_eq!((windows, tokens, steps), (7, 56, 4));
    assert_eq!(tale.story.state().current.tokens, Tokens(56));
}

#[test]
fn a_stalled_coordinator_takes_no_lease_from_anybody() {
    let mut tale = epoch_of(12);
    tale.start("a");
    tale.pass(1, &["a"]);
    let lease = tale.story.replica("a").lease;
    // Half a minute in which it neither ticks nor answers; its queue holds nothing.
    tale.site("a").online = false;
    tale.story.now = tale.story.now.after(s(30));
    tale.pass(1, &[]);
    assert_eq!(tale.story.replica("a").lease, lease);
    tale.site("a").online = true;
    tale.pass(20, &["a"]);
    assert_eq!(tale.site("a").trained, 12);
    tale.all_is_committed();
}

#[test]
fn a_member_whose_lease_is_fully_staged_dies_and_is_not_waited_for_for_ever() {
    let mut tale = epoch_of(16);
    tale.start("a");
    tale.start("b");
    tale.pass(2, &["a"]);
    assert!(tale.story.replica("a").contributed.is_some());
    tale.crash("a");
    tale.pass(2, &["b"]);
    assert_eq!(tale.story.state().current.generation.0, 1);
    assert_eq!(
        tale.story.state().awaited().count(),
        2,
        "the ghost is a member"
    );
    tale.pass(90, &["b"]);
    assert!(tale.story.state().ended);
    tale.all_is_committed();
}

#[test]
fn a_member_that_answers_without_progress_leaves_the_round_and_is_told_why() {
    let mut tale = epoch_in_phases_of(48, 8);
    tale.start("hung");
    tale.start("b");
    tale.pass(1, &["hung", "b"]);
    // It goes on saying that it trains.
    for _ in 0..5 {
        tale.pass(2, &[]);
        tale.step("b");
    }
    assert_eq!(tale.story.replica("hung").presence, Presence::Live);
    assert_eq!(tale.story.replica("hung").plan, None);
    let why = Void::LeaseLost(Some(FreedCause::LeaseExpired));
    assert_eq!(voids(&mut tale, "hung"), [why]);
    assert_eq!(tale.story.replica("hung").tally.revived, Windows(0));
    tale.pass(90, &["b", "hung"]);
    assert!(tale.story.state().ended);
    tale.all_is_committed();
}

#[test]
fn a_site_dies_holding_nine_blocks_five_go_to_another_site_and_four_to_its_own_restart() {
    let mut tale = Tale::new(|spec| {
        spec.digest.windows = Windows(50 * 4);
        spec.phase = PhaseSpec {
            steps: Steps(1),
            batch: Windows(4),
            accumulation: 1,
            balance: false,
        };
    });
    let blocks = |tale: &Tale, name: &str| {
        let lease = tale.story.state().lease_of(tale.story.key(name));
        lease.map_or(0, |lease| lease.left().0 / 4)
    };
    tale.start_with("other", 5);
    let site = ["a0", "a1", "a2"];
    for name in site {
        tale.start_with(name, 3);
    }
    assert_eq!(site.map(|name| blocks(&tale, name)), [3; 3]);
    let nine = [span(20, 56)];
    // The site dies; the other one contributes, and waits until its leases are over.
    for name in site {
        tale.crash(name);
    }
    tale.pass(1, &["other"]);
    while tale.story.state().current.generation.0 == 0 {
        tale.pass(1, &[]);
    }
    assert_eq!(tale.story.state().ledger.first_free(Windows(36)), nine);
    tale.start_with("a0", 4);
    assert_eq!(blocks(&tale, "a0"), 4);
    tale.pass(1, &[]);
    assert_eq!(blocks(&tale, "other"), 5);
    tale.pass(3, &["a0", "other"]);
    let state = tale.story.state();
    let committed =
        |name: &str| Ownership::Committed(hansa_base::Generation(2), tale.story.key(name));
    let fate: Vec<_> = state.ledger.intervals().skip(1).take(2).collect();
    let should = [
        (span(20, 36), committed("a0")),
        (span(36, 56), committed("other")),
    ];
    assert_eq!(fate, should, "all of it once");
}
