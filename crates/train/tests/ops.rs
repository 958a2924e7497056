//! Every operation against values that PyTorch computed, and against finite differences of itself.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::HashMap;

use common::{assert_close, golden};
use hansa_train::ops::{
    Write,
    attention::{AttentionDims, AttentionSaved, Qkv, QkvGrads, attention, attention_backward},
    cross_entropy::{cross_entropy, cross_entropy_with_gradient},
    embedding::{embedding, embedding_backward},
    heads::{HeadDims, merge_heads, split_heads},
    linear::{linear, linear_backward_input, linear_backward_weight},
    rmsnorm::{RmsNormSaved, rmsnorm, rmsnorm_backward},
    rope::{RopeTable, rope_split, rope_split_backward},
    swiglu::{swiglu, swiglu_backward},
};

const TOLERANCE: f32 = 2e-6;

/// The golden values of one operation, by the names of make_golden.py.
struct Op {
    name: &'static str,
    values: HashMap<String, Vec<f32>>,
}

impl Op {
    fn load(name: &'static str) -> Op {
        Op {
            name,
            values: golden("ops.safetensors"),
        }
    }

    fn get(&self, value: &str) -> &[f32] {
        &self.values[&format!("{}.{value}", self.name)]
    }

    #[track_caller]
    fn check(&self, value: &str, actual: &[f32]) {
        assert_close(
            &format!("{}.{value}", self.name),
            actual,
            self.get(value),
            TOLERANCE,
        );
    }
}

/// Compares `gradient` with central differences of `Σ dy·y(x)` along a few directions.
#[track_caller]
fn check_slope(x: &[f32], dy: &[f32], gradient: &[f32], y: impl Fn(&[f32]) -> Vec<f32>) {
    const STEP: f32 = 1e-2;
    for seed in 1..5 {
        let signs = common::tokens(x.len(), 2, seed);
        let moved = |step: f32| -> Vec<f32> {
            let sign = |s: u32| if s == 0 { -step } else { step };
            x.iter().zip(&signs).map(|(x, &s)| x + sign(s)).collect()
        };
        let objective = |x: &[f32]| dot(&y(x), dy);
        let measured =
            (objective(&moved(STEP)) - objective(&moved(-STEP))) / (2.0 * f64::from(STEP));
        let direction: Vec<f32> = moved(1.0).iter().zip(x).map(|(m, x)| m - x).collect();
        let claimed = dot(gradient, &direction);
        let scale = gradient.iter().map(|g| f64::from(g.abs())).sum::<f64>();
        assert!(
            (measured - claimed).abs() < 2e-3 * scale.max(1e-3),
            "direction {seed}: finite difference {measured}, backward pass {claimed}"
        );
    }
}

fn dot(x: &[f32], y: &[f32]) -> f64 {
    x.iter()
        .zip(y)
        .map(|(x, y)| f64::from(*x) * f64::from(*y))
        .sum()
}

#[test]
fn rmsnorm_and_its_gradients() {
    let op = Op::load("rmsnorm");
    let (x, w, dy) = (op.get("x"), op.get("w"), op.get("dy"));
    let forward = |x: &[f32], w: &[f32]| {
        let (mut y, mut inv_rms) = (vec![0.0; x.len()], vec![0.0; x.len() / w.len()]);
        rmsnorm(&mut y, &mut inv_rms, x, w, 1e-6);
        (y, inv_rms)
    };
    let (y, inv_rms_n) = forward(x, w);
    op.check("y", &y);

    let saved = RmsNormSaved {
        x_nd: x,
        inv_rms_n: &inv_rms_n,
        w_d: w,
    };
    let (mut dx, mut dw) = (vec![0.0; x.len()], vec![0.0; w.len()]);
    rmsnorm_backward(&mut dx, Write::Set, &mut dw, dy, saved, &mut Vec::new());
    op.check("dx", &dx);
    op.check("dw", &dw);
    check_slope(x, dy, &dx, |x| forward(x, w).0);
    check_slope(w, dy, &dw, |w| forward(x, w).0);

    rmsnorm_backward(&mut dx, Write::Add, &mut dw, dy, saved, &mut Vec::new());
    let twice: Vec<f32> = op.get("dx").iter().map(|dx| 2.0 * dx).collect();
    assert_close("dx added twice", &dx, &twice, TOLERANCE);
}

#[test]
fn linear_and_its_gradients() {
    let op = Op::load("linear");
    let (x, w, dy) = (op.get("x"), op.get("w"), op.get("dy"));
    let forward = |x: &[f32], w: &[f32]| {
        let mut y = vec![0.0; dy.len()];
        linear(&mut y, Write::Set, x, w, 10);
        y
    };
    op.check("y", &forward(x, w));

    let (mut dx, mut dw) = (vec![0.0; x.len()], vec![0.0; w.len()]);
    linear_backward_input(&mut dx, Write::Set, dy, w, 10);
    linear_backward_weight(&mut dw, Write::Add, dy, x, 10);
    op.check("dx", &dx);
    op.check("dw", &dw);
    check_slope(x, dy, &dx, |x| forward(x, w));
    check_slope(w, dy, &dw, |w| forward(x, w));
}

