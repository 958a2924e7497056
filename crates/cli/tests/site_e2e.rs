//! A site as it is run: a real Slurm cluster, a coordinator, `hansa site run`, and jobs that train. The site
//! process is killed between a submission and its reply, jobs run into their walltime and are succeeded, one
//! is cancelled by hand, and the controller hangs for a while.
#![allow(clippy::unwrap_used)]

mod common;
mod slurm;

use common::Server;
use serde_json::Value;
use slurm::{Scene, running, submitted};

#[test]
fn jobs_are_submitted_once_and_chain_to_the_runs_end_whatever_is_killed() {
    let Some(scene) = Scene::set("alder", 24) else {
        return;
    };
    let place = &scene.place;
    let server = place.serve_on("run.toml", "data", "127.0.0.1:0 --site-sync-s 3");
    place.token("alder", "data");
    // Jobs reach the coordinator through the site process only.
    scene.profile(
        &server,
        &[],
        "[relay]\nlisten = \"127.0.0.1:0\"\nfile = \"relay.json\"\n",
    );

    // Killed when Slurm has the job and nobody has its reply: found again by its name.
    place.write("hold", "");
    let site = scene.site("run site.toml --json");
    let held = place.path("held");
    while !held.exists() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    site.kill();
    std::fs::remove_file(place.path("hold")).unwrap();
    let mut site = scene.site("run site.toml --json --take-over");
    let first = site.event_like("submitted", submitted);
    assert_eq!(first["found"], true, "{first}");

    // It runs into its walltime; the successor goes on.
    site.event_like("running", running);
    let second = site.event_like("submitted", submitted);
    assert_eq!(second["found"], false, "{second}");
    let next = second["job"].clone();
    let running_next = |event: &Value| running(event) && event["job"] == next;
    site.event_like("the successor running", running_next);

    // The next one is cancelled by hand; another takes its place.
    let job = second["job"].as_str().unwrap().to_owned();
    let _ = scene.cluster.ask("scancel", &[&job]);
    site.event_like("cancelled", |event| {
        event["job"] == job.as_str() && event["state"] == "CANCELLED"
    });

    // The controller hangs; nothing is lost, nothing submitted twice.
    site.event_like("another running", |event| {
        running(event) && event["job"] != job.as_str()
    });
    scene.cluster.tool("pause", &[]);
    site.event("trouble");
    scene.cluster.tool("resume", &[]);
    site.event("recovered");

    let summary = server.process.end_well();
    assert_eq!(summary.event("ended")["run_over"], true);
    let report = place.verified("data");
    assert_eq!(report["ended"], true, "{report}");

    scene.cluster.ask_until("squeue", &["-h"], str::is_empty);
    // With the run and its jobs over, there is nothing left to do.
    site.event("ended");
    let end = site.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    assert!(scene.no_intent_was_submitted_twice() >= 4);
}

const CHECKS: &str = "[checks]\nfree_gib_min = 0\nfree_inodes_min = 0\n";

/// The verdict of a check, by the beginning of its name.
fn verdict(findings: &Value, what: &str) -> String {
    let findings = findings.as_array().unwrap().iter();
    let mut fitting =
        findings.filter(|finding| finding["what"].as_str().unwrap().starts_with(what));
    let found = fitting.find(|finding| finding["verdict"] != "good");
    found
        .map_or("good", |finding| finding["verdict"].as_str().unwrap())
        .to_owned()
}

