"""The Python side of a Hansa replica.

``hansa agent -- torchrun train.py`` starts a training script; the script makes a ``Session`` and
trains what it is given. Everything about the run (leases, rounds, uploads) is the agent's.
"""

from hansa.corpus import Corpus
from hansa.errors import AgentGone, HansaError, NonFinite, Unfit
from hansa.session import Session, Step

__version__ = "0.1.0"
__all__ = ["AgentGone", "Corpus", "HansaError", "NonFinite", "Session", "Step", "Unfit"]
