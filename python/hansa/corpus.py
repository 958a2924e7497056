"""Windows of a corpus on disk: every rank reads its own, straight from the files."""

from __future__ import annotations

import bisect
import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hansa.errors import Unfit

_WIDTH = {"u16": 2, "u32": 4}
#: Shards that a rank keeps open: a corpus may have thousands, and a node many ranks.
_OPEN_MAX = 16


def manifest(directory: str | Path) -> dict[str, Any]:
    """What a corpus directory says that it holds."""
    try:
        with open(Path(directory) / "manifest.json", encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        raise Unfit(f"cannot open the corpus {directory}: {error}") from error
    if found.get("format") != "hansa-corpus" or found.get("version") != 1:
        raise Unfit(f"{directory} holds no corpus that this package can read")
    return found


@dataclass(frozen=True)
class _Shard:
    """One file, and its first window."""

    first: int
    windows: int
    path: Path


class Corpus:
    """An open corpus directory, as `hansa corpus build` makes it."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        #: File descriptors, those used last at the end.
        self._open: OrderedDict[Path, int] = OrderedDict()
        found = manifest(directory)
        self.seq_len: int = found["seq_len"]
        self.vocab_size: int = found["tokenizer"]["vocab_size"]
        self._width = _WIDTH[found["dtype"]]
        self._train = self._shards(found["train"]["shards"])
        self._held_out = self._shards(found["held_out"]["shards"])

    def windows(self, numbers: Sequence[int], *, held_out: bool = False) -> torch.Tensor:
        """Windows by number: int64 [len(numbers), seq_len + 1]."""
        shards = self._held_out if held_out else self._train
        out = torch.empty(len(numbers), self.seq_len + 1, dtype=torch.int64)
        for row, number in enumerate(numbers):
            out[row] = self._window(shards, number)
        return out

    def close(self) -> None:
        """Lets go of its files; it can still be read."""
        while self._open:
            os.close(self._open.popitem()[1])

    def __del__(self) -> None:
        self.close()

    def _window(self, shards: list[_Shard], number: int) -> torch.Tensor:
        at = bisect.bisect_right([shard.first for shard in shards], number) - 1
        if at < 0 or number >= shards[at].first + shards[at].windows:
            raise IndexError(f"the corpus {self.directory} has no window {number}")
        offset = (number - shards[at].first) * self.seq_len * self._width
        size = (self.seq_len + 1) * self._width
        raw = os.pread(self._file(shards[at].path), size, offset)
        if len(raw) != size:
            raise OSError(f"{shards[at].path} ends before window {number}")
        dtype = torch.int16 if self._width == 2 else torch.int32
        # The files hold unsigned numbers.
        signed = torch.frombuffer(bytearray(raw), dtype=dtype)
        return signed.to(torch.int64) & ((1 << (8 * self._width)) - 1)

    def _file(self, path: Path) -> int:
        if path in self._open:
            self._open.move_to_end(path)
        else:
            while len(self._open) >= _OPEN_MAX:
                os.close(self._open.popitem(last=False)[1])
            self._open[path] = os.open(path, os.O_RDONLY)
        return self._open[path]

    def _shards(self, records: list[dict[str, object]]) -> list[_Shard]:
        shards, first = [], 0
        for record in records:
            path = self.directory / str(record["file"])
            windows = int(str(record["windows"]))
            try:
                size = path.stat().st_size
            except OSError as error:
                raise Unfit(f"cannot open the corpus {self.directory}: {error}") from error
            if size != (windows * self.seq_len + 1) * self._width:
                raise Unfit(f"{path} has {size} bytes, which is not what its manifest says")
            shards.append(_Shard(first, windows, path))
            first += windows
        return shards
