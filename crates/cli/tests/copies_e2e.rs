//! A campaign whose machine burns down: backed up while it runs, restored elsewhere, and the old disk
//! turns up.
#![allow(clippy::unwrap_used)]

mod common;

use common::Place;

const ROUNDS: u64 = 7;

#[test]
fn a_run_whose_coordinator_is_destroyed_goes_on_from_its_backup_to_its_end() {
    let place = Place::new();
    let rounds = format!("rounds = {ROUNDS}");
    place.recipe("run.toml", &[("rounds = 2", &rounds)]);
    let server = place.serve("data");
    for site in ["alder", "birch"] {
        place.token(site, "data");
    }
    let address = server.address().to_owned();
    let lines = ["alder", "birch"].map(|site| {
        let line = place.train_line(site, &server);
        format!("{line} --pace 40")
    });
    let mut replicas = lines.clone().map(|line| place.start(&line));

    // A backup, beside everybody at work.
    place.status_until("data", |status| status["generation"]["number"] != 0);
    let made = place.json("backup data --to backup --json");
    let at = made["backup"]["generation"].as_u64().unwrap();
    assert!(at >= 1 && made["backup"]["ended"] == false, "{made:#}");
    // They go on beyond it; then the machine is gone, and a copy of its disk is elsewhere.
    place.status_until("data", |status| {
        status["generation"]["number"].as_u64().unwrap() > at
    });
    server.process.kill();
    for replica in &mut replicas {
        replica.event("coordinator_away");
    }
    std::fs::rename(place.path("data"), place.path("old")).unwrap();

    place.refuse("restore backup --to old", &["is not empty"]);
    let restored = place.json("restore backup --to data --json");
    assert_eq!(restored["generation"], at, "{restored:#}");
    let server = place.serve_on("run.toml", "data", &address);
    for replica in &mut replicas {
        // The same processes: they begin afresh with what the copy has.
        assert_eq!(replica.event("registered")["generation"], at);
    }
    for replica in replicas {
        let end = replica.end();
        assert_eq!(end.code, Some(0), "{end:?}");
        let complete = "the run is complete: its number of rounds is done";
        assert_eq!(end.event("ended")["outcome"], complete);
    }
    let summary = server.process.end().event("ended");
    assert_eq!(
        (&summary["run_over"], &summary["generation"]),
        (&true.into(), &ROUNDS.into())
    );
    let report = place.verified("data");
    assert_eq!(report["generation"], ROUNDS);

    // The old disk is served again: a replica that moved on takes no part, and its coordinator stops.
    let old = place.serve_on("run.toml", "old", &address);
    place.refuse(&lines[0], &["its data is an old copy"]);
    let end = old.process.end();
    assert_eq!(end.code, Some(1), "{end:?}");
    assert!(end.stderr.contains("old copy of its journal"), "{end:?}");
}
