//! The whole network, forward and backward, as a sequence of operations.
//!
//! ```text
//! tokens ─ embedding ─ x ─┬─ norm ─ q,k,v ─ head norms ─ rope ─ attention ─ o_proj ─(+)─ mid
//!                         └──────────────────────────────────────────────────────────┘
//!                  mid ─┬─ norm ─ gate,up ─ swiglu ─ down_proj ─(+)─ x of the next layer
//!                       └──────────────────────────────────────┘
//! x of the last ─ norm ─ head (tied to the embedding) ─ cross-entropy
//! ```
//!
//! Qwen3 as published (Yang et al. 2025): RMSNorm before each block, RMSNorm of every query and key
//! head, grouped-query attention, SwiGLU, no biases. The backward pass walks the same sequence upwards,
//! carrying `dx_nd`, the gradient of the residual stream. This module owns no parameter and no buffer:
//! weights and gradients are flat slices, activations live in the arena.

use crate::{
    arena::{Arena, LayerActivations, Scratch, Sizes},
    config::ModelConfig,
    layout::{LayerSlots, Slots},
    ops::{
        Write,
        attention::{AttentionSaved, Qkv, QkvGrads, attention, attention_backward},
        cross_entropy::{cross_entropy, cross_entropy_with_gradient},
        embedding::{embedding, embedding_backward},
        heads::{merge_heads, split_heads},
        linear::{linear, linear_backward_input, linear_backward_weight},
        residual::copy,
        rmsnorm::{RmsNormSaved, rmsnorm, rmsnorm_backward},
        rope::{RopeTable, rope_split, rope_split_backward},
        swiglu::{swiglu, swiglu_backward},
    },
};

/// What does not change between steps.
pub(crate) struct Model {
    pub(crate) config: ModelConfig,
    pub(crate) slots: Slots,
    pub(crate) rope: RopeTable,
}

impl Model {
    pub(crate) fn new(config: ModelConfig, seq_len: usize) -> Model {
        let rope = RopeTable::new(seq_len, config.head_dim, config.rope_theta);
        Model {
            slots: Slots::new(&config),
            rope,
            config,
        }
    }

    /// Sum of the losses, in nats, of the micro-batch in the arena.
    pub(crate) fn loss(&self, z: Sizes, weights: &[f32], arena: &mut Arena) -> f64 {
        self.forward(z, weights, arena);
        self.head_loss(z, weights, arena)
    }

    /// Logits of the micro-batch in the arena, `[n, v]`.
    pub(crate) fn logits(&self, z: Sizes, weights: &[f32], arena: &mut Arena) -> Vec<f32> {
        self.forward(z, weights, arena);
        let mut logits_nv = vec![0.0; z.n * z.v];
        let head_in_nd = &arena.head_in_nd[..z.n * z.d];
        let head_vd = self.slots.head_vd.of(weights);
        linear(&mut logits_nv, Write::Set, head_in_nd, head_vd, z.d);
        logits_nv
    }

    /// [`Model::loss`]; adds to `grads` the gradient of `scale` times it.
    pub(crate) fn loss_and_gradient(
        &self,
        z: Sizes,
        weights: &[f32],
        grads: &mut [f32],
        scale: f32,
        arena: &mut Arena,
    ) -> f64 {
        self.forward(z, weights, arena);
        let loss_sum = self.head_loss_and_gradient(z, weights, grads, scale, arena);
        self.backward(z, weights, grads, arena);
        loss_sum
    }

    /// From tokens to the normalised output of the last layer.
    fn forward(&self, z: Sizes, weights: &[f32], arena: &mut Arena) {
        let embed_vd = self.slots.embed_vd.of(weights);
        embedding(
            &mut arena.layers[0].x_nd[..z.n * z.d],
            &arena.tokens_n,
            embed_vd,
            z.d,
        );
        for (layer, slots) in self.slots.layers.iter().enumerate() {
            let (through, after) = arena.layers.split_at_mut(layer + 1);
            let out_nd = after
                .first_mut()
                .map_or(&mut arena.last_nd, |next| &mut next.x_nd);
            let a = &mut through[layer];
            self.attention_forward(z, weights, slots, a, &mut arena.scratch);
            self.mlp_forward(z, weights, slots, a, &mut out_nd[..z.n * z.d]);
        }
        rmsnorm(
            &mut arena.head_in_nd[..z.n * z.d],
            &mut arena.last_inv_rms_n[..z.n],
            &arena.last_nd[..z.n * z.d],
            self.slots.final_norm_d.of(weights),
            self.eps(),
        );
    }

