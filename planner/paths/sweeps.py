"""Which probes to send next, so that the catalogue knows a port for every way that plans may take.

Of each leaf one server at a time probes one server of every other leaf, with as many source ports as it takes to
meet every way between them, the leaves that were not looked at for longest first. That tells which links live. Which
port leads where is different for each pair of NICs, so that pairs with flows to place are swept themselves.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from lockstep.clock import NS_PER_S
from lockstep.records import Path
from lockstep.topology import split_end
from planner.paths.catalogue import Catalogue
from planner.paths.network import Network

ROCE_PORTS = range(0xC000, 0x10000)  # the source ports that RoCEv2 is given: some NICs refuse others
# Those that Linux gives to sockets that ask for none: collectors take sockets with others for no data connections.
TCP_PORTS = range(32_768, 61_000)
ROCE_PORT = 4791  # assigned to RoCEv2 by IANA


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """How much to probe."""

    proto: str = "roce"
    dport: int = ROCE_PORT
    most_probes: int = 10_000  # in one round; a collector takes no more for all its wishes together
    coverage: float = 0.99  # probability that a sweep meets every way
    fresh_s: float = 900.0  # half of the time in which belief in an entry is halved

    @property
    def ports(self) -> range:
        return ports_of(self.proto)


@dataclass(frozen=True, slots=True)
class ProbeWish:
    """Some consecutive source ports to be probed from one NIC to another, once each."""

    src: str
    src_nic: str
    dst: str
    dst_nic: str
    proto: str
    sport: int
    dport: int
    ports: int

    @property
    def details(self) -> dict[str, Any]:
        """Return what a wish of kind `probe` says to the collector of `src`."""
        names = ("src_nic", "dst", "dst_nic", "proto", "sport", "dport", "ports")
        return {name: getattr(self, name) for name in names}


def ports_of(proto: str) -> range:
    """Return the source ports that a flow may be given."""
    return TCP_PORTS if proto == "tcp" else ROCE_PORTS


def count_ports(ways: int, coverage: float = 0.99) -> int:
    """Return how many ports to probe so that each of some equally likely ways is met (the coupon collector).

    By the union bound: each of n ways is missed by p ports with (1 - 1/n)^p, any of them with at most n times that.

    >>> [count_ports(ways) for ways in (1, 2, 4, 16, 64)]
    [1, 8, 21, 115, 557]
    """
    if ways < 2:
        return 1
    return math.ceil(math.log((1 - coverage) / ways) / math.log1p(-1 / ways))


def choose_probes(
    network: Network, catalogue: Catalogue, turn: int, now_ns: int, options: SweepOptions | None = None
) -> list[ProbeWish]:
    """Return the probes of a round: ports in doubt again, then leaves by leaves; each `turn` by other servers."""
    options = options or SweepOptions()
    wishes = chain(_again(catalogue, options), _mesh(network, catalogue, turn, now_ns, options))
    return cut_to_round(wishes, options)


def cut_to_round(wishes: Iterable[ProbeWish], options: SweepOptions) -> list[ProbeWish]:
    """Return the first wishes, as many as a round may have; what is cut off comes in the next one."""
    chosen, left = list[ProbeWish](), options.most_probes
    for wish in wishes:
        chosen.append(replace(wish, ports=min(wish.ports, left)))
        left -= chosen[-1].ports
        if not left:
            break
    return chosen


def _again(catalogue: Catalogue, options: SweepOptions) -> list[ProbeWish]:
    """Return the ports that a change or their age made doubtful, those longest untried first."""
    doubtful = [each for each in catalogue.left_out if each.why in ("changed", "old")]
    doubtful.sort(key=lambda each: each.tried_ns)
    return join_ports((each.path for each in doubtful), options)


def join_ports(paths: Iterable[Path], options: SweepOptions) -> list[ProbeWish]:
    """Return wishes for known ports, consecutive ones of one pair of NICs together."""
    by_pair: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for path in paths:
        if (path.proto, path.dport) == (options.proto, options.dport):
            by_pair[path.host, path.src_nic, str(path.dst), path.dst_nic].append(path.sport)
    return [
        ProbeWish(*pair, options.proto, run[0], options.dport, len(run))
        for pair, ports in by_pair.items()
        for run in _find_runs(ports)
    ]


def _find_runs(ports: Sequence[int]) -> list[list[int]]:
    """Return consecutive ports together.

    >>> _find_runs([7, 3, 4, 8, 9])
    [[3, 4], [7, 8, 9]]
    """
    ordered = np.unique(ports)
    return [run.tolist() for run in np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)]


def _mesh(
    network: Network, catalogue: Catalogue, turn: int, now_ns: int, options: SweepOptions
) -> Iterator[ProbeWish]:
    """Yield a sweep for each two leaves that were not looked at lately or of which a way is unknown."""
    ways, seats = count_ways(network), _seats(network)
    # Which of parallel cables a probe took is not always known: met are those ways whose switches were.
    joint = _joints(network)
    tried_ns, known = _look_up(network, catalogue, joint, options)
    is_fresh = (known >= _count_ways(network, joint)) & (now_ns - tried_ns < options.fresh_s * NS_PER_S)
    has_seats = np.array([bool(seat) for seat in seats], bool)
    is_wanted = (ways > 0) & ~is_fresh & ~np.eye(len(ways), dtype=bool)
    near, far = np.nonzero(is_wanted & has_seats[:, None] & has_seats)
    order = np.lexsort((far, near, tried_ns[near, far]))
    used = find_used_ports(catalogue, options)
    for a, b in zip(near[order].tolist(), far[order].tolist(), strict=True):
        src, dst = seats[a][turn % len(seats[a])], seats[b][turn % len(seats[b])]
        yield sweep_pair(src, dst, int(ways[a, b]), used, options)


def sweep_pair(
    src: str, dst: str, ways: int, used: Mapping[tuple[str, str], int], options: SweepOptions, times: int = 1
) -> ProbeWish:
    """Return a sweep between two NICs, with ports behind those that are known of them; each way is met `times`."""
    (host, nic), (far, far_nic) = src.split("/", 1), dst.split("/", 1)
    count = min(times * count_ports(ways, options.coverage), len(options.ports))
    first = used.get((src, dst), options.ports.start)
    if not options.ports.start <= first <= options.ports.stop - count:
        first = options.ports.start
    return ProbeWish(host, nic, far, far_nic, options.proto, first, options.dport, count)


def count_ways(network: Network) -> np.ndarray:
    """Return how many shortest ways there are from each leaf to each other, counting only links that carry."""
    return _count_ways(network, np.arange(network.lanes))


def _count_ways(network: Network, label: np.ndarray) -> np.ndarray:
    """Return how many shortest ways there are that differ in the labels of their lanes.

    A switch takes any of its cables, up and down, so ways multiply; a plan uses only some of them.
    """
    ways = np.zeros((len(network.leaves), len(network.leaves)), np.int64)
    alive = network.gbps > 0
    for climbs in network.climbs:
        usable = climbs.exists & alive[climbs.lanes].all(axis=2) & alive[climbs.lanes ^ 1].all(axis=2)
        seats: dict[str, list[int]] = defaultdict(list)  # several for a switch that is reached in several ways
        for seat, top in enumerate(climbs.tops):
            seats[top.partition("#")[0]].append(seat)
        up = np.stack(
            [_count_distinct(label[climbs.lanes[:, mine]], usable[:, mine]) for mine in seats.values()], axis=1
        )
        ways = np.where(ways > 0, ways, up @ up.T)
    return ways


def _count_distinct(labels: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """Return for each leaf how many of its climbs to one switch are different; labels [leaf, seat, step]."""
    fresh = usable.copy()
    for seat in range(1, usable.shape[1]):
        is_same = (labels[:, :seat] == labels[:, seat : seat + 1]).all(axis=2) & usable[:, :seat]
        fresh[:, seat] &= ~is_same.any(axis=1)
    count: np.ndarray = fresh.sum(axis=1)
    return count


def _joints(network: Network) -> np.ndarray:
    """Return a number for each lane that is equal where two lanes join the same two nodes."""
    numbers: dict[frozenset[str], int] = {}
    ends = (frozenset(split_end(end)[0] for end in (link.a, link.b)) for link in network.topology.links)
    return np.repeat([numbers.setdefault(end, len(numbers)) for end in ends], 2)


def _seats(network: Network) -> list[list[str]]:
    """Return the NICs under each leaf: those with an address, because only they can be probed, else all."""
    nics = {f"{host.id}/{nic.id}": nic for host in network.topology.hosts for nic in host.nics}
    seats: list[list[str]] = [[] for _ in network.leaves]
    for name, (_, leaf) in network.ports.items():
        seats[leaf].append(name)
    return [[name for name in some if nics[name].address] or some for some in seats]


def _look_up(
    network: Network, catalogue: Catalogue, joint: np.ndarray, options: SweepOptions
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each two leaves when they were last tried, and how many ways between them are known."""
    shape = len(network.leaves), len(network.leaves)
    tried_ns, known, ways = np.full(shape, -1, np.int64), np.zeros(shape, np.int64), set[tuple[int, ...]]()
    joint_of = {link.id: int(joint[2 * place]) for place, link in enumerate(network.topology.links)}
    tries = [(path, path.seen_ns, True) for path in catalogue.paths]
    tries += [(each.path, each.tried_ns, False) for each in catalogue.left_out]
    for path, moment_ns, is_good in tries:
        near, far = (network.ports.get(end) for end in _ends(path))
        if near is None or far is None or path.proto != options.proto:
            continue
        pair = near[1], far[1]
        way = (*pair, *(joint_of[link] for link in path.links[1:-1] if is_good))
        tried_ns[pair] = max(tried_ns[pair], moment_ns)
        known[pair] += is_good and way not in ways
        ways |= {way} if is_good else set()
    return tried_ns, known


def _ends(path: Path) -> Sequence[str]:
    return f"{path.host}/{path.src_nic}", f"{path.dst}/{path.dst_nic}"


def find_used_ports(catalogue: Catalogue, options: SweepOptions) -> dict[tuple[str, str], int]:
    """Return the port behind the last one that was probed between two NICs."""
    used: dict[tuple[str, str], int] = defaultdict(int)
    for path in (*catalogue.paths, *(each.path for each in catalogue.left_out)):
        if path.proto == options.proto:
            src, dst = _ends(path)
            used[src, dst] = max(used[src, dst], path.sport + 1)
    return dict(used)
