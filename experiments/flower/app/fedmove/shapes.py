"""The tensors of a Qwen3, from its sizes: the same as those of `hansa bench`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """What the tensors' shapes follow from."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    head_dim: int


MODELS = {
    "tiny": Sizes(499, 64, 96, 3, 2, 32),
    "qwen3-60m": Sizes(50_304, 512, 1536, 8, 8, 128),
    "qwen3-172m": Sizes(45_056, 1024, 3072, 8, 16, 128),
    "qwen3-0.6b": Sizes(151_936, 1024, 3072, 28, 16, 128),
}


def shapes(model: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a model."""
    m = MODELS[model]
    wide, narrow = m.heads * m.head_dim, m.heads // 2 * m.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (m.hidden,),
        "mlp.down_proj": (m.hidden, m.intermediate),
        "mlp.gate_proj": (m.intermediate, m.hidden),
        "mlp.up_proj": (m.intermediate, m.hidden),
        "post_attention_layernorm": (m.hidden,),
        "self_attn.k_norm": (m.head_dim,),
        "self_attn.k_proj": (narrow, m.hidden),
        "self_attn.o_proj": (m.hidden, wide),
        "self_attn.q_norm": (m.head_dim,),
        "self_attn.q_proj": (wide, m.hidden),
        "self_attn.v_proj": (narrow, m.hidden),
    }
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens": (m.vocab, m.hidden)}
    for number in range(m.layers):
        found |= {
            f"model.layers.{number}.{name}": shape for name, shape in layer.items()
        }
    return found | {"model.norm": (m.hidden,)}
