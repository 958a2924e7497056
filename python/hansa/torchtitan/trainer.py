"""torchtitan's Trainer, driven by the agent instead of by a number of steps.

A step is torchtitan's own `train_step` on the windows that the agent names; everything else (weights,
checkpoints, evaluation) happens between steps, on all ranks at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import FSDPModule
from torchtitan.components.checkpointer import ModelWrapper
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.distributed import utils as dist_utils
from torchtitan.trainer import Trainer

from hansa.conversation import Conversation
from hansa.errors import HansaError, NonFinite
from hansa.link import run_description
from hansa.torchtitan import options, versions
from hansa.torchtitan.parts import WindowLoader
from hansa.torchtitan.weights import Weights

_MODEL, _OPTIMIZER = "model", "optimizer"
#: In these ranks wait for each other: after an error they may stand at different places, and only a new
#: start brings them together.
_TOGETHER = ("step", "evaluate")


class StepMetrics(MetricsProcessor):
    """torchtitan's metrics, which also keep each step's loss for the agent."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        """As torchtitan's."""

    loss: float = float("nan")
    grad_norm: float = float("nan")

    def should_log(self, step: int) -> bool:
        """Each step's loss is wanted."""
        return True

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> None:
        """Keeps the loss; torchtitan writes every `log_freq`-th."""
        self.loss, self.grad_norm = global_avg_loss, grad_norm
        if step == 1 or step % self.config.log_freq == 0:
            super().log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)


class HansaTrainer(Trainer):
    """One replica of a run."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        """As torchtitan's."""

    dataloader: WindowLoader
    metrics_processor: StepMetrics

    def __init__(self, config: Config) -> None:
        self._run = run_description()
        options.check(config, self._run)
        super().__init__(config)
        spec = config.model_spec
        assert spec is not None and spec.state_dict_adapter is not None
        (model,) = self.model_parts
        self._weights = Weights(model, spec.state_dict_adapter(spec.model, None))
        self._batches = self.batch_generator(self.dataloader)

    @record
    def train(self) -> None:
        """Does what the agent asks for, until it says that it is over."""
        self._talk = Conversation(versions.check(), self._weights.names())
        for ask in self._talk.questions():
            error: Exception | None = None
            values: dict[str, Any] = {}
            try:
                values = getattr(self, f"_do_{ask['do']}")(ask)
            except NonFinite as raised:
                error = raised
            except (OSError, ValueError, RuntimeError, HansaError) as raised:
                if ask["do"] in _TOGETHER:
                    raise
                error = raised
            if ask["do"] != "step":
                error = self._talk.agree(error)
            if error is None:
                self._talk.ok(**values)
            else:
                self._talk.fail(error)
        self._talk.close()

    def _do_step(self, ask: dict[str, Any]) -> dict[str, Any]:
        windows: list[int] = ask["windows"]
        self.gradient_accumulation_steps = self.dataloader.give(windows)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                _set_rate(group, ask["lr"])
        self.step += 1
        self.gc_handler.run(self.step)
        try:
            self.train_step(self._batches)
        except RuntimeError as error:
            # torchtitan says this on all ranks at once, and after the update: the agent asks for no more of
            # these weights. Anything else may be one rank's alone.
            if "not finite" not in str(error):
                raise
            raise NonFinite(f"the loss of windows {windows[0]} and on is not finite") from error
        tokens = len(windows) * self.config.training.seq_len
        metrics = self.metrics_processor
        return {"loss": metrics.loss, "grad_norm": metrics.grad_norm, "tokens": tokens}

    @torch.no_grad()
    def _do_evaluate(self, ask: dict[str, Any]) -> dict[str, Any]:
        windows = list(range(ask["first"], ask["end"]))
        count = self.dataloader.give(windows, held_out=True)
        (model,) = self.model_parts
        total = torch.zeros((), dtype=torch.float64, device=_sum_device(self.device))
        model.eval()
        one = torch.ones((), device=self.device)
        for _ in range(count):
            inputs, labels = next(self._batches)
            inputs = {name: value.to(self.device) for name, value in inputs.items()}
            tokens, targets, extra = self.post_dataloading_process(inputs, labels.to(self.device))
            with self.train_context():
                loss, _ = self.loss_fn(model(tokens, **extra), targets, one)
            total += loss.to(total)
            self._talk.progress()
        model.train()
        for part in model.modules():
            if isinstance(part, FSDPModule):
                # No backward pass has done it.
                part.reshard()
        if self.parallel_dims.dp_cp_enabled:
            mesh = self.parallel_dims.get_optional_mesh("loss")
            total = torch.tensor(dist_utils.dist_sum(total, mesh), dtype=torch.float64)
        return {
            "loss_sum_nats": float(total),
            "tokens": len(windows) * self.config.training.seq_len,
        }

    def _do_load(self, ask: dict[str, Any]) -> dict[str, Any]:
        self._weights.load(ask["model"])
        return {}

    def _do_export(self, ask: dict[str, Any]) -> dict[str, Any]:
        order = [(entry["name"], entry["shape"]) for entry in self._run["tensors"]]
        self._weights.export(ask["to"], order, writes=dist.get_rank() == 0)
        return {}

    def _do_save(self, ask: dict[str, Any]) -> dict[str, Any]:
        state = self._model_state() | self._optimizer_state()
        self._checkpoint(save, state, ask["folder"])
        return {}

    def _do_restore(self, ask: dict[str, Any]) -> dict[str, Any]:
        state = self._model_state() | self._optimizer_state()
        self._checkpoint(load, state, ask["folder"])
        ModelWrapper(self.model_parts).load_state_dict(state[_MODEL])
        self.optimizers.load_state_dict(state[_OPTIMIZER])
        return {}

    def _do_moments(self, ask: dict[str, Any]) -> dict[str, Any]:
        if ask["folder"] is None:
            for optimizer in self.optimizers:
                optimizer.state.clear()
            return {}
        state = self._optimizer_state()
        self._checkpoint(load, state, ask["folder"])
        self.optimizers.load_state_dict(state[_OPTIMIZER])
        return {}

    def _do_end(self, ask: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _checkpoint(self, do: Callable[..., Any], state: dict[str, Any], folder: str) -> None:
        """Saves or loads. Ranks wait for each other as long as the storage takes; the first failure of
        any of them is raised on all."""
        try:
            do(state, checkpoint_id=folder, process_group=self._talk.group)
        except CheckpointException as error:
            # It is no Exception, and would end the process.
            first, _ = next(iter(error.failures.values()))
            raise first if isinstance(first, OSError) else HansaError(str(first)) from error

    def _model_state(self) -> dict[str, Any]:
        return {_MODEL: ModelWrapper(self.model_parts).state_dict()}

    def _optimizer_state(self) -> dict[str, Any]:
        return {_OPTIMIZER: self.optimizers.state_dict()}


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _sum_device(device: torch.device) -> torch.device:
    """Where float64 exists."""
    return torch.device("cpu") if device.type == "mps" else device
