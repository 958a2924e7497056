//! RMSNorm (Zhang & Sennrich 2019): each row divided by its root mean square, times a learned weight.

use rayon::prelude::*;

use super::{Write, rows_per_task, simd};

/// `y = x · r · w` with `r = 1/√(mean(x²) + eps)` per row; `r` is kept for the backward pass.
///
/// Rows have the length of `w_d`. The norms of queries and keys pass each head as a row of its own.
pub fn rmsnorm(y_nd: &mut [f32], inv_rms_n: &mut [f32], x_nd: &[f32], w_d: &[f32], eps: f32) {
    let d = w_d.len();
    let rows = rows_per_task(d);
    y_nd.par_chunks_mut(rows * d)
        .zip(x_nd.par_chunks(rows * d))
        .zip(inv_rms_n.par_chunks_mut(rows))
        .for_each(|((y_nd, x_nd), inv_rms_n)| {
            simd::vectorised! {
                let rows = y_nd.chunks_exact_mut(d).zip(x_nd.chunks_exact(d)).zip(inv_rms_n.iter_mut());
                for ((y_d, x_d), inv_rms) in rows {
                    let r = 1.0 / (simd::dot(x_d, x_d) / d as f32 + eps).sqrt();
                    for ((y, x), w) in y_d.iter_mut().zip(x_d).zip(w_d) {
                        *y = x * r * w;
                    }
                    *inv_rms = r;
                }
            };
        });
}

/// What [`rmsnorm`] saw and kept, as its backward pass needs it.
#[derive(Debug, Clone, Copy)]
pub struct RmsNormSaved<'a> {
    /// The input.
    pub x_nd: &'a [f32],
    /// `r` of each row.
    pub inv_rms_n: &'a [f32],
    /// The weight.
    pub w_d: &'a [f32],
}

/// With `t = dy·w`: `dx (+)= r·t − x · r³ · mean(t·x)` and `dw += Σ_rows dy·x·r`.
///
/// `partials` is scratch: each task sums its rows' `dw` there, and the tasks are then added in order.
pub fn rmsnorm_backward(
    dx_nd: &mut [f32],
    write: Write,
    dw_d: &mut [f32],
    dy_nd: &[f32],
    saved: RmsNormSaved,
    partials: &mut Vec<f32>,
) {
    let w_d = saved.w_d;
    let d = w_d.len();
    let rows = rows_per_task(d);
    partials.clear();
    partials.resize(dx_nd.len().div_ceil(rows * d) * d, 0.0);
    dx_nd
        .par_chunks_mut(rows * d)
        .zip(dy_nd.par_chunks(rows * d))
        .zip(saved.x_nd.par_chunks(rows * d))
        .zip(saved.inv_rms_n.par_chunks(rows))
        .zip(partials.par_chunks_mut(d))
        .for_each(|((((dx_nd, dy_nd), x_nd), inv_rms_n), dw_d)| {
            simd::vectorised! {
                let rows = (dx_nd.chunks_exact_mut(d).zip(dy_nd.chunks_exact(d)))
                    .zip(x_nd.chunks_exact(d))
                    .zip(inv_rms_n);
                for (((dx_d, dy_d), x_d), &r) in rows {
                    backward_row(dx_d, write, dw_d, dy_d, x_d, w_d, r);
                }
            };
        });
    for partial_d in partials.chunks_exact(d) {
        for (dw, partial) in dw_d.iter_mut().zip(partial_d) {
            *dw += partial;
        }
    }
}

/// One row of [`rmsnorm_backward`].
#[inline(always)]
fn backward_row(
    dx_d: &mut [f32],
    write: Write,
    dw_d: &mut [f32],
    dy_d: &[f32],
    x_d: &[f32],
    w_d: &[f32],
    r: f32,
) {
    let d = w_d.len();
    let (dx_d, dw_d) = (&mut dx_d[..d], &mut dw_d[..d]);
    let (dy_d, x_d) = (&dy_d[..d], &x_d[..d]);
    let along_x = simd::sum_by(d, |i| dy_d[i] * w_d[i] * x_d[i]) * r * r * r / d as f32;
    for i in 0..d {
        dw_d[i] += dy_d[i] * x_d[i] * r;
        let dx = r * dy_d[i] * w_d[i] - x_d[i] * along_x;
        dx_d[i] = if write == Write::Add {
            dx_d[i] + dx
        } else {
            dx
        };
    }
}
