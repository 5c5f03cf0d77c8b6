"""How many complete rows a host may send: the share of operations that have them, so that the budget holds.

Shares are powers of two, and an operation is in a share by its lot (`lockstep.rings.sampling`), which all its ranks
know. So what a busy host keeps, every other one keeps too. Statistics and progress are always sent and go first.
"""

from dataclasses import dataclass, replace

from lockstep.clock import NS_PER_S
from lockstep.rings.sampling import WHOLE_SHARE

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
