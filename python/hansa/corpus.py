"""Windows of a corpus on disk, memory-mapped: every rank reads its own, straight from the files."""

from __future__ import annotations

import bisect
import json
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hansa.errors import Unfit

_WIDTH = {"u16": 2, "u32": 4}


@dataclass(frozen=True)
class _Shard:
    """One file: its first window, and its bytes."""

    first: int
    windows: int
    data: mmap.mmap


class Corpus:
    """An open corpus directory, as `hansa corpus build` makes it."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        try:
            with open(self.directory / "manifest.json", encoding="utf-8") as file:
                manifest = json.load(file)
        except (OSError, ValueError) as error:
            raise Unfit(f"cannot open the corpus {self.directory}: {error}") from error
        if manifest.get("format") != "hansa-corpus" or manifest.get("version") != 1:
            raise Unfit(f"{self.directory} holds no corpus that this package can read")
        self.seq_len: int = manifest["seq_len"]
        self.vocab_size: int = manifest["tokenizer"]["vocab_size"]
        self._width = _WIDTH[manifest["dtype"]]
        self._train = self._open(manifest["train"]["shards"])
        self._held_out = self._open(manifest["held_out"]["shards"])

    def windows(self, numbers: Sequence[int], *, held_out: bool = False) -> torch.Tensor:
        """Windows by number: int64 [len(numbers), seq_len + 1]."""
        shards = self._held_out if held_out else self._train
        out = torch.empty(len(numbers), self.seq_len + 1, dtype=torch.int64)
        for row, number in enumerate(numbers):
            out[row] = self._window(shards, number)
        return out

    def _window(self, shards: list[_Shard], number: int) -> torch.Tensor:
        at = bisect.bisect_right([shard.first for shard in shards], number) - 1
        if at < 0 or number >= shards[at].first + shards[at].windows:
            raise IndexError(f"the corpus {self.directory} has no window {number}")
        offset = (number - shards[at].first) * self.seq_len * self._width
        count = self.seq_len + 1
        dtype = torch.int16 if self._width == 2 else torch.int32
        raw = torch.frombuffer(shards[at].data, dtype=dtype, count=count, offset=offset)
        # The files hold unsigned numbers.
        return raw.to(torch.int64) & ((1 << (8 * self._width)) - 1)

    def _open(self, records: list[dict[str, object]]) -> list[_Shard]:
        shards, first = [], 0
        for record in records:
            path = self.directory / str(record["file"])
            windows = int(str(record["windows"]))
            with open(path, "rb") as file:
                # Copy on write: torch wants memory that it could write to.
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            if len(data) != (windows * self.seq_len + 1) * self._width:
                raise Unfit(f"{path} has {len(data)} bytes, which is not what its manifest says")
            shards.append(_Shard(first, windows, data))
            first += windows
        return shards
