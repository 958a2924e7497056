//! Trainers in PyTorch under `hansa agent`: a plain loop, and torchtitan with one rank and with two that
//! share a model. Needs a Python that has both, named by `HANSA_TORCH_PYTHON`.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use serde_json::Value;

use common::Place;
use common::torch::{
    agent, all_gone, descendants, ended_well, kill, losses, place, plain_loop, python, rank,
    real_text, torchtitan,
};

#[test]
fn a_plain_loop_trains_beside_the_embedded_trainer() {
    let Some(python) = python() else { return };
    let place = place(&[("peak_lr = 2e-3", "peak_lr = 1e-2")]);
    let server = place.serve("data");
    for site in ["plain", "embedded"] {
        place.token(site, "data");
    }
    let mut plain = agent(&place, "plain", &server, &plain_loop(&python));
    plain.event("registered");
    let embedded = place.train("embedded", &server);
    let said = ended_well(plain);
    embedded.end_well();
    server.process.end_well();
    let report = place.verified("data");
    assert_eq!(report["ended"], true, "{report}");
    assert!(!losses(&said).is_empty(), "{said}");
    has_learned(&place, "data");
    let shares = place.json("ledger show data --json");
    let text = shares.to_string();
    assert!(
        text.contains("plain") && text.contains("embedded"),
        "{text}"
    );
}

#[test]
fn torchtitan_with_one_rank_and_with_two_trains_beside_the_embedded_trainer() {
    let Some(python) = python() else { return };
    let place = place(&[
        ("peak_lr = 2e-3", "peak_lr = 1e-2"),
        ("rounds = 2", "rounds = 12"),
        ("every_s = 1", "every_s = 0.2"),
    ]);
    real_text(&place);
    let server = place.serve("data");
    for site in ["one", "two", "embedded"] {
        place.token(site, "data");
    }
    // Nobody begins before all are there.
    place.do_it("run pause --data data --because assembling");
    let mut one = agent(&place, "one", &server, &torchtitan(&python, 1));
    let mut two = agent(&place, "two", &server, &torchtitan(&python, 2));
    one.event("registered");
    two.event("registered");
    place.do_it("run resume --data data");
    // Slow enough that the others are heard before it has finished the run alone.
    let embedded = place.start(&format!(
        "{} --pace 20",
        place.train_line("embedded", &server)
    ));

    // One is shot in the middle of a phase. Nothing of it stays behind, and its successor goes on within its
    // lease.
    one.event("step");
    let ranks = descendants(one.id());
    assert!(ranks.len() >= 2, "{ranks:?}");
    one.kill();
    all_gone(&ranks);
    let mut one = agent(&place, "one", &server, &torchtitan(&python, 1));
    let registered = one.event("registered");
    assert!(
        registered["inherited_windows"].as_u64() > Some(0),
        "{registered}"
    );

    // The second rank of two is shot: the agent starts both again, and they go on within the lease.
    two.event("step");
    let ranks = descendants(two.id());
    kill(rank(two.id(), 1));
    two.event("trainer_lost");
    all_gone(&ranks);
    two.event("step");

    // One is asked to leave, wherever it stands: it contributes what it has, and says goodbye.
    one.terminate();
    let said = ended_well(one);
    let (trained, contributed) = last_phase(&said);
    assert_eq!(trained, contributed, "{said}");
    let outcome = &last_event(&said, "ended")["outcome"];
    assert_eq!(outcome, "stopped, with a goodbye");

    let said = ended_well(two);
    embedded.end_well();
    server.process.end_well();
    let report = place.verified("data");
    assert_eq!(report["ended"], true, "{report}");
    // What a process had trained when it was shot or sent away was trained by nobody else.
    for site in report["sites"].as_array().unwrap() {
        assert_eq!(site["reclaimed"], 0, "{report}");
    }
    assert!(!losses(&said).is_empty(), "{said}");
    has_learned(&place, "data");
}

/// The run's last model is better than its first. Steps cannot tell: a trainer that came back late finds a
/// model that has learned already, and the text of one step is harder than that of another.
fn has_learned(place: &Place, data: &str) {
    let shown = place.json(&format!("ledger show {data} --json"));
    let evaluations = shown["evaluations"].as_array().unwrap();
    let perplexity = |at: Option<&Value>| at.unwrap()["perplexity"].as_f64().unwrap();
    let (first, last) = (
        perplexity(evaluations.first()),
        perplexity(evaluations.last()),
    );
    assert!(
        evaluations.len() > 1 && last < 0.95 * first,
        "{evaluations:?}"
    );
}

/// Steps of the last phase in which any were trained, and how many of them were contributed.
fn last_phase(said: &str) -> (u64, u64) {
    let (mut trained, mut contributed) = (0, 0);
    for line in said.lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        match event["event"].as_str() {
            Some("step") => {
                trained = event["step"].as_u64().unwrap();
                contributed = 0;
            }
            Some("contributed") => contributed = event["steps"].as_u64().unwrap(),
            _ => {}
        }
    }
    (trained, contributed)
}

fn last_event(said: &str, name: &str) -> Value {
    let events = said.lines().rev();
    let mut events = events.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.find(|event| event["event"] == name).unwrap()
}

#[test]
fn the_python_package_passes_its_own_tests() {
    let Some(python) = python() else { return };
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let tests = std::process::Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"])
        .env("PYTHONPATH", &package)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(&package)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&tests.stdout);
    assert!(tests.status.success(), "{said}");
}
