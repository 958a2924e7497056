//! Sessions against a real coordinator: runs that complete, processes that are killed or stopped,
//! an outage, and everything that a user can have got wrong.
#![allow(clippy::unwrap_used)]

mod support;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hansa_corpus::Corpus;
use hansa_outer::Layout;
use hansa_protocol::{EndReason, State};
use hansa_session::embedded::Embedded;
use hansa_session::{
    Error, EvaluationReport, Outcome, Session, SessionEvent, StateDirError, StepReport, Trainer,
    TrainerError, TrainerFactory,
};
use hansa_transfer::{Fingerprint, Trust};
use hansa_wire::Recipe;
use serde_json::Value;
use support::child::Child;
use support::{Invitation, Running, Served, build_corpus, recipe};

/// The entry of the processes that other tests start, kill and stop.
#[test]
fn child_process() {
    support::child::run_if_asked();
}

fn replica<'a>(state: &'a State, name: &str) -> &'a hansa_protocol::Replica {
    state.find(&name.parse().unwrap()).unwrap().1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sites_complete_a_run_together() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = build_corpus(dir.path(), 1);
    let served = Served::start(dir.path(), &corpus, &recipe(&corpus, 6, 3, 5), false).await;
    let lumi = served
        .invite("lumi")
        .options("lumi/r0", &dir.path().join("a"));
    let frontier = served
        .invite("frontier")
        .options("frontier/r0", &dir.path().join("b"));
    let both = [Running::start(lumi), Running::start(frontier)];
    let mut measured = Vec::new();
    for one in both {
        let events = one.events.clone();
        let complete = Outcome::RunComplete(EndReason::Rounds);
        assert_eq!(one.outcome().await.unwrap(), complete);
        let contributed = |e: &SessionEvent| matches!(e, SessionEvent::Contributed { .. });
        assert!(events.count(contributed) >= 1);
        for event in events.all() {
            if let SessionEvent::Evaluated {
                generation, loss, ..
            } = event
            {
                measured.push((generation, loss));
            }
        }
    }
    measured.sort_by_key(|(generation, _)| *generation);
    let generations: Vec<u64> = measured.iter().map(|(generation, _)| *generation).collect();
    assert_eq!(generations, [0, 1, 2, 3]);
    assert!(measured[3].1 < measured[0].1, "{measured:?}");

    let state = served.stop().await.exact_ledger();
    assert_eq!(state.rounds.len(), 3);
    assert!(state.ended);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_of_a_killed_process_goes_on_with_its_lease() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = build_corpus(dir.path(), 2);
    let served = Served::start(dir.path(), &corpus, &recipe(&corpus, 40, 1, 20), false).await;
    let (invitation, state_dir) = (served.invite("lumi"), dir.path().join("a"));

    let mut child = Child::start(&invitation, "lumi/r0", &state_dir, 40.0);
    child.wait_for(|event| event["event"] == "step" && event["step"] == 4);
    child.kill();

    let successor = Running::start(invitation.options("lumi/r0", &state_dir));
    let events = successor.events.clone();
    let complete = Outcome::RunComplete(EndReason::Rounds);
    assert_eq!(successor.outcome().await.unwrap(), complete);
    let inherits = |e: &SessionEvent| matches!(e, SessionEvent::Registered { inherited_windows, .. } if *inherited_windows > 0);
    let resumes = |e: &SessionEvent| matches!(e, SessionEvent::Resumed { step, .. } if *step >= 1);
    let checks = |e: &SessionEvent| matches!(e, SessionEvent::CheckingCorpus { .. });
    assert_eq!((events.count(inherits), events.count(resumes)), (1, 1));
    assert_eq!(events.count(checks), 0, "the corpus was checked before");

    let state = served.stop().await.exact_ledger();
    let tally = replica(&state, "lumi/r0").tally;
    assert_eq!(tally.incarnations, 2);
    assert!(tally.inherited.0 > 0);
    assert_eq!((tally.reclaimed.0, tally.committed.0), (0, 80));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_every_turn_a_replica_still_completes_its_run() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = build_corpus(dir.path(), 9);
    let served = Served::start(dir.path(), &corpus, &recipe(&corpus, 8, 3, 20), false).await;
    let (invitation, state_dir) = (served.invite("lumi"), dir.path().join("a"));
    let turns = [
        "registered",
        "downloading",
        "adopted",
        "evaluated",
        "step",
        "uploading",
        "contributed",
        "adopted",
        "phase_started",
        "uploading",
    ];
    for turn in turns {
        let mut child = Child::start(&invitation, "lumi/r0", &state_dir, 1e6);
        child.wait_for(|event| event["event"] == turn);
        child.kill();
    }
    let last = Running::start(invitation.options("lumi/r0", &state_dir));
    let complete = Outcome::RunComplete(EndReason::Rounds);
    assert_eq!(last.outcome().await.unwrap(), complete);

    let state = served.stop().await.exact_ledger();
    let tally = replica(&state, "lumi/r0").tally;
    assert_eq!(tally.incarnations as usize, turns.len() + 1);
    assert_eq!((tally.reclaimed.0, tally.committed.0), (0, 3 * 16));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminated_process_contributes_what_it_has_trained() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = build_corpus(dir.path(), 3);
    let served = Served::start(dir.path(), &corpus, &recipe(&corpus, 100, 9, 20), false).await;

    let mut child = Child::start(
        &served.invite("lumi"),
        "lumi/r0",
        &dir.path().join("a"),
        20.0,
    );
    child.wait_for(|event| event["event"] == "step" && event["step"] == 2);
    child.signal("TERM");
    let contributed = child.wait_for(|event| event["event"] == "contributed");
    assert_eq!(child.exit_code(), Some(0));
    let steps = contributed["steps"].as_u64().unwrap();
    assert!((2..100).contains(&steps), "{steps} steps");

    // The round closes without it.
    served.wait_until(|state| state.rounds.len() == 1).await;
    let state = served.stop().await.exact_ledger();
    let tally = replica(&state, "lumi/r0").tally;
    assert_eq!(tally.committed.0, 2 * steps);
    assert_eq!(tally.granted.0, tally.committed.0 + tally.released.0);
    assert!(state.leases.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_the_coordinator_is_ridden_out() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = build_corpus(dir.path(), 4);
    let served = Served::start(dir.path(), &corpus, &recipe(&corpus, 6, 2, 20), false).await;
    let (mut options, events) = served
        .invite("lumi")
        .options("lumi/r0", &dir.path().join("a"));
    options.pace = Some(20.0);
    let running = Running::start((options, events.clone()));
    let stepped = |e: &SessionEvent| matches!(e, SessionEvent::Step { step: 2, .. });
    events.wait_for("second step", stepped).await;

    let stopped = served.stop().await;
    let away = |e: &SessionEvent| matches!(e, SessionEvent::CoordinatorAway { .. });
    events.wait_for("word of the outage", away).await;
    let done = |e: &SessionEvent| matches!(e, SessionEvent::Step { step: 6, .. });
    events.wait_for("last step of the phase", done).await;
    let served = stopped.start_again().await;

    let complete = Outcome::RunComplete(EndReason::Rounds);
    assert_eq!(running.outcome().await.unwrap(), complete);
    assert!(events.count(|e| matches!(e, SessionEvent::CoordinatorBack { .. })) >= 1);
    let state = served.stop().await.exact_ledger();
    assert_eq!(replica(&state, "lumi/r0").tally.incarnations, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trainer_that_hangs_loses_its_lease_but_not_its_session() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = build_corpus(dir.path(), 8);
    let served = Served::start(dir.path(), &corpus, &recipe(&corpus, 6, 1, 2), false).await;
    let (options, events) = served
        .invite("lumi")
        .options("lumi/r0", &dir.path().join("a"));
    let (released, gate) = std::sync::mpsc::channel::<()>();
    let hanging: TrainerFactory = Box::new(move |recipe, corpus| {
        Ok(Box::new(HangsOnce {
            inner: embedded(recipe, corpus)?,
            steps: 0,
            gate,
        }))
    });
    let task = tokio::spawn(Session::with_trainer(options, hanging).run());

    let name = "lumi/r0";
    let reclaimed = |state: &State| {
        let known = state.find(&name.parse().unwrap());
        known.is_some_and(|(_, replica)| replica.tally.reclaimed.0 > 0)
    };
    served.wait_until(reclaimed).await;
    released.send(()).unwrap();

    let complete = Outcome::RunComplete(EndReason::Rounds);
    assert_eq!(task.await.unwrap().unwrap(), complete);
    // It hears of it while it hangs, or it is heard of first: then its lease is revived.
    let void = |e: &SessionEvent| {
        matches!(
            e,
            SessionEvent::WorkDropped { .. } | SessionEvent::ContributionRefused { .. }
        )
    };
    let dropped = events.count(void);
    let state = served.stop().await.exact_ledger();
    let tally = replica(&state, name).tally;
    assert_eq!(tally.incarnations, 1);
    assert_eq!(dropped, usize::from(tally.revived.0 == 0));
}

fn embedded(recipe: &Recipe, corpus: Arc<Corpus>) -> Result<Embedded, TrainerError> {
    let (model, adamw) = (recipe.model.clone(), recipe.inner.adamw());
    Embedded::new(model, adamw, corpus, 2, Some(1))
}

/// Hangs in its third step until the gate opens.
struct HangsOnce {
    inner: Embedded,
    steps: u32,
    gate: std::sync::mpsc::Receiver<()>,
}

impl Trainer for HangsOnce {
    fn train_step(&mut self, windows: &[u64], lr: f64) -> Result<StepReport, TrainerError> {
        self.steps += 1;
        if self.steps == 3 {
            self.gate.recv().unwrap();
        }
        self.inner.train_step(windows, lr)
    }
    fn layout(&self) -> &Layout {
        self.inner.layout()
    }
    fn load_weights(&mut self, model: &Path) -> Result<(), TrainerError> {
        self.inner.load_weights(model)
    }
    fn evaluate(&mut self, held_out: Range<u64>) -> Result<EvaluationReport, TrainerError> {
        self.inner.evaluate(held_out)
    }
    fn read_weights(&mut self, first: u64, values: &mut [f32]) -> Result<(), TrainerError> {
        self.inner.read_weights(first, values)
    }
    fn save_checkpoint(&mut self, path: &Path, meta: &Value) -> Result<(), TrainerError> {
        self.inner.save_checkpoint(path, meta)
    }
    fn load_checkpoint(&mut self, path: &Path) -> Result<Value, TrainerError> {
        self.inner.load_checkpoint(path)
    }
    fn restore_moments(&mut self, checkpoint: Option<&Path>) -> Result<(), TrainerError> {
        self.inner.restore_moments(checkpoint)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_work_is_refused_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = build_corpus(&dir.path().join("right"), 5);
    let recipe = recipe(&corpus, 1000, 2, 20);
    let served = Served::start(dir.path(), &corpus, &recipe, false).await;
    let invitation = served.invite("lumi");

    let stranger = Invitation {
        token: "hansa_stranger".to_owned(),
        ..invitation.clone()
    };
    let error = refused(&stranger, "lumi/r0", &dir.path().join("x")).await;
    assert!(matches!(error, Error::Unauthorized(_)), "{error}");

    let elsewhere = Invitation {
        corpus: build_corpus(&dir.path().join("other"), 6),
        ..invitation.clone()
    };
    let error = refused(&elsewhere, "lumi/r0", &dir.path().join("x")).await;
    assert!(matches!(error, Error::OtherData(_)), "{error}");

    let nobody = Invitation {
        url: "http://127.0.0.1:9".to_owned(),
        ..invitation.clone()
    };
    let (mut options, _) = nobody.options("lumi/r0", &dir.path().join("x"));
    options.first_contact_within = Duration::from_millis(300);
    let error = Session::new(options).run().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");

    let (mut options, events) = invitation.options("lumi/r0", &dir.path().join("a"));
    options.pace = Some(20.0);
    let first = Running::start((options, events.clone()));
    let stepped = |e: &SessionEvent| matches!(e, SessionEvent::Step { .. });
    events.wait_for("step", stepped).await;
    let error = refused(&invitation, "lumi/r0", &dir.path().join("b")).await;
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    let error = refused(&invitation, "lumi/r1", &dir.path().join("a")).await;
    let locked = matches!(error, Error::State(StateDirError::Locked { .. }));
    assert!(locked, "{error}");
    first.handle.stop();
    assert_eq!(first.outcome().await.unwrap(), Outcome::SaidGoodbye);
    let error = refused(&invitation, "lumi/r1", &dir.path().join("a")).await;
    let foreign = matches!(error, Error::State(StateDirError::OtherReplica { .. }));
    assert!(foreign, "{error}");
    served.stop().await.exact_ledger();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn https_needs_the_right_fingerprint() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = build_corpus(dir.path(), 7);
    let served = Served::start(dir.path(), &corpus, &recipe(&corpus, 4, 1, 20), true).await;
    let (mut options, _) = served
        .invite("lumi")
        .options("lumi/r0", &dir.path().join("a"));
    options.endpoint.base_url = format!("https://{}", served.address);

    options.endpoint.trust = Trust::Pinned(Fingerprint([7; 32]));
    let error = Session::new(options.clone()).run().await.unwrap_err();
    assert!(matches!(error, Error::WrongFingerprint(_)), "{error}");

    options.endpoint.trust = Trust::Pinned(served.fingerprint);
    let complete = Outcome::RunComplete(EndReason::Rounds);
    assert_eq!(Session::new(options).run().await.unwrap(), complete);
    served.stop().await.exact_ledger();
}

async fn refused(invitation: &Invitation, replica: &str, state_dir: &Path) -> Error {
    let (options, _) = invitation.options(replica, state_dir);
    Session::new(options).run().await.unwrap_err()
}
