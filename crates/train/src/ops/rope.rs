//! Rotary position embedding (Su et al. 2021) in the rotate-half form of Hugging Face: component `i` of
//! a head is paired with component `i + e/2`, and each pair is turned by `position · theta^(−2i/e)`.
//!
//! Fused with the move between token-major and head-major layout, which would cost the same pass again.

use rayon::prelude::*;

use super::{
    heads::{HeadDims, head_row},
    rows_per_task, simd,
};

/// Cosines and sines of every position and pair.
#[derive(Debug)]
pub struct RopeTable {
    /// `[seq_len, e/2]`, position-major.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// Tables for positions `0..seq_len`. Angles are rounded to `f32` as the published model rounds them.
    pub fn new(seq_len: usize, head_dim: usize, theta: f64) -> RopeTable {
        let half = head_dim / 2;
        let angles: Vec<f32> = (0..seq_len)
            .flat_map(|position| {
                (0..half).map(move |i| {
                    let exponent = 2.0 * i as f64 / head_dim as f64;
                    position as f32 * (1.0 / libm::pow(theta, exponent)) as f32
                })
            })
            .collect();
        RopeTable {
            cos: angles
                .iter()
                .map(|&angle| libm::cos(f64::from(angle)) as f32)
                .collect(),
            sin: angles
                .iter()
                .map(|&angle| libm::sin(f64::from(angle)) as f32)
                .collect(),
        }
    }

    fn at(&self, position: usize, half: usize) -> (&[f32], &[f32]) {
        let range = position * half..(position + 1) * half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}

/// `y_bhse = rotate(x_nq)`, where `n = b·s` and `q = h·e`.
pub fn rope_split(y_bhse: &mut [f32], x_nq: &[f32], table: &RopeTable, dims: HeadDims) {
    let (q, e) = (dims.width(), dims.head_dim);
    y_bhse
        .par_chunks_mut(dims.head_len())
        .enumerate()
        .for_each(|(window_head, y_se)| {
            let (window, head) = (window_head / dims.heads, window_head % dims.heads);
            let x_sq = &x_nq[window * dims.seq_len * q..][..dims.seq_len * q];
            simd::vectorised! {
                let rows = y_se.chunks_exact_mut(e).zip(x_sq.chunks_exact(q));
                for (position, (y_e, x_q)) in rows.enumerate() {
                    let (cos, sin) = table.at(position, e / 2);
                    rotate(y_e, &x_q[head * e..][..e], cos, sin, 1.0);
                }
            };
        });
}

/// `dx_nq = rotate⁻¹(dy_bhse)`: a rotation's transpose is its inverse.
pub fn rope_split_backward(dx_nq: &mut [f32], dy_bhse: &[f32], table: &RopeTable, dims: HeadDims) {
    let (q, e) = (dims.width(), dims.head_dim);
    let rows = rows_per_task(q);
    dx_nq
        .par_chunks_mut(rows * q)
        .enumerate()
        .for_each(|(task, dx_nq)| {
            simd::vectorised! {
                for (row, dx_q) in dx_nq.chunks_exact_mut(q).enumerate() {
                    let n = task * rows + row;
                    let (cos, sin) = table.at(n % dims.seq_len, e / 2);
                    for (head, dx_e) in dx_q.chunks_exact_mut(e).enumerate() {
                        rotate(dx_e, head_row(dy_bhse, n, head, dims), cos, sin, -1.0);
                    }
                }
            };
        });
}

/// Turns the pairs `(x[i], x[i + e/2])` by the table's angles, forwards (`1.0`) or backwards (`-1.0`).
#[inline(always)]
fn rotate(y_e: &mut [f32], x_e: &[f32], cos: &[f32], sin: &[f32], direction: f32) {
    let half = cos.len();
    let (y_first, y_second) = y_e.split_at_mut(half);
    let (x_first, x_second) = x_e.split_at(half);
    let (y_second, x_second) = (&mut y_second[..half], &x_second[..half]);
    let sin = &sin[..half];
    for i in 0..half {
        let sin = sin[i] * direction;
        y_first[i] = x_first[i] * cos[i] - x_second[i] * sin;
        y_second[i] = x_second[i] * cos[i] + x_first[i] * sin;
    }
}
