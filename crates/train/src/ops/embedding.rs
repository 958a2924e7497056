//! The token embedding: a row of the table per token.

use super::rows_per_task;
use rayon::prelude::*;

/// `x_nd[n] = table_vd[tokens_n[n]]`. Every token must be below `v`; the trainer has checked that.
pub fn embedding(x_nd: &mut [f32], tokens_n: &[u32], table_vd: &[f32], d: usize) {
    let rows = rows_per_task(d);
    x_nd.par_chunks_mut(rows * d)
        .zip(tokens_n.par_chunks(rows))
        .for_each(|(x_nd, tokens_n)| {
            for (x_d, &token) in x_nd.chunks_exact_mut(d).zip(tokens_n) {
                x_d.copy_from_slice(&table_vd[token as usize * d..][..d]);
            }
        });
}

/// `dtable_vd[tokens_n[n]] += dx_nd[n]`, in token order on one thread: a token may occur many times,
/// and its sum must not depend on who adds first. It is far below a hundredth of a step.
pub fn embedding_backward(dtable_vd: &mut [f32], tokens_n: &[u32], dx_nd: &[f32], d: usize) {
    for (dx_d, &token) in dx_nd.chunks_exact(d).zip(tokens_n) {
        let row_d = &mut dtable_vd[token as usize * d..][..d];
        for (sum, dx) in row_d.iter_mut().zip(dx_d) {
            *sum += dx;
        }
    }
}
