//! `hansa plan` on the documented snapshot: decisions with reasons, the same bytes each time, and the
//! published scenario.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn snapshot() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/src/plan/example.json");
    path.to_str().unwrap().to_owned()
}

fn hansa(arguments: &[&str]) -> Output {
    let mut hansa = Command::new(env!("CARGO_BIN_EXE_hansa"));
    hansa.args(arguments).output().unwrap()
}

/// Runs the command twice: what it prints must be the same bytes.
fn printed(arguments: &[&str]) -> String {
    let [first, again] = [hansa(arguments), hansa(arguments)];
    let problem = String::from_utf8_lossy(&first.stderr);
    assert!(first.status.success(), "{arguments:?}: {problem}");
    assert_eq!(first.stdout, again.stdout, "{arguments:?}");
    String::from_utf8(first.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let mut arguments = arguments.to_vec();
    arguments.push("--json");
    serde_json::from_str(&printed(&arguments)).unwrap()
}

#[test]
fn a_plan_names_its_jobs_its_end_and_what_it_leaves_out() {
    let path = snapshot();
    let plan = json(&["plan", "--snapshot", &path]);
    assert_eq!(plan["ended"], "target", "{plan:#}");
    let windows = |site: &Value| site["windows"].as_u64().unwrap();
    let sites = plan["sites"].as_array().unwrap();
    assert_eq!(sites.iter().map(windows).sum::<u64>(), 2_756_597);
    let excluded = plan["excluded"].as_array().unwrap();
    let left_out = |shape: &str| excluded.iter().find(|e| e["shape"] == shape).unwrap();
    assert_eq!(left_out("h100-debug")["reason"], "the partition is DRAIN");
    let excluded = left_out("g-128");
    let reason = excluded["reason"].as_str().unwrap();
    assert!(reason.contains("Job violates accounting"), "{reason}");
    let traps: Vec<&str> = plan["traps"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let after = |site: &str| {
        let mine = traps.iter().filter(|trap| trap.starts_with(site));
        mine.filter(|trap| trap.contains("after the end")).count()
    };
    assert_eq!((after("snellius"), after("lumi")), (1, 1), "{traps:?}");
    let text = printed(&["plan", "--snapshot", &path]);
    for words in ["The target of 2,756,597 windows", "g-128", "GPU-hours"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let most = json(&[
        "plan",
        "--snapshot",
        &path,
        "--objective",
        "most-tokens",
        "--days",
        "1",
    ]);
    assert_eq!(most["deadline_s"], 86_400.0);
}

#[test]
fn an_explanation_shows_every_input_and_what_flips_the_decision() {
    let path = snapshot();
    let explained = json(&["plan", "explain", "--snapshot", &path]);
    let inputs = explained["inputs"].as_array().unwrap();
    let usage = inputs
        .iter()
        .find(|i| i["what"] == "usage of gpu_h100")
        .unwrap();
    assert_eq!(usage["source"], "sacct, 4169 jobs in 2 d");
    assert_eq!(usage["age_s"], 10_800.0);
    let changes: Vec<&str> = explained["flips"]
        .as_array()
        .unwrap()
        .iter()
        .map(|flip| flip["change"].as_str().unwrap())
        .collect();
    for change in [
        "discount of strength 0",
        "waits at p90",
        "start-up twice as long",
    ] {
        assert!(changes.contains(&change), "{changes:?}");
    }
    let text = printed(&["plan", "explain", "--snapshot", &path]);
    for words in ["What it rests on", "What flips it", "The rounds", "nobody"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn a_waterfill_places_every_unit() {
    let path = snapshot();
    let fill = json(&["plan", "waterfill", "--snapshot", &path, "--units", "100"]);
    let shares = fill["shares"].as_array().unwrap();
    let units: u64 = shares.iter().map(|s| s["units"].as_u64().unwrap()).sum();
    assert_eq!(units + fill["left"].as_u64().unwrap(), 100, "{fill:#}");
    assert!(printed(&["plan", "waterfill", "--snapshot", &path]).contains("units of"));
}

#[test]
fn the_published_scenario_is_a_recipe() {
    let rows = json(&["plan", "--recipe", "table4"]);
    let rows = rows.as_array().unwrap();
    let free: Vec<(f64, u64)> = rows
        .iter()
        .filter(|row| row["barrier"] == "none")
        .map(|row| {
            (
                row["active_s"].as_f64().unwrap() / 3600.0,
                row["jobs"].as_u64().unwrap(),
            )
        })
        .collect();
    // As in the planner's own test: 26.5 h for both, 4·27 jobs of 1 h and 4·4 of 8 h.
    assert_eq!((free[0].1, free[1].1), (108, 16));
    assert!((free[0].0 - 26.5).abs() < 0.1, "{free:?}");
    let tokens: u64 = rows[..2]
        .iter()
        .map(|row| row["tokens"].as_u64().unwrap())
        .sum();
    assert_eq!(tokens, 48_828_125 * 2048);
}

#[test]
fn a_misspelt_snapshot_is_refused_with_the_near_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.json");
    let text = std::fs::read_to_string(snapshot()).unwrap();
    std::fs::write(
        &path,
        text.replace("\"target_windows\"", "\"target_window\""),
    )
    .unwrap();
    let refused = hansa(&["plan", "--snapshot", path.to_str().unwrap()]);
    assert!(!refused.status.success());
    let problem = String::from_utf8(refused.stderr).unwrap();
    let expected = "unknown key `run.target_window`; did you mean `target_windows`?";
    assert!(problem.contains(expected), "{problem}");
}
