"""The socket to the agent: lines of JSON. The agent asks, this side answers, one question at a time."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from hansa.errors import AgentGone, HansaError, Unfit

PROTOCOL = 1
SOCKET_VARIABLE = "HANSA_AGENT_SOCKET"
RUN_VARIABLE = "HANSA_RUN_FILE"
#: Set by an agent for the trainer that it starts.
_MARK_VARIABLE = "HANSA_TRAINER"
#: How long to wait for one that something else starts.
_AGENT_WITHIN_S = 15 * 60
_LOOK_EVERY_S = 0.2

T = TypeVar("T")


def run_description() -> dict[str, Any]:
    """What the agent wrote down about the run; every rank can read it, before anything is built."""
    path = os.environ.get(RUN_VARIABLE)
    if not path:
        raise Unfit(
            f"{RUN_VARIABLE} is not set: start this script with `hansa agent … -- COMMAND`, or give it "
            f"run.json of the agent's state directory"
        )
    return _run_in(path)


@cache
def _run_in(path: str) -> dict[str, Any]:
    """Once for a process: all of it must be of one run."""
    try:
        with _patiently(lambda: open(path, encoding="utf-8")) as file:
            run: dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        raise Unfit(
            f"cannot read {path} ({error}): is the agent's --state on storage that this node sees?"
        ) from error
    if run.get("protocol") != PROTOCOL:
        raise Unfit(
            f"{path} is of protocol {run.get('protocol')}, this package speaks {PROTOCOL}: install the "
            f"package and the hansa binary of the same release"
        )
    return run


def _patiently(attempt: Callable[[], T]) -> T:
    """Tries until it succeeds, if something else than the agent has started this process: the agent may
    come later, or come back. One that starts its trainer is there already."""
    until = time.monotonic() + (0 if os.environ.get(_MARK_VARIABLE) else _AGENT_WITHIN_S)
    told = False
    while True:
        try:
            return attempt()
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if time.monotonic() >= until:
                raise
            if not told:
                print(f"hansa: waiting for the agent ({error})", file=sys.stderr, flush=True)
            told = True
            time.sleep(_LOOK_EVERY_S)


class Link:
    """A connection to the agent, from rank 0."""

    def __init__(self, path: str | None = None) -> None:
        path = path or os.environ.get(SOCKET_VARIABLE)
        if not path:
            raise Unfit(f"{SOCKET_VARIABLE} is not set: start this script with `hansa agent`")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _patiently(lambda: self._socket.connect(path))
        except OSError as error:
            raise Unfit(
                f"cannot reach the agent at {path} ({error}): rank 0 must run on the agent's node, and "
                f"a container must see {os.path.dirname(path)}"
            ) from error
        self._lines = self._socket.makefile("rb")
        self._asked = 0

    def hello(self, ranks: int, software: str, tensors: list[tuple[str, list[int]]]) -> None:
        """Says what this trainer is. Raises `Unfit` if the agent does not want it."""
        entries = [{"name": name, "shape": shape} for name, shape in tensors]
        hello = {"protocol": PROTOCOL, "ranks": ranks, "software": software, "tensors": entries}
        self._send({"hello": hello})
        greeting = self._receive()
        if "refused" in greeting:
            raise Unfit(f"the agent refuses this trainer: {greeting['refused']['why']}")
        if "welcome" not in greeting:
            raise Unfit("what answers is no hansa agent")
        if greeting["welcome"]["run"] != run_description():
            raise HansaError(
                f"{os.environ.get(RUN_VARIABLE)} was of another run, or of an agent before this one: start "
                f"this trainer again"
            )

    def next(self) -> dict[str, Any]:
        """The next question."""
        ask = self._receive()
        self._asked = ask["id"]
        return ask

    def ok(self, **values: Any) -> None:
        """Answers the question: it is done."""
        self._send({"id": self._asked, "ok": values})

    def progress(self, **values: Any) -> None:
        """Says that work on the question goes on."""
        self._send({"id": self._asked, "progress": values})

    def error(self, kind: str, why: str) -> None:
        """Answers the question: it cannot be done."""
        self._send({"id": self._asked, "error": {"kind": kind, "why": why}})

    def close(self) -> None:
        """Closes the connection."""
        self._lines.close()
        self._socket.close()

    def _send(self, message: dict[str, Any]) -> None:
        # What is not finite has no JSON.
        line = json.dumps(message, allow_nan=False, separators=(",", ":"))
        try:
            self._socket.sendall(line.encode() + b"\n")
        except OSError as error:
            raise AgentGone(f"the agent is gone ({error})") from error

    def _receive(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
        except OSError as error:
            raise AgentGone(f"the agent is gone ({error})") from error
        if not line.endswith(b"\n"):
            raise AgentGone("the agent closed the connection")
        message: dict[str, Any] = json.loads(line)
        return message
