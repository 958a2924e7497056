"""torchtitan without Hansa, on the windows and with the rates that a record names: its losses.

    HANSA_RUN_FILE=run.json torchrun … plain.py RECORD.jsonl OUT.json

The configuration is the run's, the trainer is torchtitan's own class.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from hansa.torchtitan import cpu

cpu.install()

import torch.distributed as dist  # noqa: E402
from hansa.torchtitan.config_registry import qwen3  # noqa: E402
from hansa.torchtitan.parts import Batch, WindowLoader  # noqa: E402
from hansa.torchtitan.weights import Weights  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402


def first_phase(record: str) -> tuple[str, list[dict[str, Any]]]:
    """The model that was loaded first, and the steps up to the next exchange."""
    model, steps = "", []
    with open(record, encoding="utf-8") as file:
        for line in file:
            said = json.loads(line)["said"]
            if said.get("do") == "load" and not model:
                model = str(Path(record).parent / Path(said["model"]).name)
            elif said.get("do") == "step":
                steps.append(said)
            elif said.get("do") == "export":
                break
    return model, steps


class Loader:
    """All windows of the record, batch after batch."""

    def __init__(self, loader: WindowLoader, steps: list[dict[str, Any]]) -> None:
        self._loader, self._steps = loader, steps

    def __iter__(self) -> Iterator[Batch]:
        for step in self._steps:
            for at in range(self._loader.give(step["windows"])):
                yield self._loader._batch(step["windows"], at, False)


def main() -> None:
    """Trains and writes losses and seconds of each step."""
    record, out = sys.argv[1:]
    model, steps = first_phase(record)
    config = qwen3()
    config.training.steps = len(steps)
    plain = Trainer.Config(
        **{field.name: getattr(config, field.name) for field in fields(Trainer.Config)}
    )
    trainer = plain.build()
    adapter = plain.model_spec.state_dict_adapter(plain.model_spec.model, None)
    Weights(trainer.model_parts[0], adapter).load(model)
    batches = trainer.batch_generator(Loader(trainer.dataloader, steps))
    losses, seconds = [], []
    for number, step in enumerate(steps):
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = step["lr"]
        ranks = dist.get_world_size() * config.training.local_batch_size
        trainer.gradient_accumulation_steps = -(-len(step["windows"]) // ranks)
        trainer.step = number + 1
        began = time.perf_counter()
        trainer.train_step(batches)
        seconds.append(time.perf_counter() - began)
        losses.append(trainer.metrics_processor.loss)
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps({"losses": losses, "seconds": seconds}))
    trainer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
