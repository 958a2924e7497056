//! A run by hand, as a user would do it: a coordinator and three replicas over HTTPS. One comes late,
//! one is asked to leave in mid-phase, the coordinator is killed and comes back.
#![allow(clippy::unwrap_used)]

mod common;

use common::{End, Place};
use serde_json::Value;

const ROUNDS: u64 = 8;
/// Windows that a slow replica trains in a second: a phase of 40 takes four.
const PACE: &str = "--pace 10";

#[test]
fn a_run_by_hand_survives_latecomers_leavers_and_a_killed_coordinator() {
    let place = Place::new();
    let rounds = format!("rounds = {ROUNDS}");
    let small_steps = ("steps = 10\nbatch = 4", "steps = 20\nbatch = 2");
    place.recipe("run.toml", &[("rounds = 2", &rounds), small_steps]);
    let server = place.serve("data");
    for site in ["alder", "birch", "cedar"] {
        place.token(site, "data");
    }
    let address = server.address().to_owned();
    let slow = |site: &str| format!("{} {PACE}", place.train_line(site, &server));
    let cedar_line = slow("cedar");
    let mut alder = place.start(&slow("alder"));
    let mut birch = place.start(&slow("birch"));

    // A run in progress, as its operator sees it.
    alder.event("step");
    birch.event("step");
    check_status(&place.status_until("data", |status| {
        let replicas = status["replicas"].as_array().unwrap();
        replicas.len() == 2 && replicas.iter().all(|replica| replica["loss"].is_number())
    }));

    // The latecomer adopts what is there.
    place.status_until("data", |status| status["generation"]["number"] != 0);
    let mut cedar = place.start(&cedar_line);
    assert_ne!(cedar.event("registered")["generation"], 0);

    // The leaver contributes what it has: a part of a phase.
    let phase = birch.event("phase_started");
    birch.event("step");
    birch.terminate();
    check_goodbye(&birch.end_well(), phase["steps"].as_u64().unwrap());

    // The coordinator dies, and those who train ride it out.
    server.process.kill();
    alder.event("coordinator_away");
    let server = place.serve_on("run.toml", "data", &address);
    alder.event("coordinator_back");

    let ends = [alder.end(), cedar.end()];
    for end in &ends {
        assert_eq!(end.code, Some(0), "{end:?}");
        let outcome = &end.event("ended")["outcome"];
        let complete = "the run is complete: its number of rounds is done";
        assert_eq!(outcome, complete);
    }
    let summary = server.process.end_well().event("ended");
    assert_eq!(
        (&summary["run_over"], &summary["generation"]),
        (&true.into(), &ROUNDS.into())
    );

    let report = place.verified("data");
    assert_eq!(
        (&report["generation"], &report["ended"]),
        (&ROUNDS.into(), &true.into())
    );
    check_ledger(&place, report["committed"].as_u64().unwrap());
    check_export(&place, summary["export"].as_str().unwrap());
}

/// What `hansa status --json` promises.
fn check_status(status: &Value) {
    let ledger = &status["ledger"];
    let count = |key: &str| ledger[key].as_u64().unwrap();
    let states = ["free", "leased", "staged", "committed", "quarantined"];
    assert_eq!(states.map(count).iter().sum::<u64>(), count("windows"));
    assert!(count("leased") > 0, "{ledger}");
    for replica in status["replicas"].as_array().unwrap() {
        assert_eq!(
            (&replica["live"], &replica["replica"]),
            (&true.into(), &"r0".into())
        );
        for key in ["incarnation", "phase_steps", "tokens_per_s", "heard_ms_ago"] {
            assert!(replica[key].is_number(), "{key}: {replica:#}");
        }
        assert!(replica["activity"].is_string() && replica["tally"]["granted"].is_number());
    }
    assert_eq!(status["run"], "tiny");
    assert!(status["generation"]["progress"].is_number(), "{status:#}");
    assert!(status["rounds"].is_array() && status["evaluations"].is_array());
    assert!(
        status["waiting"]["text"].as_str().unwrap().contains('/'),
        "{status:#}"
    );
    assert_eq!(
        (&status["ended"], &status["ending"]),
        (&false.into(), &Value::Null)
    );
}

/// Its last contribution is shorter than its plan, and is made.
fn check_goodbye(end: &End, planned: u64) {
    let last = end.event("contributed");
    let steps = last["steps"].as_u64().unwrap();
    assert!((1..planned).contains(&steps), "{steps} of {planned} steps");
    assert_eq!(last["windows"], 2 * steps);
    assert_eq!(end.event("ended")["outcome"], "stopped, with a goodbye");
}

/// `hansa ledger show` has every window and every round, for programs and for people.
fn check_ledger(place: &Place, committed: u64) {
    let shown = place.json("ledger show data --json --positions");
    let replicas = shown["replicas"].as_array().unwrap();
    let tallies = replicas
        .iter()
        .map(|it| it["tally"]["committed"].as_u64().unwrap());
    let tallies: Vec<u64> = tallies.collect();
    assert_eq!(tallies.iter().sum::<u64>(), committed, "{shown:#}");
    assert!(
        tallies.len() == 3 && tallies.iter().all(|&share| share > 0),
        "{tallies:?}"
    );
    let rounds = shown["rounds"].as_array().unwrap();
    let windows = rounds
        .iter()
        .map(|round| round["windows"].as_u64().unwrap());
    assert_eq!(
        (rounds.len() as u64, windows.sum::<u64>()),
        (ROUNDS, committed)
    );
    // Who trained the first position, and which generation has it. (A block may not have had its turn.)
    let first = place.json("ledger show data --position 0 --json");
    let commit = &first["committed"][0];
    assert!(commit["generation"].as_u64().unwrap() > 0, "{first:#}");
    let name = commit["replica"].as_str().unwrap();
    let text = place.do_it("ledger show data/journal.sqlite --position 0");
    assert!(text.contains(&format!("trained by {name}")), "{text}");
    let own = place.json(&format!("ledger show data --replica {name} --json"));
    assert_eq!(own["history"][0]["what"], "registered");
    let text = place.do_it("ledger show data");
    for word in [
        "alder/r0", "birch/r0", "cedar/r0", "0 → 1", "7 → 8", "share",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// The model is a Hugging Face directory.
fn check_export(place: &Place, export: &str) {
    let mut names: Vec<String> = std::fs::read_dir(place.path(export))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["config.json", "model.safetensors", "tokenizer.json"]
    );
    let read = |name: &str| place.read(&format!("{export}/{name}"));
    let config: Value = serde_json::from_str(&read("config.json")).unwrap();
    assert_eq!(
        (&config["model_type"], &config["hidden_size"]),
        (&"qwen3".into(), &32.into())
    );
    assert_eq!(read("tokenizer.json"), place.read("tokenizer.json"));
}
