"""A flow of the testbed, which way it shall take, what it may carry at best, and source ports that lead it there.

Ports are found by trying: the hash of a switch can be asked, not turned round.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import TypeVar

from collector.path_ports import PortProber, Ports, Send
from collector.probes.paths import AddressBook, addresses_in
from collector.probes.sockets import RawExchange
from lockstep.clock import SystemClock
from lockstep.errors import LockstepError
from lockstep.host_paths import PathEntry
from lockstep.topology import Link, Topology, TopologyIndex, split_end
from planner.paths.flows import Flow
from planner.paths.network import build_network
from planner.paths.planning import plan_paths
from planner.paths.report import all_links, from_json
from tests.testbed.fabric.fabric import Fabric

FIRST_PORT = 5201  # where receivers listen; further flows of the same two NICs go to the ports behind it

Nic = tuple[str, str]


@dataclass(frozen=True, slots=True, order=True)
class PlannedFlow:
    """One connection that sends all the time; `dport` tells flows between the same NICs apart."""

    src: Nic
    dst: Nic
    dport: int = FIRST_PORT

    @property
    def name(self) -> str:
        return f"{'/'.join(self.src)}>{'/'.join(self.dst)}:{self.dport}"


FlowLinks = Mapping[
    PlannedFlow, Sequence[str]
]  # links that a flow shall cross; those between its switches are enough
# Gets the topology with the links that are down now, the flows, and their links so far.
Planner = Callable[[Topology, Sequence[PlannedFlow], FlowLinks], FlowLinks]


def shift_by_a_leaf(topology: Topology, per_pair: int = 1, is_one_directional: bool = False) -> list[PlannedFlow]:
    """Return flows from the first NIC of every host to that of the host that has its place on the next leaf.

    So every leaf sends to one other leaf only, and with as many up-links as hosts a perfect plan fills all links.
    One way: only every second leaf sends, so that no link carries data in both directions.
    """
    index = TopologyIndex(topology)
    nics = [(host.id, host.nics[0].id) for host in topology.hosts]
    leaves = list(dict.fromkeys(index.leaf_of(*nic) for nic in nics))
    step = len(nics) // len(leaves)
    ends = [
        (nic, nics[(number + step) % len(nics)])
        for number, nic in enumerate(nics)
        if not (is_one_directional and number // step % 2)
    ]
    return [PlannedFlow(src, dst, FIRST_PORT + lane) for src, dst in ends for lane in range(per_pair)]


def without(topology: Topology, dead: Sequence[str]) -> Topology:
    """Return the topology with some links down."""
    links = tuple(link.model_copy(update={"up": link.up and link.id not in dead}) for link in topology.links)
    return topology.model_copy(update={"links": links})


def scale_uplinks(topology: Topology, factor: float) -> Topology:
    """Return the topology with links between switches at another rate."""
    hosts = {host.id for host in topology.hosts}
    ends = {link.id: {split_end(link.a)[0], split_end(link.b)[0]} for link in topology.links}
    links = [
        link if ends[link.id] & hosts else link.model_copy(update={"gbps": link.gbps * factor})
        for link in topology.links
    ]
    return topology.model_copy(update={"links": tuple(links)})


def ideal_round_s(length: int, topology: Topology, flows: Sequence[PlannedFlow], link_mbps: float) -> float:
    """Return how long it takes at best until every flow has sent so many bytes.

    Assumes two tiers whose up-links are what limits flows, all of one rate, and that each leaf sends to one other
    leaf, as `shift_by_a_leaf` has it: then the flows of two leaves can share all ways between these evenly.
    """
    index = TopologyIndex(topology)
    crowd = Counter((str(index.leaf_of(*flow.src)), str(index.leaf_of(*flow.dst))) for flow in flows)
    return max(
        count * length * 8e-6 / (link_mbps * len(paths_between(topology, *leaves))) for leaves, count in crowd.items()
    )


def paths_between(topology: Topology, src_leaf: str, dst_leaf: str) -> list[tuple[str, str]]:
    """Return the two links of each way over one spine that is up."""
    up, down = (_links_at(topology, leaf) for leaf in (src_leaf, dst_leaf))
    return [(a.id, b.id) for (spine, a), (other, b) in product(up, down) if spine == other]


def _links_at(topology: Topology, leaf: str) -> list[tuple[str, Link]]:
    switches = {switch.id for switch in topology.switches}
    ends = [(split_end(link.a)[0], split_end(link.b)[0], link) for link in topology.links if link.up]
    far = [(b if a == leaf else a, link) for a, b, link in ends if leaf in (a, b)]
    return [(node, link) for node, link in far if node in switches]


def plan_by_lockstep(
    topology: Topology, flows: Sequence[PlannedFlow], before: FlowLinks
) -> dict[PlannedFlow, tuple[str, ...]]:
    """Return all links of each flow; with paths `before` of this planner, few flows move that need not."""
    network, rows = build_network(topology), _as_rows(topology, flows)
    held = from_json(network, rows, {"flows": {flow.name: list(path) for flow, path in before.items()}})
    plan = plan_paths(network, rows, held if before else None)
    return {flow: tuple(links) for flow, links in zip(flows, all_links(plan), strict=True)}


def _as_rows(topology: Topology, flows: Sequence[PlannedFlow]) -> list[Flow]:
    index, links = TopologyIndex(topology), Counter(flow.src for flow in flows)
    cables = {flow.src: index.host_link(*flow.src) for flow in flows}
    rates = {nic: cable.gbps / links[nic] for nic, cable in cables.items() if cable}
    return [
        Flow(id=flow.name, src="/".join(flow.src), dst="/".join(flow.dst), gbps=rates[flow.src]) for flow in flows
    ]


PORTS = range(20_000, 32_000)  # below those that the kernel gives to sockets without a plan (32768 on)
_AT_A_TIME = 48  # 12 for each of 4 spines: with fewer than 4 wanted, one round is enough nearly always
_ROUNDS = 8
_WANTED = 4  # one to use and some to spare, for ports that are busy or in TIME_WAIT

_Answer = TypeVar("_Answer")
_WAIT_S = 0.1  # an answer takes 0.2 ms, behind a full queue 20 ms a hop


class PathProber:
    """Probes for all hosts of a fabric; may be used by several threads."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._exchanges = {host: RawExchange(SystemClock(), _WAIT_S) for host in fabric.plan.hosts}
        book = AddressBook(fabric.topology, addresses_in(fabric.topology))
        self._probers = {
            host: PortProber(fabric.topology, host, book, self.send_from(host)) for host in fabric.plan.hosts
        }

    def close(self) -> None:
        for exchange in self._exchanges.values():
            exchange.close()

    def find_paths(self, src: Nic, dst: Nic, ports: Sequence[Ports]) -> dict[Ports, tuple[str, ...]]:
        """Return the links that TCP between these ports takes now; ports whose probes got lost are left out."""
        return self._probers[src[0]].find_paths(src[1], *dst, ports)

    def send_from(self, host: str) -> Send:
        """Return what sends probes inside the namespace of a host."""
        return lambda shots: self._fabric.homes[host].run(lambda: self._exchanges[host].run(shots))


