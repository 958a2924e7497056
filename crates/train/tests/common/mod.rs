//! What several tests share: golden files, comparisons, and small trainers.
#![allow(clippy::unwrap_used, dead_code, missing_docs)]

use std::{collections::HashMap, path::PathBuf};

use hansa_train::{AdamWConfig, ModelConfig, Trainer, Weights};
use safetensors::SafeTensors;

pub fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// Every `f32` tensor of a golden file.
pub fn golden(name: &str) -> HashMap<String, Vec<f32>> {
    let bytes = std::fs::read(golden_path(name)).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let values = |data: &[u8]| {
        data.chunks_exact(4)
            .map(|word| f32::from_le_bytes(word.try_into().unwrap()))
            .collect()
    };
    file.tensors()
        .into_iter()
        .map(|(name, view)| (name, values(view.data())))
        .collect()
}

/// Asserts `|actual − expected| ≤ tolerance · max|expected|`, value by value.
#[track_caller]
pub fn assert_close(what: &str, actual: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(actual.len(), expected.len(), "{what}: lengths");
    let scale = expected.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!(
            (a - e).abs() <= tolerance * scale,
            "{what}[{i}] is {a}, PyTorch says {e}"
        );
    }
}

#[track_caller]
pub fn assert_relative(what: &str, actual: f64, expected: f64, tolerance: f64) {
    let error = ((actual - expected) / expected).abs();
    assert!(
        error <= tolerance,
        "{what} is {actual}, PyTorch says {expected}: off by {error:.2e}"
    );
}

/// The values of `steps.json`.
pub struct Steps {
    pub config: ModelConfig,
    pub seq_len: usize,
    pub json: serde_json::Value,
}

impl Steps {
    pub fn load() -> Steps {
        let text = std::fs::read_to_string(golden_path("steps.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        Steps {
            config: serde_json::from_value(json["config"].clone()).unwrap(),
            seq_len: json["seq_len"].as_u64().unwrap() as usize,
            json,
        }
    }

    pub fn number(&self, key: &str) -> f64 {
        self.json[key].as_f64().unwrap()
    }

    pub fn numbers(&self, key: &str) -> Vec<f64> {
        serde_json::from_value(self.json[key].clone()).unwrap()
    }

    pub fn windows(&self, step: usize) -> Vec<Vec<u32>> {
        serde_json::from_value(self.json["windows"][step].clone()).unwrap()
    }

    pub fn trainer(&self, max_batch: usize, threads: usize) -> Trainer {
        let weights =
            Weights::load_safetensors(&golden_path("model.safetensors"), &self.config).unwrap();
        let mut trainer = trainer(&self.config, self.seq_len, max_batch, threads);
        trainer.set_weights(&weights).unwrap();
        trainer
    }
}

pub fn trainer(config: &ModelConfig, seq_len: usize, max_batch: usize, threads: usize) -> Trainer {
    let adamw = AdamWConfig::default();
    Trainer::new(config.clone(), adamw, seq_len, max_batch, Some(threads)).unwrap()
}

pub fn refs(windows: &[Vec<u32>]) -> Vec<&[u32]> {
    windows.iter().map(Vec::as_slice).collect()
}

/// A model large enough that every product is cut between threads.
pub fn wide_config() -> ModelConfig {
    ModelConfig {
        vocab_size: 300,
        hidden_size: 96,
        intermediate_size: 160,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 32,
        max_position_embeddings: 128,
        ..Steps::load().config
    }
}

/// Reproducible tokens below `vocab_size`.
pub fn tokens(len: usize, vocab_size: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocab_size as u64) as u32
    };
    std::iter::repeat_with(next).take(len).collect()
}

pub fn random_windows(count: usize, seq_len: usize, vocab_size: usize, seed: u64) -> Vec<Vec<u32>> {
    tokens(count * (seq_len + 1), vocab_size, seed)
        .chunks(seq_len + 1)
        .map(<[u32]>::to_vec)
        .collect()
}
