//! The exported model in PyTorch, by Hugging Face's own implementation of its architecture: the same
//! held-out loss as the run's last evaluation. Needs a Python that has both, named by
//! `HANSA_TORCH_PYTHON`.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::process::Command;

use common::Place;
use serde_json::Value;

/// Of f32 sums in another order.
const RELATIVE: f64 = 1e-4;

#[test]
fn the_exported_model_has_the_same_held_out_loss_in_pytorch() {
    let Some(python) = std::env::var_os("HANSA_TORCH_PYTHON") else {
        eprintln!("skipped: HANSA_TORCH_PYTHON is not set");
        return;
    };
    let place = Place::new();
    place.recipe(
        "run.toml",
        &[
            ("num_hidden_layers = 1", "num_hidden_layers = 2"),
            ("rounds = 2", "rounds = 3"),
            ("peak_lr = 2e-3", "peak_lr = 1e-2"),
        ],
    );
    let server = place.serve("data");
    place.token("alder", "data");
    let replica = place.train("alder", &server).end_well();
    let summary = server.process.end_well().event("ended");
    let ours = replica.event("evaluated");
    assert_eq!(ours["generation"], summary["generation"]);

    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../experiments/export_check/held_out_loss.py");
    let mut command = Command::new(python);
    command.arg(script);
    command.arg(place.path(summary["export"].as_str().unwrap()));
    command.arg(place.path("corpus"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let theirs: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(ours["tokens"], theirs["tokens"]);
    let loss = |value: &Value| value["loss"].as_f64().unwrap();
    let apart = (loss(&ours) / loss(&theirs) - 1.0).abs();
    assert!(apart < RELATIVE, "{ours} here, {theirs} in PyTorch");
    // A model that has learned nothing would prove little.
    assert!(loss(&ours) < f64::ln(400.0) - 0.5, "{ours}");
}
