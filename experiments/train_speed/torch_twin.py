"""The model, data and steps of crates/train/examples/speed.rs in PyTorch fp32; driven by compare.py.

`torch_twin.py WEIGHTS.safetensors THREADS` loads the weights that the Rust side wrote and prints `ready`; each
line `N` on standard input runs N steps and prints one JSON line. With `bf16` as a third argument the
forward pass runs under bf16 autocast.
"""

import json
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

V, D, LAYERS, H, G, E, THETA, EPS = 4096, 256, 4, 4, 2, 64, 1e6, 1e-6
BATCH, SEQ_LEN, LR = 8, 256, 1e-3


def rms_norm(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight, EPS)


def rope_tables():
    inv_freq = 1.0 / THETA ** (torch.arange(0, E, 2).float() / E)
    angles = torch.outer(torch.arange(SEQ_LEN).float(), inv_freq)
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def loss_of(w, tokens, targets, cos, sin):
    b, s = tokens.shape
    x = F.embedding(tokens, w["model.embed_tokens.weight"])
    for layer in range(LAYERS):
        p = lambda name: w[f"model.layers.{layer}.{name}.weight"]
        y = rms_norm(x, p("input_layernorm"))
        q = rms_norm(F.linear(y, p("self_attn.q_proj")).view(b, s, H, E), p("self_attn.q_norm"))
        k = rms_norm(F.linear(y, p("self_attn.k_proj")).view(b, s, G, E), p("self_attn.k_norm"))
        v = F.linear(y, p("self_attn.v_proj")).view(b, s, G, E).transpose(1, 2)
        q, k = rotate(q.transpose(1, 2), cos, sin), rotate(k.transpose(1, 2), cos, sin)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + F.linear(o.transpose(1, 2).reshape(b, s, H * E), p("self_attn.o_proj"))
        y = rms_norm(x, p("post_attention_layernorm"))
        y = F.silu(F.linear(y, p("mlp.gate_proj"))) * F.linear(y, p("mlp.up_proj"))
        x = x + F.linear(y, p("mlp.down_proj"))
    logits = F.linear(rms_norm(x, w["model.norm.weight"]), w["model.embed_tokens.weight"])
    return F.cross_entropy(logits.view(-1, V).float(), targets.flatten())


def windows():
    state, out = 7, []
    for _ in range(BATCH * (SEQ_LEN + 1)):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append((state >> 33) % V)
    return torch.tensor(out).view(BATCH, SEQ_LEN + 1)


def main():
    torch.set_num_threads(int(sys.argv[2]))
    bf16 = sys.argv[3:] == ["bf16"]
    weights = {name: tensor.requires_grad_() for name, tensor in load_file(sys.argv[1]).items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    batch, (cos, sin) = windows(), rope_tables()
    print("ready", flush=True)
    for line in sys.stdin:
        step_ms = []
        for _ in range(int(line)):
            start = time.perf_counter()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                loss = loss_of(weights, batch[:, :-1], batch[:, 1:], cos, sin)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
            optimizer.step()
            last = loss.item()
            step_ms.append((time.perf_counter() - start) * 1e3)
        print(json.dumps(dict(step_ms=step_ms, loss=last)), flush=True)


if __name__ == "__main__":
    main()
