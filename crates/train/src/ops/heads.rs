//! Moves between the token-major layout of linear layers and the head-major layout of attention.

use rayon::prelude::*;

use super::rows_per_task;

/// Sizes of a tensor of heads: `heads` is `h` for queries, `g` for keys and values.
#[derive(Debug, Clone, Copy)]
pub struct HeadDims {
    /// Tokens in a window (`s`).
    pub seq_len: usize,
    /// Number of heads.
    pub heads: usize,
    /// Components per head (`e`).
    pub head_dim: usize,
}

impl HeadDims {
    /// Values of one token.
    pub(crate) fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Values of one head of one window.
    pub(crate) fn head_len(&self) -> usize {
        self.seq_len * self.head_dim
    }
}

/// `y_bhse = x_nq`, where `n = b·s` and `q = h·e`.
pub fn split_heads(y_bhse: &mut [f32], x_nq: &[f32], dims: HeadDims) {
    let (q, e) = (dims.width(), dims.head_dim);
    y_bhse
        .par_chunks_mut(dims.head_len())
        .enumerate()
        .for_each(|(window_head, y_se)| {
            let (window, head) = (window_head / dims.heads, window_head % dims.heads);
            let x_sq = &x_nq[window * dims.seq_len * q..][..dims.seq_len * q];
            for (y_e, x_q) in y_se.chunks_exact_mut(e).zip(x_sq.chunks_exact(q)) {
                y_e.copy_from_slice(&x_q[head * e..][..e]);
            }
        });
}

/// `y_nq = x_bhse`: the inverse of [`split_heads`], and so also its backward pass.
pub fn merge_heads(y_nq: &mut [f32], x_bhse: &[f32], dims: HeadDims) {
    let (q, e) = (dims.width(), dims.head_dim);
    let rows = rows_per_task(q);
    y_nq.par_chunks_mut(rows * q)
        .enumerate()
        .for_each(|(task, y_nq)| {
            for (row, y_q) in y_nq.chunks_exact_mut(q).enumerate() {
                for (head, y_e) in y_q.chunks_exact_mut(e).enumerate() {
                    y_e.copy_from_slice(head_row(x_bhse, task * rows + row, head, dims));
                }
            }
        });
}

/// The components of one head of token `n` (counted over all windows).
#[inline(always)]
pub(crate) fn head_row(x_bhse: &[f32], n: usize, head: usize, dims: HeadDims) -> &[f32] {
    let (window, position) = (n / dims.seq_len, n % dims.seq_len);
    let row = (window * dims.heads + head) * dims.seq_len + position;
    &x_bhse[row * dims.head_dim..][..dims.head_dim]
}
