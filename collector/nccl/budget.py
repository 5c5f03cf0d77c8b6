"""How many complete rows a host may send: the share of operations that have them, so that the budget holds.

Shares are powers of two, and an operation is in a share by its lot (`collector.nccl.budget`), which all its ranks
know. So what a busy host keeps, every other one keeps too. Statistics and progress are always sent and go first.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from collector.nccl.arrays import Array
from lockstep import wire
from lockstep.clock import NS_PER_S

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


SMALLEST_SHARE = 1  # of 65,536
_BURST_S = 3.0  # what was not used for so long may be used at once: jobs do not work evenly
_RAISE_AFTER_NS = 10 * NS_PER_S  # a larger share must have fitted for so long: a share that jumps helps nobody
# What a row takes in a batch: a second of 8 ranks, 1,245 rows of six tables, took 31 KB (2026-11). One figure for all
# tables keeps the sum simple.
ROW_BYTES = 25


@dataclass(frozen=True)
class Budget:
    """What may be sent in a second."""

    rows: int = 1_500  # the host's 2,000, less what other sources need
    bytes: int = 75_000  # of the host's 100 KB

    @property
    def rows_per_s(self) -> float:
        """The tighter of both, in rows."""
        return min(self.rows, self.bytes / ROW_BYTES)


@dataclass(frozen=True)
class Allowance:
    """The share in force, and what is left to be sent."""

    budget: Budget
    share: int = WHOLE_SHARE
    rows: float = 0.0  # may be sent now; negative: too much was sent
    at_ns: int | None = None
    fits_since_ns: int | None = None  # since when the next larger share would do as well


def grant(before: Allowance, now_ns: int, complete_rows: int) -> Allowance:
    """Return the allowance for a reading that would make so many complete rows if all were kept.

    >>> grant(Allowance(Budget(rows=100)), 0, 150).share, grant(Allowance(Budget(rows=100)), 0, 1_300).share
    (65536, 8192)
    """
    full = before.budget.rows_per_s * _BURST_S
    passed_s = _BURST_S if before.at_ns is None else max(now_ns - before.at_ns, 0) / NS_PER_S
    rows = min(before.rows + passed_s * before.budget.rows_per_s, full)
    # A burst may be used up, but what comes again and again must fit into the part of the time that it is of.
    part = before.budget.rows_per_s * max(passed_s, 1.0)
    affordable = rows if before.at_ns is None else max(min(rows, part), 0.0)
    fitting = largest_share(complete_rows, affordable)
    now = replace(before, rows=rows, at_ns=now_ns)
    if fitting <= before.share:
        return replace(now, share=fitting, fits_since_ns=None)
    since_ns = now_ns if before.fits_since_ns is None else before.fits_since_ns
    if now_ns - since_ns < _RAISE_AFTER_NS:
        return replace(now, fits_since_ns=since_ns)
    return replace(now, share=before.share * 2, fits_since_ns=None)


def spend(before: Allowance, rows: int) -> Allowance:
    """Return what is left after so many rows were sent, of whatever kind."""
    return replace(before, rows=before.rows - rows)


def largest_share(complete_rows: int, affordable: float) -> int:
    """Return the largest power of two of which the rows are expected to fit."""
    share = WHOLE_SHARE
    while share > SMALLEST_SHARE and complete_rows * share / WHOLE_SHARE > affordable:
        share //= 2
    return share


ENOUGH_PER_S = 2.0  # operations of a rank by steps: over the 30 s that pairs are judged by, enough for an interval


def sampled_share(before: int, per_s: float, usual: int) -> int:
    """Return of how many operations steps shall be recorded, so that a rank with few of them is not unseen.

    A power of two or the usual share, kept while it gives enough and not four times that: so ranks of a job agree.

    >>> sampled_share(655, 28.0, 655), sampled_share(8192, 11.0, 655), sampled_share(16384, 12.0, 655)
    (8192, 16384, 16384)
    >>> sampled_share(655, 0.0, 655), sampled_share(655, 800.0, 655), sampled_share(8192, 800.0, 655)
    (655, 655, 655)
    """
    if per_s <= 0:
        return before  # nothing moves: that is another question, and what comes next is unknown
    wanted = ENOUGH_PER_S / per_s * WHOLE_SHARE
    if usual < before and wanted <= before < 4 * wanted:
        return before
    return max(usual, largest_share(1, min(2 * wanted / WHOLE_SHARE, 1.0)) if wanted > usual else usual)


PERIOD_S = 2.0  # most of a reading's cost is the same for a little and for much
CROWDED_S = 1.0  # while a ring would be more than half full after PERIOD_S: what is overwritten is lost
URGENT_S = 0.1  # while something has just become overdue


def will_crowd(filled: Iterable[float], elapsed_ns: int) -> bool:
    """Return whether a ring would be half full after PERIOD_S, if it went on as since the last reading.

    `filled` has the part of each file's fullest ring that has been written since then.

    >>> will_crowd([0.1, 0.3], NS_PER_S), will_crowd([0.1, 0.3], 2 * NS_PER_S), will_crowd([], NS_PER_S)
    (True, False, False)
    """
    return max(filled, default=0.0) * PERIOD_S * NS_PER_S > 0.5 * max(elapsed_ns, 1)
