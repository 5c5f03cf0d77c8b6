"""A diagnosis as a report: what it is made of, on a terminal, and as one HTML page that needs nothing else."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jinja2 import Environment, PackageLoader, select_autoescape
from rich.console import Console, Group, RenderableType
from rich.table import Table as Picture
from rich.text import Text

from analyzer.delay_matrix.matrix import DelayMatrix
from lockstep import __version__
from lockstep.clock import NS_PER_S, rfc3339
from lockstep.verdict import Incident, Verdict
from lockstep.words import CLASSES, figure, headline, impact_words, lasting

StepTimes = Sequence[tuple[int, float]]  # moment in nanoseconds, seconds that the step took
NOTHING = "no verdict: nothing stands out in what was recorded, which is silence, not proof of health"
LEVELS = (1.15, 1.5, 2.5)  # times the normal delay, from which a cell is drawn darker
_SHADES = "·░▒▓█"  # nothing compared, normal, and the three levels above
_BARS = "▁▂▃▄▅▆▇█"
_LARGEST = 24  # cells each way: two columns a cell and a label fit into 80, and all of it onto a screen
_BARS_WIDE = 50
_CLEARED = 3  # parts that were ruled out; a report is read in ten seconds, --json has all
_LARGEST_ON_PAGE = 64  # cells of the heat map each way: beyond, they are too small to point at
_CELL = 12  # pixels
_LETTER = 7  # pixels that a letter of a label takes at most
_WIDE, _HIGH = 900, 140  # of the timeline, in the units of its view box
_MARKS = 5  # moments named along the timeline
_POINTS = 2_000  # of the curve of step times; more are not seen on any screen

_pages = Environment(loader=PackageLoader("cli", ""), autoescape=select_autoescape(["html"]))


class Described(Protocol):
    """All that is known of what happened; the analyzer's description fits."""

    @property
    def incidents(self) -> Sequence[Incident]: ...

    @property
    def matrix(self) -> DelayMatrix | None: ...

    @property
    def step_times(self) -> StepTimes: ...


@dataclass(frozen=True)
class OnlyIncidents:
    """What a running Lockstep tells: incidents, without the data they were found in."""

    incidents: Sequence[Incident]
    matrix: DelayMatrix | None = None
    step_times: StepTimes = ()


@dataclass(frozen=True)
class Span:
    """From when to when a report tells."""

    begin_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return max(self.end_ns - self.begin_ns, 1)

    def share(self, timestamp_ns: int) -> float:
        """Return where a moment lies, 0 at the beginning and 1 at the end."""
        return min(max((timestamp_ns - self.begin_ns) / self.length_ns, 0.0), 1.0)


def span_of(described: Described) -> Span | None:
    """Return the stretch of time that incidents and steps cover; None when there are neither."""
    timestamps = [timestamp for timestamp, _ in described.step_times]
    for incident in described.incidents:
        timestamps += [incident.verdict.since_ns, incident.verdict.last_seen_ns]
    return Span(min(timestamps), max(timestamps)) if timestamps else None


def part_words(verdict: Verdict) -> str:
    """Return the part with the direction at fault."""
    return f"{verdict.component} {verdict.side}" if verdict.side else verdict.component


def lasting_words(incident: Incident) -> str:
    """Return how long a fault was seen, and how often it came back."""
    verdict = incident.verdict
    length_ns = verdict.last_seen_ns - verdict.since_ns
    duration = lasting(length_ns / NS_PER_S if length_ns > 1 else None)  # a dump knows one moment
    return f"{duration}, came back {incident.flaps} times" if incident.flaps else duration


def coverage_words(verdict: Verdict) -> str:
    """Return what share of the job was seen, where it was not all of it."""
    unseen = 1 - verdict.coverage
    return "" if unseen < 0.005 else f"{100 * unseen:.0f} % of the job's hosts sent no telemetry"


