//! A replica that goes from job to job: through a failed node, a singleton chain, and a site that is looked
//! after through `ssh` by calls of a moment each.
#![allow(clippy::unwrap_used)]

mod common;
mod slurm;

use hansa_testkit::SshServer;
use serde_json::Value;
use slurm::{Scene, running, submitted};

/// Longer than anything takes here: a bound, never a measurement.
const CALLS_MAX: usize = 100;

fn replica(status: &Value) -> &Value {
    &status["replicas"][0]
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn node_of(scene: &Scene, job: &str) -> String {
    scene.cluster.ask("squeue", &["-h", "-j", job, "-o", "%N"])
}

/// A node goes down, and stays away: it would be up again as soon as its daemon calls.
fn fail(scene: &Scene, node: &str) {
    let named = format!("nodename={node}");
    for state in ["state=down", "state=drain"] {
        let update = ["update", &named, state, "reason=test"];
        let _ = scene.cluster.ask("scontrol", &update);
    }
}

/// The decisions say why nothing was submitted for a job that went back.
fn is_told(scene: &Scene, job: &str, node: &str) {
    let queue = scene.place.json("queue --data data --json");
    let decisions = queue["sites"][0]["decisions"].as_array().unwrap().iter();
    let mut told = decisions.filter(|decision| {
        let text = decision["text"].as_str().unwrap();
        text.starts_with(&format!("job {job} is back in the queue")) && text.contains(node)
    });
    let told = told.next().unwrap_or_else(|| panic!("{queue:#}"));
    assert_eq!(told["replica"], "r1", "{told}");
}

#[test]
fn a_replica_survives_its_node_and_a_singleton_successor_follows_its_job() {
    let Some(scene) = Scene::set("cedar", 20) else {
        return;
    };
    let place = &scene.place;
    let server = place.serve_on("run.toml", "data", "127.0.0.1:0 --site-sync-s 3");
    place.token("alder", "data");
    scene.profile(&server, &[("\"begin\"", "\"singleton\"")], "");
    let mut site = scene.site("run site.toml --json");
    let first = site.event_like("submitted", submitted);
    site.event_like("running", running);

    // The successor waits for its turn, under the same name.
    let second = site.event_like("a successor", submitted);
    assert_eq!(second["found"], false, "{second}");
    let (job, next) = (
        first["job"].as_str().unwrap(),
        second["job"].as_str().unwrap(),
    );
    let asked = ["-h", "-j", next, "-o", "%T %r"];
    scene
        .cluster
        .ask_until("squeue", &asked, |said| said == "PENDING Dependency");

    // Its node fails under the first. Slurm starts the same job again on the other one.
    let before = place.status_until("data", |status| {
        number(&replica(status)["tally"]["committed"]) > 0
    });
    let node = node_of(&scene, job);
    fail(&scene, &node);
    site.event_like("back in the queue", |event| {
        event["job"] == job && event["state"] == "PENDING"
    });
    site.event_like("running again", |event| {
        running(event) && event["job"] == job
    });
    assert_ne!(node_of(&scene, job), node);
    is_told(&scene, job, &node);

    // The replica is the same, and goes on.
    let committed = number(&replica(&before)["tally"]["committed"]);
    let incarnation = number(&replica(&before)["incarnation"]);
    let after = place.status_until("data", |status| {
        number(&replica(status)["incarnation"]) > incarnation
            && number(&replica(status)["tally"]["committed"]) > committed
    });
    assert_eq!(after["replicas"].as_array().unwrap().len(), 1, "{after:#}");

    // At its walltime's end the successor's turn has come.
    site.event_like("the successor", |event| {
        running(event) && event["job"] == next
    });
    let summary = server.process.end_well();
    assert_eq!(summary.event("ended")["run_over"], true);
    assert_eq!(place.verified("data")["ended"], true);
    site.event("ended");
    let end = site.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    assert!(scene.no_intent_was_submitted_twice() >= 2);
}

#[test]
fn calls_of_a_moment_through_ssh_carry_a_job_from_its_intent_to_its_end() {
    let Some(ssh) = SshServer::start() else {
        return;
    };
    let Some(scene) = Scene::set("elder", 20) else {
        return;
    };
    let place = &scene.place;
    // The user's own configuration knows the host; Hansa only says its name.
    let real = scene.cluster.ask("sh", &["-c", "command -v ssh"]);
    let config = ssh.config();
    let program = format!("#!/bin/sh\nexec {real} -F {} \"$@\"\n", config.display());
    scene.program("ssh", &program);
    let server = place.serve("data");
    place.token("alder", "data");
    let conf = scene.cluster.conf();
    let there = format!(
        "[slurm]\nssh = \"{}\"\nconf = \"{}\"",
        hansa_testkit::HOST,
        conf.display()
    );
    let at = |name: &str| format!("{name} = \"{}\"", place.path(name).display());
    let token = format!("token_file = \"{}\"", place.path("alder.toml").display());
    let changes = [
        ("[slurm]", there.as_str()),
        // Paths are the site's.
        ("corpus = \"corpus\"", &at("corpus")),
        ("state = \"state\"", &at("state")),
        ("logs = \"logs\"", &at("logs")),
        ("token_file = \"alder.toml\"", &token),
        ("chain = \"begin\"", "chain = \"none\""),
    ];
    let checks = "[checks]\nfree_gib_min = 0\nfree_inodes_min = 0\n";
    scene.profile(&server, &changes, checks);
    let end = scene.site("check site.toml --json").end();
    assert_eq!(end.code, Some(0), "{} {}", end.stdout, end.stderr);

    // Each call does what is due, and ends; the job does not notice.
    let mut seen: Vec<Value> = Vec::new();
    let completed = |event: &Value| event["event"] == "job" && event["state"] == "COMPLETED";
    for _ in 0..CALLS_MAX {
        let end = scene.site("run site.toml --once --json").end();
        assert_eq!(end.code, Some(0), "{} {}", end.stdout, end.stderr);
        let lines = end.stdout.lines();
        seen.extend(lines.filter_map(|line| serde_json::from_str(line).ok()));
        if seen.iter().any(completed) {
            break;
        }
    }
    let job = &seen.iter().find(|event| submitted(event)).unwrap()["job"];
    let of_job = |event: &&Value| event["job"] == *job;
    let states: Vec<&str> = seen
        .iter()
        .filter(of_job)
        .filter_map(|event| event["state"].as_str())
        .collect();
    assert!(
        states.contains(&"RUNNING") && states.last() == Some(&"COMPLETED"),
        "{states:?}"
    );
    assert_eq!(ssh.connections(), 1, "one connection is there for all");
    assert!(scene.no_intent_was_submitted_twice() >= 1);
    place.finish(server, "data");
}
