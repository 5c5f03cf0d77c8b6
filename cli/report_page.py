"""A diagnosis as one HTML page that needs nothing else: no script, no request, readable in the dark."""

from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, select_autoescape

from cli.report import (
    NOTHING,
    Described,
    Grid,
    Span,
    StepTimes,
    build_grid,
    coverage_words,
    lasting_words,
    level,
    part_words,
    span_of,
)
from lockstep import __version__
from lockstep.clock import NS_PER_S, rfc3339
from lockstep.words import CLASSES, figure, headline, impact_words, lasting

_LARGEST = 64  # cells of the heat map each way: beyond, they are too small to point at
_CELL = 12  # pixels
_LETTER = 7  # pixels that a letter of a label takes at most
_WIDE, _HIGH = 900, 140  # of the timeline, in the units of its view box
_MARKS = 5  # moments named along the timeline
_POINTS = 2_000  # of the curve of step times; more are not seen on any screen

_pages = Environment(loader=PackageLoader("cli", ""), autoescape=select_autoescape(["html"]))
_pages.filters |= {
    "timestamp": rfc3339,
    "headline": headline,
    "part": part_words,
    "cost": impact_words,
    "lasting": lasting_words,
    "coverage": coverage_words,
}


@dataclass(frozen=True)
class Cell:
    """One square of the heat map."""

    x: int
    y: int
    level: int
    is_slow: bool
    title: str


@dataclass(frozen=True)
class Mark:
    """A moment named along the timeline."""

    x: float
    text: str


def render_page(described: Described, name: str) -> str:
    """Return the page as text; `name` says what was diagnosed."""
    span, grid = span_of(described), build_grid(described.matrix, _LARGEST)
    return _pages.get_template("page.html").render(
        name=name,
        nothing=NOTHING,
        classes=CLASSES,
        incidents=described.incidents,
        version=__version__,
        grid=grid,
        cells=_cells(grid) if grid else [],
        cell=_CELL,
        margin=_margin(grid) if grid else 0,
        wide=_WIDE,
        high=_HIGH,
        span=span,
        length=lasting(span.length_ns / NS_PER_S) if span else "",
        marks=_marks(span) if span else [],
        curve=_curve(described.step_times, span) if span else "",
        longest=figure(max((seconds for _, seconds in described.step_times), default=0.0)),
    )


def _margin(grid: Grid) -> int:
    """Return the room beside the heat map for the longer of the two names that stand there."""
    names = (grid.slowest.source, grid.slowest.target) if grid.slowest else ("",)
    return 20 + _LETTER * max(map(len, names))


def _cells(grid: Grid) -> list[Cell]:
    return [
        Cell(
            column * _CELL,
            row * _CELL,
            level(grid.ratio[row, column]),
            bool(grid.slow[row, column]),
            f"{grid.rows[row]} to {grid.columns[column]}: {grid.ratio[row, column]:.2f} times the normal delay",
        )
        for row in range(len(grid.rows))
        for column in range(len(grid.columns))
        if level(grid.ratio[row, column])
    ]


def _marks(span: Span) -> list[Mark]:
    timestamps = [span.begin_ns + span.length_ns * number // (_MARKS - 1) for number in range(_MARKS)]
    return [Mark(span.share(timestamp) * _WIDE, rfc3339(timestamp)[11:19]) for timestamp in timestamps]


def _curve(step_times: StepTimes, span: Span) -> str:
    """Return the points of the curve of step times, from zero at the bottom to the longest at the top."""
    every = -(-len(step_times) // _POINTS) or 1
    chosen = [
        max(step_times[first : first + every], key=lambda step: step[1]) for first in range(0, len(step_times), every)
    ]
    top = max((seconds for _, seconds in chosen), default=0.0) or 1.0
    points = ((span.share(timestamp) * _WIDE, _HIGH * (1 - seconds / top)) for timestamp, seconds in chosen)
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
