"""lockstep bench: one benchmark per claim."""

from importlib import import_module
from typing import Annotated, Literal

import typer
from rich.table import Table as Picture
from rich.text import Text

from benchmarks.figures import Figure, Note, Report, describe_commit, describe_machine
from cli.setup import AsJson, configure_logging, err, out

Name = Literal[
    "store", "plugin", "ingest", "fleet", "sim", "analyze", "accuracy", "paths", "live_paths",
    "recovery", "soak", "api", "silence",
]  # fmt: skip
_ELSEWHERE = {"live_paths": "paths:measure_live", "plugin": "ingest:measure_plugin"}  # than in a module of its name
_HAS_MORE = ("accuracy", "soak")  # whose measure() knows `full`


def command(
    name: Annotated[Name, typer.Argument(help="Which claim to measure.")],
    quick: Annotated[bool, typer.Option("--quick", help="A smaller run that ends within 30 s.")] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="Of accuracy: every variant with every seed; of soak: a day instead of an hour."),
    ] = False,
    jobs: Annotated[
        bool,
        typer.Option("--jobs", help="Of fleet: how far behind 100 jobs the analysis is, and beside hostile ones."),
    ] = False,
    worlds: Annotated[
        int, typer.Option("--worlds", min=0, help="Of accuracy: so many worlds drawn from --seed.")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of --worlds; those below 100 are for tuning.")] = 1,
    family: Annotated[
        list[str] | None, typer.Option("--family", help="Of accuracy: this family of scenarios; again for more.")
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Of accuracy: these seeds alone, such as 1-5 or 1,7.")] = "",
    world: Annotated[int, typer.Option("--world", min=-1, help="Of accuracy: this world of the seed alone.")] = -1,
    as_json: AsJson = False,
) -> None:
    """Measure the figures of one claim beside their references."""
    configure_logging("warning")
    note: Note = lambda text: err.print(text, style="dim")  # noqa: E731
    if full and (quick or name not in _HAS_MORE):
        raise typer.BadParameter(f"--full is for {', '.join(_HAS_MORE)}, and not together with --quick")
    if (worlds or world >= 0) and (full or quick or name != "accuracy"):
        raise typer.BadParameter("--worlds and --world are for accuracy, and not together with --quick or --full")
    if (family or seeds) and (worlds or world >= 0 or quick or name != "accuracy"):
        raise typer.BadParameter("--family and --seeds are for accuracy, and not together with --quick or worlds")
    if jobs and name != "fleet":
        raise typer.BadParameter("--jobs is for fleet")
    more: dict[str, object] = {"full": True} if full else {"jobs": True} if jobs else {}
    if worlds or world >= 0:
        more |= {"worlds": range(world, world + 1) if world >= 0 else range(worlds), "seed": seed}
    if family or seeds:
        more |= {"families": family or (), "seeds": seeds}
    module, _, function = _ELSEWHERE.get(name, name).partition(":")
    measured: tuple[Figure, ...] = getattr(import_module(f"benchmarks.{module}"), function or "measure")(
        quick, note, **more
    )
    report = Report(name, describe_commit(), describe_machine(), measured)
    if as_json:
        out.print_json(data=report.as_json())
    else:
        _print(report)


def _print(report: Report) -> None:
    out.print(f"bench {report.bench} at {report.commit} on {report.machine}")
    picture = Picture("figure", "value", "unit", "floor", "goal", "floor holds", "beside", box=None)
    for figure in report.figures:
        held = "" if figure.met is None else "yes" if figure.met else Text("no", style="bold red")
        picture.add_row(
            figure.name,
            f"{figure.value:,.4g}" if figure.value < 100 else f"{figure.value:,.0f}",
            figure.unit,
            "" if figure.floor is None else f"{figure.floor:,g}",
            "" if figure.goal is None else f"{figure.goal:,g}",
            held,
            figure.reference,
        )
    out.print(picture)
