"""The agent's questions, for all ranks of a trainer: rank 0 holds the socket, the others hear of it."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hansa.errors import AgentGone, HansaError, NonFinite
from hansa.link import Link

#: What rank 0 tells the others when the agent is gone.
_GONE = {"do": "gone"}
#: How long ranks may wait for the next question: as long as a run is paused, or a site away. A rank that
#: dies closes its connections, and the others hear of it at once.
_PATIENCE = timedelta(days=30)


class Conversation:
    """Questions and answers. Every rank must go through the same questions in the same order."""

    def __init__(self, software: str, tensors: list[tuple[str, list[int]]]) -> None:
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        #: All ranks, apart from the trainer's own collectives and their timeouts. `None` if alone.
        self.group = dist.new_group(backend="gloo", timeout=_PATIENCE) if self.world > 1 else None
        self._link: Link | None = None
        refusal: list[HansaError | None] = [None]
        if self.rank == 0:
            try:
                self._link = Link()
                self._link.hello(self.world, software, tensors)
            except HansaError as error:
                refusal = [error]
        self._broadcast(refusal)
        if refusal[0] is not None:
            raise refusal[0]

    def questions(self) -> Iterator[dict[str, Any]]:
        """Until the agent says that it is over."""
        while True:
            ask = [self._next()] if self.rank == 0 else [None]
            self._broadcast(ask)
            question: dict[str, Any] = ask[0] or _GONE
            if question["do"] == "gone":
                raise AgentGone("the agent closed the connection")
            yield question
            if question["do"] == "end":
                return

    def ok(self, **values: Any) -> None:
        """Answers; only rank 0 speaks."""
        if self._link is None:
            return
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                self._link.error("non_finite", f"the {name} is {value}")
                return
        self._link.ok(**values)

    def progress(self, **values: Any) -> None:
        """Shows that work goes on; only rank 0 speaks."""
        if self._link is not None:
            self._link.progress(**values)

    def fail(self, error: Exception) -> None:
        """Answers that the question cannot be answered; only rank 0 speaks."""
        if self._link is None:
            return
        if isinstance(error, NonFinite):
            kind = "non_finite"
        elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            kind = "no_space"
        else:
            kind = "failed"
        self._link.error(kind, f"{type(error).__name__}: {error}"[:2000])

    def close(self) -> None:
        """Ends it."""
        if self._link is not None:
            self._link.close()

    def agree(self, error: Exception | None) -> Exception | None:
        """What any rank failed with: all ranks get the same answer, so that all go the same way."""
        if self.sum(0 if error is None else 1) == 0:
            return None
        return error or HansaError("another rank failed; it says why in its own log")

    def sum(self, value: float) -> float:
        """Over all ranks; each must call."""
        if self.group is None:
            return value
        total = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(total, group=self.group)
        return float(total)

    def _next(self) -> dict[str, Any]:
        assert self._link is not None
        try:
            return self._link.next()
        except AgentGone:
            return _GONE

    def _broadcast(self, values: list[Any]) -> None:
        if self.group is not None:
            dist.broadcast_object_list(values, src=0, group=self.group)
