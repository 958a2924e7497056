"""An exported model's logits, by three implementations that know nothing of each other.

    HANSA_RUN_FILE=STATE/run.json torchrun --standalone logits.py EXPORT CORPUS WINDOWS OUT [COPY]

EXPORT is what `hansa serve` leaves at a run's end. Writes the logits [windows, seq_len, vocab] of the
first held-out windows to OUT, by Hugging Face's `transformers`, by examples/qwen3.py and by torchtitan;
and, as COPY, the weights that torchtitan gives back after it has taken the export's.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples")]
# Numbers are compared here: any machine will do.
os.environ["HANSA_CPU"] = "1"

from hansa.torchtitan import cpu  # noqa: E402

cpu.install()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from hansa.corpus import Corpus  # noqa: E402
from hansa.link import run_description  # noqa: E402
from hansa.torchtitan.config_registry import qwen3  # noqa: E402
from hansa.torchtitan.weights import Weights  # noqa: E402
from qwen3 import Qwen3  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402


def by_transformers(export: Path, tokens_bs: torch.Tensor) -> torch.Tensor:
    """Hugging Face's own Qwen3."""
    model = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32, local_files_only=True)
    logits: torch.Tensor = model.eval()(tokens_bs).logits
    return logits


def by_example(export: Path, tokens_bs: torch.Tensor) -> torch.Tensor:
    """Plain PyTorch, with the file's own names."""
    model = Qwen3(run_description()["recipe"]["model"])
    model.load_state_dict(load_file(export / "model.safetensors"))
    logits: torch.Tensor = model.eval()(tokens_bs)
    return logits


def by_torchtitan(export: Path, tokens_bs: torch.Tensor, copy: str | None) -> torch.Tensor:
    """torchtitan, through the package's import and export."""
    trainer = qwen3().build()
    (model,) = trainer.model_parts
    trainer._weights.load(str(export / "model.safetensors"))
    if copy:
        order: list[tuple[str, list[int]]] = [
            (entry["name"], entry["shape"]) for entry in run_description()["tensors"]
        ]
        weights: Weights = trainer._weights
        weights.export(copy, order, writes=True)
    batch, length = tokens_bs.shape
    positions = torch.arange(length, dtype=torch.int32).expand(batch, -1).contiguous()
    labels = torch.zeros_like(tokens_bs)
    inputs: dict[str, Any] = {"input": tokens_bs, "positions": positions}
    tokens, _, extra = trainer.post_dataloading_process(inputs, labels)
    out = model.eval()(tokens, **extra)
    # With a chunked loss the model leaves its last layer to that.
    logits: torch.Tensor = model.lm_head(out) if model._skip_lm_head else out
    trainer.close()
    dist.destroy_process_group()
    return logits


@torch.no_grad()
def main() -> None:
    """Writes all three."""
    export, corpus, windows, out = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    copy = sys.argv[5] if len(sys.argv) > 5 else None
    tokens_bs = Corpus(corpus).windows(range(windows), held_out=True)[:, :-1].contiguous()
    logits = {
        "transformers": by_transformers(export, tokens_bs),
        "example": by_example(export, tokens_bs),
        "torchtitan": by_torchtitan(export, tokens_bs, copy),
    }
    save_file({name: value.float().contiguous() for name, value in logits.items()}, out)
    apart = {name: float((value - logits["example"]).abs().max()) for name, value in logits.items()}
    print(json.dumps({"largest_difference_from_example": apart}))


if __name__ == "__main__":
    main()
