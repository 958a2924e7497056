//! Softmax cross-entropy of logits against the next token, in nats.

use rayon::prelude::*;

use super::simd;

/// The loss of each row: `logsumexp(logits) − logits[target]`. Overwrites the logits.
pub fn cross_entropy(losses_n: &mut [f64], logits_nv: &mut [f32], targets_n: &[u32], v: usize) {
    each_row(losses_n, logits_nv, targets_n, v, |_, _, _| {});
}

/// [`cross_entropy`] that turns the logits into their gradient:
/// `dlogits = scale · (softmax(logits) − onehot(target))`, where `scale` is 1 over the step's tokens.
pub fn cross_entropy_with_gradient(
    losses_n: &mut [f64],
    logits_to_dlogits_nv: &mut [f32],
    targets_n: &[u32],
    v: usize,
    scale: f32,
) {
    each_row(
        losses_n,
        logits_to_dlogits_nv,
        targets_n,
        v,
        #[inline(always)]
        |exp_v, sum, target| {
            let factor = scale / sum;
            for value in exp_v.iter_mut() {
                *value *= factor;
            }
            exp_v[target] -= scale;
        },
    );
}

/// Computes each row's loss, then hands its exponentials, their sum and the target to `finish`.
fn each_row(
    losses_n: &mut [f64],
    logits_nv: &mut [f32],
    targets_n: &[u32],
    v: usize,
    finish: impl Fn(&mut [f32], f32, usize) + Sync,
) {
    let rows = losses_n
        .par_iter_mut()
        .zip(logits_nv.par_chunks_mut(v))
        .zip(targets_n);
    rows.for_each(|((loss, row_v), &target)| {
        let target = target as usize;
        simd::vectorised! {
            let largest = simd::max(row_v);
            let at_target = row_v[target];
            for value in row_v.iter_mut() {
                *value = simd::exp(*value - largest);
            }
            let sum = simd::sum_by(row_v.len(), |i| row_v[i]);
            *loss = f64::from(sum).ln() + f64::from(largest) - f64::from(at_target);
            finish(row_v, sum, target);
        };
    });
}
