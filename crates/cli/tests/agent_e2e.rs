//! Trainers in PyTorch under `hansa agent`: a plain loop, and torchtitan with one rank and with two that
//! share a model. Needs a Python that has both, named by `HANSA_TORCH_PYTHON`.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::{Place, Process, Server};
use serde_json::Value;

/// The Python to test with; says so where there is none.
fn python() -> Option<String> {
    let python = std::env::var("HANSA_TORCH_PYTHON").ok();
    if python.is_none() {
        eprintln!("skipped: HANSA_TORCH_PYTHON is not set");
    }
    python
}

/// Long leases: a busy machine takes its time to import PyTorch.
const PATIENT: [(&str, &str); 3] = [
    ("ttl_min_s = 5", "ttl_min_s = 200"),
    ("ttl_max_s = 20", "ttl_max_s = 300"),
    ("session_ttl_s = 10", "session_ttl_s = 200"),
];

fn place(changes: &[(&str, &str)]) -> Place {
    let place = Place::new();
    let changes: Vec<(&str, &str)> = PATIENT.iter().chain(changes).copied().collect();
    place.recipe("run.toml", &changes);
    place
}

/// `hansa agent` for `SITE/r0` around a command, in which `{root}` is the repository.
fn agent(place: &Place, site: &str, server: &Server, options: &str, command: &str) -> Process {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().unwrap();
    let root = root.display();
    let url = &server.url;
    place.start(&format!(
        "agent --coordinator {url} --token-file {site}.toml --site {site} --replica r0 --corpus corpus \
         --state state-{site} --json {options} -- env PYTHONPATH={root}/python OMP_NUM_THREADS=1 {}",
        command.replace("{root}", &root.to_string())
    ))
}

fn losses(process: &str) -> Vec<f64> {
    let events = process
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let steps = events.filter(|event| event["event"] == "step");
    steps.map(|event| event["loss"].as_f64().unwrap()).collect()
}

fn ended_well(process: Process) -> String {
    let end = process.end();
    assert_eq!(end.code, Some(0), "{}{}", end.stdout, end.stderr);
    end.stdout
}

#[test]
fn a_plain_loop_trains_beside_the_embedded_trainer() {
    let Some(python) = python() else { return };
    let place = place(&[
        ("peak_lr = 2e-3", "peak_lr = 1e-2"),
        ("grace_s = 5", "grace_s = 200"),
    ]);
    let server = place.serve("data");
    for site in ["plain", "embedded"] {
        place.token(site, "data");
    }
    let command = format!("{python} {{root}}/examples/plain_pytorch.py");
    let mut plain = agent(&place, "plain", &server, "", &command);
    plain.event("registered");
    let embedded = place.train("embedded", &server);
    let said = ended_well(plain);
    embedded.end_well();
    server.process.end_well();
    let report = place.verified("data");
    assert_eq!(report["ended"], true, "{report}");
    let losses = losses(&said);
    assert!(losses.last() < losses.first(), "{losses:?}");
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
        ("grace_s = 5", "grace_s = 200"),
        ("rounds = 2", "rounds = 10"),
        ("every_s = 1", "every_s = 0.2"),
    ]);
    let server = place.serve("data");
    for site in ["one", "two", "embedded"] {
        place.token(site, "data");
    }
    let torchrun = |ranks: u32| {
        format!(
            "{python} -m torch.distributed.run --standalone --nproc-per-node {ranks} -m hansa.torchtitan"
        )
    };
    // Nobody begins before all are there.
    place.do_it("run pause --data data --because assembling");
    let mut one = agent(&place, "one", &server, "", &torchrun(1));
    let mut two = agent(&place, "two", &server, "", &torchrun(2));
    one.event("registered");
    two.event("registered");
    place.do_it("run resume --data data");
    // Slow enough that the others are heard before it has finished the run alone.
    let embedded = place.start(&format!(
        "{} --pace 20",
        place.train_line("embedded", &server)
    ));

    // One is shot in the middle of a phase, and its successor goes on within its lease.
    one.event("step");
    drop(one);
    let mut one = agent(&place, "one", &server, "", &torchrun(1));
    let registered = one.event("registered");
    assert!(
        registered["inherited_windows"].as_u64() > Some(0),
        "{registered}"
    );

    let said = [ended_well(one), ended_well(two)];
    embedded.end_well();
    server.process.end_well();
    let report = place.verified("data");
    assert_eq!(report["ended"], true, "{report}");
    for said in said {
        let losses = losses(&said);
        assert!(losses.last() < losses.first(), "{losses:?}");
    }
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
