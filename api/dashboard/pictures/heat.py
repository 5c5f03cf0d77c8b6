"""A small delay matrix: senders down, receivers across, neighbours in one cell when there are many."""

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from api.reading.matrix import Matrix

LEVELS = (1.15, 1.5, 2.5)  # times the usual delay, from which a cell is drawn darker
_MOST = 48  # cells each way: more are too small to point at
_WIDE = 420.0
_HEAT = Markup(
    '<svg viewBox="0 0 {:g} {:g}" width="{:g}" role="img" aria-label="delay matrix of {} ranks, {} in a cell; '
    'the slowest pairs are in the table"><rect class="heat-0" width="{:g}" height="{:g}"/>{}</svg>'
)
_CELL = Markup(
    '<rect class="heat-{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}">'
    "<title>{} to {}: {:.2f} times the usual delay</title></rect>"
)


@dataclass(frozen=True, slots=True)
class Slow:
    """A cell of the matrix, told by name."""

    source: str
    target: str
    ms: float
    ratio: float  # over the usual delay


def level_of(ratio: float) -> int:
    """Return how dark a cell is, 1 to 4.

    >>> level_of(1.0), level_of(9.0)
    (1, 4)
    """
    return 1 + sum(ratio >= limit for limit in LEVELS)


def find_slowest(matrix: Matrix, most: int) -> list[Slow]:
    """Return the slowest cells by name, the slowest first: the matrix for whoever cannot see a picture."""
    if not matrix.usual_ms:
        return []
    order = np.argsort(-np.asarray(matrix.cells.ms), kind="stable")[:most]
    return [
        Slow(
            _name(matrix, matrix.cells.src[at]),
            _name(matrix, matrix.cells.dst[at]),
            matrix.cells.ms[at],
            matrix.cells.ms[at] / matrix.usual_ms,
        )
        for at in order.tolist()
    ]


def draw_heat(matrix: Matrix) -> Markup:
    """Return an SVG of the matrix, at most 48 cells each way; a cell shows the worst of those that share it."""
    if not matrix.usual_ms:
        return Markup("")
    bin_size = -(-len(matrix.ranks) // _MOST)
    count = -(-len(matrix.ranks) // bin_size)
    worst = np.zeros((count, count))
    src, dst = (np.asarray(column) // bin_size for column in (matrix.cells.src, matrix.cells.dst))
    np.maximum.at(worst, (src, dst), np.asarray(matrix.cells.ms) / matrix.usual_ms)
    side = _WIDE / count
    inner = max(side - 0.5, 1)  # of a cell, with a gap around it
    cells = [
        _CELL.format(
            level_of(worst[row, column]),
            column * side,
            row * side,
            inner,
            inner,
            _label(matrix, row, bin_size),
            _label(matrix, column, bin_size),
            worst[row, column],
        )
        for row, column in np.argwhere(worst > 0).tolist()
    ]
    return _HEAT.format(_WIDE, _WIDE, _WIDE, len(matrix.ranks), bin_size, _WIDE, _WIDE, Markup("").join(cells))


def _name(matrix: Matrix, place: int) -> str:
    seat = matrix.ranks[place]
    gpu = "" if seat.gpu is None else f"/{seat.gpu}"
    return f"rank {seat.rank} ({seat.host}{gpu})"


def _label(matrix: Matrix, bin_number: int, bin_size: int) -> str:
    first, last = bin_number * bin_size, min((bin_number + 1) * bin_size, len(matrix.ranks)) - 1
    name = _name(matrix, first)
    return name if first == last else f"{name} to {_name(matrix, last)}"