    /// Queries, keys and values of `norm(x)`, by head: the first two normed and rotated.
    fn heads_forward(
        &self,
        z: Sizes,
        weights: &[f32],
        slots: &LayerSlots,
        a: &mut LayerActivations,
        scratch: &mut Scratch,
    ) {
        let (nd, nq, nk) = (z.n * z.d, z.n * z.q, z.n * z.k);
        let (x_nd, attn_in_nd) = (&a.x_nd[..nd], &mut a.attn_in_nd[..nd]);
        let inv_rms_n = &mut a.attn_in_inv_rms_n[..z.n];
        rmsnorm(
            attn_in_nd,
            inv_rms_n,
            x_nd,
            slots.input_norm_d.of(weights),
            self.eps(),
        );

        let (q_nq, k_nk) = (&mut a.q_nq[..nq], &mut a.k_nk[..nk]);
        let (normed_nq, normed_nk) = (&mut scratch.x_nq[..nq], &mut scratch.x_nk[..nk]);
        linear(
            q_nq,
            Write::Set,
            attn_in_nd,
            slots.q_proj_qd.of(weights),
            z.d,
        );
        let inv_rms_nh = &mut a.q_inv_rms_nh[..z.n * z.h];
        rmsnorm(
            normed_nq,
            inv_rms_nh,
            q_nq,
            slots.q_norm_e.of(weights),
            self.eps(),
        );
        rope_split(&mut a.q_bhse[..nq], normed_nq, &self.rope, z.query_heads());

        linear(
            k_nk,
            Write::Set,
            attn_in_nd,
            slots.k_proj_kd.of(weights),
            z.d,
        );
        let inv_rms_ng = &mut a.k_inv_rms_ng[..z.n * z.g];
        rmsnorm(
            normed_nk,
            inv_rms_ng,
            k_nk,
            slots.k_norm_e.of(weights),
            self.eps(),
        );
        rope_split(
            &mut a.k_bgse[..nk],
            normed_nk,
            &self.rope,
            z.key_value_heads(),
        );

        let v_nk = normed_nk;
        linear(
            v_nk,
            Write::Set,
            attn_in_nd,
            slots.v_proj_kd.of(weights),
            z.d,
        );
        split_heads(&mut a.v_bgse[..nk], v_nk, z.key_value_heads());
    }

    /// `mid = x + o_proj(attention(norm(x)))`.
    fn attention_forward(
        &self,
        z: Sizes,
        weights: &[f32],
        slots: &LayerSlots,
        a: &mut LayerActivations,
        scratch: &mut Scratch,
    ) {
        self.heads_forward(z, weights, slots, a, scratch);
        let (nd, nq, nk) = (z.n * z.d, z.n * z.q, z.n * z.k);
        let qkv = Qkv {
            q_bhse: &a.q_bhse[..nq],
            k_bgse: &a.k_bgse[..nk],
            v_bgse: &a.v_bgse[..nk],
        };
        let o_bhse = &mut a.o_bhse[..nq];
        let lse_bhs = &mut a.lse_bhs[..z.n * z.h];
        attention(o_bhse, lse_bhs, qkv, z.attention(), &mut scratch.attention);
        merge_heads(&mut a.o_nq[..nq], o_bhse, z.query_heads());

        let mid_nd = &mut a.mid_nd[..nd];
        copy(mid_nd, &a.x_nd[..nd]);
        linear(
            mid_nd,
            Write::Add,
            &a.o_nq[..nq],
            slots.o_proj_dq.of(weights),
            z.q,
        );
    }

