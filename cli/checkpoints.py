"""lockstep checkpoints: what a job could restart from, each verified without running anything that is in it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as Picture

from cli.setup import AsJson, err, out
from lockstep.clock import SystemClock
from lockstep.errors import BadInput
from planner.checkpoints.catalogue import Budget, Contents, read_catalogue
from planner.checkpoints.checkpoint import Catalogue, Checkpoint, ReadRate, SavedLayout, estimate_load_s
from planner.checkpoints.choose import Choice, ChoiceOptions, choose_checkpoint
from planner.checkpoints.intervals import (
    FailureRate,
    Saving,
    advise_interval,
    find_failure_rate,
    find_usual_interval_s,
    say_time,
)

_MOST_READ_BYTES = 1 << 40  # it is the seconds that end it


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where a job saves, or a folder above.")],
    job: Annotated[str | None, typer.Option(help="Whose checkpoints they are; goes into the JSON.")] = None,
    target: Annotated[
        str | None,
        typer.Option("--for", metavar="LAYOUT", help="Also choose one for this layout, such as tp8,pp4,dp3."),
    ] = None,
    read_mb_s: Annotated[
        float | None, typer.Option(help="How fast the whole job reads, for the time that loading takes.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Nodes of the job: with the next three, advise how often.")
    ] = None,
    save_s: Annotated[float | None, typer.Option(help="Seconds for which a save holds the job up.")] = None,
    failures: Annotated[int | None, typer.Option(help="Failures that were seen,")] = None,
    node_days: Annotated[float | None, typer.Option(help="in so many node-days.")] = None,
    read_s: Annotated[
        float, typer.Option(help="Seconds for reading files back; what they do not reach is said.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints below a folder: step, layout, format, age, bytes, and whether they are complete."""
    rates = _read_rates(read_mb_s)
    wanted = _read_saving(nodes, save_s, failures, node_days)
    layout = _read_layout(target) if target else None
    now_ns = SystemClock().now_ns()
    catalogue = read_catalogue(folder, now_ns, job=job, contents=Contents(Budget(_MOST_READ_BYTES, read_s)))
    choice = choose_checkpoint(catalogue, layout, ChoiceOptions(rates)) if layout else None
    interval = None
    if wanted:  # beside the interval that is seen between the checkpoints
        saving, rate = wanted
        interval = advise_interval(rate, replace(saving, interval_s=find_usual_interval_s(catalogue)))
    if as_json:
        chosen = {"choice": choice.model_dump(mode="json")} if choice else {}
        advised = {"interval": interval.model_dump(mode="json")} if interval else {}
        load_s = {each.path: estimate_load_s(each, rates) for each in catalogue.checkpoints}
        out.print_json(data={**catalogue.as_json(), "load_s": load_s, **chosen, **advised})
    else:
        _print(catalogue, choice, rates, now_ns)
        if interval:
            out.print(interval.reason)


def _read_rates(read_mb_s: float | None) -> list[ReadRate]:
    if read_mb_s is None:
        return []
    if not 0 < read_mb_s < float("inf"):
        raise BadInput(f"--read-mb-s is {read_mb_s:g}, but a rate is finite and above 0")
    return [ReadRate(source="remote", bytes_per_s=read_mb_s * 1e6)]


def _read_saving(
    nodes: int | None, save_s: float | None, failures: int | None, node_days: float | None
) -> tuple[Saving, FailureRate] | None:
    """Return how the job saves and how often nodes fail; None where no advice is asked for."""
    given = (nodes, save_s, failures, node_days)
    if all(each is None for each in given):
        return None
    if nodes is None or save_s is None or failures is None or node_days is None:
        raise BadInput("advice on the interval takes --nodes, --save-s, --failures and --node-days")
    return Saving(nodes, save_s), find_failure_rate(failures, node_days)


def _read_layout(text: str) -> SavedLayout:
    sizes = {part[:2]: part[2:] for part in text.split(",")}
    named = {name: int(size) for name, size in sizes.items() if size.isdecimal() and int(size)}
    if not sizes.keys() == named.keys() <= {"tp", "pp", "dp", "cp", "ep"}:
        raise BadInput(f"--for {text}: expected sizes such as tp8,pp4,dp3, of tp, pp, dp, cp and ep")
    return SavedLayout.of({"tp": 1, "pp": 1, "dp": 1, **named})


def _print(catalogue: Catalogue, choice: Choice | None, rates: list[ReadRate], now_ns: int) -> None:
    picture = Picture("step", "format", "layout", "state", "age", "MB", "load", "path", "why", box=None)
    for each in catalogue.checkpoints:
        picture.add_row(*_columns(each, Path(catalogue.folder), rates, now_ns))
    out.print(picture)
    if choice:
        out.print(choice.reason)
        if choice.convert:
            out.print("first: " + " ".join(choice.convert))
        for limit in choice.limits:
            out.print(f"  {limit}")
    for remark in catalogue.remarks:
        err.print(remark)
    err.print(f"{len(catalogue.complete)} of {len(catalogue.checkpoints)} checkpoints are complete")


def _columns(each: Checkpoint, top: Path, rates: list[ReadRate], now_ns: int) -> tuple[str, ...]:
    load_s = estimate_load_s(each, rates)
    return (
        "?" if each.step is None else str(each.step),
        each.format,
        str(each.layout),
        each.state,
        say_time(max(0.0, each.age_s(now_ns))),
        f"{each.bytes / 1e6:,.1f}",
        "?" if load_s is None else say_time(load_s),
        str(Path(each.path).relative_to(top)),
        each.reason,
    )