class PortFinder:
    """Finds ports; never gives the same port of a host twice. May be used by several threads."""

    def __init__(self, prober: PathProber, seed: int) -> None:
        self._prober, self._random = prober, Random(seed)  # ports to try are no secret
        self._given: set[tuple[str, int]] = set()

    def find(
        self, src: Nic, dst: Nic, dport: int, links: Sequence[str] | None, back: Sequence[str] | None = None
    ) -> tuple[int, ...]:
        """Return ports of `src` from which a connection takes these links, and answers take the links `back`.

        None: any. Some of a way's links are enough. Empty when no such port was found.
        """
        found: list[int] = []
        for _ in range(_ROUNDS):
            tried = self._draw(src[0])
            if links is not None:
                seen = self._prober.find_paths(src, dst, [(port, dport) for port in tried])
                tried = [port for port in tried if set(links) <= set(seen.get((port, dport), ()))]
            if back is not None and tried:
                seen = self._prober.find_paths(dst, src, [(dport, port) for port in tried])
                tried = [port for port in tried if set(back) <= set(seen.get((dport, port), ()))]
            found += tried
            if len(found) >= _WANTED:
                break
        self._given |= {(src[0], port) for port in found[:_WANTED]}
        return tuple(found[:_WANTED])

    def _draw(self, host: str) -> list[int]:
        drawn = self._random.sample(PORTS, _AT_A_TIME)
        return [port for port in drawn if (host, port) not in self._given]


def plan_entries(fabric: Fabric, finder: PortFinder, paths: FlowLinks) -> dict[PlannedFlow, PathEntry]:
    """Return what the shim shall do for each flow; LockstepError when no port takes a flow's way."""
    found = each_at_once(lambda flow: finder.find(flow.src, flow.dst, flow.dport, paths[flow]), list(paths))
    for flow, ports in found.items():
        if not ports:
            raise LockstepError(f"no source port of {flow.name} takes {', '.join(paths[flow])}")
    return {
        flow: PathEntry(fabric.address_of(*flow.dst), ports, flow.dport, fabric.address_of(*flow.src))
        for flow, ports in found.items()
    }


def each_at_once(
    answer: Callable[[PlannedFlow], _Answer], flows: Sequence[PlannedFlow]
) -> dict[PlannedFlow, _Answer]:
    """Return an answer for each flow, asked on all hosts at the same time as the agents of real hosts would do it."""
    with ThreadPoolExecutor(max(1, len({flow.src for flow in flows}))) as hosts:
        return dict(zip(flows, hosts.map(answer, flows), strict=True))
