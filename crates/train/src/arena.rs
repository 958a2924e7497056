//! Every buffer of a step, allocated once for the largest micro-batch and reused.
//!
//! A micro-batch with fewer windows uses the front of each buffer ([`Sizes::of`] gives the lengths).

use crate::{
    config::ModelConfig,
    ops::{attention::AttentionDims, heads::HeadDims},
};

/// The sizes of one micro-batch, under the letters of the crate's documentation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) b: usize,
    pub(crate) s: usize,
    pub(crate) n: usize,
    pub(crate) d: usize,
    pub(crate) f: usize,
    pub(crate) v: usize,
    pub(crate) h: usize,
    pub(crate) g: usize,
    pub(crate) e: usize,
    pub(crate) q: usize,
    pub(crate) k: usize,
}

impl Sizes {
    pub(crate) fn of(config: &ModelConfig, windows: usize, seq_len: usize) -> Sizes {
        Sizes {
            b: windows,
            s: seq_len,
            n: windows * seq_len,
            d: config.hidden_size,
            f: config.intermediate_size,
            v: config.vocab_size,
            h: config.num_attention_heads,
            g: config.num_key_value_heads,
            e: config.head_dim,
            q: config.query_width(),
            k: config.key_value_width(),
        }
    }

    pub(crate) fn query_heads(&self) -> HeadDims {
        HeadDims {
            seq_len: self.s,
            heads: self.h,
            head_dim: self.e,
        }
    }

    pub(crate) fn key_value_heads(&self) -> HeadDims {
        HeadDims {
            seq_len: self.s,
            heads: self.g,
            head_dim: self.e,
        }
    }

    pub(crate) fn attention(&self) -> AttentionDims {
        AttentionDims {
            seq_len: self.s,
            queries_per_group: self.h / self.g,
            head_dim: self.e,
        }
    }

    /// Tokens whose logits exist at once: about 4 Mi values, so that neither memory nor the cache has
    /// to hold `n·v` of them.
    pub(crate) fn head_chunk(&self) -> usize {
        ((1 << 22) / self.v).clamp(64, 1024).min(self.n)
    }
}

/// What the forward pass of one layer keeps for its backward pass.
pub(crate) struct LayerActivations {
    /// Residual stream entering the layer.
    pub(crate) x_nd: Vec<f32>,
    pub(crate) attn_in_nd: Vec<f32>,
    pub(crate) attn_in_inv_rms_n: Vec<f32>,
    pub(crate) q_nq: Vec<f32>,
    pub(crate) k_nk: Vec<f32>,
    pub(crate) q_inv_rms_nh: Vec<f32>,
    pub(crate) k_inv_rms_ng: Vec<f32>,
    pub(crate) q_bhse: Vec<f32>,
    pub(crate) k_bgse: Vec<f32>,
    pub(crate) v_bgse: Vec<f32>,
    pub(crate) lse_bhs: Vec<f32>,
    pub(crate) o_bhse: Vec<f32>,
    pub(crate) o_nq: Vec<f32>,
    /// Residual stream between attention and MLP.
    pub(crate) mid_nd: Vec<f32>,
    pub(crate) mlp_in_nd: Vec<f32>,
    pub(crate) mlp_in_inv_rms_n: Vec<f32>,
    pub(crate) gate_nf: Vec<f32>,
    pub(crate) up_nf: Vec<f32>,
    pub(crate) act_nf: Vec<f32>,
}

impl LayerActivations {
    fn new(z: &Sizes) -> LayerActivations {
        LayerActivations {
            x_nd: zeros(z.n * z.d),
            attn_in_nd: zeros(z.n * z.d),
            attn_in_inv_rms_n: zeros(z.n),
            q_nq: zeros(z.n * z.q),
            k_nk: zeros(z.n * z.k),
            q_inv_rms_nh: zeros(z.n * z.h),
            k_inv_rms_ng: zeros(z.n * z.g),
            q_bhse: zeros(z.n * z.q),
            k_bgse: zeros(z.n * z.k),
            v_bgse: zeros(z.n * z.k),
            lse_bhs: zeros(z.n * z.h),
            o_bhse: zeros(z.n * z.q),
            o_nq: zeros(z.n * z.q),
            mid_nd: zeros(z.n * z.d),
            mlp_in_nd: zeros(z.n * z.d),
            mlp_in_inv_rms_n: zeros(z.n),
            gate_nf: zeros(z.n * z.f),
            up_nf: zeros(z.n * z.f),
            act_nf: zeros(z.n * z.f),
        }
    }
}

/// Buffers that every layer uses in turn.
pub(crate) struct Scratch {
    pub(crate) x_nq: Vec<f32>,
    pub(crate) x_nk: Vec<f32>,
    pub(crate) dx_nd: Vec<f32>,
    pub(crate) dh_nd: Vec<f32>,
    pub(crate) dact_nf: Vec<f32>,
    pub(crate) dq_nq: Vec<f32>,
    pub(crate) dk_nk: Vec<f32>,
    pub(crate) do_bhse: Vec<f32>,
    pub(crate) dq_bhse: Vec<f32>,
    pub(crate) dk_bgse: Vec<f32>,
    pub(crate) dv_bgse: Vec<f32>,
    pub(crate) attention: Vec<f32>,
    pub(crate) norm_partials: Vec<f32>,
    /// Logits, then their gradient, of one chunk of tokens.
    pub(crate) logits_cv: Vec<f32>,
    pub(crate) losses_n: Vec<f64>,
}

/// All buffers of a step.
pub(crate) struct Arena {
    pub(crate) tokens_n: Vec<u32>,
    pub(crate) targets_n: Vec<u32>,
    pub(crate) layers: Vec<LayerActivations>,
    /// Residual stream leaving the last layer.
    pub(crate) last_nd: Vec<f32>,
    pub(crate) last_inv_rms_n: Vec<f32>,
    pub(crate) head_in_nd: Vec<f32>,
    pub(crate) scratch: Scratch,
}

impl Arena {
    pub(crate) fn new(config: &ModelConfig, max_batch: usize, seq_len: usize) -> Arena {
        let z = Sizes::of(config, max_batch, seq_len);
        Arena {
            tokens_n: Vec::with_capacity(z.n),
            targets_n: Vec::with_capacity(z.n),
            layers: (0..config.num_hidden_layers)
                .map(|_| LayerActivations::new(&z))
                .collect(),
            last_nd: zeros(z.n * z.d),
            last_inv_rms_n: zeros(z.n),
            head_in_nd: zeros(z.n * z.d),
            scratch: Scratch {
                x_nq: zeros(z.n * z.q),
                x_nk: zeros(z.n * z.k),
                dx_nd: zeros(z.n * z.d),
                dh_nd: zeros(z.n * z.d),
                dact_nf: zeros(z.n * z.f),
                dq_nq: zeros(z.n * z.q),
                dk_nk: zeros(z.n * z.k),
                do_bhse: zeros(z.n * z.q),
                dq_bhse: zeros(z.n * z.q),
                dk_bgse: zeros(z.n * z.k),
                dv_bgse: zeros(z.n * z.k),
                attention: zeros(z.attention().scratch_len(z.b, z.g)),
                norm_partials: Vec::new(),
                logits_cv: zeros(z.head_chunk() * z.v),
                losses_n: vec![0.0; z.n],
            },
        }
    }
}

fn zeros(len: usize) -> Vec<f32> {
    vec![0.0; len]
}
