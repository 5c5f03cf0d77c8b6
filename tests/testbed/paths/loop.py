"""The whole loop on real links: a link turns slow, the analyzer names it, the plan leaves it, the job is fast again.

A job of ranks that really send runs on a fabric of leaves and spines, with collectors, gateway, store, analyzer and
path planner as they are. Nothing is restarted, and nobody is told which link it is.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

from collector.shipping import Batch, GatewayClient
from lockstep.arrow import rows_of
from lockstep.batches import encode_batch
from lockstep.clock import SystemClock
from lockstep.errors import LockstepError
from lockstep.fabrics import FabricOptions, leaf_spine
from lockstep.records import Path as PathRow
from lockstep.state.database import ControlDatabase
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import Topology, split_end
from simulator.faults import parse_fault
from tests.testbed.fabric.building import build_fabric
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.plan import ShapeOptions
from tests.testbed.faults.breaker import Breaker
from tests.testbed.paths.flows import Nic, PathProber, PortFinder
from tests.testbed.paths.timeline import Timeline, make_timeline, note_degraded, note_moved, read_records
from tests.testbed.paths.translating import Direction, Translation
from tests.testbed.ranks import build_ranks
from tests.testbed.scenarios.head_node import PlanningHead
from tests.testbed.services import wait_until
from tests.testbed.workers.job import Job, rings_of, start_job
from tests.testbed.workers.plan import Collective, Compute, JobPlan, Layout

Note = Callable[[str], None]

_LEAVES, _SPINES = 4, 2
_NIC_MBPS = 40.0  # eight of these are a fifth of what two cores carry
_WARM_UP_STEPS = 3
_START_S = 120.0  # the plan comes with the first ten seconds of telemetry, on a busy machine later
_POLL_S = 0.2
_PATHS = TABLE_BY_NAME["paths"]
_SURE = 1.0  # the probe had the very ports that the connection has on the wire


def live_directions(plan: JobPlan, job: Job) -> dict[str, Direction]:
    """Return the connections by which ranks send, by the names that the path planner has for them."""
    host_at = {
        (plan.comm_id(kind, group), index): plan.hosts[world]
        for rank in range(plan.layout.ranks)
        for kind in plan.kinds
        for group in [plan.layout.group_of(kind, rank)]
        for index, world in enumerate(group)
    }
    return {
        f"{plan.job}/{s.comm:x}/r{s.rank}-r{s.peer}/c{s.channel}/q0": Direction(
            (host_at[s.comm, s.rank], s.nic), (host_at[s.comm, s.peer], s.nic), s.sport, s.dport
        )
        for rank in job.ranks
        for s in rank.sockets
    }


@dataclass(frozen=True, slots=True)
class LivePath:
    """Where a connection goes now."""

    links: tuple[str, ...]
    translation: Translation | None = None


class LivePaths:
    """Follows the plan until the block ends; then all connections have their own ports again.

    Stands for an enforcing agent on every host: it reads the plan as the host's collector was told it, finds a port
    by probing, and tells the store which links each connection takes now, under the port that the socket itself has.
    """

    def __init__(
        self, fabric: Fabric, head: PlanningHead, control: ControlDatabase, directions: Mapping[str, Direction]
    ) -> None:
        self._fabric, self._head, self._control, self._directions = fabric, head, control, directions
        self._clock = SystemClock()
        self._prober = PathProber(fabric)
        self._finder = PortFinder(self._prober, seed=1)
        self._couriers = {host: _Courier(head, host) for host in {each.src[0] for each in directions.values()}}
        self.paths: dict[str, LivePath] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="live-paths")

    def __enter__(self) -> "LivePaths":
        self.paths = {name: LivePath(self._probe(direction)) for name, direction in self._directions.items()}
        for name in self.paths:
            self._write_path(name)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for path in self.paths.values():
            if path.translation:
                path.translation.undo()
        self._prober.close()
        for courier in self._couriers.values():
            courier.close()

    def crossing(self, link: str) -> list[str]:
        """Return the connections that cross a link now."""
        return [name for name, path in self.paths.items() if link in path.links]

    def nics_over(self, link: str) -> list[Nic]:
        """Return both NICs of each connection that crosses a link now."""
        return [
            nic for name in self.crossing(link) for nic in (self._directions[name].src, self._directions[name].dst)
        ]

    def is_planned(self) -> bool:
        """Return whether all connections are on the paths of the newest plan that their hosts know."""
        plans = [self._head.paths_of(host) for host in self._couriers]
        wanted = {choice.connection: choice.links for each in plans if each for choice in each.choices}
        return all(wanted.get(name) == path.links for name, path in self.paths.items())

    def _follow(self) -> None:
        while not self._is_over.wait(_POLL_S):
            for host in self._couriers:
                self._keep_to_plan(host)

    def _keep_to_plan(self, host: str) -> None:
        """Move what the newest plan of a host wants elsewhere; what finds no port now is tried again."""
        planned = self._head.paths_of(host)
        for choice in planned.choices if planned else ():
            path = self.paths.get(choice.connection)
            if planned and path and path.links != choice.links:
                self._move(choice.connection, choice.links, planned.generation)

    def _move(self, name: str, links: tuple[str, ...], generation: int) -> None:
        direction, before = self._directions[name], self.paths[name]
        ports = self._finder.find(direction.src, direction.dst, direction.dport, links)
        if not ports:
            return
        self.paths[name] = LivePath(links, Translation(self._fabric, direction, ports[0]))
        if before.translation:  # the new rule is there already, and counts as soon as the old one is gone
            before.translation.undo()
        why = f"from {' '.join(before.links[1:-1])} to {' '.join(links[1:-1])}"
        note_moved(self._control, name, generation, why, self._clock.now_ns())
        self._write_path(name)

    def _probe(self, direction: Direction) -> tuple[str, ...]:
        ports = (direction.sport, direction.dport)
        return self._prober.find_paths(direction.src, direction.dst, [ports]).get(ports, ())

    def _write_path(self, name: str) -> None:
        """Write the links of a connection into `paths`, where the analyzer looks for them."""
        direction, links = self._directions[name], self.paths[name].links
        if links:
            row = _path_row(direction, links, self._clock.now_ns())
            self._couriers[direction.src[0]].send(row)


def _path_row(direction: Direction, links: tuple[str, ...], now_ns: int) -> PathRow:
    (host, src_nic), (dst, dst_nic) = direction.src, direction.dst
    return PathRow(
        host=host,
        src_nic=src_nic,
        dst=dst,
        dst_nic=dst_nic,
        proto="tcp",
        sport=direction.sport,
        dport=direction.dport,
        links=list(links),
        seen_ns=now_ns,
        confidence=_SURE,
    )


class _Courier:
    """Brings rows of one host to the gateway, beside its collector."""

    def __init__(self, head: PlanningHead, host: str) -> None:
        self._client = GatewayClient(head.url, head.token_of(host).read_text(), host)
        self._numbers = count(1)

    def send(self, row: PathRow) -> None:
        body = encode_batch({"paths": rows_of(_PATHS, [row])})
        self._client.send(Batch("paths", next(self._numbers), body, rows=1))

    def close(self) -> None:
        self._client.close()


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """What is run for how long."""

    hosts: int = 8
    share: float = 0.1  # of its rate that the link still carries
    healthy_s: float = 20.0  # on planned paths, before the link turns slow
    watch_s: float = 120.0  # at most, until connections have left the link; an analyzer without CPU falls behind
    after_s: float = 12.0  # after that
    bytes: int = 1_000_000  # of an all-reduce, one a step
    compute_ms: float = 150.0
    seed: int = 1  # of the choice of the link


def loop_fabric(hosts: int) -> Topology:
    """Return leaves under two spines; up-links have twice the rate of NICs, so that one spine can carry a leaf."""
    nic_gbps = _NIC_MBPS / 1000
    options = FabricOptions(gpus_per_host=1, gbps=nic_gbps, uplink_gbps=2 * nic_gbps)
    return leaf_spine(hosts, 1, leaves=_LEAVES, spines=_SPINES, options=options)


def ring_over_leaves(hosts: int) -> tuple[str, ...]:
    """Return the hosts in an order in which every neighbour is on the next leaf.

    >>> ring_over_leaves(8)
    ('h0', 'h2', 'h4', 'h6', 'h1', 'h3', 'h5', 'h7')
    """
    seats = hosts // _LEAVES
    return tuple(f"h{leaf * seats + seat}" for seat in range(seats) for leaf in range(_LEAVES))


def plan_job(options: LoopOptions) -> JobPlan:
    """Return a job with one rank a host and one all-reduce a step, over one ring."""
    hosts = ring_over_leaves(options.hosts)
    step = (Compute(options.compute_ms), Collective("world", "AllReduce", options.bytes, channels=1))
    return JobPlan("loop", hosts, Layout(dp=len(hosts)), step, seed=options.seed)


def run_loop(folder: Path, options: LoopOptions, note: Note) -> Timeline:
    """Run it in a new folder and return what store and control database tell of it; about two minutes, needs root."""
    plan = plan_job(options)
    with _set(folder, plan, options, note) as stage:
        _break_link(stage, options, note)
        head = stage.head
    with head.open_store() as store, head.open_control() as control:
        return make_timeline(read_records(store, control, plan.job))


@dataclass(frozen=True)
class _Stage:
    """Everything that runs meanwhile."""

    fabric: Fabric
    head: PlanningHead
    paths: LivePaths
    control: ControlDatabase


@contextmanager
def _set(folder: Path, plan: JobPlan, options: LoopOptions, note: Note) -> Iterator[_Stage]:
    """Build everything, and wait until the connections of the job are on planned paths."""
    topology, built = loop_fabric(options.hosts), folder / "built"
    build_ranks(built)
    limit_s = int(_START_S + options.healthy_s + options.watch_s + options.after_s)
    with ExitStack() as stack:
        note(f"building {len(topology.hosts)} hosts and {len(topology.switches)} switches")
        fabric = stack.enter_context(build_fabric(topology, ShapeOptions(mbps_per_gbps=1000.0)))
        head = stack.enter_context(PlanningHead(folder / "state", fabric))
        job = stack.enter_context(start_job(fabric, plan, built, folder / "job", limit_s))
        for host in plan.hosts:
            head.start_collector(host, rings_of(folder / "job", host))
        job.wait_for_step(_WARM_UP_STEPS)
        control = stack.enter_context(head.open_control())
        live = live_directions(plan, job)
        paths = stack.enter_context(LivePaths(fabric, head, control, live))
        note(f"{head.url} answers; waiting for a plan of {len(live)} connections")
        wait_until(paths.is_planned, "all connections are on planned paths", _START_S)
        yield _Stage(fabric, head, paths, control)


def _break_link(stage: _Stage, options: LoopOptions, note: Note) -> None:
    """Degrade a link that connections cross, and wait until they have left it and some steps are done."""
    clock = SystemClock()
    clock.wait(threading.Event(), options.healthy_s)
    link = _choose_link(stage, options.seed)
    with Breaker(stage.fabric) as breaker:
        breaker.apply(parse_fault(f"at 0 s fail link:{link} to {100 * options.share:g} %"))
        note_degraded(stage.control, link, f"to {options.share:.0%} of its rate", clock.now_ns())
        note(f"{link} is degraded, which {len(stage.paths.crossing(link))} connections cross")
        try:
            wait_until(lambda: not stage.paths.crossing(link), f"nothing crosses {link}", options.watch_s)
        except LockstepError as late:  # the timeline says what did not happen
            note(str(late))
        clock.wait(threading.Event(), options.after_s)


def _choose_link(stage: _Stage, seed: int) -> str:
    """Return a link between switches that connections of different NICs cross, so that none of these can be blamed.

    There is one: hosts that send and receive over the same spine at every leaf would need an even ring of spines, and
    the two hosts of a leaf trade places after each round over all leaves.
    """
    switches = set(stage.fabric.plan.switches)
    links = [link for link in stage.fabric.topology.links if {split_end(link.a)[0], split_end(link.b)[0]} <= switches]
    nics = {link.id: stage.paths.nics_over(link.id) for link in links}
    fit = [link for link, ends in nics.items() if len(ends) > 2 and len(set(ends)) == len(ends)]
    if not fit:
        raise LockstepError(f"no link is crossed by two connections that share no NIC; there are {nics}")
    return Random(seed).choice(fit)  # a choice, no secret
