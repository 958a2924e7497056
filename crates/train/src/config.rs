//! The model's sizes, under the names of Hugging Face's `config.json` for Qwen3.

use serde::{Deserialize, Serialize};

use crate::{error::TrainError, layout::layout};

/// Sizes of a Qwen3 decoder. Deserialises from a Hugging Face `config.json`, ignoring keys it does not
/// need; [`ModelConfig::to_hf_json`] writes one that `transformers` loads as `Qwen3ForCausalLM`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Number of token ids (`v`).
    pub vocab_size: usize,
    /// Width of the residual stream (`d`).
    pub hidden_size: usize,
    /// Width inside the SwiGLU block (`f`).
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub num_hidden_layers: usize,
    /// Number of query heads (`h`).
    pub num_attention_heads: usize,
    /// Number of key/value heads (`g`); divides the query heads.
    pub num_key_value_heads: usize,
    /// Components per head (`e`); even, because RoPE rotates pairs.
    pub head_dim: usize,
    /// Base of the rotary frequencies.
    #[serde(default = "default_rope_theta")]
    pub rope_theta: f64,
    /// Added to the mean square in every RMSNorm.
    #[serde(default = "default_rms_norm_eps")]
    pub rms_norm_eps: f64,
    /// Whether the output head is the embedding matrix.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Longest window the model claims to support.
    #[serde(default = "default_max_position_embeddings")]
    pub max_position_embeddings: usize,
    /// Standard deviation of freshly drawn matrices.
    #[serde(default = "default_initializer_range")]
    pub initializer_range: f64,
}

fn default_rope_theta() -> f64 {
    1e6
}

fn default_rms_norm_eps() -> f64 {
    1e-6
}

fn default_max_position_embeddings() -> usize {
    32_768
}

fn default_initializer_range() -> f64 {
    0.02
}

impl ModelConfig {
    /// Checks every size before anything is allocated.
    ///
    /// # Errors
    /// The first setting that cannot work, by name.
    pub fn validate(&self) -> Result<(), TrainError> {
        let at_least_one = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_position_embeddings),
        ];
        for (field, value) in at_least_one {
            check(field, value, value >= 1, "it must be at least 1")?;
            // Keeps every product of two sizes far from overflow.
            check(field, value, value <= 1 << 24, "it must be at most 2^24")?;
        }
        check(
            "num_key_value_heads",
            self.num_key_value_heads,
            self.num_attention_heads
                .is_multiple_of(self.num_key_value_heads),
            "it must divide num_attention_heads",
        )?;
        check(
            "head_dim",
            self.head_dim,
            self.head_dim.is_multiple_of(2),
            "it must be even, because rotary embedding turns pairs",
        )?;
        let positive = [
            ("rope_theta", self.rope_theta),
            ("rms_norm_eps", self.rms_norm_eps),
            ("initializer_range", self.initializer_range),
        ];
        for (field, value) in positive {
            check(
                field,
                value,
                value.is_finite() && value > 0.0,
                "it must be a positive number",
            )?;
        }
        Ok(())
    }

    /// Number of trained values, tied embeddings counted once.
    pub fn parameter_count(&self) -> usize {
        layout(self)
            .iter()
            .map(|tensor| tensor.shape.iter().product::<usize>())
            .sum()
    }

    /// The `config.json` to lay beside exported weights; loads as `Qwen3ForCausalLM`.
    pub fn to_hf_json(&self) -> String {
        let mut json = serde_json::json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_act": "silu",
            "attention_bias": false,
            "attention_dropout": 0.0,
            "use_sliding_window": false,
            "use_cache": true,
            "torch_dtype": "float32",
        });
        if let (Some(json), Ok(serde_json::Value::Object(sizes))) =
            (json.as_object_mut(), serde_json::to_value(self))
        {
            json.extend(sizes);
        }
        format!("{json:#}\n")
    }

    /// Width of all query heads (`q = h·e`).
    pub(crate) fn query_width(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Width of all key/value heads (`k = g·e`).
    pub(crate) fn key_value_width(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }
}

/// Fails with the setting's name and value unless `ok`.
pub(crate) fn check(
    field: &'static str,
    value: impl ToString,
    ok: bool,
    problem: &str,
) -> Result<(), TrainError> {
    if ok {
        return Ok(());
    }
    Err(TrainError::Config {
        field,
        value: value.to_string(),
        problem: problem.to_owned(),
    })
}
