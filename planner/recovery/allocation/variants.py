"""The optimum of many variants of one problem at once: one job left out, added or changed, some nodes more or less.

Rows are added up from the front and from the back. A variant that touches job i is then the row of the jobs before i,
the row of those after i, and the choices of i: for each choice one pass over the nodes, and nothing is solved anew.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from planner.recovery.allocation.rows import Menu, Row, add_all, cut_to_fit, go_back
from planner.recovery.allocation.solving import Offer, Solution, Table


class Variant(NamedTuple):
    """How a problem differs from the one that is at hand."""

    capacity: int
    job: int | None = None  # index of the job that is another; None: all are as they are
    instead: Offer | None = None  # what stands for that job; None: it is gone. Without a job: one that is added


class _Meeting(NamedTuple):
    """Where the jobs before, the jobs after and the choice of the one between meet."""

    pick: int
    before: int  # nodes
    after: int  # nodes


_GONE = Menu(np.zeros(1, np.int64), np.zeros(1))


def solve_variants(offers: Sequence[Offer], variants: Sequence[Variant]) -> list[Solution | None]:
    """Return the optimum of each variant; None where its jobs must have more nodes than there are.

    Cost: twice the whole programme for the rows, and for each variant its choices times the nodes.
    """
    capacity = max((variant.capacity for variant in variants), default=0)
    menus = [_menu(offer) for offer in offers]
    front = add_all(menus, capacity, to_the_end=False)
    back = add_all(menus[::-1], capacity, to_the_end=False)
    ends = [(len(menus), 0) if one.job is None else (one.job, len(menus) - one.job - 1) for one in variants]
    met = [
        _meet(front[first], back[last], _menu(one.instead) if one.instead else _GONE, one.capacity)
        for one, (first, last) in zip(variants, ends, strict=True)
    ]
    jobs = np.array([end for end, one in zip(ends, met, strict=True) if one], np.int64).reshape(-1, 2)
    totals = np.array([(one.before, one.after) for one in met if one], np.int64).reshape(-1, 2)
    picks = go_back(front, menus, jobs[:, 0], totals[:, 0])
    picks += go_back(back, menus[::-1], jobs[:, 1], totals[:, 1])[:, ::-1]
    table, of_solved = Table(offers), iter(picks)
    return [
        _put_together(table, one, next(of_solved), meeting.pick) if meeting else None
        for one, meeting in zip(variants, met, strict=True)
    ]


def _menu(offer: Offer) -> Menu:
    return Menu(offer.counts, offer.gains.max() - offer.gains)


def _meet(front: Row, back: Row, between: Menu, capacity: int) -> _Meeting | None:
    """Return the best way to share the nodes among those before, one between and those after; None: there is none."""
    behind = back.at_most(capacity)
    losses = _find_least(front, behind, capacity - between.counts) + between.losses
    pick = int(np.argmin(losses))
    if losses[pick] == np.inf:
        return None
    rest = capacity - int(between.counts[pick])
    fits = front.loss[: rest - front.first + 1]
    before = front.first + int(np.argmin(fits + behind[rest - front.first - np.arange(len(fits))]))
    after = back.first + int(np.argmin(back.loss[: rest - before - back.first + 1]))
    return _Meeting(pick, before, after)


def _find_least(front: Row, behind: np.ndarray, rests: np.ndarray) -> np.ndarray:
    """Return the least loss of those in front and those behind when they share each of these numbers of nodes."""
    width = len(front.loss)
    if not width:
        return np.full(len(rests), np.inf)
    backwards = np.concatenate([behind[::-1], np.full(width, np.inf)])  # below no nodes there is nothing
    shifted = sliding_window_view(backwards, width)
    starts = np.minimum(len(behind) - 1 - (rests - front.first), len(behind))
    return np.concatenate([(rows + front.loss).min(axis=1) for _, rows in cut_to_fit(shifted, starts)])


def _put_together(table: Table, variant: Variant, picks: np.ndarray, between: int) -> Solution:
    """Return the solution of a variant from the choices of the jobs that stayed, and that of the one between."""
    stayed = table.sum_up(picks)
    at = len(picks) if variant.job is None else variant.job
    known, counts, gain = picks, stayed.counts, stayed.value
    if variant.job is not None:
        gain -= float(table.gains[table.starts[at] + picks[at]])
        known, counts = np.delete(known, at), np.delete(counts, at)
    if variant.instead is None:
        return Solution(known, counts, gain)
    count, more = variant.instead.counts[between], float(variant.instead.gains[between])
    return Solution(np.insert(known, at, between), np.insert(counts, at, count), gain + more)
