"""What is cabled to what: hosts, NICs, switches and links, and the questions that everybody asks about them.

`parse_topology` reads topology.json into frozen values, `check_topology` says what contradicts itself, and a
`TopologyIndex` answers which cable, which leaf, and which links two NICs may use to reach each other.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from reprlib import repr as shorten
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_core import from_json

from lockstep.errors import BadTopology
from lockstep.verdict import Frozen

VERSION = 1

Kind = Literal["host", "switch"]
Tier = Literal["leaf", "spine", "core"]
Routing = Literal["ecmp", "adaptive", "static"]


class Nic(Frozen):
    """A network port of a host; it takes one cable."""

    id: str = Field(description="unique on its host, such as eth1")
    plane: int | None = Field(None, description="fabric it belongs to where several exist that never meet")
    rail: int | None = Field(None, description="position shared by the NICs of all hosts on one rail")
    address: str | None = Field(None, description="IPv4 address, for probes; None: it is not probed")


class Gpu(Frozen):
    """A GPU of a host."""

    id: str = Field(description="unique on its host, such as gpu0 or a UUID")
    index: int = Field(description="NVML index, unique on its host")
    nics: tuple[str, ...] = Field((), description="ids of the NICs it sends through, of the same host")


class Node(Frozen):
    """A host or a switch."""

    id: str = Field(description="unique; no slash, because a link end is node or node/port")
    kind: Kind
    tier: Tier | None = Field(None, description="of a switch; None: unknown, and always for a host")
    rack: str | None = None
    gpus: tuple[Gpu, ...] = Field((), description="of a host")
    nics: tuple[Nic, ...] = Field((), description="of a host")
    addresses: tuple[str, ...] | None = Field(None, description="of a switch, those from which it answers probes")


class Link(Frozen):
    """A cable between two nodes; its direction tx is from a to b."""

    id: str = Field(description="unique, such as h3/eth1--leaf1")
    a: str = Field(description="node or node/port; for a host host/nic")
    b: str = Field(description="node or node/port; for a host host/nic")
    gbps: float = Field(description="nominal rate of each direction, above 0")
    up: bool = Field(True, description="False: cabled, but carries nothing")


class Topology(Frozen):
    """A whole fabric, as topology.json tells it."""

    version: int = VERSION
    routing: Routing = Field(description="how a switch chooses among equally short ways")
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]

    @property
    def hosts(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind == "host")

    @property
    def switches(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind == "switch")


def load_topology(path: Path) -> Topology:
    """Return the topology in a file, or raise BadTopology with all complaints at once."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadTopology([f"{path} cannot be read: {error}"]) from error
    return parse_topology(text)


def parse_topology(text: str) -> Topology:
    """Return the topology written in JSON, or raise BadTopology with all complaints at once.

    Wrong shape (syntax, types, missing and unknown fields) is reported before contradictions, because
    these cannot be looked for in what has the wrong shape.
    """
    try:
        topology = Topology.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise BadTopology(list(_shape_complaints(text, error))) from None
    return checked(topology)


def dump_topology(topology: Topology) -> str:
    """Return the topology as indented JSON, the same text for equal topologies; parsing gives it back."""
    return topology.model_dump_json(indent=2, exclude_none=True) + "\n"


def checked(topology: Topology) -> Topology:
    """Return the topology itself, or raise BadTopology with everything that check_topology finds."""
    if complaints := check_topology(topology):
        raise BadTopology(complaints)
    return topology


def check_topology(topology: Topology) -> list[str]:
    """Return each contradiction as a sentence; an empty list means sound. Cost: O(nodes + links).

    >>> loop = Link(id="x", a="leaf0/1", b="leaf0/2", gbps=400)
    >>> check_topology(Topology(routing="ecmp", nodes=(Node(id="leaf0", kind="switch"),), links=(loop,)))
    ['link x joins node leaf0 to itself']
    """
    nodes = {node.id: node for node in topology.nodes}
    known = topology.version == VERSION
    return [
        *([] if known else [f"version is {topology.version}, but only {VERSION} is known"]),
        *(f"node {twice} is there more than once" for twice in _repeated(n.id for n in topology.nodes)),
        *(f"link {twice} is there more than once" for twice in _repeated(n.id for n in topology.links)),
        *(complaint for node in topology.nodes for complaint in _check_node(node)),
        *(complaint for link in topology.links for complaint in _check_link(link, nodes)),
        *_check_cables(topology),
    ]