@dataclass(frozen=True)
class Grid:
    """Delay over normal delay, the worst of each cell; not a number where nothing was compared."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    ratio: np.ndarray
    slow: np.ndarray
    ends_per_cell: int
    pairs: int  # that were compared
    slowest: "SlowestPair | None"


@dataclass(frozen=True)
class SlowestPair:
    """The slowest wire of those that are slow, and the cell it is in."""

    row: int
    column: int
    source: str
    target: str
    ratio: float


def build_grid(matrix: DelayMatrix | None, largest: int) -> Grid | None:
    """Return the picture of a matrix, at most so many cells wide and high; None when there is nothing to show."""
    if matrix is None or not matrix.pairs:
        return None
    sources = _ends([str(wire.src) for wire in matrix.pairs])
    targets = _ends([str(wire.dst) for wire in matrix.pairs])
    bin_size = -(-max(len(sources), len(targets)) // largest)
    row = np.array([sources[str(wire.src)] // bin_size for wire in matrix.pairs])
    column = np.array([targets[str(wire.dst)] // bin_size for wire in matrix.pairs])
    rows, columns = _labels(sources, bin_size), _labels(targets, bin_size)
    worst = np.full((len(rows), len(columns)), -np.inf)
    slow = np.zeros(worst.shape, bool)
    known = np.isfinite(matrix.ratio)
    np.maximum.at(worst, (row[known], column[known]), matrix.ratio[known])
    np.logical_or.at(slow, (row, column), matrix.slow)
    ratio = np.where(np.isfinite(worst), worst, np.nan)
    slowest = _find_slowest(matrix, row, column)
    return Grid(rows, columns, ratio, slow & np.isfinite(ratio), bin_size, len(matrix.pairs), slowest)


def level(ratio: float) -> int:
    """Return how dark a cell is, 1 to 4; 0 when it is empty."""
    return 0 if np.isnan(ratio) else 1 + sum(ratio >= limit for limit in LEVELS)


def print_report(console: Console, described: Described) -> None:
    """Print what happened, or that nothing stands out."""
    for part in _parts(described):
        console.print(part, highlight=False)


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


_pages.filters |= {
    "timestamp": rfc3339,
    "headline": headline,
    "part": part_words,
    "cost": impact_words,
    "lasting": lasting_words,
    "coverage": coverage_words,
}


def render_page(described: Described, name: str) -> str:
    """Return the page as text; `name` says what was diagnosed."""
    span, grid = span_of(described), build_grid(described.matrix, _LARGEST_ON_PAGE)
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


def _find_slowest(matrix: DelayMatrix, row: np.ndarray, column: np.ndarray) -> SlowestPair | None:
    slow = np.where(matrix.slow & np.isfinite(matrix.ratio), matrix.ratio, -np.inf)
    index = int(np.argmax(slow))
    if not np.isfinite(slow[index]):
        return None
    wire = matrix.pairs[index]
    return SlowestPair(int(row[index]), int(column[index]), str(wire.src), str(wire.dst), float(slow[index]))


def _ends(names: list[str]) -> dict[str, int]:
    """Return the index of each end; names that end in a number are in the order of the number."""
    return {name: index for index, name in enumerate(sorted(set(names), key=_in_order))}


def _in_order(name: str) -> list[tuple[int, str]]:
    """Return what orders h2 before h10."""
    return [(int(digits or -1), letter) for digits, letter in re.findall(r"([0-9]+)|(.)", name)]


def _labels(ends: dict[str, int], bin_size: int) -> tuple[str, ...]:
    names = list(ends)
    groups = [names[first : first + bin_size] for first in range(0, len(names), bin_size)]
    return tuple(group[0] if len(group) == 1 else f"{group[0]} … {group[-1]}" for group in groups)


def _parts(described: Described) -> Iterator[RenderableType]:
    if not described.incidents:
        yield NOTHING
    else:
        yield _table(described.incidents)
        for number, incident in enumerate(described.incidents, 1):
            yield _sentences(number, incident)
    grid = build_grid(described.matrix, _LARGEST)
    if grid:
        yield Group("", *_matrix(grid))
    if described.step_times:
        yield Group("", _steps(described.step_times))


def _table(incidents: Sequence[Incident]) -> Picture:
    picture = Picture("", "part", "fault", "sure", "grade", "since", "lasted", "cost", box=None, pad_edge=False)
    for number, incident in enumerate(incidents, 1):
        verdict = incident.verdict
        picture.add_row(
            str(number),
            Text(part_words(verdict), style="bold red" if verdict.grade == "isolate" else "bold"),
            verdict.fault_class,
            f"{100 * verdict.confidence:.0f} %",
            verdict.grade,
            rfc3339(verdict.since_ns),
            lasting_words(incident),
            impact_words(verdict, is_over=incident.state == "closed"),
        )
    return picture


def _sentences(number: int, incident: Incident) -> Text:
    """Return one sentence that is grasped at once, and below it the reason and what limits it."""
    verdict = incident.verdict
    text = Text.assemble("\n", (f"{number} {headline(incident)}", "bold"), f"\n  {verdict.reason}")
    if verdict.ambiguous_with:
        text.append(f"\n  might as well be {', '.join(verdict.ambiguous_with)}")
    for cleared in verdict.ruled_out[:_CLEARED]:
        text.append(f"\n  not {cleared.component}: {cleared.because}", style="dim")
    if len(verdict.ruled_out) > _CLEARED:
        text.append(f"\n  and {len(verdict.ruled_out) - _CLEARED} others ruled out", style="dim")
    if coverage_words(verdict):
        text.append(f"\n  {coverage_words(verdict)}", style="yellow")
    return text


def _matrix(grid: Grid) -> Iterator[RenderableType]:
    binned = f", {grid.ends_per_cell} NICs a cell" if grid.ends_per_cell > 1 else ""
    yield Text(f"delay by sender (down) and receiver (across){binned}", style="bold")
    if grid.slowest is None:
        yield f"no wire stands out among {grid.pairs:,} that were compared"
        return
    slowest, wide = grid.slowest, max(map(len, grid.rows))
    yield Text(" " * (wide + 1 + 2 * slowest.column) + f"▼ {slowest.target}", style="red")
    for number, name in enumerate(grid.rows):
        line = Text(name.rjust(wide) + " ", style="bold red" if number == slowest.row else "dim")
        for ratio, is_slow in zip(grid.ratio[number], grid.slow[number], strict=True):
            line.append(_SHADES[level(ratio)] * 2, style="red" if is_slow else "dim" if level(ratio) < 2 else "")
        if number == slowest.row:
            line.append(f" ◀ {slowest.source}: {slowest.ratio:.1f} times the normal delay", style="red")
        yield line
    limits = (f"{_SHADES[2 + index]} {limit:g} times normal and more" for index, limit in enumerate(LEVELS))
    yield Text(f"{_SHADES[0]} nothing compared  {_SHADES[1]} normal  {'  '.join(limits)}", style="dim")


def _steps(step_times: StepTimes) -> Text:
    """Return step times as bars, the longest of each stretch, with the shortest and longest beside."""
    lengths = [seconds for _, seconds in step_times]
    size = -(-len(lengths) // _BARS_WIDE)
    longest = [max(lengths[first : first + size]) for first in range(0, len(lengths), size)]
    top = max(longest) or 1.0
    bars = "".join(_BARS[min(int(length / top * len(_BARS)), len(_BARS) - 1)] for length in longest)
    return Text.assemble(("step time ", "bold"), bars, f" {figure(min(lengths))} to {figure(max(lengths))} s")


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