    /// `out = mid + down_proj(silu(gate_proj(norm(mid))) · up_proj(norm(mid)))`.
    fn mlp_forward(
        &self,
        z: Sizes,
        weights: &[f32],
        slots: &LayerSlots,
        a: &mut LayerActivations,
        out_nd: &mut [f32],
    ) {
        let (nd, nf) = (z.n * z.d, z.n * z.f);
        let mid_nd = &a.mid_nd[..nd];
        let mlp_in_nd = &mut a.mlp_in_nd[..nd];
        let inv_rms_n = &mut a.mlp_in_inv_rms_n[..z.n];
        rmsnorm(
            mlp_in_nd,
            inv_rms_n,
            mid_nd,
            slots.mlp_norm_d.of(weights),
            self.eps(),
        );

        let (gate_nf, up_nf) = (&mut a.gate_nf[..nf], &mut a.up_nf[..nf]);
        linear(
            gate_nf,
            Write::Set,
            mlp_in_nd,
            slots.gate_proj_fd.of(weights),
            z.d,
        );
        linear(
            up_nf,
            Write::Set,
            mlp_in_nd,
            slots.up_proj_fd.of(weights),
            z.d,
        );
        let act_nf = &mut a.act_nf[..nf];
        swiglu(act_nf, gate_nf, up_nf);

        copy(out_nd, mid_nd);
        linear(
            out_nd,
            Write::Add,
            act_nf,
            slots.down_proj_df.of(weights),
            z.f,
        );
    }

    /// Logits and their loss, a chunk of tokens at a time.
    fn head_loss(&self, z: Sizes, weights: &[f32], arena: &mut Arena) -> f64 {
        let Scratch {
            logits_cv,
            losses_n,
            ..
        } = &mut arena.scratch;
        let head_vd = self.slots.head_vd.of(weights);
        let losses_n = &mut losses_n[..z.n];
        for (chunk, losses_c) in losses_n.chunks_mut(z.head_chunk()).enumerate() {
            let (first, c) = (chunk * z.head_chunk(), losses_c.len());
            let logits_cv = &mut logits_cv[..c * z.v];
            let head_in_cd = &arena.head_in_nd[first * z.d..][..c * z.d];
            linear(logits_cv, Write::Set, head_in_cd, head_vd, z.d);
            cross_entropy(losses_c, logits_cv, &arena.targets_n[first..][..c], z.v);
        }
        losses_n.iter().sum()
    }

    /// [`Model::head_loss`] and its backward pass down to `dx_nd`, the gradient of `last_nd`.
    fn head_loss_and_gradient(
        &self,
        z: Sizes,
        weights: &[f32],
        grads: &mut [f32],
        scale: f32,
        arena: &mut Arena,
    ) -> f64 {
        let Scratch {
            logits_cv,
            losses_n,
            dh_nd,
            dx_nd,
            norm_partials,
            ..
        } = &mut arena.scratch;
        let head_vd = self.slots.head_vd.of(weights);
        let losses_n = &mut losses_n[..z.n];
        for (chunk, losses_c) in losses_n.chunks_mut(z.head_chunk()).enumerate() {
            let (first, c) = (chunk * z.head_chunk(), losses_c.len());
            let logits_cv = &mut logits_cv[..c * z.v];
            let head_in_cd = &arena.head_in_nd[first * z.d..][..c * z.d];
            let targets_c = &arena.targets_n[first..][..c];
            linear(logits_cv, Write::Set, head_in_cd, head_vd, z.d);
            cross_entropy_with_gradient(losses_c, logits_cv, targets_c, z.v, scale);
            let dh_cd = &mut dh_nd[first * z.d..][..c * z.d];
            linear_backward_input(dh_cd, Write::Set, logits_cv, head_vd, z.d);
            let dhead_vd = self.slots.head_vd.of_mut(grads);
            linear_backward_weight(dhead_vd, Write::Add, logits_cv, head_in_cd, z.d);
        }
        let saved = RmsNormSaved {
            x_nd: &arena.last_nd[..z.n * z.d],
            inv_rms_n: &arena.last_inv_rms_n[..z.n],
            w_d: self.slots.final_norm_d.of(weights),
        };
        let (dx_nd, dh_nd) = (&mut dx_nd[..z.n * z.d], &dh_nd[..z.n * z.d]);
        let dw_d = self.slots.final_norm_d.of_mut(grads);
        rmsnorm_backward(dx_nd, Write::Set, dw_d, dh_nd, saved, norm_partials);
        losses_n.iter().sum()
    }