def split_end(end: str) -> tuple[str, str | None]:
    """Return node and port of a link's end: "h3/eth1" is ("h3", "eth1"), "leaf1" is ("leaf1", None)."""
    node, slash, port = end.partition("/")
    return node, port if slash else None


def host_name(host: str) -> str:
    """Return the name of a host in verdicts, such as host:h3."""
    return f"host:{host}"


def gpu_name(host: str, index: int) -> str:
    """Return the name of a GPU in verdicts, such as gpu:h3/0."""
    return f"gpu:{host}/{index}"


def nic_name(host: str, nic: str) -> str:
    """Return the name of a NIC in verdicts, such as nic:h3/eth1."""
    return f"nic:{host}/{nic}"


def link_name(link: Link) -> str:
    """Return the name of a link in verdicts, such as link:leaf1--spine2: its ends as written, in their order."""
    return f"link:{link.a}--{link.b}"


def switch_name(switch: str) -> str:
    """Return the name of a switch in verdicts, such as switch:leaf1."""
    return f"switch:{switch}"


def lies_on(component: str, host: str) -> bool:
    """Return whether a part that verdicts name is one of this host, or a link that ends there.

    >>> [lies_on(part, "h3") for part in ("gpu:h3/0", "host:h3", "link:h3/eth1--leaf1", "rank:7")]
    [True, True, True, True]
    >>> [lies_on(part, "h3") for part in ("gpu:h30/0", "host:h4", "link:leaf1--spine2", "switch:leaf1")]
    [False, False, False, False]
    """
    kind, _, name = component.partition(":")
    if kind not in ("host", "gpu", "nic", "nvlink", "pcie", "link", "switch"):
        return True  # ranks and jobs have no place of their own
    return kind != "switch" and any(split_end(end)[0] == host for end in name.split("--"))


class TopologyIndex:
    """Answers about one sound topology, each found once and remembered.

    Unknown hosts and NICs have no cable: telemetry may name what the topology does not.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._nics = {host.id: host.nics for host in topology.hosts}
        switches = {switch.id for switch in topology.switches}
        directed = [end for link in topology.links for end in ((link.a, link.b, link), (link.b, link.a, link))]
        plugs = [(near, far, link) for near, far, link in directed if split_end(near)[0] in self._nics]
        far_ends = {split_end(near): split_end(far)[0] for near, far, _ in plugs}
        self._cables = {split_end(near): link for near, _, link in plugs}
        self._leaves = {nic: far for nic, far in far_ends.items() if far in switches}
        self._hops: dict[str, dict[str, int]] = {}  # from a leaf to each switch that it can reach
        self._links_by_leaves: dict[tuple[str, str], frozenset[Link] | None] = {}  # per two leaves; None: no way

    @cached_property
    def _switches(self) -> Any:
        return join_switches(self.topology)

    @cached_property
    def links_by_port(self) -> dict[tuple[str, str], Link]:
        """Return the link at each port of a switch; where the topology names no port, it goes by what it leads to."""
        found: dict[tuple[str, str], Link] = {}
        for link in self.topology.links:
            for near, far in ((link.a, link.b), (link.b, link.a)):
                switch, port = split_end(near)
                found[switch, port or far] = link
        return found

    def nics_of(self, host: str) -> tuple[Nic, ...]:
        """Return the NICs of a host, in the order of the topology."""
        return self._nics.get(host, ())

    def host_link(self, host: str, nic: str) -> Link | None:
        """Return the cable in a NIC, up or down, or None where nothing is plugged in."""
        return self._cables.get((host, nic))

    def leaf_of(self, host: str, nic: str) -> str | None:
        """Return the switch at the other end of a NIC's cable, or None where there is no switch."""
        return self._leaves.get((host, nic))

    def links_between(self, src_host: str, src_nic: str, dst_host: str, dst_nic: str) -> frozenset[Link]:
        """Return the links that any shortest way between two NICs may use; empty where there is no way.

        Only links that are up count, and hosts forward nothing. Cost: O(switches + links) for the first
        question about a leaf, O(links on shortest ways) for the first about two leaves, a set union after.

        >>> from lockstep.fabrics import leaf_spine
        >>> index = TopologyIndex(leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=1))
        >>> sorted(link.id for link in index.links_between("h0", "eth0", "h1", "eth0"))
        ['h0/eth0--leaf0', 'h1/eth0--leaf1', 'leaf0--spine0', 'leaf1--spine0']
        """
        first, last = self.host_link(src_host, src_nic), self.host_link(dst_host, dst_nic)
        if not (first and last and first.up and last.up) or (src_host, src_nic) == (dst_host, dst_nic):
            return frozenset()
        if first is last:  # two hosts cabled back to back
            return frozenset({first})
        fabric = self._fabric_links(self.leaf_of(src_host, src_nic), self.leaf_of(dst_host, dst_nic))
        return frozenset() if fabric is None else fabric | {first, last}

    def _fabric_links(self, src: str | None, dst: str | None) -> frozenset[Link] | None:
        if src is None or dst is None:
            return None
        src, dst = sorted((src, dst))  # links work both ways, so both orders share an answer
        if src not in self._hops:
            self._hops[src] = count_hops(self._switches, src)
        if (src, dst) not in self._links_by_leaves:
            hops = self._hops[src]
            self._links_by_leaves[src, dst] = _find_links(self._switches, hops, dst) if dst in hops else None
        return self._links_by_leaves[src, dst]


