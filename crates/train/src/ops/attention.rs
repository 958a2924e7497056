//! Causal grouped-query attention: `o = softmax(q·kᵀ/√e)·v`, each query seeing keys up to its own position.
//!
//! Queries are taken in blocks of rows, and only the keys at or before a block are touched, so that
//! nearly half of the square is never computed. Probabilities are not kept: the forward pass saves one
//! number per row, `logsumexp` of its scores, and the backward pass recomputes the rest from it (Dao et
//! al. 2022). Memory therefore grows with the window length, not with its square.

use rayon::prelude::*;

use super::{
    Write,
    matmul::{Mat, Threads, matmul},
    simd,
};

/// Rows of a query block. Smaller blocks waste less of the square, larger ones make better products.
const BLOCK: usize = 32;

/// Sizes of an attention call.
#[derive(Debug, Clone, Copy)]
pub struct AttentionDims {
    /// Tokens in a window (`s`).
    pub seq_len: usize,
    /// Query heads that share one key/value head (`h/g`).
    pub queries_per_group: usize,
    /// Components per head (`e`).
    pub head_dim: usize,
}

impl AttentionDims {
    /// Scratch values for `b` windows of `g` key/value heads, enough for both passes.
    pub fn scratch_len(&self, windows: usize, groups: usize) -> usize {
        windows * groups * self.queries_per_group.max(2) * self.block_len()
    }

    /// Scores of the largest block.
    fn block_len(&self) -> usize {
        BLOCK.min(self.seq_len) * self.seq_len
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    fn blocks(&self) -> impl Iterator<Item = Block> + use<> {
        let (seq_len, e) = (self.seq_len, self.head_dim);
        (0..seq_len).step_by(BLOCK).map(move |first| Block {
            first,
            end: (first + BLOCK).min(seq_len),
            head_dim: e,
        })
    }
}

/// Query rows `first..end` of a head; they see keys `0..end`.
#[derive(Debug, Clone, Copy)]
struct Block {
    first: usize,
    end: usize,
    head_dim: usize,
}

impl Block {
    fn queries(self) -> std::ops::Range<usize> {
        self.first * self.head_dim..self.end * self.head_dim
    }

    fn keys(self) -> std::ops::Range<usize> {
        0..self.end * self.head_dim
    }

    fn scores_len(self) -> usize {
        (self.end - self.first) * self.end
    }
}

/// Queries, keys and values, head-major.
#[derive(Debug, Clone, Copy)]
pub struct Qkv<'a> {
    /// Rotated queries.
    pub q_bhse: &'a [f32],
    /// Rotated keys.
    pub k_bgse: &'a [f32],
    /// Values.
    pub v_bgse: &'a [f32],
}

/// Attention of every head; `lse_bhs` receives `logsumexp` of each row's scaled scores.
///
/// `scratch` holds at least [`AttentionDims::scratch_len`] values.
pub fn attention(
    o_bhse: &mut [f32],
    lse_bhs: &mut [f32],
    qkv: Qkv,
    dims: AttentionDims,
    scratch: &mut [f32],
) {
    let head_len = dims.seq_len * dims.head_dim;
    o_bhse
        .par_chunks_mut(head_len)
        .zip(lse_bhs.par_chunks_mut(dims.seq_len))
        .zip(qkv.q_bhse.par_chunks(head_len))
        .zip(scratch.par_chunks_mut(dims.block_len()))
        .enumerate()
        .for_each(|(head, (((o_se, lse_s), q_se), scratch))| {
            let group = head / dims.queries_per_group * head_len;
            let k_se = &qkv.k_bgse[group..][..head_len];
            let v_se = &qkv.v_bgse[group..][..head_len];
            attention_head(o_se, lse_s, [q_se, k_se, v_se], dims, scratch);
        });
}

/// One query head of [`attention`].
fn attention_head(
    o_se: &mut [f32],
    lse_s: &mut [f32],
    [q_se, k_se, v_se]: [&[f32]; 3],
    dims: AttentionDims,
    scratch: &mut [f32],
) {
    let e = dims.head_dim;
    for block in dims.blocks() {
        let keys = block.end;
        let p = &mut scratch[..block.scores_len()];
        let k = Mat::new(&k_se[block.keys()], e);
        let v = Mat::new(&v_se[block.keys()], e);
        matmul(
            p,
            Write::Set,
            dims.scale(),
            Mat::new(&q_se[block.queries()], e),
            k.t(),
            Threads::One,
        );
        softmax_rows(p, &mut lse_s[block.first..block.end], block);
        matmul(
            &mut o_se[block.queries()],
            Write::Set,
            1.0,
            Mat::new(p, keys),
            v,
            Threads::One,
        );
    }
}

/// Scores to probabilities, row by row; zero beyond each row's own position.
fn softmax_rows(scores: &mut [f32], lse: &mut [f32], block: Block) {
    simd::vectorised! {
        for (row, (scores, lse)) in scores.chunks_exact_mut(block.end).zip(lse.iter_mut()).enumerate() {
            let (seen, masked) = scores.split_at_mut(block.first + row + 1);
            let largest = simd::max(seen);
            for score in seen.iter_mut() {
                *score = simd::exp(*score - largest);
            }
            let sum = simd::sum_by(seen.len(), |i| seen[i]);
            let factor = 1.0 / sum;
            for value in seen.iter_mut() {
                *value *= factor;
            }
            masked.fill(0.0);
            *lse = largest + sum.ln();
        }
    };
}

