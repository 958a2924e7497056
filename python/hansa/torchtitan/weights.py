"""A sharded model's weights to and from safetensors files under Hugging Face's names.

One tensor is gathered at a time, onto the rank that writes it; a file is read by every rank through
the page cache, and each keeps its own shard of a layer at a time. Values travel in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from hansa import tensors
from hansa.errors import HansaError


class Weights:
    """The weights of a model that torchtitan has built."""

    def __init__(self, model: nn.Module, adapter: Any) -> None:
        self._model, self._adapter = model, adapter

    def names(self) -> list[tuple[str, list[int]]]:
        """Hugging Face's names and shapes."""
        return [(name, list(value.shape)) for name, value in self._tensors()]

    def export(self, path: str, order: list[tuple[str, list[int]]], writes: bool) -> None:
        """Writes the weights in this order; every rank must call, one writes."""
        found = dict(self._tensors())
        missing = [name for name, _ in order if name not in found]
        if missing:
            raise HansaError(f"the model has no tensor {missing[0]}")
        if not writes:
            for name, _ in order:
                _whole(found.pop(name))
            return
        problem: Exception | None = None
        with tensors.writing(path, order) as writer:
            for name, _ in order:
                # The others gather, too: whatever happens here, they must not wait for ever.
                value = _whole(found.pop(name))
                try:
                    if problem is None:
                        tensors.check_finite(name, value)
                        writer.write(name, value)
                except (OSError, HansaError) as error:
                    problem = error
            if problem is not None:
                raise problem

    @torch.no_grad()
    def load(self, path: str) -> None:
        """Replaces the weights by a file's; every rank must call."""
        file = tensors.Reader(path)
        there = set(file.names())
        for part, prefix in self._parts():
            state: dict[str, Any] = {}
            for key, value in part.state_dict().items():
                name = self._hf_name(prefix + key)
                if name is None:
                    continue
                if name not in there:
                    raise HansaError(f"{path} has no tensor {name}")
                state[key] = _like(file.tensor(name), value)
            if state:
                part.load_state_dict(state, strict=False)
                file.release()

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for key, value in self._model.state_dict().items():
            name = self._hf_name(key)
            if name is not None:
                yield name, value

    def _hf_name(self, key: str) -> str | None:
        # The adapter maps dictionaries; it looks at names only for the tensors of a dense model.
        return next(iter(self._adapter.to_hf({key: None})), None)

    def _parts(self) -> Iterator[tuple[nn.Module, str]]:
        """Layers one by one, and what is beside them."""
        for name, child in self._model.named_children():
            if name == "layers":
                for number, layer in child.named_children():
                    yield layer, f"layers.{number}."
            else:
                yield child, f"{name}."


def _whole(value: torch.Tensor) -> torch.Tensor:
    """All of a tensor, on every rank that shares it."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def _like(value: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """In the target's dtype, on its device, sharded as it is. No rank waits for another."""
    whole = value.to(target.dtype)
    if not isinstance(target, DTensor):
        return whole.to(target.device)
    device = target.device_mesh.device_type
    mesh, placements = target.device_mesh, target.placements
    return distribute_tensor(whole.to(device), mesh, placements, src_data_rank=None)
