//! A site as it is run: a real Slurm cluster, a coordinator, `hansa site run`, and jobs that train. The site
//! process is killed between a submission and its reply, jobs run into their walltime and are succeeded, one
//! is cancelled by hand, and the controller hangs for a while.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::PermissionsExt as _;

use common::{Place, Process, Server};
use hansa_testkit::SlurmCluster;
use serde_json::Value;

/// The reply of `sbatch --parsable` is held back while the file `hold` is there.
const SLOW_SBATCH: &str = r#"#!/bin/bash
out=$(REAL/sbatch "$@"); code=$?
case " $* " in
*" --parsable "*)
    if [ -e HERE/hold ]; then
        touch HERE/held
        while [ -e HERE/hold ]; do sleep 0.05; done
    fi ;;
esac
[ -z "$out" ] || printf '%s\n' "$out"
exit "$code"
"#;

struct Scene {
    place: Place,
    cluster: SlurmCluster,
    path: String,
}

impl Scene {
    fn set(rounds: u64) -> Option<Self> {
        let cluster = SlurmCluster::start("alder")?;
        let place = Place::new();
        place.recipe("run.toml", &[("rounds = 2", &format!("rounds = {rounds}"))]);
        let bin = place.path("bin");
        std::fs::create_dir(&bin).unwrap();
        let real = cluster.ask("sh", &["-c", "dirname $(command -v sbatch)"]);
        let here = place
            .path("")
            .to_str()
            .unwrap()
            .trim_end_matches('/')
            .to_owned();
        let wrapper = SLOW_SBATCH.replace("REAL", &real).replace("HERE", &here);
        place.write("bin/sbatch", &wrapper);
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(bin.join("sbatch"), executable).unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        Some(Self {
            place,
            cluster,
            path,
        })
    }

    fn profile(&self, server: &Server, more: &str) {
        let hansa = env!("CARGO_BIN_EXE_hansa");
        let url = &server.url;
        self.place.write(
            "site.toml",
            &format!(
                r#"name = "alder"
[coordinator]
url = "{url}"
token_file = "alder.toml"
[slurm]
account = "project_test"
[jobs]
wanted = 1
shape = "one"
chain = "begin"
[[shape]]
name = "one"
partition = "gpu"
nodes = 1
gpus_per_node = 1
walltime = "00:01:00"
[script]
corpus = "corpus"
state = "state"
logs = "logs"
hansa = "{hansa}"
train_arguments = ["--threads=1", "--pace=10"]
signal_before_s = 15
[watch]
probe_every_s = 10
usage_every_s = 30
follow_every_s = 1
[retry]
backoff_first_s = 1
quick_run_s = 1
{more}"#
            ),
        );
    }

    /// The accounting is the judge.
    fn no_intent_was_submitted_twice(&self) {
        let jobs = self.cluster.jobs("hansa-");
        let mut names: Vec<_> = jobs.iter().map(|[name, ..]| name).collect();
        names.sort();
        names.dedup();
        assert_eq!(
            names.len(),
            jobs.len(),
            "an intent was submitted twice: {jobs:?}"
        );
        assert!(jobs.len() >= 4, "{jobs:?}");
    }

    fn site(&self, arguments: &str) -> Process {
        let conf = self.cluster.conf();
        let variables = [
            ("SLURM_CONF", conf.to_str().unwrap()),
            ("PATH", self.path.as_str()),
            // What a login inside of a job would bring along.
            ("SBATCH_PARTITION", "wrong"),
            ("SLURM_JOB_ID", "1"),
        ];
        self.place
            .start_with(&variables, &format!("site {arguments}"))
    }
}

fn submitted(event: &Value) -> bool {
    event["event"] == "submitted"
}

fn running(event: &Value) -> bool {
    event["event"] == "job" && event["state"] == "RUNNING"
}

#[test]
fn jobs_are_submitted_once_and_chain_to_the_runs_end_whatever_is_killed() {
    let Some(scene) = Scene::set(24) else {
        return;
    };
    let place = &scene.place;
    let server = place.serve_on("run.toml", "data", "127.0.0.1:0 --site-sync-s 3");
    place.token("alder", "data");
    // Jobs reach the coordinator through the site process only.
    scene.profile(
        &server,
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
    scene.no_intent_was_submitted_twice();
}

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
    let Some(scene) = Scene::set(2) else {
        return;
    };
    let place = &scene.place;
    let server = place.serve("data");
    place.token("alder", "data");
    place.write("text2.jsonl", &common::documents(2, 100));
    place.build("text2.jsonl", "tokenizer.json", "other");
    let check = |from: &str, to: &str| -> (Option<i32>, Value) {
        scene.profile(&server, "[checks]\nfree_gib_min = 0\nfree_inodes_min = 0\n");
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

    scene.profile(&server, "");
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
