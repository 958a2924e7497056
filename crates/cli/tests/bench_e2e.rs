//! Measurements run as the processes that they are, on a model small enough for every machine.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let mut hansa = Command::new(env!("CARGO_BIN_EXE_hansa"));
    hansa.args(["bench", "merge", "--dir"]).arg(dir.path());
    let output = hansa.args(arguments).output().unwrap();
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 0, "files are left behind");
    output
}

#[test]
fn merges_of_a_tiny_model_are_measured_beside_their_floor() {
    let output = bench(&[
        "--model",
        "tiny",
        "--contributions",
        "1,5",
        "--threads",
        "1,2,3",
        "--runs",
        "2",
        "--json",
    ]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["tensors"], 35);
    let lines = result["lines"].as_array().unwrap();
    let shape: Vec<_> = lines
        .iter()
        .map(|line| (line["contributions"].clone(), line["synced"].clone()))
        .collect();
    let expected = [(1, false), (5, false), (1, true), (5, true)];
    let expected = expected.map(|(count, synced)| (count.into(), synced.into()));
    assert_eq!(shape, expected);
    for line in lines {
        assert_eq!(line["merge_runs_s"].as_array().unwrap().len(), 2);
        assert!(line["merge_s"].as_f64().unwrap() > 0.0);
        assert!(line["floor_s"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_what_can() {
    for (arguments, says) in [
        (&["--model", "gpt"][..], "qwen3-0.6b"),
        (&["--model", "tiny", "--contributions", "0"], "from 1"),
        (&["--model", "tiny", "--codec", "fp16"], "bf16"),
    ] {
        let output = bench(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && errors.contains(says),
            "{errors}"
        );
    }
}

#[test]
fn a_whole_exchange_of_a_tiny_model_is_measured_step_by_step() {
    let dir = tempfile::tempdir().unwrap();
    let mut hansa = Command::new(env!("CARGO_BIN_EXE_hansa"));
    hansa.args(["bench", "exchange", "--model", "tiny", "--sites", "2"]);
    hansa.args(["--rounds", "2", "--share-cache", "--json", "--dir"]);
    let output = hansa.arg(dir.path()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rounds = report["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    for round in rounds {
        assert!(round["total_s"].as_f64().unwrap() > 0.0, "{round}");
    }
    assert!(report["floor"]["total_s"].as_f64().unwrap() > 0.0);
    let memory = report["memory"].as_array().unwrap();
    let names: Vec<_> = memory.iter().map(|one| one["process"].as_str()).collect();
    assert_eq!(names, ["coordinator", "site1", "site2"].map(Some));
    for one in memory {
        assert!(one["peak_resident_bytes"].as_u64().unwrap() > 0, "{one}");
    }
}
