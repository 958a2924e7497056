//! Measurements run as the processes that they are, on a model small enough for every machine.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn bench(what: &str, arguments: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let mut hansa = Command::new(env!("CARGO_BIN_EXE_hansa"));
    hansa.args(["bench", what, "--dir"]).arg(dir.path());
    let output = hansa.args(arguments).output().unwrap();
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 0, "files are left behind");
    output
}

#[test]
fn merges_of_a_tiny_model_are_measured_beside_their_floor() {
    for codec in ["f32", "bf16", "int8"] {
        measure(codec);
    }
}

fn measure(codec: &str) {
    let output = bench(
        "merge",
        &[
            "--model",
            "tiny",
            "--codec",
            codec,
            "--contributions",
            "1,5",
            "--threads",
            "1,2,3",
            "--runs",
            "2",
            "--json",
        ],
    );
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
    for (what, arguments, says) in [
        ("merge", &["--model", "gpt"][..], "qwen3-0.6b"),
        (
            "merge",
            &["--model", "tiny", "--contributions", "0"],
            "from 1",
        ),
        ("merge", &["--model", "tiny", "--codec", "fp16"], "int8"),
        ("exchange", &["--model", "gpt"], "qwen3-0.6b"),
        ("exchange", &["--model", "tiny", "--codec", "fp16"], "int8"),
    ] {
        let output = bench(what, arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && errors.contains(says),
            "{errors}"
        );
    }
}

#[test]
fn whole_exchanges_of_a_tiny_model_are_measured_step_by_step() {
    for codec in ["bf16", "int8"] {
        exchange(codec);
    }
}

fn exchange(codec: &str) {
    let output = bench(
        "exchange",
        &[
            "--model", "tiny", "--sites", "3", "--runs", "2", "--codec", codec, "--json",
        ],
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rounds = report["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    for round in rounds {
        let parts = ["encode_s", "upload_s", "verify_s", "merge_s", "download_s"];
        let parts = parts.map(|part| round[part].as_f64().unwrap());
        let total = round["total_s"].as_f64().unwrap();
        assert!(
            parts.iter().all(|part| (0.0..=total).contains(part)),
            "{round}"
        );
        assert!(total > 0.0, "{round}");
    }
    // Two bytes for each of the model's numbers, and the file's head.
    let model_bytes = report["model_bytes"].as_u64().unwrap();
    let numbers_bytes = 2 * hansa_bench::model::layout("tiny").unwrap().elements();
    assert!((numbers_bytes..numbers_bytes + 10_000).contains(&model_bytes));
    assert!(report["floor"]["total_s"].as_f64().unwrap() > 0.0);
    let processes = report["memory"].as_array().unwrap().iter();
    let processes: Vec<_> = processes
        .map(|process| process["process"].as_str().unwrap())
        .collect();
    assert_eq!(processes, ["coordinator", "site1", "site2", "site3"]);
}
