//! The JSON that people get to see.
#![allow(clippy::unwrap_used)]

mod common;

use common::{now, samples, squeue_fields};
use hansa_slurm::json::{Kind, parse_to_json};
use serde_json::{Value, json};

fn parse(kind: Kind, text: &str) -> Value {
    parse_to_json(kind, text.as_bytes(), &now(), Some(&squeue_fields()))
}

#[test]
fn an_estimate_in_full() {
    let text = "hello\nsbatch: Job 4 to start at Tomorr 03:33 on cluster lumi a using 16 processors on nodes n[1-2] in partition gpu\n";
    let expected = json!({
        "kind": "test-only",
        "now": "2026-11-29T13:25:44Z",
        "zone": "Europe/Helsinki",
        "answer": "starts",
        "line": 2,
        "job": 4,
        "start": { "at": "2026-11-30T01:33:00Z", "unix_s": 1_796_002_380, "precision": "minute" },
        "cluster": "lumi",
        "processors": 16,
        "nodes": { "text": "n[1-2]", "count": 2 },
        "partition": "gpu",
        "skipped": [{ "line": 1, "text": "hello", "why": "is no part of the answer" }],
    });
    assert_eq!(parse(Kind::TestOnly, text), expected);
}

#[test]
fn a_refusal_in_full() {
    let text = "sbatch: error: QOSMaxSubmitJobPerUserLimit\nallocation failure: Job violates accounting/QOS policy\n";
    let got = parse(Kind::TestOnly, text);
    let refusal = json!({
        "line": 2,
        "kind": "job-limit",
        "lasting": "provisional",
        "text": "Job violates accounting/QOS policy",
        "details": ["QOSMaxSubmitJobPerUserLimit"],
    });
    assert_eq!(
        (&got["answer"], &got["refusal"]),
        (&json!("refused"), &refusal)
    );
}

#[test]
fn a_queue_row_in_full() {
    let text = "45_[7-8%1]|PENDING|Priority|N/A|UNLIMITED|soon|gpu|arr|\n";
    let got = parse(Kind::Squeue, text);
    let row = json!({
        "line": 1,
        "job": "45_[7-8%1]",
        "state": "PENDING",
        "reason": "Priority",
        "start": { "none": "N/A" },
        "walltime_s": "unlimited",
        "left_s": { "odd": "soon" },
        "partition": "gpu",
        "name": "arr",
        "comment": null,
    });
    assert_eq!(got["rows"], json!([row]));
    let why = "is no value for column %L: kept as text";
    assert_eq!(
        got["skipped"],
        json!([{ "line": 1, "text": "soon", "why": why }])
    );
}

#[test]
fn every_kind_has_its_part() {
    let parts = [
        (Kind::TestOnly, "answer"),
        (Kind::Sacct, "rows"),
        (Kind::Squeue, "rows"),
        (Kind::Submit, "reply"),
        (Kind::Partition, "partitions"),
        (Kind::Reservation, "reservations"),
        (Kind::Config, "values"),
    ];
    for (kind, fields, text) in samples() {
        let got = parse_to_json(kind, text.as_bytes(), &now(), fields.as_ref());
        let (_, part) = parts.iter().find(|(of, _)| *of == kind).unwrap();
        let empty = match &got[part] {
            Value::Array(all) => all.is_empty(),
            Value::Object(all) => all.is_empty(),
            other => other.is_null(),
        };
        assert!(!empty, "{kind}: {got}");
    }
    for kind in Kind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(*kind));
    }
    assert!("sinfo".parse::<Kind>().is_err());
}
