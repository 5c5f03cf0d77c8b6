"""Reads what decisions need to know of jobs and the cluster: from telemetry, the controller and the settings."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput, ControllerDown
from lockstep.hostlists import match_hosts
from lockstep.records import Event
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import list_incidents
from lockstep.store.store import Store
from lockstep.topology import Topology
from lockstep.verdict import Incident
from planner.allocation.calibration import Known, PaceReader
from planner.allocation.cluster import estimate_failure_rates, place_nodes
from planner.allocation.throughput import Transformer
from planner.checkpoints.intervals import FailureRate, find_failure_rate
from planner.context import ClusterFacts, JobFacts, Layout, Resume, node_of
from planner.controllers.protocol import Controller, JobView, Node
from planner.holdings import Holding, find_ended, find_seat, list_running, read_holdings, read_seats

# One look a day is enough to tell for how many days a host was watched, and spares reading a month of heartbeats.
_WATCHED = """
SELECT host, uniqExact(intDiv({end:Int64} - ts_ns, {day:Int64})) AS days FROM agents WHERE WINDOWS
GROUP BY host ORDER BY host
"""
_DAYS = 30
_DAY_NS = 86_400 * NS_PER_S
_SAMPLE_NS = 120 * NS_PER_S  # of each day
_KEEP_S = 3600.0  # rates of rare events change slowly
_LEAST_NODE_DAYS = 30.0  # fewer, and one failure more or less would change everything
_MOST_INCIDENTS = 1000


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen of failures; nothing where nodes were not watched for long enough."""

    rate: FailureRate | None = None
    by_node: Mapping[str, float] = field(default_factory=dict)  # a day


class EvidenceReader:
    """Answers with how often nodes fail, read again once an hour."""

    def __init__(self, store: Store | None, control: ControlDatabase) -> None:
        self._store, self._control = store, control
        self._kept, self._read_ns = Evidence(), 0

    def read(self, now_ns: int) -> Evidence:
        """Return the failures of the last month."""
        if self._store is not None and now_ns - self._read_ns >= _KEEP_S * NS_PER_S:
            days = _read_days(self._store, now_ns)
            self._kept, self._read_ns = find_evidence(self._count(days, now_ns - _DAYS * _DAY_NS), days), now_ns
        return self._kept

    def _count(self, days: Mapping[str, float], since_ns: int) -> Counter[str]:
        found = list_incidents(self._control, limit=_MOST_INCIDENTS)
        verdicts = [each.verdict for each in found if each.opened_ns >= since_ns]
        stopped = [each.component for each in verdicts if each.stands_still]
        hosts = frozenset(days)
        return Counter(node for part in stopped if (node := node_of(part, hosts)) in hosts)


def _read_days(store: Store, now_ns: int) -> dict[str, float]:
    """Return for how many of the last days each host was watched."""
    ends = [now_ns - day * _DAY_NS for day in range(_DAYS)]
    windows = " OR ".join(f"(ts_ns > {end - _SAMPLE_NS} AND ts_ns <= {end})" for end in ends)
    rows = store.query(_WATCHED.replace("WINDOWS", windows), {"end": now_ns, "day": _DAY_NS}).to_pylist()
    return {str(row["host"]): float(row["days"]) for row in rows}


def find_evidence(failures: Mapping[str, int], days: Mapping[str, float]) -> Evidence:
    """Return the rates of nodes that were watched for so many days each."""
    watched = sum(days.values())
    if watched < _LEAST_NODE_DAYS:
        return Evidence()
    return Evidence(find_failure_rate(sum(failures.values()), watched), estimate_failure_rates(failures, days))


_EVENTS = """
SELECT host, ts_ns, source, kind, component, severity, message FROM events
WHERE ts_ns >= {start:Int64} AND ts_ns < {end:Int64} AND host IN {hosts:Array(String)}
    AND severity IN ('error', 'critical')
ORDER BY ts_ns DESC LIMIT 100
"""
_BACK_S = 60.0  # an error may be told before the job stands still; who is at work was heard of since


class Checkpoints(Protocol):
    """Knows the checkpoints of jobs."""

    def newest(self, job: str, layout: Layout | None, now_ns: int, is_resized: bool = False) -> Resume | None: ...

    def save_every_s(self, job: str, now_ns: int) -> float | None: ...

    def next_save_s(self, job: str, now_ns: int) -> float | None: ...


@dataclass(frozen=True, slots=True)
class JobHint:
    """What a site says of a job beforehand; telemetry does not carry it."""

    layout: Layout | None = None
    weight: float = 1.0
    min_nodes: int = 1
    throughput: Mapping[int, float] = field(default_factory=dict)
    transformer: Transformer | None = None

    @property
    def known(self) -> Known:
        """Return what its work by nodes follows from."""
        return Known(self.throughput, self.layout, self.transformer)


