"""Which operations are kept when not all can be: a pure function of what all their ranks know.

It is the plugin's own function (operations.c), so that an operation whose steps were recorded is among the first to
be kept, and every rank and host keeps the same ones. Shares are nested: what a small share keeps, a larger one keeps.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep import wire

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field

WHOLE_SHARE = 65_536

_PARTIES, _SEQ = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)


def lot_of(operations: Array) -> Array:
    """Return a number from 0 to 65,535 for each operation (`comm`, `func`, `rank`, `peer`, `seq`)."""
    with np.errstate(over="ignore"):
        number: Array = operations["comm"] + _parties_of(operations) * _PARTIES + operations["seq"] * _SEQ
        number = (number ^ number >> _HALF) * _FIRST
        number = (number ^ number >> np.uint64(29)) * _SECOND
    lots: Array = (number ^ number >> _HALF) >> np.uint64(48)
    return lots


def _parties_of(operations: Array) -> Array:
    """Return who takes part, as all of them know it: a function, or the two ends of a send."""
    func = operations["func"]
    rank = operations["rank"].astype(np.uint64)
    peer = operations["peer"].astype(np.uint32).astype(np.uint64)
    sent, received = rank << _HALF | peer, peer << _HALF | rank
    parties: Array = np.select([func == wire.SEND, func == wire.RECV], [sent, received], func.astype(np.uint64))
    return parties
