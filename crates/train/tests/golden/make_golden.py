"""Writes the PyTorch values that the Rust tests compare with: ops.safetensors, model.safetensors, steps.json.

Run in this directory with PyTorch and safetensors installed; the outputs are committed. Everything is
computed in float64 and stored as float32, so that a difference is the Rust side's rounding alone.
"""

import json
import math

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

CONFIG = dict(
    vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=12, rope_theta=10000.0, rms_norm_eps=1e-6, tie_word_embeddings=True,
    max_position_embeddings=64, initializer_range=0.02,
)
SEQ_LEN, BATCH, STEPS = 20, 3, 3


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x_bhse, theta):
    s, e = x_bhse.shape[-2:]
    inv_freq = (1.0 / theta ** (torch.arange(0, e, 2, dtype=torch.float64) / e)).float()
    angles = torch.outer(torch.arange(s).float(), inv_freq).double()  # rounded to float32, as published
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    first, second = x_bhse[..., : e // 2], x_bhse[..., e // 2 :]
    return x_bhse * cos + torch.cat([-second, first], -1) * sin


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def loss_of(weights, config, tokens, targets):
    c = config
    b, s = tokens.shape
    h, g, e, eps = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["rms_norm_eps"]
    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        def w(name):
            return weights[f"model.layers.{layer}.{name}.weight"]

        y = rms_norm(x, w("input_layernorm"), eps)
        q = rms_norm((y @ w("self_attn.q_proj").T).view(b, s, h, e), w("self_attn.q_norm"), eps)
        k = rms_norm((y @ w("self_attn.k_proj").T).view(b, s, g, e), w("self_attn.k_norm"), eps)
        v = (y @ w("self_attn.v_proj").T).view(b, s, g, e).transpose(1, 2)
        q, k = (rotate(z.transpose(1, 2), c["rope_theta"]) for z in (q, k))
        o = attention(q, k, v).transpose(1, 2).reshape(b, s, h * e)
        x = x + o @ w("self_attn.o_proj").T
        y = rms_norm(x, w("post_attention_layernorm"), eps)
        x = x + (F.silu(y @ w("mlp.gate_proj").T) * (y @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
    x = rms_norm(x, weights["model.norm.weight"], eps)
    head = weights["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"]
    return F.cross_entropy((x @ head.T).flatten(0, 1), targets.flatten())


def draw(*shape, scale=1.0):
    return (torch.randn(*shape, dtype=torch.float64) * scale).float().double()


def model_weights(c):
    d, f, e, v = c["hidden_size"], c["intermediate_size"], c["head_dim"], c["vocab_size"]
    q, k = c["num_attention_heads"] * e, c["num_key_value_heads"] * e
    shapes = {"model.embed_tokens": (v, d), "model.norm": (d,)}
    if not c["tie_word_embeddings"]:
        shapes["lm_head"] = (v, d)
    for layer in range(c["num_hidden_layers"]):
        of_layer = {
            "input_layernorm": (d,), "post_attention_layernorm": (d,), "self_attn.q_norm": (e,),
            "self_attn.k_norm": (e,), "self_attn.q_proj": (q, d), "self_attn.k_proj": (k, d),
            "self_attn.v_proj": (k, d), "self_attn.o_proj": (d, q), "mlp.gate_proj": (f, d),
            "mlp.up_proj": (f, d), "mlp.down_proj": (d, f),
        }
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in of_layer.items()}
    base = {1: lambda shape: 1 + draw(*shape, scale=0.2), 2: lambda shape: draw(*shape, scale=0.2)}
    return {f"{n}.weight": base[len(s)](s).float().double().requires_grad_() for n, s in sorted(shapes.items())}


def store(values, path):
    save_file({n: t.detach().float().contiguous() for n, t in values.items()}, path)


def op_values():
    out = {}

    def record(op, function, **inputs):
        for tensor in inputs.values():
            tensor.requires_grad_(tensor.is_floating_point())
        y = function(**inputs)
        dy = draw(*y.shape)
        y.backward(dy)
        out[f"{op}.y"], out[f"{op}.dy"] = y, dy
        for name, tensor in inputs.items():
            out[f"{op}.{name}"] = tensor
            if tensor.grad is not None:
                out[f"{op}.d{name}"] = tensor.grad

    record("rmsnorm", lambda x, w: rms_norm(x, w, 1e-6), x=draw(7, 20, scale=3.0), w=1 + draw(20, scale=0.3))
    record("linear", lambda x, w: x @ w.T, x=draw(9, 10), w=draw(6, 10))
    record("swiglu", lambda gate, up: F.silu(gate) * up, gate=draw(5, 9, scale=3.0), up=draw(5, 9))
    record("rope", lambda x: rotate(x.view(2, 6, 3, 8).transpose(1, 2), 10000.0), x=draw(12, 24))
    record("attention", attention, q=draw(1, 4, 70, 8), k=draw(1, 2, 70, 8), v=draw(1, 2, 70, 8))
    tokens = torch.tensor([3, 0, 3, 10, 7, 3])
    record("embedding", lambda table: table[tokens], table=draw(11, 5))
    logits = draw(6, 37, scale=4.0).requires_grad_()
    losses = F.cross_entropy(logits, tokens, reduction="none")
    (losses.sum() * 0.125).backward()
    out |= {"cross_entropy.logits": logits, "cross_entropy.y": losses, "cross_entropy.dlogits": logits.grad}
    return out


def windows(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, CONFIG["vocab_size"], (BATCH, SEQ_LEN + 1), generator=generator)


def loss_and_grads(weights, config):
    batch = windows(0)
    loss = loss_of(weights, config, batch[:, :-1], batch[:, 1:])
    loss.backward()
    norm = math.sqrt(sum((w.grad**2).sum().item() for w in weights.values()))
    return loss.item(), norm, {f"grad.{n}": w.grad.clone() for n, w in weights.items()}


def train_three_steps(weights):
    optimizer = torch.optim.AdamW(weights.values(), lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses, norms = [], []
    for step in range(STEPS + 1):
        batch = windows(step)
        loss = loss_of(weights, CONFIG, batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(weights.values(), 1.0).item())
        losses.append(loss.item())
        optimizer.step()
    return losses, norms


def main():
    torch.manual_seed(1)
    store(op_values(), "ops.safetensors")

    weights = model_weights(CONFIG)
    initial = {n: w.detach().clone() for n, w in weights.items()}
    loss, norm, grads = loss_and_grads(weights, CONFIG)
    untied = CONFIG | {"tie_word_embeddings": False}
    untied_weights = {n: w.clone().requires_grad_() for n, w in initial.items()}
    untied_weights["lm_head.weight"] = draw(CONFIG["vocab_size"], CONFIG["hidden_size"], scale=0.2).requires_grad_()
    head = {"lm_head.weight": untied_weights["lm_head.weight"].detach().clone()}
    untied_loss, untied_norm, untied_grads = loss_and_grads(untied_weights, untied)
    store(initial, "model.safetensors")
    picked = ["grad.lm_head.weight", "grad.model.embed_tokens.weight"]
    store(grads | head | {f"untied.{n}": untied_grads[n] for n in picked}, "grads.safetensors")

    losses, norms = train_three_steps(weights)
    values = dict(
        config=CONFIG, seq_len=SEQ_LEN, lr=0.01, windows=[windows(step).tolist() for step in range(STEPS + 1)],
        loss=loss, grad_norm=norm, untied_loss=untied_loss, untied_grad_norm=untied_norm, losses=losses,
        grad_norms=norms, torch=torch.__version__,
    )
    with open("steps.json", "w") as file:
        json.dump(values, file)
        file.write("\n")


if __name__ == "__main__":
    main()
