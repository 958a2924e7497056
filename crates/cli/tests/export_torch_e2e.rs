//! The exported model in PyTorch, by implementations that know nothing of Hansa's own trainer: whoever trained
//! it, they agree. Needs a Python that has PyTorch, torchtitan and transformers, named by `HANSA_TORCH_PYTHON`.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::torch::{agent, ended_well, place, python, root, torchtitan};
use common::{End, Place};
use hansa_corpus::{Corpus, Split};
use hansa_train::{Trainer, Weights};
use hansa_wire::Recipe;
use safetensors::SafeTensors;
use serde_json::Value;

/// Of f32 sums in another order.
const RELATIVE: f64 = 1e-4;
const LOGITS_APART_MAX: f32 = 1e-4;
const WINDOWS: u64 = 3;

/// A model that has learned something; one that has learned nothing would prove little.
const LEARNS: [(&str, &str); 3] = [
    ("num_hidden_layers = 1", "num_hidden_layers = 2"),
    ("rounds = 2", "rounds = 3"),
    ("peak_lr = 2e-3", "peak_lr = 1e-2"),
];

fn has_learned(evaluated: &Value) {
    let loss = evaluated["loss"].as_f64().unwrap();
    assert!(loss < f64::ln(400.0) - 0.5, "{evaluated}");
}

fn apart(ours: &Value, theirs: &Value) -> f64 {
    assert_eq!(ours["tokens"], theirs["tokens"]);
    let loss = |value: &Value| value["loss"].as_f64().unwrap();
    (loss(ours) / loss(theirs) - 1.0).abs()
}

#[test]
fn the_exported_model_has_the_same_held_out_loss_in_pytorch() {
    let Some(python) = python() else { return };
    let place = Place::new();
    place.recipe("run.toml", &LEARNS);
    let server = place.serve("data");
    place.token("alder", "data");
    let replica = place.train("alder", &server).end_well();
    let summary = server.process.end_well().event("ended");
    let ours = replica.event("evaluated");
    assert_eq!(ours["generation"], summary["generation"]);

    let mut command = Command::new(python);
    command.arg(root().join("experiments/export_check/held_out_loss.py"));
    command.arg(place.path(summary["export"].as_str().unwrap()));
    command.arg(place.path("corpus"));
    let theirs: Value = serde_json::from_slice(&said(command)).unwrap();
    let apart = apart(&ours, &theirs);
    assert!(apart < RELATIVE, "{ours} here, {theirs} in PyTorch");
    has_learned(&ours);
}

#[test]
fn what_torchtitan_has_trained_is_the_same_model_everywhere() {
    let Some(python) = python() else { return };
    let place = place(&LEARNS);
    let server = place.serve("data");
    place.token("titan", "data");
    let titan = agent(&place, "titan", &server, &torchtitan(&python, 1));
    let titan = End {
        code: Some(0),
        stdout: ended_well(titan),
        stderr: String::new(),
    };
    let summary = server.process.end_well().event("ended");
    let export = place.path(summary["export"].as_str().unwrap());

    // Held-out loss inside torchtitan, and by the embedded trainer with the exported weights.
    let theirs = titan.event("evaluated");
    assert_eq!(theirs["generation"], summary["generation"]);
    has_learned(&theirs);
    let (mut trainer, corpus) = embedded(&place, &export);
    let ours = held_out(&mut trainer, &corpus);
    let perplexity = |value: &Value| value["loss"].as_f64().unwrap().exp();
    let relative = (perplexity(&ours) / perplexity(&theirs) - 1.0).abs();
    assert!(relative < 1e-3, "{ours} here, {theirs} in torchtitan");
    assert!(apart(&ours, &theirs) < RELATIVE, "{ours}, {theirs}");

    // Logits by three implementations, and the weights that torchtitan gives back.
    let (out, copy) = (place.path("logits"), place.path("copy"));
    let mut command = Command::new(python);
    command.args(["-m", "torch.distributed.run", "--standalone"]);
    command.args(["--nproc-per-node", "1"]);
    command.arg(root().join("experiments/export_check/logits.py"));
    command.args([&export, &place.path("corpus")]);
    command.arg(WINDOWS.to_string()).args([&out, &copy]);
    command.env("HANSA_RUN_FILE", place.path("state-titan/run.json"));
    // torchtitan writes logs where it stands.
    command.current_dir(place.path(""));
    said(command);
    let ours = logits(&mut trainer, &corpus);
    let written = std::fs::read(out).unwrap();
    let written = SafeTensors::deserialize(&written).unwrap();
    assert_eq!(written.len(), 3);
    for (name, theirs) in written.tensors() {
        let theirs = theirs.data().chunks_exact(4);
        let theirs = theirs.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        assert_eq!(ours.len(), theirs.len(), "{name}");
        let apart = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, f32::max);
        assert!(apart < LOGITS_APART_MAX, "{name}: {apart}");
    }
    let exported = std::fs::read(export.join("model.safetensors")).unwrap();
    let copied = std::fs::read(copy).unwrap();
    let copied = SafeTensors::deserialize(&copied).unwrap();
    for (name, tensor) in SafeTensors::deserialize(&exported).unwrap().tensors() {
        let copy = copied.tensor(&name).unwrap();
        assert_eq!(
            (tensor.dtype(), tensor.data()),
            (copy.dtype(), copy.data()),
            "{name}"
        );
    }
}

/// What a command printed; it must succeed.
fn said(mut command: Command) -> Vec<u8> {
    let output = command.output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    output.stdout
}

/// The embedded trainer with exported weights, and the run's corpus.
fn embedded(place: &Place, export: &Path) -> (Trainer, Corpus) {
    let path = PathBuf::from("run.toml");
    let recipe = Recipe::parse(&place.read("run.toml"), &path).unwrap();
    let corpus = Corpus::open(&place.path("corpus")).unwrap();
    let adamw = recipe.inner.adamw();
    let model = recipe.model;
    let weights = Weights::load_safetensors(&export.join("model.safetensors"), &model).unwrap();
    let mut trainer = Trainer::new(model, adamw, corpus.seq_len(), 4, Some(1)).unwrap();
    trainer.set_weights(&weights).unwrap();
    (trainer, corpus)
}

fn held_out(trainer: &mut Trainer, corpus: &Corpus) -> Value {
    let (mut loss, mut tokens, mut window) = (0.0, 0, Vec::new());
    for number in 0..corpus.windows(Split::HeldOut).0 {
        corpus.held_out_window(number, &mut window).unwrap();
        let stats = trainer.evaluate(&[&window]).unwrap();
        loss += stats.loss_sum_nats;
        tokens += stats.tokens;
    }
    serde_json::json!({"loss": loss / tokens as f64, "tokens": tokens})
}

fn logits(trainer: &mut Trainer, corpus: &Corpus) -> Vec<f32> {
    let (mut all, mut window) = (Vec::new(), Vec::new());
    for number in 0..WINDOWS {
        corpus.held_out_window(number, &mut window).unwrap();
        all.extend(trainer.logits(&window).unwrap());
    }
    all
}
