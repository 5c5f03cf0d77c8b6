"""A diagnosis in the terminal: a table, a sentence for each verdict, and the delay matrix as shaded blocks."""

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table as Picture
from rich.text import Text

from cli.report.description import Described, StepTimes
from cli.report.grid import LEVELS, Grid, build_grid, level
from cli.report.words import NOTHING, cost_words, coverage_words, lasting_words, part_words
from lockstep.clock import rfc3339
from lockstep.figures import figure
from lockstep.incident import Incident
from lockstep.words import headline

_SHADES = "·░▒▓█"  # nothing compared, normal, and the three levels above
_BARS = "▁▂▃▄▅▆▇█"
_LARGEST = 24  # cells each way: two columns a cell and a label fit into 80, and all of it onto a screen
_BARS_WIDE = 50
_CLEARED = 3  # parts that were ruled out; a report is read in ten seconds, --json has all


def print_report(console: Console, described: Described) -> None:
    """Print what happened, or that nothing stands out."""
    for part in _parts(described):
        console.print(part, highlight=False)


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
            cost_words(verdict),
        )
    return picture


def _sentences(number: int, incident: Incident) -> Text:
    """Return one sentence that is grasped at once, and below it the reason and what limits it."""
    verdict = incident.verdict
    told = Text.assemble("\n", (f"{number} {headline(incident)}", "bold"), f"\n  {verdict.reason}")
    if verdict.ambiguous_with:
        told.append(f"\n  might as well be {', '.join(verdict.ambiguous_with)}")
    for cleared in verdict.ruled_out[:_CLEARED]:
        told.append(f"\n  not {cleared.component}: {cleared.because}", style="dim")
    if len(verdict.ruled_out) > _CLEARED:
        told.append(f"\n  and {len(verdict.ruled_out) - _CLEARED} others ruled out", style="dim")
    if coverage_words(verdict):
        told.append(f"\n  {coverage_words(verdict)}", style="yellow")
    return told


def _matrix(grid: Grid) -> Iterator[RenderableType]:
    binned = f", {grid.ends_per_cell} NICs a cell" if grid.ends_per_cell > 1 else ""
    yield Text(f"delay by sender (down) and receiver (across){binned}", style="bold")
    if grid.hottest is None:
        yield f"no wire stands out among {grid.wires:,} that were compared"
        return
    hottest, wide = grid.hottest, max(map(len, grid.rows))
    yield Text(" " * (wide + 1 + 2 * hottest.column) + f"▼ {hottest.target}", style="red")
    for number, name in enumerate(grid.rows):
        line = Text(name.rjust(wide) + " ", style="bold red" if number == hottest.row else "dim")
        for ratio, is_hot in zip(grid.ratio[number], grid.hot[number], strict=True):
            line.append(_SHADES[level(ratio)] * 2, style="red" if is_hot else "dim" if level(ratio) < 2 else "")
        if number == hottest.row:
            line.append(f" ◀ {hottest.source}: {hottest.ratio:.1f} times the normal delay", style="red")
        yield line
    limits = (f"{_SHADES[2 + place]} {limit:g} times normal and more" for place, limit in enumerate(LEVELS))
    yield Text(f"{_SHADES[0]} nothing compared  {_SHADES[1]} normal  {'  '.join(limits)}", style="dim")


def _steps(step_times: StepTimes) -> Text:
    """Return step times as bars, the longest of each stretch, with the shortest and longest beside."""
    lengths = [seconds for _, seconds in step_times]
    size = -(-len(lengths) // _BARS_WIDE)
    longest = [max(lengths[first : first + size]) for first in range(0, len(lengths), size)]
    top = max(longest) or 1.0
    bars = "".join(_BARS[min(int(length / top * len(_BARS)), len(_BARS) - 1)] for length in longest)
    return Text.assemble(("step time ", "bold"), bars, f" {figure(min(lengths))} to {figure(max(lengths))} s")
