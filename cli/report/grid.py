"""The delay matrix as a picture of limited size: senders down, receivers across, neighbours in one cell when many."""

from dataclasses import dataclass

import numpy as np

from analyzer.wires.matrix import DelayMatrix

LEVELS = (1.15, 1.5, 2.5)  # times the normal delay, from which a cell is drawn darker


@dataclass(frozen=True)
class Grid:
    """Delay over normal delay, the worst of each cell; not a number where nothing was compared."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    ratio: np.ndarray
    hot: np.ndarray
    ends_per_cell: int
    wires: int  # that were compared
    hottest: "Hottest | None"


@dataclass(frozen=True)
class Hottest:
    """The slowest wire of those that are slow, and the cell it is in."""

    row: int
    column: int
    source: str
    target: str
    ratio: float


def build_grid(matrix: DelayMatrix | None, largest: int) -> Grid | None:
    """Return the picture of a matrix, at most so many cells wide and high; None when there is nothing to show."""
    if matrix is None or not matrix.wires:
        return None
    sources = _ends([str(wire.src) for wire in matrix.wires])
    targets = _ends([str(wire.dst) for wire in matrix.wires])
    bin_size = -(-max(len(sources), len(targets)) // largest)
    row = np.array([sources[str(wire.src)] // bin_size for wire in matrix.wires])
    column = np.array([targets[str(wire.dst)] // bin_size for wire in matrix.wires])
    rows, columns = _labels(sources, bin_size), _labels(targets, bin_size)
    worst = np.full((len(rows), len(columns)), -np.inf)
    hot = np.zeros(worst.shape, bool)
    known = np.isfinite(matrix.ratio)
    np.maximum.at(worst, (row[known], column[known]), matrix.ratio[known])
    np.logical_or.at(hot, (row, column), matrix.hot)
    ratio = np.where(np.isfinite(worst), worst, np.nan)
    hottest = _hottest(matrix, row, column)
    return Grid(rows, columns, ratio, hot & np.isfinite(ratio), bin_size, len(matrix.wires), hottest)


def level(ratio: float) -> int:
    """Return how dark a cell is, 1 to 4; 0 when it is empty."""
    return 0 if np.isnan(ratio) else 1 + sum(ratio >= limit for limit in LEVELS)


def _hottest(matrix: DelayMatrix, row: np.ndarray, column: np.ndarray) -> Hottest | None:
    slow = np.where(matrix.hot & np.isfinite(matrix.ratio), matrix.ratio, -np.inf)
    place = int(np.argmax(slow))
    if not np.isfinite(slow[place]):
        return None
    wire = matrix.wires[place]
    return Hottest(int(row[place]), int(column[place]), str(wire.src), str(wire.dst), float(slow[place]))


def _ends(names: list[str]) -> dict[str, int]:
    """Return the place of each end; names that end in a number are in the order of the number."""
    return {name: place for place, name in enumerate(sorted(set(names), key=_in_order))}


def _in_order(name: str) -> tuple[tuple[int, str], ...]:
    """Return what orders h2 before h10."""
    parts, digits = [], ""
    for letter in name + "/":
        if letter.isascii() and letter.isdigit():
            digits += letter
            continue
        if digits:
            parts.append((int(digits), ""))
            digits = ""
        parts.append((-1, letter))
    return tuple(parts)


def _labels(ends: dict[str, int], bin_size: int) -> tuple[str, ...]:
    names = list(ends)
    groups = [names[first : first + bin_size] for first in range(0, len(names), bin_size)]
    return tuple(group[0] if len(group) == 1 else f"{group[0]} … {group[-1]}" for group in groups)