def join_nodes(pairs: Iterable[tuple[str, str]], nodes: Iterable[str] = ()) -> Any:  # Any: an untyped networkx.Graph
    """Return a graph of nodes, some of which are cabled to each other: what the questions below are asked of."""
    import networkx  # takes a fifth of a second, which a command that asks nothing of the kind should not

    graph = networkx.Graph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(pairs)
    return graph


def join_switches(topology: Topology, is_intact: bool = False) -> Any:
    """Return the graph of switches, with the `links` of each edge; those that are down only where `is_intact`."""
    switches = {switch.id: None for switch in topology.switches}
    links: dict[tuple[str, str], list[Link]] = defaultdict(list)
    for link in topology.links:
        a, b = sorted((split_end(link.a)[0], split_end(link.b)[0]))
        if (link.up or is_intact) and a in switches and b in switches:
            links[a, b].append(link)
    graph = join_nodes(links, switches)
    for ends, joined in links.items():
        graph.edges[ends]["links"] = joined
    return graph


def count_hops(graph: Any, *starts: str) -> dict[str, int]:
    """Return how far each node is from the nearest of some, for those that can be reached. Cost: O(nodes + edges).

    >>> count_hops(join_nodes([("leaf0", "spine0"), ("leaf1", "spine0")], ["leaf2"]), "leaf0")
    {'leaf0': 0, 'spine0': 1, 'leaf1': 2}
    """
    from networkx import bfs_layers

    return {node: hops for hops, layer in enumerate(bfs_layers(graph, starts)) for node in layer}


def find_parts(graph: Any) -> list[set[str]]:
    """Return the nodes that can be reached from each other, part by part, in the order of their first nodes."""
    from networkx import connected_components

    return list(connected_components(graph))


def _find_links(graph: Any, hops: Mapping[str, int], dst: str) -> frozenset[Link]:
    """Return the links on shortest ways, walking from dst to ever fewer hops."""
    found: set[Link] = set()
    front = {dst}
    while front:
        closer = [(near, far) for far in front for near in graph[far] if hops[near] < hops[far]]
        found.update(link for ends in closer for link in graph.edges[ends]["links"])
        front = {near for near, _ in closer}
    return frozenset(found)


def _check_node(node: Node) -> Iterator[str]:
    yield from _check_text(f"node id {node.id!r}", node.id, ("--", "/"))
    for nic in node.nics:
        yield from _check_text(f"NIC id {nic.id!r} of {node.id}", nic.id)
    for repeated in _repeated(nic.id for nic in node.nics):
        yield f"{node.kind} {node.id} has NIC {repeated} more than once"
    if node.kind == "host":
        yield from _check_gpus(node)
        if node.tier:
            yield f"host {node.id} has tier {node.tier}, but only switches have one"
    elif node.gpus:
        yield f"switch {node.id} has {len(node.gpus)} GPUs, but only hosts have any"


