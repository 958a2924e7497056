//! A run obeys its operator: paused, resumed, a site drained, a replica evicted and let in again, and
//! at last the run stopped. Real processes over HTTPS.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Place, Process, wait_until};
use serde_json::{Value, json};

/// Windows that a slow replica trains in a second: a phase of 40 takes two.
const PACE: &str = "--pace 20";

/// How far the published run is.
fn published(status: &Value) -> (Value, Value) {
    let ledger = &status["ledger"];
    (
        status["generation"]["number"].clone(),
        ledger["committed"].clone(),
    )
}

fn waits_paused(replica: &mut Process) {
    replica.event_like("waiting because of the pause", |event| {
        let reason = event["reason"].as_str().unwrap_or_default();
        event["event"] == "waiting" && reason.contains("paused the run: maintenance")
    });
}

#[test]
fn a_run_obeys_its_operator() {
    let place = Place::new();
    let many = ("rounds = 2", "rounds = 1000");
    let small_steps = ("steps = 10\nbatch = 4", "steps = 20\nbatch = 2");
    place.recipe("run.toml", &[many, small_steps]);
    let server = place.serve("data");
    for site in ["alder", "birch"] {
        place.token(site, "data");
    }
    let line = |site: &str| format!("{} {PACE}", place.train_line(site, &server));
    let (alder_line, birch_line) = (line("alder"), line("birch"));
    let mut alder = place.start(&alder_line);
    let mut birch = place.start(&birch_line);
    alder.event("contributed");
    birch.event("contributed");

    pause_and_resume(&place, &mut alder, &mut birch);

    // A site's token gives no orders.
    let (url, mark) = (&server.url, "--operator-file alder.toml");
    let line = format!("run pause --coordinator {url} {mark}");
    place.refuse(&line, &["gives no orders", "operator.toml"]);

    // Drained in mid-phase: it contributes what it has.
    birch.event("step");
    let line = "site drain birch --data data --because repairs";
    assert!(place.do_it(line).contains("site birch is drained"));
    let end = birch.end_well();
    let outcome = end.event("ended")["outcome"].to_string();
    assert!(
        outcome.contains("site birch is drained: repairs"),
        "{outcome}"
    );
    assert!(!end.stdout.contains("work_dropped"), "{}", end.stdout);
    place.refuse(
        &birch_line,
        &["site birch is drained", "hansa site undrain"],
    );
    drained_for_a_second(&place);

    // Evicted: it ends at once, with the reason, and does not come back until it may.
    alder.event("step");
    place.do_it("replica evict alder/r0 --data data --because experiments");
    let end = alder.end();
    assert_eq!(end.code, Some(1));
    let words = "an operator evicted alder/r0: experiments";
    assert!(end.stderr.contains(words), "{}", end.stderr);
    place.refuse(&alder_line, &[words, "hansa replica readmit alder/r0"]);
    let done = place.json("replica readmit alder/r0 --data data --json");
    assert_eq!(done["order"]["readmit"]["replica"], "alder/r0", "{done}");

    // Stopped: the open round is the last.
    let mut alder = place.start(&alder_line);
    alder.event("step");
    place.do_it("run stop --data data");
    let end = alder.end_well();
    let outcome = &end.event("ended")["outcome"];
    let complete = "the run is complete: an operator stopped it";
    assert_eq!(outcome, complete);
    let summary = server.process.end_well().event("ended");
    assert_eq!(summary["run_over"], true, "{summary}");
    let export = place.path(summary["export"].as_str().unwrap());
    assert!(export.join("model.safetensors").exists());
    let report = place.verified("data");
    assert_eq!(report["ended"], true, "{report}");
}

/// A drain is over when an operator says so, or by itself once its time is.
fn drained_for_a_second(place: &Place) {
    place.do_it("site undrain birch --data data");
    let line = "site drain birch --data data --until 1s";
    assert!(place.do_it(line).contains("site birch is drained until 20"));
    wait_until("the drain is over", || {
        place.json("status --data data --json")["drained"] == json!([])
    });
}

fn pause_and_resume(place: &Place, alder: &mut Process, birch: &mut Process) {
    let refused = ["the run is not paused"];
    place.refuse("run resume --data data", &refused);
    place.do_it("run pause --data data --because maintenance");
    waits_paused(alder);
    waits_paused(birch);
    let before = place.json("status --data data --json");
    assert_eq!(before["waiting"]["reason"], "operator", "{before}");
    let paused = before["paused"].as_str().unwrap();
    assert!(paused.contains("maintenance"), "{paused}");
    let text = place.do_it("status --data data");
    assert!(text.contains("paused      an operator"), "{text}");
    let refused = ["paused already", "maintenance"];
    place.refuse("run pause --data data", &refused);
    let after = place.json("status --data data --json");
    assert_eq!(published(&before), published(&after));

    place.do_it("run resume --data data");
    alder.event("contributed");
    birch.event("contributed");
}