#[test]
fn swiglu_and_its_gradients() {
    let op = Op::load("swiglu");
    let (gate, up, dy) = (op.get("gate"), op.get("up"), op.get("dy"));
    let forward = |gate: &[f32], up: &[f32]| {
        let mut y = vec![0.0; gate.len()];
        swiglu(&mut y, gate, up);
        y
    };
    op.check("y", &forward(gate, up));

    let (mut dgate, mut dup) = (gate.to_vec(), up.to_vec());
    swiglu_backward(&mut dgate, &mut dup, dy);
    op.check("dgate", &dgate);
    op.check("dup", &dup);
    check_slope(gate, dy, &dgate, |gate| forward(gate, up));
    check_slope(up, dy, &dup, |up| forward(gate, up));
}

#[test]
fn rope_and_its_gradient() {
    let op = Op::load("rope");
    let (x, dy) = (op.get("x"), op.get("dy"));
    let dims = HeadDims {
        seq_len: 6,
        heads: 3,
        head_dim: 8,
    };
    let table = RopeTable::new(6, 8, 10_000.0);
    let forward = |x: &[f32]| {
        let mut y = vec![0.0; x.len()];
        rope_split(&mut y, x, &table, dims);
        y
    };
    op.check("y", &forward(x));

    let mut dx = vec![0.0; x.len()];
    rope_split_backward(&mut dx, dy, &table, dims);
    op.check("dx", &dx);
    check_slope(x, dy, &dx, forward);
}

#[test]
fn splitting_heads_and_merging_them_are_inverse() {
    let dims = HeadDims {
        seq_len: 3,
        heads: 2,
        head_dim: 4,
    };
    let x: Vec<f32> = (0..2 * 3 * 2 * 4).map(|i| i as f32).collect();
    let (mut heads, mut back) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    split_heads(&mut heads, &x, dims);
    // Window 1, head 0, position 2 came from token 5, components 0 to 3.
    let row = 2 * 3 + 2;
    assert_eq!(heads[row * 4..][..4], x[5 * 8..][..4]);
    merge_heads(&mut back, &heads, dims);
    assert_eq!(back, x);
}

#[test]
fn attention_and_its_gradients() {
    let op = Op::load("attention");
    let (q, k, v, dy) = (op.get("q"), op.get("k"), op.get("v"), op.get("dy"));
    let dims = AttentionDims {
        seq_len: 70,
        queries_per_group: 2,
        head_dim: 8,
    };
    let scratch = || vec![0.0; dims.scratch_len(1, 2)];
    let forward = |q: &[f32], k: &[f32], v: &[f32]| {
        let (mut o, mut lse) = (vec![0.0; q.len()], vec![0.0; 4 * 70]);
        let qkv = Qkv {
            q_bhse: q,
            k_bgse: k,
            v_bgse: v,
        };
        attention(&mut o, &mut lse, qkv, dims, &mut scratch());
        (o, lse)
    };
    let (o, lse) = forward(q, k, v);
    op.check("y", &o);

    let [mut dq, mut dk, mut dv] = [q, k, v].map(|x| vec![f32::NAN; x.len()]);
    let grads = QkvGrads {
        dq_bhse: &mut dq,
        dk_bgse: &mut dk,
        dv_bgse: &mut dv,
    };
    let qkv = Qkv {
        q_bhse: q,
        k_bgse: k,
        v_bgse: v,
    };
    let saved = AttentionSaved {
        o_bhse: &o,
        lse_bhs: &lse,
    };
    attention_backward(grads, dy, qkv, saved, dims, &mut scratch());
    op.check("dq", &dq);
    op.check("dk", &dk);
    op.check("dv", &dv);
    check_slope(q, dy, &dq, |q| forward(q, k, v).0);
    check_slope(k, dy, &dk, |k| forward(q, k, v).0);
    check_slope(v, dy, &dv, |v| forward(q, k, v).0);
}

#[test]
fn embedding_and_its_gradient() {
    let op = Op::load("embedding");
    let tokens = [3, 0, 3, 10, 7, 3];
    let forward = |table: &[f32]| {
        let mut x = vec![0.0; 6 * 5];
        embedding(&mut x, &tokens, table, 5);
        x
    };
    op.check("y", &forward(op.get("table")));

    let mut dtable = vec![0.0; 11 * 5];
    embedding_backward(&mut dtable, &tokens, op.get("dy"), 5);
    op.check("dtable", &dtable);
    check_slope(op.get("table"), op.get("dy"), &dtable, forward);
}

#[test]
fn cross_entropy_and_its_gradient() {
    let op = Op::load("cross_entropy");
    let targets = [3, 0, 3, 10, 7, 3];
    let forward = |logits: &[f32]| {
        let mut losses = [0.0; 6];
        cross_entropy(&mut losses, &mut logits.to_vec(), &targets, 37);
        losses.map(|loss| loss as f32).to_vec()
    };
    op.check("y", &forward(op.get("logits")));

    let (mut losses, mut dlogits) = ([0.0; 6], op.get("logits").to_vec());
    cross_entropy_with_gradient(&mut losses, &mut dlogits, &targets, 37, 0.125);
    op.check("y", &losses.map(|loss| loss as f32));
    op.check("dlogits", &dlogits);
    check_slope(op.get("logits"), &[0.125; 6], &dlogits, forward);
}
