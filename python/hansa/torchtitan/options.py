"""What the recipe says is no option: sites that trained otherwise would contribute something else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchtitan.components.optimizer import OptimizersContainer, default_adamw

from hansa.errors import Unfit


def optimizer(inner: dict[str, Any]) -> OptimizersContainer.Config:
    """The recipe's."""
    return default_adamw(
        lr=inner["peak_lr"],
        betas=(inner["beta1"], inner["beta2"]),
        eps=inner["eps"],
        weight_decay=inner["weight_decay"],
    )


def check(config: Any, run: dict[str, Any]) -> None:
    """Raises `Unfit` for what torchtitan's options have made of the run's recipe. How it is computed
    (parallelism, compilation, micro-batches) is the site's business."""
    inner, training = run["recipe"]["inner"], config.training
    if config.parallelism.pipeline_parallel_degree > 1:
        raise Unfit("hansa.torchtitan does not support pipeline parallelism yet")
    must = [
        # The masters; what it is computed in is `mixed_precision_param`.
        ("training.dtype", training.dtype, "float32"),
        ("training.seq_len", training.seq_len, run["seq_len"]),
        ("training.max_norm", training.max_norm, inner["clip_norm"]),
    ]
    for name, found, wanted in must:
        if found != wanted:
            raise Unfit(f"--{name} is {found}, this run trains with {wanted}: leave that option out")
    # Which of several equal implementations may be chosen; moments in bf16 are not equal.
    implementation = config.optimizer.implementation
    wanted = replace(optimizer(inner), implementation=implementation)
    if config.optimizer != wanted or implementation == "fused_opt_states_bf16":
        raise Unfit("--optimizer differs from the run's recipe: leave these options out")
