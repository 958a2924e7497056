"""Qwen3 in plain PyTorch, with Hugging Face's names of parameters. For reading, not for speed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys."""

    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        wide, self.size = model["hidden_size"], model["head_dim"]
        self.heads, self.kv_heads = model["num_attention_heads"], model["num_key_value_heads"]
        self.q_proj = nn.Linear(wide, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(wide, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(wide, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, wide, bias=False)
        self.q_norm = nn.RMSNorm(self.size, eps=model["rms_norm_eps"])
        self.k_norm = nn.RMSNorm(self.size, eps=model["rms_norm_eps"])

    def forward(self, x_bsd: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Attends to everything before each position."""
        batch, length, _ = x_bsd.shape
        shape = (batch, length, -1, self.size)
        q_bhse = self.q_norm(self.q_proj(x_bsd).view(shape)).transpose(1, 2)
        k_bgse = self.k_norm(self.k_proj(x_bsd).view(shape)).transpose(1, 2)
        v_bgse = self.v_proj(x_bsd).view(shape).transpose(1, 2)
        out_bhse = functional.scaled_dot_product_attention(
            rotate(q_bhse, rotation),
            rotate(k_bgse, rotation),
            v_bgse,
            is_causal=True,
            enable_gqa=True,
        )
        return self.o_proj(out_bhse.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        wide, inner = model["hidden_size"], model["intermediate_size"]
        self.gate_proj = nn.Linear(wide, inner, bias=False)
        self.up_proj = nn.Linear(wide, inner, bias=False)
        self.down_proj = nn.Linear(inner, wide, bias=False)

    def forward(self, x_bsd: torch.Tensor) -> torch.Tensor:
        """Per position."""
        return self.down_proj(functional.silu(self.gate_proj(x_bsd)) * self.up_proj(x_bsd))


class Layer(nn.Module):
    """Attention and SwiGLU, each on a normalised residual."""

    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        wide, eps = model["hidden_size"], model["rms_norm_eps"]
        self.self_attn, self.mlp = Attention(model), Mlp(model)
        self.input_layernorm = nn.RMSNorm(wide, eps=eps)
        self.post_attention_layernorm = nn.RMSNorm(wide, eps=eps)

    def forward(self, x_bsd: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """One layer."""
        x_bsd = x_bsd + self.self_attn(self.input_layernorm(x_bsd), rotation)
        return x_bsd + self.mlp(self.post_attention_layernorm(x_bsd))


class Decoder(nn.Module):
    """Everything but the head."""

    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(model["vocab_size"], model["hidden_size"])
        self.layers = nn.ModuleList(Layer(model) for _ in range(model["num_hidden_layers"]))
        self.norm = nn.RMSNorm(model["hidden_size"], eps=model["rms_norm_eps"])


class Qwen3(nn.Module):
    """A dense Qwen3 in a recipe's sizes."""

    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        self.model = Decoder(model)
        self.head_dim, self.theta = model["head_dim"], model["rope_theta"]
        self.tied = model["tie_word_embeddings"]
        if not self.tied:
            self.lm_head = nn.Linear(model["hidden_size"], model["vocab_size"], bias=False)

    def forward(self, tokens_bs: torch.Tensor) -> torch.Tensor:
        """Logits [b, s, v]."""
        x_bsd = self.model.embed_tokens(tokens_bs)
        rotation = rotations(tokens_bs.shape[1], self.head_dim, self.theta, x_bsd.device)
        for layer in self.model.layers:
            x_bsd = layer(x_bsd, rotation)
        head = self.model.embed_tokens.weight if self.tied else self.lm_head.weight
        return self.model.norm(x_bsd) @ head.T


def rotations(
    length: int, size: int, theta: float, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [s, e] of rotary embeddings, halves repeated."""
    rates = theta ** (-torch.arange(0, size, 2, dtype=torch.float32, device=device) / size)
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * rates
    return torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)


def rotate(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotates pairs of components that are half a head apart."""
    cos, sin = rotation
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
