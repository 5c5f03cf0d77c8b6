"""lockstep plan recovery: how many nodes each job gets after a fault, which, and what else could be done."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as Picture

from cli.setup import err, out
from planner.recovery.allocation.cluster_file import allocation_to_json, read_cluster
from planner.recovery.allocation.events import apply, parse_event
from planner.recovery.allocation.planning import Allocation, plan_allocation


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
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Give each job as many nodes as do the most weighted work until the next fault."""
    state = read_cluster(cluster)
    made = plan_allocation(apply(state, parse_event(event)) if event else state)
    if as_json:
        out.print_json(data=allocation_to_json(made))
    else:
        _print(made)


def _print(made: Allocation) -> None:
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
            f"{job.waf_before:.4g} -> {job.waf_after:.4g}",
            ", ".join(job.placement.taken) or "-",
            ", ".join(job.placement.given_up) or "-",
        )
    out.print(picture)
    out.print()
    for other in made.alternatives:
        out.print(f"instead: {other.name} ({other.reason})")
    err.print(f"work {made.waf_before:.4g} -> {made.waf_after:.4g} each second")
