"""The whole loop on real links: a link turns slow, the analyzer names it, the plan leaves it, the job is fast again.

A job of ranks that really send runs on a fabric of leaves and spines, with collectors, gateway, store, analyzer and
path planner as they are. Nothing is restarted, and nobody is told which link it is.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from lockstep.clock import SystemClock
from lockstep.errors import LockstepError
from lockstep.fabrics import FabricOptions, leaf_spine
from lockstep.state.database import ControlDatabase
from lockstep.topology import Topology, split_end
from simulator.faults import parse_fault
from tests.testbed.fabric.building import build_fabric
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.options import ShapeOptions
from tests.testbed.faults.breaker import Breaker
from tests.testbed.paths.live_paths import LivePaths, live_directions
from tests.testbed.paths.planning_head import PlanningHead
from tests.testbed.paths.timeline import Timeline, make_timeline, note_degraded, read_records
from tests.testbed.ranks import build_ranks
from tests.testbed.services import wait_until
from tests.testbed.workers.job import rings_of, start_job
from tests.testbed.workers.plan import Collective, Compute, JobPlan, Layout

Note = Callable[[str], None]

_LEAVES, _SPINES = 4, 2
_NIC_MBPS = 40.0  # eight of these are a fifth of what two cores carry
_WARM_UP_STEPS = 3
_START_S = 120.0  # the plan comes with the first ten seconds of telemetry, on a busy machine later


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
    probes: bool = True  # whether collectors probe the fabric
    tells: bool = True  # whether the store learns which links each connection takes


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
        head = stack.enter_context(PlanningHead(folder / "state", fabric, probes=options.probes))
        job = stack.enter_context(start_job(fabric, plan, built, folder / "job", limit_s))
        for host in plan.hosts:
            head.start_collector(host, rings_of(folder / "job", host))
        job.wait_for_step(_WARM_UP_STEPS)
        control = stack.enter_context(head.open_control())
        live = live_directions(plan, job)
        paths = stack.enter_context(LivePaths(fabric, head, control, live, tells=options.tells))
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
