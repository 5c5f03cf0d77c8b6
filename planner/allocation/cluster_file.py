"""The JSON of a cluster, nodes with failure rates and jobs with throughput tables, and of the plan made for it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from lockstep.errors import BadInput
from lockstep.verdict import Frozen
from planner.allocation.allocate import Allocation, JobPlan
from planner.allocation.cluster import Cluster, Job, Node, Recovery, check_cluster
from planner.allocation.throughput import tabulate


class NodeEntry(Frozen):
    """A node as it is written."""

    name: str
    leaf: str | None = None
    block: str | None = None
    failures_per_day: float = 0.0
    is_usable: bool = True


class RecoveryEntry(Frozen):
    """The seconds of each way to other nodes, as they are written."""

    restart_s: float = Recovery().restart_s
    lost_work_s: float = Recovery().lost_work_s
    save_s: float = Recovery().save_s
    peer_s: float | None = None
    drop_s: float | None = None
    recycle_s: float | None = None
    recycled: dict[int, float] = Field(default_factory=dict)


class JobEntry(Frozen):
    """A job as it is written."""

    id: str
    throughput: dict[int, float] = Field(description="work per second by node count; other counts cannot run")
    measured: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    weight: float = 1.0
    minimum: int = 1
    valid: tuple[int, ...] | None = Field(None, description="counts that its layout allows; None: all in the table")
    least: int = 0
    most: int | None = None
    may_stop: bool = True
    was_hit: bool = False
    nodes_per_replica: int | None = None
    recovery: RecoveryEntry = RecoveryEntry()


class ClusterEntry(Frozen):
    """The whole file."""

    version: int = Field(1, ge=1, le=1)
    nodes: tuple[NodeEntry, ...]
    jobs: tuple[JobEntry, ...]
    waiting: tuple[JobEntry, ...] = ()
    repairs_per_day: float = 0.0


def read_cluster(path: Path) -> Cluster:
    """Return the cluster in a file; BadInput with the first thing that is wrong in it."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as a cluster: {error}") from error
    return parse_cluster(given, str(path))


def parse_cluster(given: Any, name: str = "this cluster") -> Cluster:
    """Return the cluster that JSON describes."""
    try:
        entry = ClusterEntry.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        index = ".".join(map(str, first["loc"])) or "the whole"
        raise BadInput(f"{name} cannot be used: {index}: {first['msg']}") from error
    nodes = tuple(Node(**node.model_dump()) for node in entry.nodes)
    jobs, waiting = (tuple(map(_job, jobs)) for jobs in (entry.jobs, entry.waiting))
    return check_cluster(Cluster(nodes, jobs, waiting, entry.repairs_per_day))


def allocation_to_json(allocation: Allocation) -> dict[str, Any]:
    """Return a plan as it appears on standard output."""
    return {
        "running_s": allocation.running_s,
        "throughput_before": allocation.throughput_before,
        "throughput_after": allocation.throughput_after,
        "value": allocation.value,
        "reason": allocation.reason,
        "jobs": {job.job: _job_to_json(job) for job in allocation.jobs},
        "alternatives": [asdict(other) for other in allocation.alternatives],
    }


def _job(entry: JobEntry) -> Job:
    counts = entry.throughput if entry.valid is None else set(entry.throughput) & set(entry.valid)
    try:
        table = tabulate({count: entry.throughput[count] for count in counts}, entry.measured)
    except BadInput as error:
        raise BadInput(f"job {entry.id}: {error}") from error
    plain = entry.model_dump(exclude={"throughput", "measured", "valid", "recovery"})
    return Job(**plain, throughput=table, recovery=Recovery(**entry.recovery.model_dump()))


def _job_to_json(job: JobPlan) -> dict[str, Any]:
    return {
        "before": job.before,
        "after": job.after,
        "action": job.change,
        "downtime_s": job.downtime_s,
        "lost_work_s": job.lost_work_s,
        "throughput_before": job.throughput_before,
        "throughput_after": job.throughput_after,
        "is_measured": job.is_measured,
        "nodes": list(job.placement.nodes),
        "taken": list(job.placement.taken),
        "given_up": list(job.placement.given_up),
        "reasons": dict(job.placement.reasons),
    }
