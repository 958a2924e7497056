"""What torchtitan 0.3 expects of an accelerator, on a machine without one: for tests and try-outs.

On a machine with an accelerator nothing here does anything; elsewhere it must be asked for, as a job that
finds no accelerator should not train at a hundredth of its speed. Install before torchtitan is imported.
"""

from __future__ import annotations

import os
import resource
import types
from typing import Any

import torch
import torch.distributed as dist

from hansa.errors import Unfit

VARIABLE = "HANSA_CPU"


def install() -> bool:
    """Makes `torch.cpu` look like a device module; true if there is no accelerator.

    Raises `Unfit` if nobody asked for that."""
    if torch.accelerator.is_available():
        return False
    if os.environ.get(VARIABLE) != "1":
        raise Unfit(
            f"torch {torch.__version__} sees no accelerator here: is it built for this machine's, did the "
            f"job get any, and does the container pass them on? {VARIABLE}=1 trains on the CPU, for try-outs"
        )
    # Without an accelerator torchtitan falls back to "cuda".
    torch._utils._get_available_device_type = lambda: "cpu"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def peak(_device: Any = None) -> dict[str, int]:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        names = ("active_bytes.all.peak", "reserved_bytes.all.peak")
        return dict.fromkeys(names, used) | {"num_alloc_retries": 0, "num_ooms": 0}

    stand_ins = {
        "get_device_name": lambda _device=None: "cpu",
        "get_device_properties": lambda _device=None: types.SimpleNamespace(total_memory=memory),
        "memory_stats": peak,
        "reset_peak_memory_stats": lambda _device=None: None,
        "empty_cache": lambda: None,
        "manual_seed_all": lambda _seed: None,
    }
    for name, stand_in in stand_ins.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, stand_in)
    plain = dist.barrier

    def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        # Device numbers mean nothing to gloo, which refuses them.
        return plain(group=group, async_op=async_op)

    dist.barrier = barrier  # type: ignore[assignment]
    return True


def without_accelerator(spec: Any) -> Any:
    """A model that runs without one: attention that has a CPU backward, sums that gloo has."""
    from functools import partial

    from torch.distributed.fsdp import FSDPModule
    from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention

    for _, _, parent, place in list(spec.model.traverse(FlexAttention.Config)):
        put = parent.__setitem__ if isinstance(parent, list) else partial(setattr, parent)
        put(place, ScaledDotProductAttention.Config())
    inner = spec.parallelize_fn

    def parallelize(model: Any, **arguments: Any) -> Any:
        parallel = inner(model, **arguments)
        for part in parallel.modules():
            if isinstance(part, FSDPModule):
                part.set_force_sum_reduction_for_comms(True)
        return parallel

    spec.parallelize_fn = parallelize
    return spec
