"""lockstep plan: which path each flow takes, before anybody drives on it."""

import json
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import typer
from rich.table import Table as Picture

from cli.setup import AsJson, err, out
from lockstep.errors import BadInput
from lockstep.pipeline.comparing import Comparison, compare, draw_schedule
from lockstep.pipeline.schedule import Schedule, Shape, Times, Worker, pack_schedule, unit_times
from lockstep.topology import load_topology
from planner.allocation.allocate import Allocation, plan_allocation
from planner.allocation.cluster import apply, parse_event
from planner.allocation.cluster_file import allocation_to_json, read_cluster
from planner.paths.flows import Flow, FlowPaths, choose_by_chance, find_use, parse_flows
from planner.paths.network import NcclAdvice, advise_nccl, build_network, with_rates, without
from planner.paths.planning import PathPlan, PlanOptions, plan_paths
from planner.paths.report import draw_loads, explain, from_json, to_json

app = typer.Typer(no_args_is_help=True, help="Plans for traffic and for recovery.")


@app.command("recovery")
def plan_of_recovery(
    cluster: Annotated[
        Path, typer.Option(help="JSON with nodes, their failure rates, and jobs with throughput tables.")
    ],
    event: Annotated[
        str | None,
        typer.Option(
            metavar="KIND:NAME",
            help="What happens first: node_lost, node_joins, job_ends or job_starts, and to whom.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give each job as many nodes as do the most weighted work until the next fault."""
    state = read_cluster(cluster)
    made = plan_allocation(apply(state, parse_event(event)) if event else state)
    if as_json:
        out.print_json(data=allocation_to_json(made))
    else:
        _print_of_plan_recovery(made)


def _print_of_plan_recovery(made: Allocation) -> None:
    out.print(made.reason)
    out.print()
    picture = Picture("job", "nodes", "action", "down s", "done again s", "work", "takes", "gives up", box=None)
    for job in made.jobs:
        picture.add_row(
            job.job,
            f"{job.before} -> {job.after}",
            job.change,
            f"{job.downtime_s:g}",
            f"{job.lost_work_s:g}",
            f"{job.throughput_before:.4g} -> {job.throughput_after:.4g}",
            ", ".join(job.placement.taken) or "-",
            ", ".join(job.placement.given_up) or "-",
        )
    out.print(picture)
    out.print()
    for other in made.alternatives:
        out.print(f"instead: {other.name} ({other.reason})")
    err.print(f"work {made.throughput_before:.4g} -> {made.throughput_after:.4g} each second")


@app.command("schedule")
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
    as_json: AsJson = False,
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
        _print_of_plan_schedule(made)


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
        "schedule": pack_schedule(made.staggered).model_dump(mode="json"),
    }


def _print_of_plan_schedule(made: Comparison) -> None:
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


@app.command("paths")
def plan_of_paths(
    topology: Annotated[Path, typer.Option(help="topology.json of the cluster.")],
    flows: Annotated[Path, typer.Option(help="Rows {id, src, dst, gbps}: .json, .jsonl, .csv or .parquet.")],
    without_parts: Annotated[
        list[str] | None, typer.Option("--without", metavar="PART", help="Link, switch or NIC that carries nothing.")
    ] = None,
    slow: Annotated[
        list[str] | None, typer.Option(metavar="PART=SHARE", help="Part that carries only a share of its rate.")
    ] = None,
    before: Annotated[Path | None, typer.Option(help="Plan that holds now; few of its flows are moved.")] = None,
    most_moved: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the flows that may move besides those that must.")
    ] = PlanOptions().most_moved,
    explains: Annotated[bool, typer.Option("--explain", help="Say how good it is, what limits it, and why.")] = False,
    svg: Annotated[
        Path | None, typer.Option(help="Picture of link loads to write: without a plan, and with it.")
    ] = None,
    nccl: Annotated[
        Path | None, typer.Option(help="Directory for what stock NCCL honours: variables and order of hosts.")
    ] = None,
    target: Annotated[Path | None, typer.Option("--out", help="File to write the plan to, as JSON.")] = None,
    as_json: AsJson = False,
) -> None:
    """Give each flow a path so that the fullest link is as empty as it can be."""
    network = without(build_network(load_topology(topology)), without_parts or [])
    network = with_rates(network, dict(_read_share(text) for text in slow or []))
    rows = parse_flows(_read_rows(flows))
    held = from_json(network, rows, _read_json(before)) if before else None
    made = plan_paths(network, rows, held, PlanOptions(most_moved=most_moved))
    if target:
        target.write_text(json.dumps(to_json(made)) + "\n", encoding="utf-8")
    if svg:
        svg.write_text(_draw(made, held), encoding="utf-8")
    if nccl:
        _write_advice(nccl, advise_nccl(network, list(dict.fromkeys(row.src.partition("/")[0] for row in rows))))
    if as_json:
        out.print_json(data=to_json(made))
    else:
        _print(made, held, rows, explains)


def _read_share(text: str) -> tuple[str, float]:
    name, sign, share = text.rpartition("=")
    try:
        value = float(share)
    except ValueError:
        value = -1.0
    if not sign or not 0 <= value <= 1:
        raise BadInput(f"--slow {text}: expected PART=SHARE with a share from 0 to 1, such as leaf1--spine2=0.5")
    return name, value


def _read_rows(path: Path) -> list[Any]:
    """Return the rows of a file as plain values."""
    try:
        match path.suffix:
            case ".csv":
                # Names of flows and NICs are words, also where they look like numbers.
                kinds = {name: pa.string() for name in ("id", "src", "dst", "job")}
                rows: list[Any] = pa_csv.read_csv(
                    path, convert_options=pa_csv.ConvertOptions(column_types=kinds)
                ).to_pylist()
            case ".parquet":
                rows = pq.read_table(path).to_pylist()
            case ".jsonl":
                rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
            case _:
                rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise BadInput(f"{path} cannot be read as rows of flows: {error}") from error
    return rows


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as a plan: {error}") from error


def _draw(made: PathPlan, held: PathPlan | None) -> str:
    if held:
        return draw_loads(made.network, {"plan before": held.load, "plan now": made.load})
    paths = FlowPaths(made.network, made.flows)
    by_chance = paths.find_loads(choose_by_chance(paths, seed=1))
    return draw_loads(made.network, {"ECMP, one draw": by_chance, "planned": made.load})


def _write_advice(folder: Path, advice: NcclAdvice) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    messages = "".join(f"# {note}\n" for note in advice.notes)
    for name, variables in {"all": advice.variables, **advice.by_host}.items():
        lines = "".join(f"{variable}={value}\n" for variable, value in variables.items())
        (folder / f"{name}.env").write_text(messages + lines, encoding="utf-8")
    (folder / "hosts").write_text("".join(f"{host}\n" for host in advice.host_order), encoding="utf-8")


def _print(made: PathPlan, held: PathPlan | None, rows: list[Flow], explains: bool) -> None:
    if explains:
        for sentence in explain(made, held):
            out.print(sentence)
        out.print()
    picture = Picture("flow", "from", "to", "gbps", "over", box=None)
    for row, links in zip(rows, made.all_directed_links(), strict=True):
        over = ", ".join(made.network.link_of(link) for link in links) or "no path"
        picture.add_row(row.id, row.src, row.dst, f"{row.gbps:g}", over)
    out.print(picture)
    use = find_use(made.network, made.load)[made.network.fabric].max(initial=0.0)
    err.print(f"fullest link {use:.1%}, no plan can be below {made.bound:.1%}")
