"""A link is cut while all flows send: what a plan is worth that nobody changes, and one that follows."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from lockstep.errors import LockstepError
from lockstep.topology import Topology
from tests.testbed.fabric.fabric import Fabric, read_ports
from tests.testbed.fabric.management import set_state
from tests.testbed.fabric.plan import FabricPlan, Route, lay_route, plan_routes
from tests.testbed.paths.flows import (
    FlowLinks,
    PlannedFlow,
    Planner,
    ideal_round_s,
    scale_uplinks,
    shift_by_a_leaf,
    without,
)
from tests.testbed.paths.trials import (
    BenchOptions,
    CutTrial,
    PathBench,
    Round,
    TrialOptions,
    measure_single,
    open_bench,
)

LANES = 3  # flows of one pair of NICs, as queue pairs: on 4 spines 3 flows a link, and 4 where 3 spines are left
_ROUND_S = 0.5  # of an ideal round before the cut: far above the round trip, so that beginnings and ends do not count
# All that flows may have on their way fits in one queue: nothing is dropped, as in a fabric with flow control.
# With drops a round of TCP ends with time-outs of 0.2 s and more, which have nothing to do with paths.
_LOSSLESS = BenchOptions(most_mbps=800.0, queue_ms=300.0, send_buffer=48 << 10)
_POLL_S = 0.05  # between two looks at the links; a real agent is told by netlink at once


class LinkCut:
    """One link of a fabric; whole again when the block ends."""

    def __init__(self, fabric: Fabric, link: str, withdraw_s: float = 0.2) -> None:
        """`withdraw_s`: what a routing protocol takes to tell the others; BGP with fast fallover takes some 0.1 s."""
        self._fabric, self._withdraw_s = fabric, withdraw_s
        (self._cable,) = (cable for cable in fabric.plan.cables if cable.link.id == link)
        broken = without(fabric.topology, [link])
        links = {each.id: each for each in broken.links}
        cables = tuple(replace(cable, link=links[cable.link.id]) for cable in fabric.plan.cables)
        whole = plan_routes(fabric.plan)
        around = plan_routes(FabricPlan(broken, cables, fabric.plan.prefixes))
        kept = set(around)
        self._changed = [route for route in around if route not in set(whole) and route.gateways]
        self._whole = [route for route in whole if route not in kept]

    def __enter__(self) -> "LinkCut":
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()

    def cut(self) -> None:
        """Take the carrier away: the switches at both ends see it; the others do not."""
        for port in self._cable.ends:
            set_state(self._fabric.homes[port.node], port.name, "down")

    def withdraw(self) -> None:
        """Let the other switches know, as long after the cut as that takes."""
        time.sleep(self._withdraw_s)
        self._lay(self._changed)

    def heal(self) -> None:
        for port in self._cable.ends:
            set_state(self._fabric.homes[port.node], port.name, "up")
        self._lay(self._whole)

    def _lay(self, routes: Sequence[Route]) -> None:
        for route in routes:
            self._fabric.homes[route.node].change(partial(lay_route, route=route))


@dataclass(frozen=True, slots=True)
class CutOptions:
    """How long to look, and how soon the other switches know."""

    trial: TrialOptions
    rounds_before: int = 5
    watch_s: float = 6.0  # after the cut
    withdraw_s: float = 0.2


def run_cuts(
    topology: Topology, planner: Planner, links: Sequence[str], options: CutOptions
) -> list[tuple[CutTrial, CutTrial]]:
    """Return, for each link, what happened under a plan that stays and under one that follows; about 20 s a link.

    Up-links have half the rate of NICs, and carry data in one direction. So a link is busy as long as one of its
    flows has something to send, however unevenly TCP shares it, and a round takes as long as the link with most
    flows; acknowledgements that wait behind data would leave links idle under any plan.
    """
    topology = scale_uplinks(topology, 0.5)
    flows = shift_by_a_leaf(topology, LANES, is_one_directional=True)
    with open_bench(topology, flows, replace(_LOSSLESS, seed=options.trial.seed)) as bench:
        single = measure_single(bench, options.trial)
        trials = [
            tuple(_Cut(bench, planner, link, single, options).run(is_dynamic) for is_dynamic in (False, True))
            for link in links
        ]
    return [(static, dynamic) for static, dynamic in trials]


class _Cut:
    def __init__(
        self, bench: PathBench, planner: Planner, link: str, single_mbps: float, options: CutOptions
    ) -> None:
        self._bench, self._planner, self._link, self._options = bench, planner, link, options
        topology, flows = bench.fabric.topology, bench.flows
        self._paths: FlowLinks = planner(topology, flows, {})
        self._length = int(single_mbps * 1e6 / 8 * _ROUND_S / LANES)  # LANES flows a link
        self._ideal_before_s = ideal_round_s(self._length, topology, flows, single_mbps)
        self._ideal_after_s = ideal_round_s(self._length, without(topology, [link]), flows, single_mbps)

    def run(self, is_dynamic: bool) -> CutTrial:
        bench = self._bench
        bench.plan(self._paths)
        bench.traffic.open(bench.flows)
        try:
            bench.traffic.wait_until_open()
            times = [bench.traffic.run_round(self._length) for _ in range(self._options.rounds_before)]
            before = self._ideal_before_s / median(times[1:])
            with LinkCut(bench.fabric, self._link, self._options.withdraw_s) as cut:
                trial = self._watch(cut, is_dynamic)
        finally:
            bench.traffic.close()
        return replace(trial, before=before)

    def _watch(self, cut: LinkCut, is_dynamic: bool) -> CutTrial:
        follower = _Follower(self._bench, self._planner, self._link, self._paths)
        rounds: list[Round] = []
        with _in_background(cut, follower if is_dynamic else None) as began:
            while not rounds or rounds[-1].end_s < self._options.watch_s:
                took_s = self._bench.traffic.run_round(self._length)
                rounds.append(Round(time.monotonic() - began, took_s, self._ideal_after_s / took_s))
        decided_s = follower.decided - began if follower.decided else None
        return CutTrial(self._link, is_dynamic, 0.0, tuple(rounds), len(follower.moved), decided_s)


class _Follower:
    """Watches a link as an agent would; once it is down, keeps all flows on the ways of a new plan."""

    def __init__(self, bench: PathBench, planner: Planner, link: str, paths: FlowLinks) -> None:
        self._bench, self._planner, self._paths, self._link = bench, planner, paths, link
        self._cable = next(cable for cable in bench.fabric.plan.cables if cable.link.id == link)
        self.moved: set[PlannedFlow] = set()
        self.decided: float | None = None

    def follow(self, is_over: threading.Event) -> None:
        """Work until it is over. Routes change for some time after a cut, so that flows are looked at again."""
        while not is_over.wait(_POLL_S):
            if not self._is_down():
                continue
            if self.decided is None:
                topology = without(self._bench.fabric.topology, [self._link])
                self._paths = self._planner(topology, self._bench.flows, self._paths)
            self._bring_back()

    def _is_down(self) -> bool:
        port = self._cable.a
        return not self._bench.fabric.homes[port.node].change(read_ports)[port.name].is_up

    def _bring_back(self) -> None:
        """Move what is not on its planned way."""
        off = self._bench.flows_off(self._paths)
        if not off:
            return
        try:
            self._bench.plan({flow: self._paths[flow] for flow in off})
        except LockstepError:  # routes still lead to the dead link: the next look will find ports
            return
        self._bench.traffic.open(off)
        self.moved |= set(off)
        self.decided = time.monotonic()


@contextmanager
def _in_background(cut: LinkCut, follower: _Follower | None) -> Iterator[float]:
    """Cut now, withdraw a little later, and follow until the end of the block; give the moment of the cut."""
    is_over = threading.Event()
    threads = [threading.Thread(target=cut.withdraw)]
    if follower:
        threads.append(threading.Thread(target=follower.follow, args=(is_over,)))
    cut.cut()
    began = time.monotonic()
    for thread in threads:
        thread.start()
    try:
        yield began
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
