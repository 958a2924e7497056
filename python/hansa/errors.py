"""What can go wrong on this side, and the exit status that tells the agent what to do about it."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

#: EX_CONFIG of sysexits.h: the agent does not try again.
UNFIT = 78
#: How long other ranks leave to rank 0 to say what it has found.
_FIRST_S = 10


class HansaError(Exception):
    """Anything that this package raises on its own."""


class Unfit(HansaError):
    """This environment can never train this run; trying again is of no use."""


class AgentGone(HansaError):
    """The agent closed the connection: it ended, or gave this process up."""


class NonFinite(HansaError):
    """A NaN or an infinity, by the tensor's name."""


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _tell_agent(why: str) -> None:
    """The exit status of a rank gets lost in its launcher; the socket does not."""
    path = os.environ.get("HANSA_AGENT_SOCKET")
    if not path or not _is_first():
        return
    # It is gone, or has refused this trainer itself: then it knows.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.connect(path)
        agent.sendall(json.dumps({"unfit": why}).encode() + b"\n")


@contextmanager
def exit_status() -> Iterator[None]:
    """Turns errors into the exit status that the agent understands, and one line on stderr."""
    try:
        yield
    except Unfit as error:
        print(f"hansa: {error}", file=sys.stderr)
        if not _is_first():
            # The launcher ends all when one has ended: first rank 0 tells the agent.
            time.sleep(_FIRST_S)
        _tell_agent(str(error))
        sys.exit(UNFIT)
    except HansaError as error:
        print(f"hansa: {error}", file=sys.stderr)
        sys.exit(1)
