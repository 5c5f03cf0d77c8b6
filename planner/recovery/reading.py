"""Reads what decisions need to know of jobs and the cluster: from telemetry, the controller and the settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput, ControllerDown
from lockstep.incident import Incident
from lockstep.records import Event
from lockstep.store.store import Store
from lockstep.topology import Topology
from planner.controllers.protocol import Controller, JobView, Node
from planner.recovery.facts import ClusterFacts, JobFacts, Layout, Resume

_RANKS = """
SELECT host, uniqExact(gpu) AS gpus FROM comms WHERE job = {job:String} AND attempt = {attempt:UInt16}
GROUP BY host ORDER BY host
"""
_EVENTS = """
SELECT host, ts_ns, source, kind, component, severity, message FROM events
WHERE ts_ns >= {start:Int64} AND ts_ns < {end:Int64} AND host IN {hosts:Array(String)}
    AND severity IN ('error', 'critical')
ORDER BY ts_ns DESC LIMIT 100
"""
_JOBS = """
SELECT job, attempt, host, uniqExact(gpu) AS gpus FROM comms
WHERE (job, attempt) IN (SELECT job, attempt FROM op_stats WHERE ts_ns >= {start:Int64}) AND job != {job:String}
GROUP BY job, attempt, host ORDER BY job, attempt, host
"""
_BACK_S = 60.0  # an error may be told before the job stands still


class Checkpoints(Protocol):
    """Knows the checkpoints of jobs."""

    def newest(self, job: str, layout: Layout | None, now_ns: int) -> Resume | None:
        """Return the newest one that is verified to be complete and fits the layout; None: there is none."""
        ...

    def next_save_s(self, job: str, now_ns: int) -> float | None:
        """Return when the next one is expected to be complete; None: unknown."""
        ...


@dataclass(frozen=True, slots=True)
class JobHint:
    """What a site says of a job beforehand; telemetry does not carry it."""

    layout: Layout | None = None
    weight: float = 1.0
    min_nodes: int = 1
    throughput: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sight:
    """All that is known at one moment."""

    job: JobFacts
    cluster: ClusterFacts
    others: Sequence[JobFacts] = ()  # jobs that run beside it
    events: Sequence[Event] = ()
    nodes: Sequence[Node] | None = None
    trouble: str | None = None  # why the controller could not be asked


class FactReader:
    """Puts together what is known; what a missing source would have said stays unknown."""

    def __init__(
        self,
        store: Store | None,
        controller: Controller | None,
        checkpoints: Checkpoints | None,
        topology: Topology | None,
        cluster: ClusterFacts,
        hints: Mapping[str, JobHint],
    ) -> None:
        self._store, self._controller, self._checkpoints = store, controller, checkpoints
        self._cluster, self._hints = cluster, hints
        self._hosts = frozenset(host.id for host in topology.hosts) if topology else frozenset()
        self._blocks = _find_blocks(topology) if topology else {}

    def read(self, incident: Incident, now_ns: int, origin: str | None = None) -> Sight:
        """Return what is known about an incident's job, first started as `origin`, and what is around it."""
        nodes, trouble = self._ask_for_nodes()
        job = self._read_job(incident, origin or incident.job, now_ns, trouble is None)
        cluster = self._describe(nodes, job)
        events = self._read_events(job.nodes, incident, now_ns)
        return Sight(job, cluster, self._read_others(incident.job, now_ns), events, nodes, trouble)

    def _ask_for_nodes(self) -> tuple[Sequence[Node] | None, str | None]:
        if self._controller is None:
            return None, None
        try:
            return self._controller.nodes() or None, None
        except ControllerDown as down:
            return None, str(down)

    def _read_job(self, incident: Incident, origin: str, now_ns: int, is_answering: bool) -> JobFacts:
        name, hint = incident.job, self._hint_of(origin)
        ranks = self._read_ranks(incident)
        view = self._ask_for_job(name) if is_answering else None
        nodes = tuple(ranks) or (view.nodes if view else ())
        gpus = sum(ranks.values()) or incident.verdict.impact.ranks_waiting + 1
        resume = self._checkpoints.newest(origin, hint.layout, now_ns) if self._checkpoints else None
        return JobFacts(
            job=name,
            attempt=incident.attempt,
            nodes=nodes,
            gpus=gpus,
            layout=hint.layout,
            resume=resume,
            next_save_s=self._checkpoints.next_save_s(origin, now_ns) if self._checkpoints else None,
            weight=hint.weight,
            min_nodes=hint.min_nodes,
            throughput=hint.throughput,
            is_over=view is not None and view.state == "ended",
        )

    def _ask_for_job(self, job: str) -> JobView | None:
        try:
            return self._controller.job(job) if self._controller else None
        except (ControllerDown, BadInput):
            return None

    def _read_others(self, job: str, now_ns: int) -> list[JobFacts]:
        """Return the other jobs that were at work in the last minute, with their newest attempt."""
        if self._store is None:
            return []
        window = {"job": job, "start": now_ns - int(_BACK_S * NS_PER_S)}
        gpus: dict[tuple[str, int], dict[str, int]] = {}
        for row in self._store.query(_JOBS, window).to_pylist():
            gpus.setdefault((row["job"], row["attempt"]), {})[row["host"]] = int(row["gpus"])
        newest = {name: (attempt, hosts) for (name, attempt), hosts in sorted(gpus.items())}
        return [self._describe_other(name, attempt, hosts, now_ns) for name, (attempt, hosts) in newest.items()]

    def _describe_other(self, name: str, attempt: int, hosts: Mapping[str, int], now_ns: int) -> JobFacts:
        hint = self._hint_of(name)
        return JobFacts(
            job=name,
            attempt=attempt,
            nodes=tuple(hosts),
            gpus=sum(hosts.values()),
            layout=hint.layout,
            resume=self._checkpoints.newest(name, hint.layout, now_ns) if self._checkpoints else None,
            weight=hint.weight,
            min_nodes=hint.min_nodes,
            throughput=hint.throughput,
        )

    def _hint_of(self, job: str) -> JobHint:
        return self._hints.get(job, self._hints.get("*", JobHint()))

    def _read_ranks(self, incident: Incident) -> dict[str, int]:
        """Return the GPUs that the job uses on each of its hosts."""
        if self._store is None:
            return {}
        rows = self._store.query(_RANKS, {"job": incident.job, "attempt": incident.attempt}).to_pylist()
        return {row["host"]: int(row["gpus"]) for row in rows}

    def _read_events(self, hosts: Sequence[str], incident: Incident, now_ns: int) -> list[Event]:
        """Return errors on the part's own host since shortly before the fault; on all hosts where it has none."""
        if self._store is None or not hosts:
            return []
        own = [host for host in hosts if f":{host}" in incident.verdict.component]
        start_ns = incident.verdict.since_ns - int(_BACK_S * NS_PER_S)
        window = {"start": start_ns, "end": now_ns, "hosts": own or list(hosts)}
        return [Event(**row) for row in self._store.query(_EVENTS, window).to_pylist()]

    def _describe(self, nodes: Sequence[Node] | None, job: JobFacts) -> ClusterFacts:
        """Return the cluster with the spares that are usable now and do not belong to the job."""
        barred = {*job.nodes, *(node.name for node in nodes or () if not node.is_usable)}
        spares = tuple(spare for spare in self._cluster.spares if spare not in barred)
        hosts = self._hosts | frozenset(node.name for node in nodes or ())
        return replace(self._cluster, spares=spares, hosts=hosts, block_of=self._blocks)


def _find_blocks(topology: Topology) -> dict[str, str]:
    """Return by host the rack it stands in, else the first leaf that one of its links leads to."""
    switches = {node.id for node in topology.switches}
    blocks = {host.id: host.rack for host in topology.hosts if host.rack}
    for link in topology.links:
        a, b = link.a.partition("/")[0], link.b.partition("/")[0]
        for host, leaf in ((a, b), (b, a)):
            if host not in switches and leaf in switches:
                blocks.setdefault(host, leaf)
    return blocks
