"""A picture of link loads as SVG: a square per pair of switches, upwards above, downwards below, before and after."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np

from lockstep.topology import split_end
from planner.paths.network import Network
from planner.paths.roads import find_use

_WIDTH = 560  # of one picture, in the unit of the SVG
_LARGEST, _SMALLEST = 22.0, 2.0  # side of a square: readable, and still to be seen
_LABELS = 10.0  # side from which there is room for names
# Up to its rate a link is well used, and blue; beyond it flows wait for each other.
_COLOURS = (
    (0.0, (237, 242, 247)),
    (0.5, (158, 202, 225)),
    (1.0, (49, 130, 189)),
    (1.5, (250, 176, 84)),
    (2.0, (190, 30, 45)),
)


@dataclass(frozen=True)
class _Grid:
    """Links between two tiers: lower switches as rows, higher ones as columns."""

    rows: list[str]
    columns: list[str]
    lanes: dict[tuple[int, int], list[int]]  # by row and column, those that go up

    @property
    def side(self) -> float:
        return min(_LARGEST, max(_SMALLEST, (_WIDTH - 70) / max(len(self.columns), 1)))


def draw_loads(network: Network, loads: Mapping[str, np.ndarray], title: str) -> str:
    """Return an SVG with one column of grids per named load; colour is the use of a link, over its rate."""
    grids = _find_grids(network)
    uses = {name: find_use(network, load) for name, load in loads.items()}
    height = 70 + sum(len(grid.rows) * grid.side + 46 for grid in grids)
    width = _WIDTH * len(uses) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" font-size="11">',
        f'<rect width="{width}" height="{height:.0f}" fill="white"/>',
        '<g font-family="sans-serif">',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
        *_draw_scale(width),
    ]
    for place, (name, use) in enumerate(uses.items()):
        parts += _draw_column(network, grids, use, name, 10 + place * _WIDTH)
    return "\n".join([*parts, "</g></svg>", ""])


def _find_grids(network: Network) -> list[_Grid]:
    """Return a grid per step of the climbs: leaf to spine, spine to core."""
    grids = []
    for climbs in network.climbs:
        step = climbs.lanes.shape[2] - 1
        lanes = np.unique(climbs.lanes[:, :, step][climbs.exists])
        ends = [[split_end(end)[0] for end in network.name_lane(lane).split(" -> ")] for lane in lanes.tolist()]
        rows, columns = (list(dict.fromkeys(end[side] for end in ends)) for side in (0, 1))
        cells: dict[tuple[int, int], list[int]] = {}
        for (low, high), lane in zip(ends, lanes.tolist(), strict=True):
            cells.setdefault((rows.index(low), columns.index(high)), []).append(lane)
        grids.append(_Grid(rows, columns, cells))
    return grids


def _draw_column(network: Network, grids: Sequence[_Grid], use: np.ndarray, name: str, left: float) -> Iterator[str]:
    highest = float(use[network.fabric].max(initial=0.0))
    yield f'<text x="{left}" y="44">{escape(name)}: fullest link {highest:.0%}</text>'
    top = 60.0
    for grid in grids:
        said = f"{len(grid.rows)} switches below, {len(grid.columns)} above"
        yield f'<text x="{left}" y="{top + 8}" fill="#555">{said}</text>'
        yield from _draw_grid(network, grid, use, left, top + 16)
        top += len(grid.rows) * grid.side + 46


def _draw_grid(network: Network, grid: _Grid, use: np.ndarray, left: float, top: float) -> Iterator[str]:
    side, margin = grid.side, 62.0
    if side >= _LABELS:
        for row, name in enumerate(grid.rows):
            yield f'<text x="{left}" y="{top + (row + 0.7) * side:.1f}" font-size="9">{escape(name)}</text>'
    for (row, column), lanes in grid.lanes.items():
        x, y = left + margin + column * side, top + row * side
        up, down = (max(float(use[lane ^ turn]) for lane in lanes) for turn in (0, 1))
        is_dead = any(network.gbps[lane] <= 0 for lane in lanes)
        said = f"{grid.rows[row]} - {grid.columns[column]}: up {up:.0%}, down {down:.0%}" + (
            ", dead" if is_dead else ""
        )
        half = (side - 1) / 2
        yield f"<g><title>{escape(said)}</title>"
        for turn, value in enumerate((up, down)):
            fill = "#333" if is_dead else _colour(value)
            place = f'x="{x:.1f}" y="{y + turn * half:.1f}" width="{side - 1:.1f}" height="{half:.1f}"'
            yield f'<rect {place} fill="{fill}"/>'
        yield "</g>"


def _draw_scale(width: float) -> Iterator[str]:
    for place, (use, _) in enumerate(_COLOURS):
        x = width - 310 + 60 * place
        yield f'<rect x="{x}" y="10" width="14" height="14" fill="{_colour(use)}"/>'
        yield f'<text x="{x + 18}" y="21">{use:.0%}</text>'


def _colour(use: float) -> str:
    """Return the colour of a use, between those of the scale; everything beyond it is the last.

    >>> _colour(0.0), _colour(9.0)
    ('#edf2f7', '#be1e2d')
    """
    places, colours = [place for place, _ in _COLOURS], np.array([colour for _, colour in _COLOURS])
    red, green, blue = (round(float(np.interp(min(use, 99.0), places, colours[:, part]))) for part in range(3))
    return f"#{red:02x}{green:02x}{blue:02x}"
