"""The Python side of a Hansa replica.

``hansa agent -- torchrun train.py`` starts a training script; the script makes a ``Session`` and
trains what it is given. Everything about the run (leases, rounds, uploads) is the agent's.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hansa.corpus import Corpus
    from hansa.errors import AgentGone, HansaError, NonFinite, Unfit
    from hansa.session import Session, Step

__version__ = "0.1.0"
__all__ = ["AgentGone", "Corpus", "HansaError", "NonFinite", "Session", "Step", "Unfit"]

_MODULES = {"Corpus": "corpus", "Session": "session", "Step": "session"}


def __getattr__(name: str) -> Any:
    # Not before it is asked for: where torch is missing, or is another one, `hansa.torchtitan` says so.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