    /// From `dx_nd` at the last layer's output back to the embedding.
    fn backward(&self, z: Sizes, weights: &[f32], grads: &mut [f32], arena: &mut Arena) {
        for (slots, a) in self.slots.layers.iter().zip(&mut arena.layers).rev() {
            self.mlp_backward(z, weights, grads, slots, a, &mut arena.scratch);
            self.attention_block_backward(z, weights, grads, slots, a, &mut arena.scratch);
        }
        let dembed_vd = self.slots.embed_vd.of_mut(grads);
        embedding_backward(
            dembed_vd,
            &arena.tokens_n,
            &arena.scratch.dx_nd[..z.n * z.d],
            z.d,
        );
    }

    /// `dx_nd` holds the gradient of the block's output and then of `mid`: the residual path keeps it,
    /// the path through the block is added.
    fn mlp_backward(
        &self,
        z: Sizes,
        weights: &[f32],
        grads: &mut [f32],
        slots: &LayerSlots,
        a: &mut LayerActivations,
        scratch: &mut Scratch,
    ) {
        let (nd, nf) = (z.n * z.d, z.n * z.f);
        let dx_nd = &mut scratch.dx_nd[..nd];
        let dact_nf = &mut scratch.dact_nf[..nf];
        linear_backward_input(
            dact_nf,
            Write::Set,
            dx_nd,
            slots.down_proj_df.of(weights),
            z.f,
        );
        let ddown_df = slots.down_proj_df.of_mut(grads);
        linear_backward_weight(ddown_df, Write::Add, dx_nd, &a.act_nf[..nf], z.f);

        let (dgate_nf, dup_nf) = (&mut a.gate_nf[..nf], &mut a.up_nf[..nf]);
        swiglu_backward(dgate_nf, dup_nf, dact_nf);
        let mlp_in_nd = &a.mlp_in_nd[..nd];
        let dh_nd = &mut scratch.dh_nd[..nd];
        linear_backward_input(
            dh_nd,
            Write::Set,
            dgate_nf,
            slots.gate_proj_fd.of(weights),
            z.d,
        );
        linear_backward_input(dh_nd, Write::Add, dup_nf, slots.up_proj_fd.of(weights), z.d);
        let (gate, up) = (&slots.gate_proj_fd, &slots.up_proj_fd);
        linear_backward_weight(gate.of_mut(grads), Write::Add, dgate_nf, mlp_in_nd, z.d);
        linear_backward_weight(up.of_mut(grads), Write::Add, dup_nf, mlp_in_nd, z.d);

        let saved = RmsNormSaved {
            x_nd: &a.mid_nd[..nd],
            inv_rms_n: &a.mlp_in_inv_rms_n[..z.n],
            w_d: slots.mlp_norm_d.of(weights),
        };
        let dw_d = slots.mlp_norm_d.of_mut(grads);
        rmsnorm_backward(
            dx_nd,
            Write::Add,
            dw_d,
            dh_nd,
            saved,
            &mut scratch.norm_partials,
        );
    }

    /// As [`Model::mlp_backward`], from the gradient of `mid` to that of the layer's input.
    fn attention_block_backward(
        &self,
        z: Sizes,
        weights: &[f32],
        grads: &mut [f32],
        slots: &LayerSlots,
        a: &LayerActivations,
        scratch: &mut Scratch,
    ) {
        let (nd, nq) = (z.n * z.d, z.n * z.q);
        let dx_nd = &scratch.dx_nd[..nd];
        let do_nq = &mut scratch.x_nq[..nq];
        linear_backward_input(do_nq, Write::Set, dx_nd, slots.o_proj_dq.of(weights), z.q);
        let do_proj_dq = slots.o_proj_dq.of_mut(grads);
        linear_backward_weight(do_proj_dq, Write::Add, dx_nd, &a.o_nq[..nq], z.q);

        self.attention_core_backward(z, a, scratch);
        self.qkv_backward(z, weights, grads, slots, a, scratch);

        let saved = RmsNormSaved {
            x_nd: &a.x_nd[..nd],
            inv_rms_n: &a.attn_in_inv_rms_n[..z.n],
            w_d: slots.input_norm_d.of(weights),
        };
        let (dx_nd, dh_nd) = (&mut scratch.dx_nd[..nd], &scratch.dh_nd[..nd]);
        let dw_d = slots.input_norm_d.of_mut(grads);
        rmsnorm_backward(
            dx_nd,
            Write::Add,
            dw_d,
            dh_nd,
            saved,
            &mut scratch.norm_partials,
        );
    }

