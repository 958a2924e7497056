//! Models of which only the shapes are real.

use anyhow::{Context as _, bail, ensure};
use hansa_outer::{Layout, TensorSpec};
use hansa_train::ModelConfig;

/// What may be asked for.
pub const NAMES: &str = "qwen3-0.6b, qwen3-172m, qwen3-60m or tiny";

/// The tensors of a model, laid out from its sizes.
///
/// # Errors
/// A name that is not one of [`NAMES`].
pub fn layout(name: &str) -> anyhow::Result<Layout> {
    let config = config(name)?;
    let tensors = hansa_train::layout(&config);
    let tensors = tensors.into_iter().map(|tensor| TensorSpec {
        name: tensor.name,
        shape: tensor.shape,
    });
    let layout = Layout::new(tensors).context("lay out the model")?;
    if name == "qwen3-0.6b" {
        let found = (layout.tensors().len(), layout.elements());
        ensure!(
            found == (310, 596_049_920),
            "{name} has 310 tensors and 596,049,920 parameters, laid out were {found:?}"
        );
    }
    Ok(layout)
}

/// The sizes of a model.
///
/// # Errors
/// A name that is not one of [`NAMES`].
pub fn config(name: &str) -> anyhow::Result<ModelConfig> {
    let (vocab_size, hidden_size, intermediate_size, layers, heads) = match name {
        "qwen3-0.6b" => (151_936, 1024, 3072, 28, 16),
        "qwen3-172m" => (45_056, 1024, 3072, 8, 16),
        "qwen3-60m" => (50_304, 512, 1536, 8, 8),
        "tiny" => (499, 64, 96, 3, 2),
        _ => bail!("no model {name:?}: use {NAMES}"),
    };
    Ok(ModelConfig {
        vocab_size,
        hidden_size,
        intermediate_size,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: heads / 2,
        head_dim: if name == "tiny" { 32 } else { 128 },
        rope_theta: 1e6,
        rms_norm_eps: 1e-6,
        tie_word_embeddings: true,
        max_position_embeddings: 40_960,
        initializer_range: 0.02,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_models_have_their_published_sizes() {
        let layout = layout("qwen3-0.6b").unwrap();
        assert_eq!(layout.tensors().len(), 310);
        assert_eq!(layout.elements(), 596_049_920);
        let range = layout.range("model.embed_tokens.weight").unwrap();
        assert_eq!(range.end - range.start, 155_582_464);
        assert!(super::layout("tiny").unwrap().elements() < 200_000);
        let error = super::layout("qwen4").unwrap_err().to_string();
        assert!(error.contains("qwen3-0.6b"), "{error}");
    }
}