/// What [`attention`] produced, as its backward pass needs it.
#[derive(Debug, Clone, Copy)]
pub struct AttentionSaved<'a> {
    /// The output.
    pub o_bhse: &'a [f32],
    /// `logsumexp` of each row.
    pub lse_bhs: &'a [f32],
}

/// Gradients of queries, keys and values, overwritten.
#[derive(Debug)]
pub struct QkvGrads<'a> {
    /// Gradient of the rotated queries.
    pub dq_bhse: &'a mut [f32],
    /// Gradient of the rotated keys.
    pub dk_bgse: &'a mut [f32],
    /// Gradient of the values.
    pub dv_bgse: &'a mut [f32],
}

/// With `p` the probabilities and `ds = p·(do·vᵀ − rowsum(do·o))`:
/// `dv = pᵀ·do`, `dq = ds·k/√e`, `dk = dsᵀ·q/√e`, summed over the query heads of a group.
pub fn attention_backward(
    grads: QkvGrads,
    do_bhse: &[f32],
    qkv: Qkv,
    saved: AttentionSaved,
    dims: AttentionDims,
    scratch: &mut [f32],
) {
    let head_len = dims.seq_len * dims.head_dim;
    let group_len = dims.queries_per_group * head_len;
    let groups = (grads.dq_bhse.par_chunks_mut(group_len))
        .zip(grads.dk_bgse.par_chunks_mut(head_len))
        .zip(grads.dv_bgse.par_chunks_mut(head_len))
        .zip(scratch.par_chunks_mut(2 * dims.block_len()))
        .enumerate();
    groups.for_each(|(group, (((dq_rse, dk_se), dv_se), scratch))| {
        dk_se.fill(0.0);
        dv_se.fill(0.0);
        let k_se = &qkv.k_bgse[group * head_len..][..head_len];
        let v_se = &qkv.v_bgse[group * head_len..][..head_len];
        for (query, dq_se) in dq_rse.chunks_exact_mut(head_len).enumerate() {
            let head = group * dims.queries_per_group + query;
            let head_values = head * head_len..(head + 1) * head_len;
            let lse_s = &saved.lse_bhs[head * dims.seq_len..][..dims.seq_len];
            let inputs = HeadInputs {
                q_se: &qkv.q_bhse[head_values.clone()],
                k_se,
                v_se,
                o_se: &saved.o_bhse[head_values.clone()],
                do_se: &do_bhse[head_values],
                lse_s,
            };
            attention_head_backward(dq_se, dk_se, dv_se, inputs, dims, scratch);
        }
    });
}

/// What the backward pass of one query head reads.
#[derive(Clone, Copy)]
struct HeadInputs<'a> {
    q_se: &'a [f32],
    k_se: &'a [f32],
    v_se: &'a [f32],
    o_se: &'a [f32],
    do_se: &'a [f32],
    lse_s: &'a [f32],
}

/// One query head of [`attention_backward`]: overwrites `dq_se`, adds to `dk_se` and `dv_se`.
fn attention_head_backward(
    dq_se: &mut [f32],
    dk_se: &mut [f32],
    dv_se: &mut [f32],
    inputs: HeadInputs,
    dims: AttentionDims,
    scratch: &mut [f32],
) {
    let (e, scale) = (dims.head_dim, dims.scale());
    let (p, ds) = scratch.split_at_mut(scratch.len() / 2);
    for block in dims.blocks() {
        let (p, ds) = (&mut p[..block.scores_len()], &mut ds[..block.scores_len()]);
        let q = Mat::new(&inputs.q_se[block.queries()], e);
        let k = Mat::new(&inputs.k_se[block.keys()], e);
        let v = Mat::new(&inputs.v_se[block.keys()], e);
        let d_o = Mat::new(&inputs.do_se[block.queries()], e);
        matmul(p, Write::Set, scale, q, k.t(), Threads::One);
        matmul(ds, Write::Set, 1.0, d_o, v.t(), Threads::One);
        softmax_rows_backward(p, ds, inputs, block);
        let (p, ds) = (Mat::new(p, block.end), Mat::new(ds, block.end));
        matmul(
            &mut dv_se[block.keys()],
            Write::Add,
            1.0,
            p.t(),
            d_o,
            Threads::One,
        );
        matmul(
            &mut dq_se[block.queries()],
            Write::Set,
            scale,
            ds,
            k,
            Threads::One,
        );
        matmul(
            &mut dk_se[block.keys()],
            Write::Add,
            scale,
            ds.t(),
            q,
            Threads::One,
        );
    }
}

/// Scores to probabilities in `p`, and their gradient to the scores' gradient in `ds`.
fn softmax_rows_backward(p: &mut [f32], ds: &mut [f32], inputs: HeadInputs, block: Block) {
    let e = block.head_dim;
    simd::vectorised! {
        let rows = p.chunks_exact_mut(block.end).zip(ds.chunks_exact_mut(block.end));
        for (row, (p, ds)) in rows.enumerate() {
            let position = block.first + row;
            let row_e = position * e..(position + 1) * e;
            let along_o = simd::dot(&inputs.do_se[row_e.clone()], &inputs.o_se[row_e]);
            let lse = inputs.lse_s[position];
            let (p, p_masked) = p.split_at_mut(position + 1);
            let (ds, ds_masked) = ds.split_at_mut(position + 1);
            for (p, ds) in p.iter_mut().zip(ds) {
                *p = simd::exp(*p - lse);
                *ds = *p * (*ds - along_o);
            }
            p_masked.fill(0.0);
            ds_masked.fill(0.0);
        }
    };
}