    /// From the gradient of the merged heads (in `x_nq`) to those of the rotated heads.
    fn attention_core_backward(&self, z: Sizes, a: &LayerActivations, scratch: &mut Scratch) {
        let (nq, nk) = (z.n * z.q, z.n * z.k);
        let do_bhse = &mut scratch.do_bhse[..nq];
        split_heads(do_bhse, &scratch.x_nq[..nq], z.query_heads());
        let qkv = Qkv {
            q_bhse: &a.q_bhse[..nq],
            k_bgse: &a.k_bgse[..nk],
            v_bgse: &a.v_bgse[..nk],
        };
        let saved = AttentionSaved {
            o_bhse: &a.o_bhse[..nq],
            lse_bhs: &a.lse_bhs[..z.n * z.h],
        };
        let grads = QkvGrads {
            dq_bhse: &mut scratch.dq_bhse[..nq],
            dk_bgse: &mut scratch.dk_bgse[..nk],
            dv_bgse: &mut scratch.dv_bgse[..nk],
        };
        attention_backward(
            grads,
            do_bhse,
            qkv,
            saved,
            z.attention(),
            &mut scratch.attention,
        );
    }

    /// From the gradients of the rotated heads to `dh_nd`, that of the normalised input.
    fn qkv_backward(
        &self,
        z: Sizes,
        weights: &[f32],
        grads: &mut [f32],
        slots: &LayerSlots,
        a: &LayerActivations,
        scratch: &mut Scratch,
    ) {
        let (nd, nq, nk) = (z.n * z.d, z.n * z.q, z.n * z.k);
        let attn_in_nd = &a.attn_in_nd[..nd];
        let dh_nd = &mut scratch.dh_nd[..nd];
        let partials = &mut scratch.norm_partials;

        let (dnormed_nq, dq_nq) = (&mut scratch.x_nq[..nq], &mut scratch.dq_nq[..nq]);
        rope_split_backward(
            dnormed_nq,
            &scratch.dq_bhse[..nq],
            &self.rope,
            z.query_heads(),
        );
        let saved = RmsNormSaved {
            x_nd: &a.q_nq[..nq],
            inv_rms_n: &a.q_inv_rms_nh[..z.n * z.h],
            w_d: slots.q_norm_e.of(weights),
        };
        let dq_norm_e = slots.q_norm_e.of_mut(grads);
        rmsnorm_backward(dq_nq, Write::Set, dq_norm_e, dnormed_nq, saved, partials);
        linear_backward_input(dh_nd, Write::Set, dq_nq, slots.q_proj_qd.of(weights), z.d);
        let dq_proj_qd = slots.q_proj_qd.of_mut(grads);
        linear_backward_weight(dq_proj_qd, Write::Add, dq_nq, attn_in_nd, z.d);

        let (dnormed_nk, dk_nk) = (&mut scratch.x_nk[..nk], &mut scratch.dk_nk[..nk]);
        rope_split_backward(
            dnormed_nk,
            &scratch.dk_bgse[..nk],
            &self.rope,
            z.key_value_heads(),
        );
        let saved = RmsNormSaved {
            x_nd: &a.k_nk[..nk],
            inv_rms_n: &a.k_inv_rms_ng[..z.n * z.g],
            w_d: slots.k_norm_e.of(weights),
        };
        let dk_norm_e = slots.k_norm_e.of_mut(grads);
        rmsnorm_backward(dk_nk, Write::Set, dk_norm_e, dnormed_nk, saved, partials);
        linear_backward_input(dh_nd, Write::Add, dk_nk, slots.k_proj_kd.of(weights), z.d);
        let dk_proj_kd = slots.k_proj_kd.of_mut(grads);
        linear_backward_weight(dk_proj_kd, Write::Add, dk_nk, attn_in_nd, z.d);

        let dv_nk = dk_nk;
        merge_heads(dv_nk, &scratch.dv_bgse[..nk], z.key_value_heads());
        linear_backward_input(dh_nd, Write::Add, dv_nk, slots.v_proj_kd.of(weights), z.d);
        let dv_proj_kd = slots.v_proj_kd.of_mut(grads);
        linear_backward_weight(dv_proj_kd, Write::Add, dv_nk, attn_in_nd, z.d);
    }

    fn eps(&self) -> f32 {
        self.config.rms_norm_eps as f32
    }
}
