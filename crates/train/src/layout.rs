//! Which tensors a model has, under which Hugging Face names, and where each lies in the flat buffer.
//!
//! Weights, gradients and both moments share one layout: a single `f32` buffer in which the tensors
//! follow each other **sorted by name, bytewise** (`layers.10` before `layers.2`), the order in which
//! a safetensors writer lays out tensors of one type.

use std::ops::Range;

use crate::config::ModelConfig;

/// Name and shape of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Hugging Face name, such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Rows and columns of a matrix (`[out, in]`), or the length of a norm's weight.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Every tensor of the model, sorted by name; concatenated in this order they are the flat buffer.
pub fn layout(config: &ModelConfig) -> Vec<TensorSpec> {
    let (d, f) = (config.hidden_size, config.intermediate_size);
    let (q, k) = (config.query_width(), config.key_value_width());
    let (v, e) = (config.vocab_size, config.head_dim);

    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![v, d]),
        ("model.norm.weight".to_owned(), vec![d]),
    ];
    if !config.tie_word_embeddings {
        tensors.push(("lm_head.weight".to_owned(), vec![v, d]));
    }
    for layer in 0..config.num_hidden_layers {
        let of_layer = [
            ("input_layernorm", vec![d]),
            ("self_attn.q_proj", vec![q, d]),
            ("self_attn.k_proj", vec![k, d]),
            ("self_attn.v_proj", vec![k, d]),
            ("self_attn.q_norm", vec![e]),
            ("self_attn.k_norm", vec![e]),
            ("self_attn.o_proj", vec![d, q]),
            ("post_attention_layernorm", vec![d]),
            ("mlp.gate_proj", vec![f, d]),
            ("mlp.up_proj", vec![f, d]),
            ("mlp.down_proj", vec![d, f]),
        ];
        tensors.extend(of_layer.map(|(name, shape)| (layer_tensor(layer, name), shape)));
    }
    tensors.sort();
    tensors
        .into_iter()
        .map(|(name, shape)| TensorSpec { name, shape })
        .collect()
}

/// Full name of a tensor of a layer.
fn layer_tensor(layer: usize, name: &str) -> String {
    format!("model.layers.{layer}.{name}.weight")
}

/// Where one tensor lies in the flat buffer.
#[derive(Debug, Clone)]
pub(crate) struct Slot(Range<usize>);

impl Slot {
    /// This tensor's part of a flat buffer.
    pub(crate) fn of<'a>(&self, flat: &'a [f32]) -> &'a [f32] {
        &flat[self.0.clone()]
    }

    /// This tensor's part of a flat buffer, to write to.
    pub(crate) fn of_mut<'a>(&self, flat: &'a mut [f32]) -> &'a mut [f32] {
        &mut flat[self.0.clone()]
    }
}

/// The places of one layer's tensors.
#[derive(Debug)]
pub(crate) struct LayerSlots {
    pub(crate) input_norm_d: Slot,
    pub(crate) q_proj_qd: Slot,
    pub(crate) k_proj_kd: Slot,
    pub(crate) v_proj_kd: Slot,
    pub(crate) q_norm_e: Slot,
    pub(crate) k_norm_e: Slot,
    pub(crate) o_proj_dq: Slot,
    pub(crate) mlp_norm_d: Slot,
    pub(crate) gate_proj_fd: Slot,
    pub(crate) up_proj_fd: Slot,
    pub(crate) down_proj_df: Slot,
}

/// The places of all tensors of a model.
#[derive(Debug)]
pub(crate) struct Slots {
    pub(crate) embed_vd: Slot,
    pub(crate) layers: Vec<LayerSlots>,
    pub(crate) final_norm_d: Slot,
    /// The output head: the embedding itself when tied.
    pub(crate) head_vd: Slot,
}

impl Slots {
    pub(crate) fn new(config: &ModelConfig) -> Slots {
        let tensors = layout(config);
        let slot = |name: &str| {
            let mut offset = 0;
            for tensor in &tensors {
                if tensor.name == name {
                    return Slot(offset..offset + tensor.len());
                }
                offset += tensor.len();
            }
            unreachable!("{name} is not in the layout")
        };
        let layer_slots = |layer| {
            let of_layer = |name| slot(&layer_tensor(layer, name));
            LayerSlots {
                input_norm_d: of_layer("input_layernorm"),
                q_proj_qd: of_layer("self_attn.q_proj"),
                k_proj_kd: of_layer("self_attn.k_proj"),
                v_proj_kd: of_layer("self_attn.v_proj"),
                q_norm_e: of_layer("self_attn.q_norm"),
                k_norm_e: of_layer("self_attn.k_norm"),
                o_proj_dq: of_layer("self_attn.o_proj"),
                mlp_norm_d: of_layer("post_attention_layernorm"),
                gate_proj_fd: of_layer("mlp.gate_proj"),
                up_proj_fd: of_layer("mlp.up_proj"),
                down_proj_df: of_layer("mlp.down_proj"),
            }
        };
        let head = if config.tie_word_embeddings {
            "model.embed_tokens.weight"
        } else {
            "lm_head.weight"
        };
        Slots {
            embed_vd: slot("model.embed_tokens.weight"),
            layers: (0..config.num_hidden_layers).map(layer_slots).collect(),
            final_norm_d: slot("model.norm.weight"),
            head_vd: slot(head),
        }
    }
}