/// A profile's text, what stands there instead, and the check that must find it.
fn broken_sites(server: &Server) -> Vec<(String, String, &'static str)> {
    let hansa = format!("hansa = \"{}\"", env!("CARGO_BIN_EXE_hansa"));
    let broken: Vec<(&str, &str, &'static str)> = vec![
        ("partition = \"gpu\"", "partition = \"gpus\"", "shape one"),
        (
            "walltime = \"00:01:00\"",
            "walltime = \"01:00:00\"",
            "shape one",
        ),
        ("gpus_per_node = 1", "gpus_per_node = 2", "shape one"),
        ("nodes = 1", "nodes = 3", "shape one"),
        ("project_test", "project_test2", "account of one"),
        (
            "partition = \"gpu\"",
            "partition = \"gpu\"\nqos = \"fast\"",
            "account of one",
        ),
        ("corpus = \"corpus\"", "corpus = \"nowhere\"", "corpus"),
        ("corpus = \"corpus\"", "corpus = \"other\"", "corpus"),
        ("logs = \"logs\"", "logs = \"/proc/logs\"", "log folder"),
        (&hansa, "hansa = \"/nowhere/hansa\"", "hansa"),
        (
            "token_file = \"alder.toml\"",
            "token_file = \"nobody.toml\"",
            "token file",
        ),
        (&server.url, "https://127.0.0.1:1", "coordinator"),
        ("free_gib_min = 0", "free_gib_min = 1000000", "space"),
    ];
    let owned =
        |(from, to, what): (&str, &str, &'static str)| (from.to_owned(), to.to_owned(), what);
    broken.into_iter().map(owned).collect()
}

#[test]
fn a_check_finds_each_way_in_which_a_site_is_broken_and_a_rehearsal_goes_through() {
    let Some(scene) = Scene::set("alder", 2) else {
        return;
    };
    let place = &scene.place;
    let server = place.serve("data");
    place.token("alder", "data");
    place.write("text2.jsonl", &common::documents(2, 100));
    place.build("text2.jsonl", "tokenizer.json", "other");
    let check = |from: &str, to: &str| -> (Option<i32>, Value) {
        scene.profile(&server, &[], CHECKS);
        let text = place.read("site.toml");
        assert!(text.contains(from), "{from}");
        place.write("broken.toml", &text.replacen(from, to, 1));
        let end = scene.site("check broken.toml --json").end();
        (end.code, serde_json::from_str(&end.stdout).unwrap())
    };
    let (code, findings) = check("wanted = 1", "wanted = 1");
    assert_eq!(code, Some(0), "{findings:#}");
    assert_eq!(verdict(&findings, "probe of one"), "good");
    for (from, to, what) in &broken_sites(&server) {
        let (code, findings) = check(from, to);
        assert_eq!(code, Some(1), "{from} → {to}: {findings:#}");
        assert_eq!(
            verdict(&findings, what),
            "bad",
            "{from} → {to}: {findings:#}"
        );
    }
    let (code, findings) = check("[slurm]", "[slurm]\nconf = \"/nowhere/slurm.conf\"");
    assert_eq!(
        (code, verdict(&findings, "controller").as_str()),
        (Some(1), "bad")
    );

    // A tiny job asks from a compute node, through a relay of its own.
    let relay = "[relay]\nlisten = \"127.0.0.1:0\"\nfile = \"relay.json\"\n";
    scene.profile(&server, &[], &format!("{CHECKS}{relay}"));
    let end = scene.site("check site.toml --compute --json").end();
    let findings: Value = serde_json::from_str(&end.stdout).unwrap();
    assert_eq!(end.code, Some(0), "{findings:#}");
    for what in ["hansa", "corpus", "state", "token file", "coordinator"] {
        let what = format!("compute node: {what}");
        assert!(findings.to_string().contains(&what), "{findings:#}");
    }
    assert!(!place.path("relay.json").exists());

    scene.profile(&server, &[], "");
    let end = scene
        .site("rehearse site.toml --minutes 1 --host 127.0.0.1 --json")
        .end();
    let findings: Value = serde_json::from_str(&end.stdout).unwrap();
    assert_eq!(end.code, Some(0), "{findings:#} {}", end.stderr);
    for what in [
        "started",
        "registered",
        "trains",
        "uploaded",
        "said goodbye",
        "ended",
    ] {
        assert_eq!(verdict(&findings, what), "good", "{findings:#}");
    }
    place.finish(server, "data");
}