@dataclass(frozen=True, slots=True)
class Overview:
    """All jobs that are at work, and what they run on."""

    jobs: Sequence[JobFacts]
    cluster: ClusterFacts
    nodes: Sequence[Node] | None = None
    trouble: str | None = None  # why the controller could not be asked


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is known at one moment."""

    job: JobFacts
    cluster: ClusterFacts
    others: Sequence[JobFacts] = ()  # jobs that run beside it
    events: Sequence[Event] = ()
    nodes: Sequence[Node] | None = None
    trouble: str | None = None  # why the controller could not be asked
    seat: str | None = None  # the GPU or host under the incident's rank, where it was the same in the attempt before


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
        paces: PaceReader | None = None,
        evidence: Callable[[int], Evidence] = lambda now_ns: Evidence(),
        names_of: Callable[[str], Sequence[str]] = lambda job: (job,),
        enforced_share: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._store, self._controller, self._checkpoints = store, controller, checkpoints
        self._cluster, self._hints, self._paces, self._names_of = cluster, hints, paces, names_of
        self._evidence, self._enforced_share = evidence, enforced_share
        self._hosts = frozenset(host.id for host in topology.hosts) if topology else frozenset()
        self._told = set(self._hosts)  # hosts as our own records spell them, which the controller may not
        self._blocks = _find_blocks(topology) if topology else {}
        placed = place_nodes(topology, {}) if topology else ()
        self._leaves = {node.name: node.leaf for node in placed if node.leaf}

    def use_spares(self, spares: tuple[str, ...]) -> None:
        """Count these nodes as spares from now on, best first."""
        self._cluster = replace(self._cluster, spares=spares)

    def read(self, incident: Incident, now_ns: int) -> Snapshot:
        """Return what is known about an incident's job, and what is around it."""
        held = self._read_held(incident.job, incident.attempt, now_ns)
        nodes, trouble = self._ask_for_nodes()
        job = self._read_job(incident, held, now_ns, None if trouble else nodes or ())
        cluster = self._describe(nodes, job.nodes, now_ns)
        events = self._read_events(job.nodes, incident, now_ns)
        others = [other for other in self._list_jobs(held, now_ns) if other.job != incident.job]
        return Snapshot(job, cluster, others, events, nodes, trouble, self._read_seat(incident))

    def survey(self, now_ns: int) -> Overview:
        """Return all jobs that are at work, or stand still, and the cluster around them."""
        jobs = self._list_jobs(self._read_held("", 0, now_ns), now_ns)
        nodes, trouble = self._ask_for_nodes()
        held = [node for job in jobs for node in job.nodes]
        return Overview(jobs, self._describe(nodes, held, now_ns), nodes, trouble)

    def resume_on(self, job: JobFacts, nodes: int, now_ns: int) -> Resume | None:
        """Return the newest checkpoint that a job can start from on so many nodes."""
        if self._checkpoints is None:
            return None
        origin, held = self._names_of(job.job)[-1], len(job.nodes)
        is_resized = nodes != held
        layout = job.layout.on(job.gpus // held * nodes) if job.layout and held and is_resized else job.layout
        return self._checkpoints.newest(origin, layout, now_ns, is_resized)

    def is_over(self, job: str) -> bool:
        """Return whether the controller says that a job has ended; one that it does not know may still run."""
        view = self._ask_for_job(job)
        return view is not None and view.state in ("ended", "failed")

    def _read_seat(self, incident: Incident) -> str | None:
        kind, _, number = incident.verdict.component.partition(":")
        if self._store is None or kind != "rank" or not number.isdigit():
            return None
        return find_seat(read_seats(self._store, self._names_of(incident.job), int(number)))

    def _ask_for_nodes(self) -> tuple[Sequence[Node] | None, str | None]:
        if self._controller is None:
            return None, None
        try:
            found = self._controller.nodes()
        except ControllerDown as down:
            return None, str(down)
        ours = match_hosts([node.name for node in found], self._told)
        return [replace(node, name=ours.get(node.name, node.name)) for node in found] or None, None

    def _read_job(
        self, incident: Incident, held: Sequence[Holding], now_ns: int, listed: Sequence[Node] | None
    ) -> JobFacts:
        """Return the job of an incident; `listed` nodes are all that the controller has, None while it is away."""
        name, attempt = incident.job, incident.attempt
        ranks = {each.host: len(each.gpus) for each in held if (each.job, each.attempt) == (name, attempt)}
        view = self._ask_for_job(name) if listed is not None else None
        nodes = tuple(ranks) or (view.nodes if view else ())
        gpus = sum(ranks.values()) or incident.verdict.gpus
        began_ns = [each.began_ns for each in held if (each.job, each.attempt) == (name, attempt)]
        age_s = (now_ns - min(began_ns)) / NS_PER_S if began_ns else None
        known = _with_announced(self._know(JobFacts(name, attempt, nodes, gpus, age_s=age_s), now_ns), view)
        is_over = (name, attempt) in find_ended(held) if view is None else view.state == "ended"
        return replace(known, is_over=is_over, strangers=_find_strangers(ranks, view, listed or ()))

    def _know(self, job: JobFacts, now_ns: int) -> JobFacts:
        """Return a job with what hints, checkpoints and its own past say of it; all go by its first name."""
        names, held = self._names_of(job.job), len(job.nodes)
        hint = self._hints.get(names[-1], self._hints.get("*", JobHint()))
        rates = self._paces.rates_of(names, hint.known, held, job.gpus, now_ns) if self._paces else None
        known = replace(
            job,
            layout=hint.layout,
            weight=hint.weight,
            min_nodes=hint.min_nodes,
            throughput=rates.by_nodes if rates else hint.throughput,
            measured=rates.seen if rates else frozenset(),
            is_in_gpus=rates is not None and not rates.is_configured,
            throughput_from=rates.reason if rates else "",
        )
        if self._checkpoints is None:
            return known
        return replace(
            known,
            resume=self.resume_on(known, held, now_ns),
            resume_smaller=self.resume_on(known, held - 1, now_ns),
            next_save_s=self._checkpoints.next_save_s(names[-1], now_ns),
            save_every_s=self._checkpoints.save_every_s(names[-1], now_ns),
        )

    def _ask_for_job(self, job: str) -> JobView | None:
        try:
            view = self._controller.job(job) if self._controller else None
        except (ControllerDown, BadInput):
            return None
        ours = match_hosts(view.nodes, self._told) if view else {}
        return replace(view, nodes=tuple(ours.get(node, node) for node in view.nodes)) if view else None

    def _read_held(self, job: str, attempt: int, now_ns: int) -> list[Holding]:
        """Return who holds what, and remember how telemetry spells hosts."""
        held = read_holdings(self._store, job, attempt, now_ns - int(_BACK_S * NS_PER_S)) if self._store else []
        self._told |= {each.host for each in held}
        return held

    def _list_jobs(self, held: Sequence[Holding], now_ns: int) -> list[JobFacts]:
        """Return the jobs that were heard of in the last minute and have not ended, with their newest attempt."""
        found = [JobFacts(*who, tuple(gpus), sum(gpus.values())) for who, gpus in list_running(held).items()]
        return [self._know(each, now_ns) for each in found]

    def _read_events(self, hosts: Sequence[str], incident: Incident, now_ns: int) -> list[Event]:
        """Return errors on the part's own host since shortly before the fault; on all hosts where it has none."""
        if self._store is None or not hosts:
            return []
        own = [host for host in hosts if f":{host}" in incident.verdict.component]
        start_ns = incident.verdict.since_ns - int(_BACK_S * NS_PER_S)
        window = {"start": start_ns, "end": now_ns, "hosts": own or list(hosts)}
        return [Event(**row) for row in self._store.query(_EVENTS, window).to_pylist()]

    def _describe(self, nodes: Sequence[Node] | None, held: Sequence[str], now_ns: int) -> ClusterFacts:
        """Return the cluster with the spares that are usable now and that no job holds."""
        barred = {*held, *(node.name for node in nodes or () if not node.is_usable or node.is_idle is False)}
        ours = match_hosts(self._cluster.spares, self._told | {node.name for node in nodes or ()})
        named = (ours.get(spare, spare) for spare in self._cluster.spares)
        spares = tuple(spare for spare in named if spare not in barred)
        hosts = self._hosts | frozenset(node.name for node in nodes or ())
        known = replace(
            self._cluster,
            spares=spares,
            hosts=hosts,
            block_of=self._blocks,
            leaf_of=self._leaves,
            enforced_share=self._enforced_share(),
        )
        seen = self._evidence(now_ns)
        if seen.rate is None:
            return known
        return replace(
            known, failure_rate=seen.rate, failures_of=seen.by_node, failures_per_node_day=seen.rate.planned
        )


def _with_announced(job: JobFacts, view: JobView | None) -> JobFacts:
    """Return a job with what it has announced of itself; a hint says more of its layout."""
    if view is None or view.replicas is None:
        return job
    announced = Layout(stages=view.stages, replicas=view.replicas, micro_batches=view.micro_batches)
    known = replace(job, standstill_s=view.standstill_s, speed_after=view.speed_after)
    return replace(known, can=frozenset(view.can), layout=job.layout or announced)


def _find_strangers(hosts: Iterable[str], view: JobView | None, listed: Sequence[Node]) -> tuple[str, ...]:
    """Return hosts whose telemetry names a job that does not run there, as far as the controller can tell."""
    names = {node.name for node in listed} if any(node.is_usable for node in listed) else set()  # NVRx: excluded only
    own = set(view.nodes) if view and view.nodes else names
    return tuple(sorted(set(hosts) - own)) if own else ()


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
