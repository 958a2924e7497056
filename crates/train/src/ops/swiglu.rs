//! SwiGLU (Shazeer 2020): `y = silu(gate) · up`, with `silu(x) = x / (1 + e⁻ˣ)`.

use rayon::prelude::*;

use super::{TASK_VALUES, simd};

/// `y = silu(gate) · up`.
pub fn swiglu(y_nf: &mut [f32], gate_nf: &[f32], up_nf: &[f32]) {
    y_nf.par_chunks_mut(TASK_VALUES)
        .zip(gate_nf.par_chunks(TASK_VALUES))
        .zip(up_nf.par_chunks(TASK_VALUES))
        .for_each(|((y, gate), up)| {
            simd::vectorised! {
                for ((y, &gate), up) in y.iter_mut().zip(gate).zip(up) {
                    *y = gate / (1.0 + simd::exp(-gate)) * up;
                }
            };
        });
}

/// `dgate = dy · up · σ(gate)·(1 + gate·(1 − σ(gate)))` and `dup = dy · silu(gate)`.
///
/// Written over `gate` and `up`, which nobody needs afterwards.
pub fn swiglu_backward(gate_to_dgate_nf: &mut [f32], up_to_dup_nf: &mut [f32], dy_nf: &[f32]) {
    gate_to_dgate_nf
        .par_chunks_mut(TASK_VALUES)
        .zip(up_to_dup_nf.par_chunks_mut(TASK_VALUES))
        .zip(dy_nf.par_chunks(TASK_VALUES))
        .for_each(|((gate, up), dy)| {
            simd::vectorised! {
                for ((gate, up), dy) in gate.iter_mut().zip(up.iter_mut()).zip(dy) {
                    let sigmoid = 1.0 / (1.0 + simd::exp(-*gate));
                    let silu = *gate * sigmoid;
                    let slope = sigmoid * (1.0 + *gate - silu);
                    *gate = dy * *up * slope;
                    *up = dy * silu;
                }
            };
        });
}
