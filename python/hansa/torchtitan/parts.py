"""The parts that torchtitan builds around a model, where a run gives something else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.components.tokenizer import BaseTokenizer

from hansa.corpus import Corpus, manifest
from hansa.link import run_description

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


class NoTokenizer(BaseTokenizer):
    """The corpus is tokens already."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """Nothing to set."""

    def __init__(self, config: Config, *, tokenizer_path: str | None = None, **_: Any) -> None:
        super().__init__()
        self.eos_id = 0

    def encode(self, *_: Any, **__: Any) -> list[int]:
        """Never asked for."""
        raise NotImplementedError("the corpus is tokens already")

    def decode(self, *_: Any, **__: Any) -> str:
        """Never asked for."""
        raise NotImplementedError("the corpus is tokens already")

    def get_vocab_size(self) -> int:
        """Of the corpus."""
        size: int = manifest(run_description()["corpus"])["tokenizer"]["vocab_size"]
        return size


class WindowLoader(BaseDataLoader):
    """This rank's micro-batches of the windows that a step, or an evaluation, was given.

    Micro-batch `m` of `n` ranks with `B` windows each takes windows `m·n·B` and on, rank after rank. All
    ranks get the same number of micro-batches of the same shape; rows without a window have no targets.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """Nothing to set."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        **_: Any,
    ) -> None:
        self.corpus = Corpus(run_description()["corpus"])
        self.ranks, self.rank, self.batch = dp_world_size, dp_rank, local_batch_size
        self._batches: Iterator[Batch] = iter(())

    def micro_batches(self, windows: int) -> int:
        """How many micro-batches so many windows make."""
        return -(-windows // (self.ranks * self.batch))

    def give(self, windows: list[int], *, held_out: bool = False) -> int:
        """What the next batches are made of; returns their number."""
        count = self.micro_batches(len(windows))
        self._batches = iter([self._batch(windows, at, held_out) for at in range(count)])
        return count

    def _batch(self, windows: list[int], at: int, held_out: bool) -> Batch:
        first = (at * self.ranks + self.rank) * self.batch
        mine = windows[first : first + self.batch]
        seq_len = self.corpus.seq_len
        inputs = torch.zeros(self.batch, seq_len, dtype=torch.int64)
        labels = torch.full((self.batch, seq_len), IGNORE_INDEX, dtype=torch.int64)
        if mine:
            both = self.corpus.windows(mine, held_out=held_out)
            inputs[: len(mine)], labels[: len(mine)] = both[:, :-1], both[:, 1:]
        positions = torch.arange(seq_len, dtype=torch.int32).expand(self.batch, -1).contiguous()
        return {"input": inputs, "positions": positions}, labels

    def __iter__(self) -> Iterator[Batch]:
        """Without end: the batches of one step after those of another."""
        while True:
            yield next(self._batches)

    def state_dict(self) -> dict[str, Any]:
        """Where training stands is the session's to know."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As `state_dict`."""
