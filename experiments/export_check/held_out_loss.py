"""The held-out loss of an exported model in PyTorch, by Hugging Face's own Qwen3.

`held_out_loss.py EXPORT CORPUS [WINDOWS]` loads EXPORT (model.safetensors, config.json,
tokenizer.json) with `transformers`, runs it in fp32 over the first WINDOWS held-out windows of the
corpus (all, if left out) and prints one JSON line: loss in nats per token, perplexity, tokens.
"""

import json
import math
import pathlib
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM

BATCH = 8


def held_out_windows(corpus, most):
    """Windows of seq_len + 1 tokens at a stride of seq_len, from the raw shards."""
    manifest = json.loads((corpus / "manifest.json").read_text())
    seq_len, dtype = manifest["seq_len"], {"u16": "<u2", "u32": "<u4"}[manifest["dtype"]]
    for shard in manifest["held_out"]["shards"]:
        tokens = np.fromfile(corpus / shard["file"], dtype=dtype)
        for i in range(min(most, (len(tokens) - 1) // seq_len)):
            most -= 1
            yield torch.from_numpy(tokens[i * seq_len : (i + 1) * seq_len + 1].astype(np.int64))


@torch.no_grad()
def main():
    export, corpus = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    most = int(sys.argv[3]) if len(sys.argv) > 3 else sys.maxsize
    model = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32, local_files_only=True)
    model.eval()
    windows = list(held_out_windows(corpus, most))
    loss, tokens = 0.0, 0
    for start in range(0, len(windows), BATCH):
        batch = torch.stack(windows[start : start + BATCH])
        logits = model(batch[:, :-1]).logits.flatten(0, 1)
        nats = torch.nn.functional.cross_entropy(logits, batch[:, 1:].flatten(), reduction="sum")
        loss, tokens = loss + nats.item(), tokens + batch[:, 1:].numel()
    mean = loss / tokens
    print(json.dumps(dict(loss=mean, perplexity=math.exp(mean), tokens=tokens)))


if __name__ == "__main__":
    main()
