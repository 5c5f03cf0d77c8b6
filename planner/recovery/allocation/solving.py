"""The exact optimum: a count of nodes for each job, so that the sum of gains is as high as can be.

    S(i, j) = max over k of S(i-1, j-k) + G(i, k)

is Unicron's dynamic programme (arXiv 2401.00134). Before it runs, choices that cannot be in any optimum are left out:
with a price p on a node, no plan is above U(p) = sum of max_k (G(i,k) - p k) + p n (weak duality), and a plan that
takes choice k of job i is below that by at least what k is short of the job's best at that price. With the best price
and a good plan at hand, the difference between bound and plan is small, and few choices are within it. The optimum is
exact in all cases; where nothing can be left out, the cost is that of the whole programme: choices times nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lockstep.errors import BadInput
from planner.recovery.allocation.rows import Menu, add_all, go_back

_ROUNDING = 1e-12  # of the sum of all gains: sums of floats are no exact numbers
_MOST_PRICES = 200  # tried; each cuts a line off a convex curve, and a dozen are usual


class Offer(Protocol):
    """What one job may choose from."""

    @property
    def counts(self) -> np.ndarray:
        """Return node counts, upwards, each once."""
        ...

    @property
    def gains(self) -> np.ndarray:
        """Return what is gained with each count."""
        ...


@dataclass(frozen=True)
class Solution:
    """The best choice of each job."""

    picks: np.ndarray  # index into the job's choices
    counts: np.ndarray  # nodes
    value: float  # sum of gains


def solve(offers: Sequence[Offer], capacity: int, prune: bool = True) -> Solution:
    """Return the best choice of each job with at most `capacity` nodes together; BadInput where there is none."""
    if not offers:
        return Solution(np.zeros(0, np.int64), np.zeros(0, np.int64), 0.0)
    table = Table(offers)
    needed = int(table.counts[table.starts].sum())
    if needed > capacity:
        raise BadInput(f"the jobs need at least {needed} nodes together, and {capacity} can be used")
    price, worst = table.find_price(capacity) if prune else (0.0, np.inf)
    losses = table.find_losses(price)
    left = np.flatnonzero(losses <= worst)
    cuts = np.searchsorted(left, table.starts)[1:]
    menus = list(map(Menu, np.split(table.counts[left], cuts), np.split(losses[left], cuts)))
    rows = add_all(menus, capacity, worst)
    unused = capacity - rows[-1].first - np.arange(len(rows[-1].loss))
    total = rows[-1].first + int(np.argmin(rows[-1].loss + price * unused))
    among_left = go_back(rows, menus, np.array([len(menus)]), np.array([total]))[0]
    return table.sum_up(left[np.concatenate([[0], cuts]) + among_left] - table.starts)


@dataclass(frozen=True)
class _Plan:
    """One choice of each job."""

    picks: np.ndarray  # index into the table
    gain: float
    nodes: int


class Table:
    """The choices of all jobs, one after the other."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        lengths = np.array([len(offer.counts) for offer in offers], np.int64)
        self.starts = np.cumsum(lengths) - lengths
        self.counts = np.concatenate([np.zeros(0, np.int64), *(offer.counts for offer in offers)])
        self.gains = np.concatenate([np.zeros(0), *(offer.gains for offer in offers)])
        self.job = np.repeat(np.arange(len(offers)), lengths)

    def sum_up(self, picks: np.ndarray) -> Solution:
        """Return the solution that one choice of each job makes."""
        at = self.starts + picks
        return Solution(picks, self.counts[at], float(self.gains[at].sum()))

    def find_losses(self, price: float) -> np.ndarray:
        """Return how far each choice is below the best of its job, at a price for each node."""
        net = self.gains - price * self.counts
        losses: np.ndarray = np.maximum.reduceat(net, self.starts)[self.job] - net
        return losses

    def find_price(self, capacity: int) -> tuple[float, float]:
        """Return the price with the lowest bound, and the most that any choice of an optimum loses at it."""
        price, fits = 0.0, self._best_at(0.0)
        if fits.nodes > capacity:
            price, fits = self._bracket(fits, capacity)
        best = self._best_at(price)
        bound = best.gain + price * (capacity - best.nodes)
        rounding = _ROUNDING * (float(np.abs(self.gains[best.picks]).sum()) + price * capacity)
        return price, max(bound - self._fill(fits, capacity), 0.0) + rounding

    def _bracket(self, over: _Plan, capacity: int) -> tuple[float, _Plan]:
        """Return the price at which demand falls to the capacity, and the plan there that fits.

        The bound is convex in the price and made of lines, one for each plan. The lines of a plan that is over the
        capacity and of one that is under it meet at the next price to try; when none is above them there, it is it.
        """
        under = self._best_at(np.inf)
        price = 0.0
        for _ in range(_MOST_PRICES):
            price = (over.gain - under.gain) / (over.nodes - under.nodes)
            best = self._best_at(price)
            if best.nodes in (over.nodes, under.nodes):
                break
            over, under = (best, under) if best.nodes > capacity else (over, best)
        return price, under

    def _best_at(self, price: float) -> _Plan:
        """Return the best choice of each job at a price; of equal ones, that with the fewest nodes."""
        if price == np.inf:
            return self._plan(self.starts)
        best = np.flatnonzero(self.find_losses(price) == 0.0)
        jobs = self.job[best]
        is_first = np.concatenate([[True], jobs[1:] != jobs[:-1]])
        return self._plan(best[is_first])

    def _plan(self, picks: np.ndarray) -> _Plan:
        return _Plan(picks, float(self.gains[picks].sum()), int(self.counts[picks].sum()))

    def _fill(self, plan: _Plan, capacity: int) -> float:
        """Return what a plan gains when the nodes it leaves are given away, the largest gain first."""
        picks, rest = plan.picks.copy(), capacity - plan.nodes
        for _ in range(len(picks)):
            more = self.counts - self.counts[picks][self.job]
            extra = np.where(more <= rest, self.gains - self.gains[picks][self.job], 0.0)
            best = int(np.argmax(extra))
            if extra[best] <= 0:
                break
            rest -= int(more[best])
            picks[self.job[best]] = best
        return float(self.gains[picks].sum())
