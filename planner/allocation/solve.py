"""The exact optimum: a count of nodes for each job, so that the sum of gains is as high as can be.

A menu is what one job may choose from: node counts, and for each what is forgone against the job's best. Adding a
job to a row is a (min,+) convolution of the two; only the stretch of counts that can be reached is kept.

    S(i, j) = max over k of S(i-1, j-k) + G(i, k)

is Unicron's dynamic programme (arXiv 2401.00134). Before it runs, choices that cannot be in any optimum are left out:
with a price p on a node, no plan is above U(p) = sum of max_k (G(i,k) - p k) + p n (weak duality), and a plan that
takes choice k of job i is below that by at least what k is short of the job's best at that price. With the best price
and a good plan at hand, the difference between bound and plan is small, and few choices are within it. The optimum is
exact in all cases; where nothing can be left out, the cost is that of the whole programme: choices times nodes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lockstep.errors import BadInput

_CACHED = 32_768  # numbers: 256 KiB, half of the second-level cache of a common core


@dataclass(frozen=True)
class Menu:
    """What one job may choose from."""

    counts: np.ndarray  # nodes, upwards, each once
    losses: np.ndarray  # of each count, against the best of them


@dataclass(frozen=True)
class Row:
    """The least loss with exactly `first`, `first` + 1, … nodes; inf where no choice sums up to that."""

    first: int
    loss: np.ndarray

    @property
    def last(self) -> int:
        """Return the most nodes that are in the row."""
        return self.first + len(self.loss) - 1

    def at(self, counts: np.ndarray) -> np.ndarray:
        """Return the losses with these counts, inf outside of the row."""
        if not len(self.loss):
            return np.full(counts.shape, np.inf)
        indices = counts - self.first
        is_inside = (indices >= 0) & (indices < len(self.loss))
        return np.where(is_inside, self.loss[np.clip(indices, 0, len(self.loss) - 1)], np.inf)

    def at_most(self, capacity: int) -> np.ndarray:
        """Return the least loss with 0, 1, … capacity nodes or fewer."""
        whole = np.full(capacity + 1, np.inf)
        fits = self.loss[: max(capacity + 1 - self.first, 0)]
        whole[self.first : self.first + len(fits)] = fits
        return np.minimum.accumulate(whole)


NOBODY = Row(0, np.zeros(1))


def add_job(row: Row, menu: Menu, most: int, worst: float = np.inf) -> Row:
    """Return the row with one more job, up to `most` nodes, without the ends where the loss is above `worst`.

    Cost: the choices of the job times the length of the row.
    """
    first, step = row.first + int(menu.counts[0]), int(menu.counts[-1] - menu.counts[0])
    width = min(len(row.loss) + step, most - first + 1)
    if width <= 0:
        return Row(first, np.zeros(0))
    if not step:
        return _trim(Row(first, row.loss[:width] + menu.losses[0]), worst)
    padded = np.full(step + width, np.inf)
    padded[step : step + len(row.loss)] = row.loss[:width]
    shifted = sliding_window_view(padded, width)  # row s is the old row, moved up by step - s nodes
    starts, loss = step - (menu.counts - menu.counts[0]), np.full(width, np.inf)
    for part, rows in cut_to_fit(shifted, starts):
        np.minimum(loss, (rows + menu.losses[part, None]).min(axis=0), out=loss)
    return _trim(Row(first, loss), worst)


def cut_to_fit(table: np.ndarray, indices: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the rows at these places in parts that stay in the cache of a core; neighbours are not copied."""
    height = max(_CACHED // table.shape[1], 1)
    for at in range(0, len(indices), height):
        part = slice(at, at + height)
        here = indices[part]
        low, high = int(here.min()), int(here.max())
        is_run = high - low == len(here) - 1 and bool((np.diff(here) == np.sign(here[-1] - here[0])).all())
        if not is_run:
            yield part, table[here]
        else:
            yield part, table[low : high + 1] if here[0] == low else table[low : high + 1][::-1]


def add_all(menus: Sequence[Menu], capacity: int, worst: float = np.inf, to_the_end: bool = True) -> list[Row]:
    """Return the rows of nobody, of the first job, of the first two, and so on to all of them.

    `to_the_end` says that only the last row is asked for, so that each may leave room for the jobs after it.
    """
    later = np.cumsum([0, *(int(menu.counts[0]) for menu in reversed(menus))])[::-1] * to_the_end
    rows = [NOBODY]
    for menu, needed in zip(menus, later[1:].tolist(), strict=True):
        rows.append(add_job(rows[-1], menu, capacity - needed, worst))
    return rows


def go_back(rows: Sequence[Row], menus: Sequence[Menu], jobs: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return the choice of each job (columns) behind each total of nodes of the first so many `jobs` (rows).

    Jobs that are not among the first have choice 0.
    """
    left = total.copy()
    picks = np.zeros((len(left), len(menus)), np.int64)
    for at in range(len(menus) - 1, -1, -1):
        menu, asked = menus[at], np.flatnonzero(jobs > at)
        if len(menu.counts) == 1:
            left[asked] -= menu.counts[0]
            continue
        totals, which = np.unique(left[asked], return_inverse=True)  # who stands at the same total goes on together
        best = np.argmin(rows[at].at(totals[:, None] - menu.counts) + menu.losses, axis=1)[which]
        picks[asked, at] = best
        left[asked] -= menu.counts[best]
    return picks


def _trim(row: Row, worst: float) -> Row:
    """Return a row without its ends above `worst`; one that is above it everywhere is empty."""
    alive = np.flatnonzero((row.loss <= worst) & (row.loss < np.inf))
    if not len(alive):
        return Row(row.first, np.zeros(0))
    return Row(row.first + int(alive[0]), row.loss[alive[0] : alive[-1] + 1])


_ROUNDING = 1e-12  # of the sum of all gains: sums of floats are no exact numbers
_MOST_PRICES = 200  # tried; each cuts a line off a convex curve, and a dozen are usual


class Offer(Protocol):
    """What one job may choose from."""

    @property
    def counts(self) -> np.ndarray:
        """Return node counts, upwards, each once."""
        ...

    @property
    def gains(self) -> np.ndarray: ...


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
