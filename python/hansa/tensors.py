"""Safetensors files, one tensor at a time: memory holds a single tensor, whatever the model's size."""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from hansa.errors import NonFinite

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


class Reader:
    """A memory-mapped file. Tensors are views of it: copy what must outlive it."""

    def __init__(self, path: str | Path) -> None:
        with open(path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        length = int.from_bytes(self._data[:8], "little")
        header: dict[str, Any] = json.loads(self._data[8 : 8 + length])
        header.pop("__metadata__", None)
        self._entries = header
        self._start = 8 + length

    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._entries)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor in the file's own dtype."""
        entry = self._entries[name]
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise ValueError(f"{name} is {entry['dtype']}; models travel as F32 or BF16")
        begin, end = entry["data_offsets"]
        count = (end - begin) // dtype.itemsize
        offset = self._start + begin
        flat = torch.frombuffer(self._data, dtype=dtype, count=count, offset=offset)
        return flat.reshape(entry["shape"])

    def release(self) -> None:
        """Lets go of pages that were read: they count as this process's memory while they are mapped.
        Views stay valid."""
        self._data.madvise(mmap.MADV_DONTNEED)


def check_finite(name: str, values: torch.Tensor) -> None:
    """Raises `NonFinite` with the name. Takes no memory, unlike `torch.isfinite`."""
    # Both are NaN if anything is.
    least, most = torch.aminmax(values.detach())
    if not math.isfinite(float(least)) or not math.isfinite(float(most)):
        raise NonFinite(f"the weights {name} are not finite")


class Writer:
    """Writes `f32` tensors in an order that is known beforehand. The file is made with the first one."""

    def __init__(self, path: str | Path, tensors: Iterable[tuple[str, list[int]]]) -> None:
        self._path = Path(path)
        self._file: BinaryIO | None = None
        header: dict[str, Any] = {}
        self._order: list[str] = []
        end = 0
        for name, shape in tensors:
            begin, size = end, 4
            for dimension in shape:
                size *= dimension
            end = begin + size
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
            self._order.append(name)
        self._entries = header
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._head = len(text).to_bytes(8, "little") + text
        self._next = 0

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Writes the next tensor."""
        if self._next >= len(self._order) or self._order[self._next] != name:
            raise ValueError(f"{name} is not the next tensor of the file")
        values = tensor.detach().to("cpu", torch.float32).contiguous()
        if list(values.shape) != self._entries[name]["shape"]:
            raise ValueError(f"{name} has shape {list(values.shape)}")
        if self._file is None:
            self._file = open(self._path, "wb")  # noqa: SIM115 (closed by `writing`)
            self._file.write(self._head)
        self._file.write(values.flatten().view(torch.uint8).numpy().data)
        self._next += 1

    def close(self) -> None:
        """Closes the file, whatever is missing."""
        if self._file is not None:
            self._file.close()

    def discard(self) -> None:
        """Closes the file and removes it."""
        # What is still to be written has no room.
        with suppress(OSError):
            self.close()
        # Never a device that stands for a file.
        if self._file is not None and self._path.is_file():
            os.remove(self._path)

    def complete(self) -> bool:
        """Whether every tensor is written."""
        return self._next == len(self._order)


@contextmanager
def writing(path: str | Path, tensors: Iterable[tuple[str, list[int]]]) -> Iterator[Writer]:
    """A `Writer` whose file is whole afterwards, or gone. Nothing is done before the first tensor."""
    writer = Writer(path, tensors)
    try:
        yield writer
        if not writer.complete():
            raise ValueError(f"{path} lacks tensors")
        writer.close()
    except BaseException:
        writer.discard()
        raise