def _check_gpus(host: Node) -> Iterator[str]:
    nics = {nic.id for nic in host.nics}
    for gpu in host.gpus:
        yield from _check_text(f"GPU id {gpu.id!r} of {host.id}", gpu.id)
        for missing in (nic for nic in gpu.nics if nic not in nics):
            yield f"GPU {gpu.id} of host {host.id} uses NIC {missing}, which that host does not have"
    for index in _repeated(gpu.index for gpu in host.gpus):
        yield f"host {host.id} has GPU index {index} more than once"


def _check_link(link: Link, nodes: dict[str, Node]) -> Iterator[str]:
    yield from _check_text(f"link id {link.id!r}", link.id, forbidden=())
    for end in (link.a, link.b):
        yield from _check_end(link, end, nodes)
    if split_end(link.a)[0] == split_end(link.b)[0]:
        yield f"link {link.id} joins node {split_end(link.a)[0]} to itself"
    if not (math.isfinite(link.gbps) and link.gbps > 0):
        yield f"link {link.id} has gbps {link.gbps}, but a rate is finite and above 0"


def _check_end(link: Link, end: str, nodes: dict[str, Node]) -> Iterator[str]:
    node, port = split_end(end)
    if node not in nodes:
        yield f"link {link.id} ends at {end!r}, but there is no node {node!r}"
    elif nodes[node].kind == "switch":
        yield from _check_text(f"port {port!r} of {node} on link {link.id}", "any" if port is None else port)
    elif not any(nic.id == port for nic in nodes[node].nics):
        yield f"link {link.id} ends at {end!r}, which is no NIC of host {node}"


def _check_cables(topology: Topology) -> Iterator[str]:
    nics = {f"{host.id}/{nic.id}" for host in topology.hosts for nic in host.nics}
    cables: dict[str, set[str]] = defaultdict(set)
    for link in topology.links:
        for end in (link.a, link.b):
            cables[end].add(link.id)
    for end, links in cables.items():
        if end in nics and len(links) > 1:
            yield f"NIC {end} takes one cable, but has links {' and '.join(sorted(links))}"


def _check_text(what: str, text: str, forbidden: tuple[str, ...] = ("--",)) -> Iterator[str]:
    if not text:
        yield f"{what} is empty"
    if any(letter.isspace() for letter in text):
        yield f"{what} contains whitespace"
    for mark in forbidden:
        if mark in text:  # link:a--b and node/port would no longer come apart
            yield f"{what} contains {mark!r}"


def _repeated(values: Iterable[str | int]) -> list[str | int]:
    return [value for value, times in Counter(values).items() if times > 1]


def _shape_complaints(text: str, error: ValidationError) -> Iterator[str]:
    problems = error.errors(include_url=False)
    written = None if problems[0]["type"] == "json_invalid" else from_json(text)
    for problem in problems:
        location = _name_location(written, problem["loc"])
        match problem["type"]:
            case "missing":
                yield f"{location} is missing"
            case "extra_forbidden":
                yield f"{location} is not a field that we know"
            case "json_invalid":
                yield f"{location} is not JSON: {problem['ctx']['error']}"
            case _:
                yield f"{location} is {shorten(problem['input'])}: {problem['msg']}"


def _name_location(written: Any, steps: tuple[int | str, ...]) -> str:  # Any: JSON of any shape
    """Return a location as people say it: ("links", 3, "gbps") is "gbps of link h3/eth1--leaf1"."""
    words: list[str] = []
    for step in steps:
        if isinstance(step, str):
            words.append(step)
            written = written.get(step)
        else:
            written = written[step]
            name = written.get("id") if isinstance(written, dict) else None
            words[-1] = f"{words[-1].removesuffix('s')} {name}" if name else f"{words[-1]}[{step}]"
    return " of ".join(reversed(words)) or "the topology"
