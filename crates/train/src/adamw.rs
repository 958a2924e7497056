//! AdamW exactly as `torch.optim.AdamW` computes it, fused into one pass over four flat buffers.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::{config::check, error::TrainError, ops::simd};

/// Settings of the inner optimiser; the learning rate comes with each step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AdamWConfig {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Decoupled weight decay, applied to every tensor as the default parameter group does.
    pub weight_decay: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Gradients with a larger global norm are scaled down to it.
    pub clip_norm: f64,
}

impl Default for AdamWConfig {
    fn default() -> AdamWConfig {
        AdamWConfig {
            beta1: 0.9,
            beta2: 0.95,
            weight_decay: 0.1,
            eps: 1e-8,
            clip_norm: 1.0,
        }
    }
}

impl AdamWConfig {
    /// Checks every setting.
    ///
    /// # Errors
    /// The first setting that cannot work, by name.
    pub fn validate(&self) -> Result<(), TrainError> {
        for (field, value) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            check(
                field,
                value,
                (0.0..1.0).contains(&value),
                "it must be at least 0 and below 1",
            )?;
        }
        let decay_ok = self.weight_decay.is_finite() && self.weight_decay >= 0.0;
        check(
            "weight_decay",
            self.weight_decay,
            decay_ok,
            "it must be 0 or a positive number",
        )?;
        let eps_ok = self.eps.is_finite() && self.eps > 0.0;
        check("eps", self.eps, eps_ok, "it must be a positive number")?;
        check(
            "clip_norm",
            self.clip_norm,
            self.clip_norm > 0.0,
            "it must be positive",
        )
    }

    /// What gradients are multiplied by, as in `torch.nn.utils.clip_grad_norm_`.
    pub(crate) fn clip_factor(&self, grad_norm: f64) -> f64 {
        (self.clip_norm / (grad_norm + 1e-6)).min(1.0)
    }
}

/// Values one task updates; the work is element-wise, so this does not influence any result.
const CHUNK: usize = 1 << 15;

/// The flat buffers of one step.
pub(crate) struct Buffers<'a> {
    pub(crate) weights: &'a mut [f32],
    pub(crate) grads: &'a [f32],
    pub(crate) exp_avg: &'a mut [f32],
    pub(crate) exp_avg_sq: &'a mut [f32],
}

/// Step number `step` (from 1): moments, bias correction, decoupled decay (Loshchilov & Hutter 2019).
pub(crate) fn adamw(config: &AdamWConfig, step: u64, lr: f64, grad_scale: f64, buffers: Buffers) {
    let bias1 = 1.0 - config.beta1.powf(step as f64);
    let bias2 = 1.0 - config.beta2.powf(step as f64);
    let (beta1, beta2) = (config.beta1 as f32, config.beta2 as f32);
    let (one_minus_beta1, one_minus_beta2) =
        ((1.0 - config.beta1) as f32, (1.0 - config.beta2) as f32);
    let keep = (1.0 - lr * config.weight_decay) as f32;
    let step_size = (lr / bias1) as f32;
    let inv_sqrt_bias2 = (1.0 / bias2.sqrt()) as f32;
    let (eps, grad_scale) = (config.eps as f32, grad_scale as f32);

    let chunks = (buffers.weights.par_chunks_mut(CHUNK))
        .zip(buffers.grads.par_chunks(CHUNK))
        .zip(buffers.exp_avg.par_chunks_mut(CHUNK))
        .zip(buffers.exp_avg_sq.par_chunks_mut(CHUNK));
    chunks.for_each(|(((weights, grads), exp_avg), exp_avg_sq)| {
        simd::vectorised! {
            let moments = exp_avg.iter_mut().zip(exp_avg_sq.iter_mut());
            for ((weight, grad), (m, v)) in weights.iter_mut().zip(grads).zip(moments) {
                let grad = grad * grad_scale;
                *m = beta1 * *m + one_minus_beta1 * grad;
                *v = beta2 * *v + one_minus_beta2 * grad * grad;
                let denominator = v.sqrt() * inv_sqrt_bias2 + eps;
                *weight = *weight * keep - step_size * (*m / denominator);
            }
        };
    });
}
