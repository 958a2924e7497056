//! Trains the 4.2 M-parameter reference model on command, for `experiments/train_speed/compare.py`.
//!
//! `speed WEIGHTS.safetensors THREADS` writes initial weights there and prints `ready`; each line `N` on
//! standard input then runs `N` steps of 8 × 256 tokens and prints one JSON line with
//! the milliseconds of each and the last loss.
#![allow(missing_docs)]

use std::{
    collections::BTreeMap,
    io::{BufRead, Error, stdin},
    path::PathBuf,
    time::Instant,
};

use hansa_train::{AdamWConfig, ModelConfig, Trainer, Weights};

const SEQ_LEN: usize = 256;
const BATCH: usize = 8;
const LR: f64 = 1e-3;

fn reference_model() -> ModelConfig {
    ModelConfig {
        vocab_size: 4096,
        hidden_size: 256,
        intermediate_size: 768,
        num_hidden_layers: 4,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 64,
        rope_theta: 1e6,
        rms_norm_eps: 1e-6,
        tie_word_embeddings: true,
        max_position_embeddings: 32_768,
        initializer_range: 0.02,
    }
}

/// The windows that `torch_twin.py` draws too: a linear congruential generator with seed 7.
fn windows(vocab_size: usize) -> Vec<Vec<u32>> {
    let mut state = 7u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocab_size as u64) as u32
    };
    (0..BATCH)
        .map(|_| (0..=SEQ_LEN).map(|_| next()).collect())
        .collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, threads] = arguments.as_slice() else {
        return Err(Error::other("usage: speed WEIGHTS.safetensors THREADS").into());
    };
    let threads = Some(threads.parse()?);
    let config = reference_model();
    let weights = Weights::init(&config, 0)?;
    weights.save_safetensors(&PathBuf::from(path), &BTreeMap::new())?;
    let windows = windows(config.vocab_size);
    let windows: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
    let mut trainer = Trainer::new(config, AdamWConfig::default(), SEQ_LEN, BATCH, threads)?;
    trainer.set_weights(&weights)?;
    println!("ready");

    for line in stdin().lock().lines() {
        let steps: usize = line?.trim().parse()?;
        let mut step_ms = Vec::with_capacity(steps);
        let mut loss = f64::NAN;
        for _ in 0..steps {
            let start = Instant::now();
            loss = trainer.train_step(&windows, LR)?.loss;
            step_ms.push(start.elapsed().as_secs_f64() * 1e3);
        }
        println!(
            "{}",
            serde_json::json!({ "step_ms": step_ms, "loss": loss })
        );
    }
    Ok(())
}
