//! The outer step against recorded runs of `torch.optim.SGD` (see `golden/make_golden.py`).
#![allow(clippy::unwrap_used)]

use hansa_base::Tokens;
use hansa_outer::{Dtype, Merge, OuterStep, Weights};
use serde_json::Value;

const GOLDEN: &str = include_str!("golden/outer_step.json");

fn golden(name: &str) -> Value {
    serde_json::from_str::<Value>(GOLDEN).unwrap()[name].clone()
}

fn floats(value: &Value) -> Vec<f32> {
    let values = value.as_array().unwrap();
    values.iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn encode(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * dtype.bytes_per_element()];
    dtype.encode(values, &mut bytes);
    bytes
}

/// PyTorch's kernels fuse multiply and add where the CPU can, Hansa never does: the results may
/// differ by a few units in the last place of the larger operand, and by no more.
fn check_close(what: &str, round: usize, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let allowed = 4.0 * f32::EPSILON * expected.abs().max(0.02);
        assert!(
            (found - expected).abs() <= allowed,
            "{what}[{index}] after round {round}: {found:e}, PyTorch has {expected:e}"
        );
    }
}

/// Replays one recorded run through the merge, starting from a momentum buffer of zeros.
fn check_run(name: &str) {
    let run = golden(name);
    let step = OuterStep::Nesterov {
        lr: run["lr"].as_f64().unwrap(),
        momentum: run["momentum"].as_f64().unwrap(),
    };
    let mut theta = floats(&run["theta"]);
    let mut momentum = vec![0.0; theta.len()];
    let rounds = run["rounds"].as_array().unwrap();
    assert!(rounds.len() >= 5);
    for (number, round) in rounds.iter().enumerate() {
        let tokens = round["tokens"].as_array().unwrap();
        let tokens: Vec<Tokens> = tokens.iter().map(|t| Tokens(t.as_u64().unwrap())).collect();
        let deltas = round["deltas"].as_array().unwrap();
        let encoded: Vec<Vec<u8>> = deltas
            .iter()
            .map(|delta| encode(Dtype::F32, &floats(delta)))
            .collect();
        let chunks: Vec<&[u8]> = encoded.iter().map(Vec::as_slice).collect();

        let weights = Weights::from_tokens(&tokens).unwrap();
        let merge = Merge::new(step, weights, Dtype::F32, Dtype::F32).unwrap();
        merge
            .merge_chunk(&chunks, &mut theta, &mut momentum, None)
            .unwrap();

        check_close("theta", number, &theta, &floats(&round["theta"]));
        // Without momentum PyTorch keeps no buffer.
        if !round["momentum"].is_null() {
            check_close("momentum", number, &momentum, &floats(&round["momentum"]));
        }
    }
}

#[test]
fn nesterov_follows_pytorch_over_many_rounds() {
    check_run("nesterov");
}

#[test]
fn a_solo_round_in_full_follows_pytorch_with_lr_1() {
    check_run("solo_full");
}

#[test]
fn the_control_arm_is_fedavg() {
    check_run("fedavg");

    // And FedAvg is what it says: the token-weighted mean of the replicas' weights.
    let run = golden("fedavg");
    let base = floats(&run["theta"]);
    let round = &run["rounds"][0];
    let tokens = floats(&round["tokens"]);
    let total: f32 = tokens.iter().sum();
    let mut mean = vec![0.0; base.len()];
    for (delta, tokens) in round["deltas"].as_array().unwrap().iter().zip(&tokens) {
        let local = base.iter().zip(floats(delta)).map(|(base, d)| base - d);
        for (mean, local) in mean.iter_mut().zip(local) {
            *mean += tokens / total * local;
        }
    }
    for (mean, theta) in mean.iter().zip(floats(&round["theta"])) {
        assert!((mean - theta).abs() <= 1e-6, "{mean} is not {theta}");
    }
}

#[test]
fn a_buffer_of_zeros_is_pytorchs_first_step() {
    let delta = [0.25f32, -3.0, 1e-20, 7.5e-3];
    let (mut theta, mut momentum) = ([1.0f32; 4], [0.0f32; 4]);
    let step = OuterStep::Nesterov {
        lr: 0.7,
        momentum: 0.9,
    };
    step.apply(&delta, &mut theta, &mut momentum);
    // PyTorch sets buf = grad on the first step: bit for bit what 0.9 · 0 + Δ gives.
    assert_eq!(momentum, delta);
}
