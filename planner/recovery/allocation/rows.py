"""Rows of the dynamic programme: the least that must be forgone so that some jobs hold exactly j nodes together.

A menu is what one job may choose from: node counts, and for each what is forgone against the job's best. Adding a
job to a row is a (min,+) convolution of the two; only the stretch of counts that can be reached is kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

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
        places = counts - self.first
        is_inside = (places >= 0) & (places < len(self.loss))
        return np.where(is_inside, self.loss[np.clip(places, 0, len(self.loss) - 1)], np.inf)

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


def cut_to_fit(table: np.ndarray, places: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the rows at these places in parts that stay in the cache of a core; neighbours are not copied."""
    height = max(_CACHED // table.shape[1], 1)
    for at in range(0, len(places), height):
        part = slice(at, at + height)
        here = places[part]
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
