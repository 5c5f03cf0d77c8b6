"""Fabrics to order: checked topologies of the usual shapes, for the simulator, the testbed and tests.

Names are the same each time: hosts h0, NICs eth0, GPUs gpu0, switches leaf0, spine0 and core0, with their pod
or plane in front where there are several; links h3/eth1--leaf1 and leaf1--spine2, the lower tier first.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product

from lockstep.errors import BadTopology
from lockstep.topology import Gpu, Link, Nic, Node, Routing, Tier, Topology, checked


@dataclass(frozen=True, slots=True)
class FabricOptions:
    """What fabrics of all shapes have."""

    gpus_per_host: int = 8
    gbps: float = 400.0  # between host and leaf
    uplink_gbps: float | None = None  # between switches; None: as between host and leaf
    routing: Routing = "ecmp"


DEFAULT = FabricOptions()


def leaf_spine(
    hosts: int, nics_per_host: int, leaves: int, spines: int, options: FabricOptions = DEFAULT
) -> Topology:
    """Return two tiers: all NICs of a host on one leaf, every leaf on every spine.

    Hosts fill the leaves in blocks of equal size.

    >>> [link.id for link in leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=1).links]
    ['h0/eth0--leaf0', 'h1/eth0--leaf1', 'leaf0--spine0', 'leaf1--spine0']
    """
    _refuse(
        *_too_few(hosts=hosts, nics_per_host=nics_per_host, leaves=leaves, spines=spines),
        *_uneven("hosts", hosts, "leaves", leaves),
        *_bad_options(options),
    )
    leaf_ids, spine_ids = _numbered("leaf", leaves), _numbered("spine", spines)
    nics = [Nic(id=nic) for nic in _numbered("eth", nics_per_host)]
    plugs = [[(nic, leaf_ids[host * leaves // hosts]) for nic in nics] for host in range(hosts)]
    tiers: _Tiers = {"leaf": leaf_ids, "spine": spine_ids}
    return _assemble(plugs, tiers, product(leaf_ids, spine_ids), options)


def fat_tree(k: int, options: FabricOptions = DEFAULT) -> Topology:
    """Return three tiers of switches with k ports: k pods, (k/2)^2 cores, and k^3/4 hosts with one NIC each.

    Spine s of every pod goes to the s-th k/2 cores. Reference: Al-Fares, Loukissas, Vahdat, SIGCOMM 2008.

    >>> len(fat_tree(4).hosts), len(fat_tree(4).switches), len(fat_tree(4).links)
    (16, 20, 48)
    """
    odd = [f"k is {k}, but must be even: half of a switch's ports go up"] if k % 2 else []
    _refuse(*_too_few(k=k), *odd, *_bad_options(options))
    half, pods = k // 2, _numbered("pod", k)
    leaves = [_numbered(f"{pod}-leaf", half) for pod in pods]
    spines = [_numbered(f"{pod}-spine", half) for pod in pods]
    cores = _numbered("core", half * half)
    plugs = [[(Nic(id="eth0"), leaf)] for leaf in chain(*leaves) for _ in range(half)]
    inside = [pair for pod in range(k) for pair in product(leaves[pod], spines[pod])]
    above = [(pod[s], core) for pod in spines for s in range(half) for core in cores[s * half :][:half]]
    tiers: _Tiers = {"leaf": [*chain(*leaves)], "spine": [*chain(*spines)], "core": cores}
    return _assemble(plugs, tiers, inside + above, options)


def rail_optimised(hosts: int, rails: int, spines: int, options: FabricOptions = DEFAULT, pods: int = 1) -> Topology:
    """Return two tiers: NIC r of every host on leaf r of the host's pod, every leaf on every spine.

    Hosts fill the pods in blocks of equal size; rails meet on the spines only.

    >>> [link.id for link in rail_optimised(hosts=1, rails=2, spines=1).links]
    ['h0/eth0--leaf0', 'h0/eth1--leaf1', 'leaf0--spine0', 'leaf1--spine0']
    """
    _refuse(
        *_too_few(hosts=hosts, rails=rails, spines=spines, pods=pods),
        *_uneven("hosts", hosts, "pods", pods),
        *_bad_options(options),
    )
    prefixes = [f"pod{pod}-" for pod in range(pods)] if pods > 1 else [""]
    leaf_ids = [_numbered(f"{prefix}leaf", rails) for prefix in prefixes]
    spine_ids = _numbered("spine", spines)
    nics = [Nic(id=f"eth{rail}", rail=rail) for rail in range(rails)]
    plugs = [list(zip(nics, leaf_ids[host * pods // hosts], strict=True)) for host in range(hosts)]
    tiers: _Tiers = {"leaf": [*chain(*leaf_ids)], "spine": spine_ids}
    return _assemble(plugs, tiers, product(tiers["leaf"], spine_ids), options)


def dual_plane(
    hosts: int,
    leaves_per_plane: int,
    spines_per_plane: int,
    options: FabricOptions = DEFAULT,
    nics_per_host: int = 2,
) -> Topology:
    """Return two leaf-spine fabrics that are never joined: even NICs on plane 0, odd NICs on plane 1.

    Both NICs of a pair serve the same GPUs, so that each GPU reaches both planes.

    >>> [link.id for link in dual_plane(hosts=1, leaves_per_plane=1, spines_per_plane=1).links][:2]
    ['h0/eth0--plane0-leaf0', 'h0/eth1--plane1-leaf0']
    """
    _refuse(
        *_too_few(hosts=hosts, leaves_per_plane=leaves_per_plane, spines_per_plane=spines_per_plane),
        *_too_few(nics_per_host=nics_per_host),
        *_uneven("nics_per_host", nics_per_host, "planes", 2),
        *_uneven("hosts", hosts, "leaves_per_plane", leaves_per_plane),
        *_bad_options(options),
    )
    leaves = [_numbered(f"plane{plane}-leaf", leaves_per_plane) for plane in (0, 1)]
    spines = [_numbered(f"plane{plane}-spine", spines_per_plane) for plane in (0, 1)]
    nics = [Nic(id=f"eth{number}", plane=number % 2) for number in range(nics_per_host)]
    positions = [host * leaves_per_plane // hosts for host in range(hosts)]
    plugs = [[(nic, leaves[number % 2][position]) for number, nic in enumerate(nics)] for position in positions]
    tiers: _Tiers = {"leaf": [*chain(*leaves)], "spine": [*chain(*spines)]}
    uplinks = chain(*(product(leaves[plane], spines[plane]) for plane in (0, 1)))
    return _assemble(plugs, tiers, uplinks, options, nics_together=2)


_Plugs = list[tuple[Nic, str]]  # the NICs of one host, each with its leaf
_Tiers = dict[Tier, list[str]]


def _assemble(
    plugs: list[_Plugs],
    tiers: _Tiers,
    uplinks: Iterable[tuple[str, str]],
    options: FabricOptions,
    nics_together: int = 1,
) -> Topology:
    hosts: list[Node] = []
    for number, pairs in enumerate(plugs):
        nics = tuple(nic for nic, _ in pairs)
        groups = [[nic.id for nic in nics[n : n + nics_together]] for n in range(0, len(nics), nics_together)]
        gpus = tuple(_spread_gpus(options.gpus_per_host, groups))
        hosts.append(Node(id=f"h{number}", kind="host", nics=nics, gpus=gpus))
    switches = [Node(id=switch, kind="switch", tier=tier) for tier, ids in tiers.items() for switch in ids]
    cables = [
        _link(f"{host.id}/{nic.id}", leaf, options.gbps)
        for host, pairs in zip(hosts, plugs, strict=True)
        for nic, leaf in pairs
    ]
    rate_gbps = options.gbps if options.uplink_gbps is None else options.uplink_gbps
    fabric = [_link(low, high, rate_gbps) for low, high in uplinks]
    return checked(Topology(routing=options.routing, nodes=(*hosts, *switches), links=(*cables, *fabric)))


def _spread_gpus(gpus: int, nic_groups: Sequence[Sequence[str]]) -> Iterator[Gpu]:
    """Yield GPUs spread over groups of NICs; the shares of two groups differ by one GPU at most.

    >>> [gpu.nics for gpu in _spread_gpus(3, [["eth0"], ["eth1"]])]
    [('eth0',), ('eth0',), ('eth1',)]
    """
    for index in range(gpus):
        first, after = (len(nic_groups) * number // gpus for number in (index, index + 1))
        mine = nic_groups[first : max(after, first + 1)]
        yield Gpu(id=f"gpu{index}", index=index, nics=tuple(chain(*mine)))


def _link(low: str, high: str, gbps: float) -> Link:
    return Link(id=f"{low}--{high}", a=low, b=high, gbps=gbps)


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name}{number}" for number in range(count)]


def _refuse(*complaints: str) -> None:
    if complaints:
        raise BadTopology(list(complaints))


def _too_few(**counts: int) -> Iterator[str]:
    yield from (f"{name} is {count}, but must be at least 1" for name, count in counts.items() if count < 1)


def _uneven(what: str, count: int, parts: str, part_count: int) -> Iterator[str]:
    if part_count > 0 and count % part_count:
        yield f"{what} is {count}, which does not spread evenly over {parts} ({part_count})"


def _bad_options(options: FabricOptions) -> Iterator[str]:
    if options.gpus_per_host < 0:
        yield f"gpus_per_host is {options.gpus_per_host}, but must be at least 0"
    for name, gbps in (("gbps", options.gbps), ("uplink_gbps", options.uplink_gbps)):
        if gbps is not None and not (math.isfinite(gbps) and gbps > 0):
            yield f"{name} is {gbps}, but a rate is finite and above 0"
