"""lockstep plan schedule: what a step takes around failed workers of a pipeline, in each way of going on."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as Picture

from cli.setup import err, out
from lockstep.errors import BadInput
from planner.recovery.recycle.comparing import Comparison, compare
from planner.recovery.recycle.gantt import draw_schedule
from planner.recovery.recycle.schedule import Schedule, Shape, Times, Worker, unit_times


def plan_of_schedule(
    stages: Annotated[int, typer.Option(min=1, help="Stages of a pipeline.")],
    pipelines: Annotated[int, typer.Option(min=1, help="Pipelines side by side: the data-parallel degree.")],
    micro_batches: Annotated[int, typer.Option(min=1, help="Micro-batches of one pipeline in a step.")],
    failed: Annotated[
        list[str] | None, typer.Option(metavar="PIPELINE,STAGE", help="Worker that has failed; may be repeated.")
    ] = None,
    times: Annotated[
        Path | None, typer.Option(help="JSON {forward, input, weight: a time per stage, transfer}; else equal slots.")
    ] = None,
    memory: Annotated[int | None, typer.Option(min=1, help="Micro-batches that a worker can hold at a time.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Picture of the last schedule to write.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Compare schedules around failed workers with each other, with the bound, and with dropping whole pipelines."""
    gone = frozenset(map(_read_worker, failed or []))
    spent = _read_times(times) if times else unit_times(stages)
    made = compare(Shape(stages, pipelines, micro_batches), spent, gone, memory)
    if svg:
        _write(svg, draw_schedule(made.staggered, f"A step with {len(gone)} of {stages * pipelines} workers failed"))
    if as_json:
        out.print_json(data=_as_json(made))
    else:
        _print(made)


def _read_worker(text: str) -> Worker:
    pipeline, _, stage = text.partition(",")
    try:
        return Worker(int(pipeline), int(stage))
    except ValueError:
        raise BadInput(f"--failed {text}: expected PIPELINE,STAGE, counted from 0, such as 1,2") from None


def _read_times(path: Path) -> Times:
    try:
        read: Any = json.loads(path.read_text(encoding="utf-8"))
        forward, back, weight = (tuple(map(float, read[name])) for name in ("forward", "input", "weight"))
        return Times(forward, back, weight, transfer=float(read.get("transfer", 0.0)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{path} cannot be read as times of stages: {error!r}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error


def _list(made: Comparison) -> dict[str, tuple[float | None, Schedule | None]]:
    return {
        "fault-free 1F1B": (made.fault_free, None),
        "whole pipelines dropped": (made.dropped, None),
        "re-routed": (made.coupled.makespan, made.coupled),
        "re-routed, decoupled": (made.decoupled.makespan, made.decoupled),
        "re-routed, decoupled, staggered": (made.staggered.period, made.staggered),
    }


def _most_held(schedule: Schedule | None) -> int | None:
    return max(map(schedule.most_held, schedule.ops)) if schedule else None


def _as_json(made: Comparison) -> dict[str, Any]:
    return {
        "step": {name: length for name, (length, _) in _list(made).items()},
        "most_held": {name: held for name, (_, one) in _list(made).items() if (held := _most_held(one)) is not None},
        "bound": {"period": made.bound.period, "makespan": made.bound.makespan},
        "promised_period": made.promised,
    }


def _print(made: Comparison) -> None:
    picture = Picture("schedule", "step", "throughput", "micro-batches held", box=None)
    for name, (length, schedule) in _list(made).items():
        held = _most_held(schedule)
        share = "" if length is None else f"{made.fault_free / length:.1%}"
        picture.add_row(
            name, "impossible" if length is None else f"{length:g}", share, "" if held is None else str(held)
        )
    out.print(picture)
    bound = made.bound
    err.print(
        f"no decoupled schedule can be below {bound.makespan:g}, and none that is staggered below {bound.period:g}"
    )
