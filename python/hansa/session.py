"""Any PyTorch loop as a Hansa replica, on one accelerator or several that hold the same weights.

    session = hansa.Session(model, optimizer, loss_sum)
    for step in session:
        optimizer.zero_grad()
        loss = loss_sum(model, step.inputs, step.targets) / step.tokens
        loss.backward()
        optimizer.step()
        step.done(loss)

The learning rate is the run's; the session sets it before each step. With several ranks (DDP) each one
gets its share of the windows; `step.tokens` counts those of all ranks, and gradients must be summed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hansa import tensors
from hansa.conversation import Conversation
from hansa.corpus import Corpus
from hansa.link import run_description

#: Sum of the cross-entropy over all targets, in nats, for inputs and targets [windows, seq_len].
LossSum = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass
class Step:
    """One inner step: what this rank trains on."""

    #: int64 [windows of this rank, seq_len]; the first dimension may be 0.
    inputs: torch.Tensor
    #: The next token of each input.
    targets: torch.Tensor
    #: Target tokens of the whole step, over all ranks.
    tokens: int
    lr: float
    _session: Session
    _answered: bool = False

    def done(self, loss: torch.Tensor | float, grad_norm: torch.Tensor | float = 0.0) -> None:
        """The step is taken; `loss` is this rank's sum over `tokens`."""
        self._answered = True
        self._session._step_done(self, _number(loss), _number(grad_norm))


class Session:
    """The agent's questions, answered for a plain model and optimiser."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_sum: LossSum,
        *,
        names: Callable[[str], str] = lambda name: name,
        device: torch.device | str | None = None,
    ) -> None:
        """`names` turns the model's names of parameters into the run's (Hugging Face's)."""
        self.run = run_description()
        self.corpus = Corpus(self.run["corpus"])
        self.model, self.optimizer, self.loss_sum = model, optimizer, loss_sum
        self.device = torch.device(device) if device else next(model.parameters()).device
        self._parameters = {names(name): value for name, value in model.named_parameters()}
        shapes = [(name, list(value.shape)) for name, value in self._parameters.items()]
        self._talk = Conversation(f"torch {torch.__version__}", shapes)

    def __iter__(self) -> Iterator[Step]:
        for ask in self._talk.questions():
            if ask["do"] == "step":
                step = self._step(ask)
                yield step
                if not step._answered:
                    raise RuntimeError("call step.done(loss) at the end of each step")
            else:
                self._answer(ask)
        self._talk.close()

    def _step(self, ask: dict[str, Any]) -> Step:
        for group in self.optimizer.param_groups:
            group["lr"] = ask["lr"]
        windows: list[int] = ask["windows"]
        mine = windows[self._talk.rank :: self._talk.world]
        both = self.corpus.windows(mine).to(self.device)
        tokens = len(windows) * self.corpus.seq_len
        return Step(both[:, :-1], both[:, 1:], tokens, ask["lr"], self)

    def _step_done(self, step: Step, loss: float, grad_norm: float) -> None:
        self._talk.ok(loss=self._talk.sum(loss), grad_norm=grad_norm, tokens=step.tokens)

    def _answer(self, ask: dict[str, Any]) -> None:
        error: Exception | None = None
        values: dict[str, Any] = {}
        try:
            values = getattr(self, f"_do_{ask['do']}")(ask)
        except Exception as raised:
            if ask["do"] == "evaluate" and self._talk.world > 1:
                # The model may have collectives of its own: others may wait in one. Only a new start
                # brings all ranks together.
                raise
            error = raised
        error = self._talk.agree(error)
        if error is None:
            self._talk.ok(**values)
        else:
            self._talk.fail(error)

    @torch.no_grad()
    def _do_load(self, ask: dict[str, Any]) -> dict[str, Any]:
        file = tensors.Reader(ask["model"])
        for name, parameter in self._parameters.items():
            parameter.copy_(file.tensor(name))
            file.release()
        return {}

    @torch.no_grad()
    def _do_evaluate(self, ask: dict[str, Any]) -> dict[str, Any]:
        numbers = range(ask["first"], ask["end"])
        mine = list(numbers)[self._talk.rank :: self._talk.world]
        total = 0.0
        if mine:
            self.model.eval()
            both = self.corpus.windows(mine, held_out=True).to(self.device)
            total = float(self.loss_sum(self.model, both[:, :-1], both[:, 1:]))
            self.model.train()
        tokens = len(numbers) * self.corpus.seq_len
        return {"loss_sum_nats": self._talk.sum(total), "tokens": tokens}

    def _do_export(self, ask: dict[str, Any]) -> dict[str, Any]:
        if self._talk.rank == 0:
            order = [(entry["name"], entry["shape"]) for entry in self.run["tensors"]]
            with tensors.writing(ask["to"], order) as writer:
                for name, _ in order:
                    value = self._parameters[name].detach()
                    tensors.check_finite(name, value)
                    writer.write(name, value)
        return {}

    def _do_save(self, ask: dict[str, Any]) -> dict[str, Any]:
        if self._talk.rank == 0:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state, os.path.join(ask["folder"], "state.pt"))
        return {}

    def _do_restore(self, ask: dict[str, Any]) -> dict[str, Any]:
        state = self._saved(ask["folder"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return {}

    def _do_moments(self, ask: dict[str, Any]) -> dict[str, Any]:
        if ask["folder"] is None:
            self.optimizer.state.clear()
        else:
            self.optimizer.load_state_dict(self._saved(ask["folder"])["optimizer"])
        return {}

    def _do_end(self, _ask: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _saved(self, folder: str) -> dict[str, Any]:
        path = os.path.join(folder, "state.pt")
        state: dict[str, Any] = torch.load(path, map_location=self.device, weights_only=True)
        return state


def _number(value: torch.Tensor | float) -> float:
    return float(value.detach()) if isinstance(value, torch.Tensor) else value
