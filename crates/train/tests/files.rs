//! Weights and checkpoints on disk: names, round trips, damage.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{collections::BTreeMap, fs, path::Path};

use common::{Steps, golden_path, refs};
use hansa_train::{ModelConfig, Weights, load_checkpoint, save_checkpoint};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::json;

#[test]
fn weights_come_back_under_hugging_face_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let config = Steps::load().config;
    let weights = Weights::init(&config, 5).unwrap();
    let metadata = BTreeMap::from([("generation".to_owned(), "7".to_owned())]);
    weights.save_safetensors(&path, &metadata).unwrap();

    let bytes = fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut names: Vec<String> = file.names().into_iter().map(str::to_owned).collect();
    names.sort();
    let expected: Vec<&str> = weights
        .tensors()
        .iter()
        .map(|spec| spec.name.as_str())
        .collect();
    assert_eq!(names, expected);
    let q_proj = file
        .tensor("model.layers.1.self_attn.q_proj.weight")
        .unwrap();
    assert_eq!(
        (q_proj.shape(), q_proj.dtype()),
        ([48, 24].as_slice(), Dtype::F32)
    );
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let header = header.metadata().clone().unwrap();
    assert_eq!(
        (header["format"].as_str(), header["generation"].as_str()),
        ("pt", "7")
    );

    assert_eq!(Weights::load_safetensors(&path, &config).unwrap(), weights);
    weights.save_safetensors(&path, &metadata).unwrap();
    assert_eq!(
        fs::read(&path).unwrap(),
        bytes,
        "the same weights give the same bytes"
    );
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        1,
        "no temporary file is left"
    );
}

#[test]
fn initial_weights_are_the_same_everywhere() {
    let weights = Weights::init(&Steps::load().config, 42).unwrap();
    let embedding = weights.tensor("model.embed_tokens.weight").unwrap();
    assert!(
        weights
            .tensor("model.norm.weight")
            .unwrap()
            .iter()
            .all(|&w| w == 1.0)
    );
    let first: Vec<u32> = embedding[..4].iter().map(|w| w.to_bits()).collect();
    assert_eq!(first, GOLDEN_DRAWS);
    assert_ne!(Weights::init(&Steps::load().config, 43).unwrap(), weights);
}

/// Computed by a second implementation of the generator, in Python.
const GOLDEN_DRAWS: [u32; 4] = [3_167_222_599, 1_024_258_538, 3_161_715_436, 976_120_394];

/// Writes the golden model with one change and expects loading it to fail.
fn check_refused(
    change: impl FnOnce(&mut Vec<(String, Dtype, Vec<usize>, Vec<u8>)>),
    expected: &str,
) {
    let bytes = fs::read(golden_path("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = file
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            (
                name,
                view.dtype(),
                view.shape().to_vec(),
                view.data().to_vec(),
            )
        })
        .collect();
    change(&mut tensors);
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (
            name.clone(),
            TensorView::new(*dtype, shape.clone(), data).unwrap(),
        )
    });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    safetensors::serialize_to_file(views, None, &path).unwrap();
    let error = Weights::load_safetensors(&path, &Steps::load().config)
        .unwrap_err()
        .to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_file_of_another_model_is_refused_by_tensor() {
    check_refused(
        |tensors| tensors.retain(|t| t.0 != "model.norm.weight"),
        "model.norm.weight is missing",
    );
    check_refused(
        |tensors| tensors.push(("extra.weight".to_owned(), Dtype::F32, vec![1], vec![0; 4])),
        "the model has no tensor extra.weight",
    );
    check_refused(
        |tensors| tensors.iter_mut().for_each(|t| t.2.reverse()),
        "has shape [24, 61], the model [61, 24]",
    );
    check_refused(
        |tensors| tensors.iter_mut().for_each(|t| t.1 = Dtype::I32),
        "is I32; F32 and BF16 are read",
    );
}

#[test]
fn bf16_weights_are_read() {
    let config = Steps::load().config;
    let weights = Weights::load_safetensors(&golden_path("model.safetensors"), &config).unwrap();
    let halves: Vec<(String, Vec<usize>, Vec<u8>)> = weights
        .iter()
        .map(|(spec, values)| {
            let upper = values
                .iter()
                .flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes());
            (spec.name.clone(), spec.shape.clone(), upper.collect())
        })
        .collect();
    let views = halves.iter().map(|(name, shape, data)| {
        (
            name.clone(),
            TensorView::new(Dtype::BF16, shape.clone(), data).unwrap(),
        )
    });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bf16.safetensors");
    safetensors::serialize_to_file(views, None, &path).unwrap();
    let read = Weights::load_safetensors(&path, &config).unwrap();
    for (read, exact) in read.as_slice().iter().zip(weights.as_slice()) {
        assert_eq!(read.to_bits(), exact.to_bits() & 0xFFFF_0000);
    }
}

#[test]
fn a_checkpoint_goes_on_bit_for_bit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("step.ckpt");
    let steps = Steps::load();
    let mut straight = steps.trainer(2, 2);
    let step = |trainer: &mut hansa_train::Trainer, step: usize| {
        trainer
            .train_step(&refs(&steps.windows(step)), 1e-2)
            .unwrap()
    };
    step(&mut straight, 0);
    step(&mut straight, 1);
    let meta = json!({ "cursor": 96, "resume_token": "t-17" });
    save_checkpoint(&path, &straight, &meta).unwrap();

    let mut resumed = common::trainer(&steps.config, steps.seq_len, 2, 1);
    assert_eq!(load_checkpoint(&path, &mut resumed).unwrap(), meta);
    assert_eq!(resumed.adam_step(), 2);
    for i in 2..4 {
        assert_eq!(step(&mut straight, i), step(&mut resumed, i));
    }
    assert_eq!(straight.weights(), resumed.weights());
}

#[test]
fn a_damaged_or_foreign_checkpoint_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("step.ckpt");
    let steps = Steps::load();
    let mut trainer = steps.trainer(2, 1);
    let before = trainer.weights().clone();
    save_checkpoint(&path, &trainer, &json!(null)).unwrap();
    let whole = fs::read(&path).unwrap();
    let mut check = |path: &Path, expected: &str| {
        let error = load_checkpoint(path, &mut trainer).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(trainer.weights(), &before);
    };
    for len in [0, 5, 100, whole.len() - 1] {
        fs::write(&path, &whole[..len]).unwrap();
        check(&path, "is not a usable checkpoint");
    }
    check(&golden_path("model.safetensors"), "it is some other file");
    check(&directory.path().join("absent"), "open");

    fs::write(&path, &whole).unwrap();
    let config = ModelConfig {
        rope_theta: 5.0,
        ..steps.config
    };
    let mut other = common::trainer(&config, steps.seq_len, 2, 1);
    let error = load_checkpoint(&path, &mut other).unwrap_err().to_string();
    assert!(error.contains("does not fit the model"), "{error}");
}

#[test]
fn the_exported_config_reads_back_and_names_the_architecture() {
    let config = Steps::load().config;
    let json = config.to_hf_json();
    assert_eq!(serde_json::from_str::<ModelConfig>(&json).unwrap(), config);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["architectures"], json!(["Qwen3ForCausalLM"]));
    assert_eq!(value["model_type"], "qwen3");
}
