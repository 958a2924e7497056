//! What the state looks up quickly against walks over everything, through random stories.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use hansa_base::ReplicaKey;
use hansa_protocol::*;
use proptest::prelude::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// One thing that may happen, to one of the names.
#[derive(Clone, Copy, Debug)]
enum Step {
    Register,
    Ask,
    Announce,
    Complete,
    Refuse,
    Took,
    Goodbye,
    Merge,
    Pass(u64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Register),
        6 => Just(Step::Ask),
        6 => Just(Step::Announce),
        6 => Just(Step::Complete),
        1 => Just(Step::Refuse),
        3 => Just(Step::Took),
        1 => Just(Step::Goodbye),
        6 => Just(Step::Merge),
        3 => (1..25u64).prop_map(Step::Pass),
        1 => Just(Step::Restart),
    ]
}

/// Does what can be done; refusals are part of the story. Every command goes through [`Story::send`],
/// which compares the index with one that is made afresh, and the state with a replay.
fn take(story: &mut Story, name: &str, step: Step) {
    let found = story.state().find(&id(name));
    let announced = found.and_then(|(key, _)| story.state().announced_by(key));
    let announced = announced.map(|(_, contribution)| contribution.id);
    let replica = found.map(|(_, replica)| replica.clone());
    let known = replica.is_some();
    let current = story.state().current.manifest;
    match step {
        Step::Register => {
            let nonce = story.journal.len() as u8;
            let token = replica.map(|replica| replica.token);
            let resume = token.filter(|_| nonce.is_multiple_of(2));
            let _ = story.try_register(name, nonce, resume);
        }
        Step::Ask if known => drop(story.ask_on(name, current)),
        Step::Announce if known => {
            if let Ok(LeaseAnswer::Train(grant)) = story.ask_on(name, current) {
                let parts = story.parts(&grant, grant.plan.windows.0);
                let _ = story.announce(name, &parts);
            }
        }
        Step::Complete => drop(announced.map(|id| story.complete(id))),
        Step::Refuse => drop(announced.map(|id| story.complete_with(id, Some("not finite")))),
        Step::Took if known && story.state().current.generation.0 > 0 => {
            let alive = replica.is_some_and(|replica| replica.presence == Presence::Live);
            if alive {
                let seconds = 1 + u64::from(name.as_bytes()[0] % 4);
                story.took(name, 4, seconds, 1);
            }
        }
        Step::Goodbye if known => {
            let caller = story.caller(name);
            let _ = story.send(Command::Goodbye(caller.into()));
        }
        Step::Merge if story.machine.merge_due().is_some() => drop(story.merge()),
        Step::Pass(seconds) => story.pass(seconds, &[]),
        Step::Restart => story.restart(1),
        _ => {}
    }
}

fn compare(state: &State) {
    let keyed = || (0..).map(ReplicaKey).zip(&state.replicas);
    let base = state.round.base;
    let planned = |replica: &Replica| replica.plan.is_some_and(|plan| plan.generation == base);
    let live = |replica: &Replica| replica.presence == Presence::Live;
    let keys = |found: &mut dyn Iterator<Item = (ReplicaKey, &Replica)>| -> Vec<ReplicaKey> {
        found.map(|(key, _)| key).collect()
    };
    for (key, replica) in keyed() {
        assert_eq!(state.find(&replica.id).unwrap().0, key);
        let own = |c: &Contribution| c.key == key && c.stage == Stage::Announced;
        let announced = state.contributions.iter().find(|(_, c)| own(c));
        assert_eq!(
            state.announced_by(key).map(|(no, _)| no),
            announced.map(|(no, _)| *no)
        );
    }
    assert_eq!(state.find(&id("nobody")), None);
    assert_eq!(
        keys(&mut state.live()),
        keys(&mut keyed().filter(|(_, r)| live(r)))
    );
    let awaits = |r: &Replica| live(r) && planned(r) && r.contributed != Some(base);
    let awaited = keys(&mut keyed().filter(|(_, r)| awaits(r)));
    assert_eq!(keys(&mut state.awaited()), awaited);
    assert_eq!(state.awaited_count(), awaited.len());
    for (no, contribution) in &state.contributions {
        assert_eq!(state.contribution(contribution.id).unwrap().0, *no);
    }
    assert_eq!(state.contribution(hash(0)), None);
    let uploading = state
        .contributions
        .values()
        .any(|c| c.stage == Stage::Announced);
    assert_eq!(state.is_uploading(), uploading);
}

proptest! {
    #[test]
    fn what_is_looked_up_is_what_a_walk_finds(
        steps in prop::collection::vec((0..NAMES.len(), step()), 1..80)
    ) {
        let mut story = Story::with(|spec| {
            spec.min_quorum = 2;
            spec.end = End::Epochs(3);
            spec.timing.grace_rule = GraceRule::Adaptive;
        });
        for (who, step) in steps {
            take(&mut story, NAMES[who], step);
            compare(story.state());
        }
    }
}

#[test]
fn an_index_that_was_forgotten_is_noticed() {
    let mut story = Story::new();
    story.register("a");
    story.grant("a");
    let mut state = story.state().clone();
    assert!(state.is_indexed());
    state.replicas[0].presence = Presence::Left(LeftReason::Goodbye);
    assert!(!state.is_indexed());
    state.reindex();
    assert_eq!(state.live().count(), 0);
}
