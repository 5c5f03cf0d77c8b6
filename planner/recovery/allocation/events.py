"""What can happen to a cluster next, and the cluster after it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

from lockstep.errors import BadInput
from planner.recovery.allocation.jobs import Cluster, Node

EventKind = Literal["node_lost", "node_joins", "job_ends", "job_starts"]


class Event(NamedTuple):
    """One thing that happens to one node or job."""

    kind: EventKind
    name: str


ANY_NODE = ""  # joins that the cluster does not know yet: every new node is planned for in the same way


def parse_event(text: str) -> Event:
    """Return the event that a person wrote, such as node_lost:h3."""
    kind, sign, name = text.partition(":")
    for known in get_args(EventKind):
        if sign and name and kind == known:
            return Event(known, name)
    raise BadInput(f"event {text}: expected KIND:NAME with a kind of {', '.join(get_args(EventKind))}")


def apply(cluster: Cluster, event: Event) -> Cluster:
    """Return the cluster after an event; BadInput where it cannot happen there."""
    match event.kind:
        case "node_lost":
            return _set_usable(cluster, event.name, is_usable=False)
        case "node_joins":
            return _join(cluster, event.name)
        case "job_ends":
            gone = cluster.job(event.name)
            return replace(cluster, jobs=tuple(job for job in cluster.jobs if job is not gone))
        case "job_starts":
            return _start(cluster, event.name)


def list_events(cluster: Cluster) -> Iterator[Event]:
    """Yield every single event that can come next."""
    yield from (Event("node_lost", node.name) for node in cluster.usable)
    yield from (Event("node_joins", node.name) for node in cluster.nodes if not node.is_usable)
    yield Event("node_joins", ANY_NODE)
    yield from (Event("job_ends", job.id) for job in cluster.jobs)
    yield from (Event("job_starts", job.id) for job in cluster.waiting)


def _set_usable(cluster: Cluster, name: str, is_usable: bool) -> Cluster:
    node = cluster.by_name.get(name)
    if node is None:
        raise BadInput(f"there is no node {name} in this cluster of {len(cluster.nodes)}")
    if node.is_usable == is_usable:
        raise BadInput(f"node {name} is {'usable' if is_usable else 'lost'} already")
    changed = (replace(node, is_usable=is_usable) if node.name == name else node for node in cluster.nodes)
    return replace(cluster, nodes=tuple(changed))


def _join(cluster: Cluster, name: str) -> Cluster:
    """Return the cluster with a node more: one that was out, or a new one of average quality."""
    if name in cluster.by_name:
        return _set_usable(cluster, name, is_usable=True)
    usable = cluster.usable
    average = sum(node.failures_per_day for node in usable) / max(len(usable), 1)
    return replace(cluster, nodes=(*cluster.nodes, Node(name, failures_per_day=average)))


def _start(cluster: Cluster, name: str) -> Cluster:
    for job in cluster.waiting:
        if job.id == name:
            rest = tuple(other for other in cluster.waiting if other is not job)
            return replace(cluster, jobs=(*cluster.jobs, job), waiting=rest)
    raise BadInput(
        f"there is no job {name} among those that wait: {', '.join(j.id for j in cluster.waiting) or 'none'}"
    )
