"""What a decision is made from: the fault, the job it hit, the cluster around it, and how long things take here."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lockstep.in_job import InJobAct
from lockstep.verdict import Verdict
from planner.checkpoints.intervals import FailureRate
from planner.controllers.protocol import EVERY_ACT, ControllerAct


@dataclass(frozen=True, slots=True)
class Layout:
    """How a job is laid out over its GPUs, as far as a cure depends on it."""

    tensor: int = 1
    stages: int = 1
    replicas: int = 1
    micro_batches: int | None = None  # per replica and step; None: unknown

    @property
    def gpus(self) -> int:
        return self.tensor * self.stages * self.replicas

    def on(self, gpus: int) -> "Layout":
        """Return it with as many whole replicas as so many GPUs hold, at least one; stages and tensors stay."""
        return replace(self, replicas=max(gpus // (self.tensor * self.stages), 1))

    def as_target(self) -> dict[str, int]:
        """Return it in the words of a decision."""
        return {"tp": self.tensor, "pp": self.stages, "dp": self.replicas}


@dataclass(frozen=True, slots=True)
class Resume:
    """A checkpoint that was verified to be complete, and what going back to it takes."""

    path: str
    form: str
    age_s: float  # work that is done again
    load_s: float
    convert: tuple[str, ...] = ()  # a command to run before, where the layout changes and the format needs it
    convert_s: float = 0.0
    bytes: int = 0  # of the whole checkpoint; 0: unknown
    obstacle: str | None = None  # why the planner cannot convert it: a person has to; None: nothing is in the way

    @property
    def back_s(self) -> float:
        """Return what going back to it takes before the first step, without starting processes."""
        return self.convert_s + self.load_s

    def as_document(self) -> dict[str, str]:
        """Return it in the words of a decision."""
        found = {"source": "remote", "checkpoint": self.path, "format": self.form}
        return found | ({"convert": shlex.join(self.convert)} if self.convert else {})


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One job as it runs."""

    job: str
    attempt: int = 0
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    layout: Layout | None = None
    resume: Resume | None = None  # on as many nodes as now
    resume_smaller: Resume | None = None  # on one node less: its layout is another one, which not all can load
    next_save_s: float | None = None  # until the next checkpoint is complete; None: unknown
    age_s: float | None = None  # since it began: all that a job without a checkpoint has; None: unknown
    save_every_s: float | None = None  # from one checkpoint to the next, as it was of late; None: unknown
    weight: float = 1.0
    min_nodes: int = 1
    throughput: Mapping[int, float] = field(default_factory=dict)  # work a second by nodes; else in proportion
    measured: frozenset[int] = frozenset()  # counts of that table that were seen in its own telemetry
    is_in_gpus: bool = False  # the table is in GPU-equivalents (allocation/calibration.py), else in the site's unit
    throughput_from: str = ""  # where its figures are from, in words
    strangers: tuple[str, ...] = ()  # hosts that tell of it, and that the controller knows nothing of in it
    can: frozenset[InJobAct] = frozenset()  # what it has announced that it does when it is told to
    standstill_s: float | None = None  # that doing so has cost it the last time
    speed_after: float | None = None  # share of its speed with which it reckons without one process
    is_over: bool = False  # the controller says that it has ended; or telemetry, where there is no controller

    @property
    def most_nodes(self) -> int:
        """Return the most nodes that it is known to have had or may have: it is given back those, and no more."""
        return max([len(self.nodes), *self.throughput])

    def speed_on(self, nodes: int) -> float:
        """Return the share of full speed on that many nodes; 0 below its minimum."""
        held = len(self.nodes)
        if nodes < self.min_nodes or not held:
            return 0.0
        if nodes in self.throughput and self.throughput.get(held):
            return self.throughput[nodes] / self.throughput[held]
        return min(nodes / held, 1.0)

    def say_speed_on(self, nodes: int) -> str:
        """Return the same in words, with where it is from."""
        if nodes not in self.throughput or not self.throughput.get(len(self.nodes)):
            how = "in proportion to the nodes"
        elif not self.is_in_gpus:
            how = "set in the settings"
        else:
            how = "measured" if nodes in self.measured else "by a model"
        return f"at {self.speed_on(nodes):.0%} of its speed ({how})"


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What is around the job."""

    hosts: frozenset[str] = frozenset()  # all there are
    spares: tuple[str, ...] = ()  # usable and idle, best first
    free: tuple[str, ...] = ()  # usable nodes besides that nothing is known to run on: they came back, or were left
    block_of: Mapping[str, str] = field(default_factory=dict)  # host to the leaf or rack it hangs on
    leaf_of: Mapping[str, str] = field(default_factory=dict)  # host to the leaves of all its rails, where cabled
    failures_per_node_day: float = 0.0065  # Meta RSC-1: 6.50 per 1,000 node-days
    failure_rate: FailureRate | None = None  # as seen here; None: too little was
    failures_of: Mapping[str, float] = field(default_factory=dict)  # a day, by node, where there is evidence
    repair_s: float = 24 * 3600.0  # until an isolated node is back
    can_reroute: bool = False  # the path planner runs and the fabric lets ports choose paths
    enforced_share: float = 1.0  # of planned connections that keep to the plan; 0 where it is only advice
    can_restart: bool = False  # a controller is there
    controller: str = ""  # its name, for what a person would type instead; empty: nobody is set
    acts: frozenset[ControllerAct] = EVERY_ACT  # what it says that it can do
    restarts_whole_job: bool = True  # a new process means a new attempt of the whole job from its checkpoint


@dataclass(frozen=True, slots=True)
class Durations:
    """How long cures take here, before anything is loaded; the first runs of a site replace them."""

    reattempt_s: float = 10.0
    restart_process_s: float = 30.0
    peer_bytes_per_s: float = 12.5e9  # from a live replica to a node: one NIC of 100 Gbit/s
    rebuild_s: float = 15.0  # communicators anew, without the lost worker
    start_s: float = 120.0  # a new attempt, from the order until its first step, without loading
    person_s: float = 1800.0  # until somebody who was called has looked


def horizon_s(job: JobFacts, cluster: ClusterFacts) -> float:
    """Return how long a choice is expected to matter: until the part is repaired, or the job's next fault.

    >>> horizon_s(JobFacts("j", nodes=("a",) * 20), ClusterFacts(failures_per_node_day=0.1))
    43200.0
    """
    per_day = max(len(job.nodes), 1) * cluster.failures_per_node_day
    until_next_s = 86_400 / per_day if per_day > 0 else float("inf")
    return max(min(cluster.repair_s, until_next_s), 60.0)


_OF_ONE_HOST = ("nic", "gpu", "host", "nvlink", "pcie")


def node_of(component: str, hosts: frozenset[str]) -> str | None:
    """Return the host that would be taken out of service for a part; None where that is no single host.

    >>> node_of("nic:h3/eth1", frozenset({"h3"})), node_of("link:h3/eth1--leaf1", frozenset({"h3"}))
    ('h3', 'h3')
    >>> node_of("link:leaf1--spine2", frozenset({"h3"})) is None
    True
    """
    kind, _, name = component.partition(":")
    if kind in _OF_ONE_HOST:
        return name.partition("/")[0] or None
    if kind == "link":
        ends = {end.partition("/")[0] for end in name.split("--")} & hosts
        return ends.pop() if len(ends) == 1 else None
    return None


def is_in_the_fabric(component: str, hosts: frozenset[str]) -> bool:
    """Return whether a part lies between switches, so that other ways lead around it."""
    kind, _, name = component.partition(":")
    if kind == "switch":
        return True
    return kind == "link" and not {end.partition("/")[0] for end in name.split("--")} & hosts


def is_hardware(component: str) -> bool:
    """Return whether a part is something that can be replaced; ranks and jobs are not."""
    return component.partition(":")[0] in (*_OF_ONE_HOST, "link", "switch")


@dataclass(frozen=True, slots=True)
class Context:
    """A fault, the job it hit, and what is around."""

    verdict: Verdict
    job: JobFacts
    cluster: ClusterFacts
    durations: Durations = field(default_factory=Durations)
    gpu_hour_price: float | None = None
    seat: str | None = None  # the GPU or host under a rank whose new process did not help; None: not that
    also_dead: tuple[Verdict, ...] = ()  # on other nodes of the job that are gone as well

    @property
    def hosts(self) -> frozenset[str]:
        return self.cluster.hosts | frozenset(self.job.nodes)

    @property
    def part(self) -> str:
        """The part that would be taken away: the one that is blamed, or what a rank runs on."""
        return self.seat or self.verdict.component

    @property
    def node(self) -> str | None:
        """The node that would be taken away."""
        return node_of(self.part, self.hosts)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All that would be taken away together, that of the verdict first."""
        dead = (node_of(verdict.component, self.hosts) for verdict in self.also_dead)
        return tuple(dict.fromkeys(node for node in (self.node, *dead) if node))

    @property
    def stands_still(self) -> bool:
        return self.verdict.stands_still

    @property
    def speed_now(self) -> float:
        """Share of full speed while the fault lasts and nothing is done."""
        return 1.0 if self.verdict.speed is None else self.verdict.speed
