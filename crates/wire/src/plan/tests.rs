//! The documents of the planner: what is read is what was written.
#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::keys::EXAMPLE;
use super::{parse_snapshot, snapshot_to_json};

fn example() -> Value {
    serde_json::from_str(EXAMPLE).unwrap()
}

/// Parses the example after a change to its document.
fn problem(change: impl FnOnce(&mut Value)) -> String {
    let mut document = example();
    change(&mut document);
    parse_snapshot(&document.to_string())
        .unwrap_err()
        .to_string()
}

#[test]
fn a_snapshot_comes_back_as_it_was_written() {
    let snapshot = parse_snapshot(EXAMPLE).unwrap();
    let written = snapshot_to_json(&snapshot);
    let mut expected = example();
    // What is empty is written out where it is a table, and left out where it is a list.
    for site in expected["sites"].as_array_mut().unwrap() {
        for key in ["startup_s", "transfer_s", "evaluation_s", "limits"] {
            let table = site.as_object_mut().unwrap();
            table.entry(key).or_insert_with(|| json!({}));
        }
    }
    assert_eq!(serde_json::to_value(&written).unwrap(), expected);
    let text = serde_json::to_string(&written).unwrap();
    assert_eq!(parse_snapshot(&text).unwrap(), snapshot);
}

#[test]
fn an_unknown_key_is_refused_with_the_near_one() {
    let typo = problem(|document| {
        document["sites"][0]["shapes"][0]["walltime"] = json!(3600.0);
    });
    assert_eq!(
        typo,
        "unknown key `sites.0.shapes.0.walltime`; did you mean `walltime_s`?"
    );
    // The misspelt key is named, not the one that it leaves missing.
    let moved = problem(|document| {
        let run = document["run"].as_object_mut().unwrap();
        let value = run.remove("target_windows").unwrap();
        run.insert("targt_windows".to_owned(), value);
    });
    assert_eq!(
        moved,
        "unknown key `run.targt_windows`; did you mean `target_windows`?"
    );
    let within = problem(|document| {
        document["sites"][0]["budget"]["keep_hours_of_gpus"] = json!(1);
        document["policy"]["xyzzy"] = json!(1);
    });
    assert!(
        within.contains("unknown key `policy.xyzzy`; remove it"),
        "{within}"
    );
    assert!(
        within.contains("sites.0.budget.keep_hours_of_gpus"),
        "{within}"
    );
}

#[test]
fn a_value_that_cannot_be_is_refused_by_its_place() {
    let future = problem(|document| document["version"] = json!(2));
    assert_eq!(future, "version: is 2, and this program reads version 1");
    let negative = problem(|document| {
        document["sites"][1]["startup_s"]["stated"]["value"] = json!(-5.0);
    });
    assert!(
        negative.starts_with("sites.lumi.startup_s.stated.value: -5 is no number of seconds"),
        "{negative}"
    );
    let usage = problem(|document| {
        document["sites"][0]["partitions"]["gpu_h100"]["usage"]["value"] = json!(16.0);
    });
    assert!(usage.contains("usage of gpu_h100 is 16"), "{usage}");
    let missing = problem(|document| {
        document["run"].as_object_mut().unwrap().remove("seq_len");
    });
    assert!(missing.contains("missing field `seq_len`"), "{missing}");
    let list = parse_snapshot(" []").unwrap_err().to_string();
    assert!(list.contains("`hansa plan snapshot` writes one"), "{list}");
    let trailing = parse_snapshot(&format!("{EXAMPLE} x")).unwrap_err();
    assert!(trailing.to_string().contains("trailing"), "{trailing}");
}
