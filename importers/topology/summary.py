"""A topology in a few figures and sentences: tiers, oversubscription, planes, rails, and what is uneven."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from lockstep.topology import Link, Node, Topology, find_parts, join_nodes, split_end

_RANKS = {"host": 0, "leaf": 1, "spine": 2, "core": 3}
_PLURALS = {"host": "hosts", "leaf": "leaves", "spine": "spines", "core": "cores"}
_MOST_PAIRS = 1 << 22  # of switches that are compared; beyond, looking takes seconds


@dataclass(frozen=True, slots=True)
class TierSummary:
    """The switches of a tier, and how much more could come from below than goes up."""

    tier: str  # "unknown" for switches without one
    switches: int
    down_gbps: float  # of all links to lower tiers that are up
    up_gbps: float  # of all links to higher tiers that are up
    oversubscription: float | None  # down over up of the whole tier; None: nothing goes up
    worst: float | None  # of its worst switch
    worst_switch: str | None


@dataclass(frozen=True, slots=True)
class TopologySummary:
    """A topology in figures; `uneven` are sentences."""

    routing: str
    hosts: int
    gpus: int
    nics: int
    links: int
    down: int  # links that are cabled and carry nothing
    tiers: tuple[TierSummary, ...]
    planes: Mapping[str, int] = field(default_factory=dict)  # NICs by plane
    rails: Mapping[str, int] = field(default_factory=dict)  # NICs by rail
    uneven: tuple[str, ...] = ()


def summarise(topology: Topology) -> TopologySummary:
    """Return the figures of a sound topology."""
    nics = [nic for host in topology.hosts for nic in host.nics]
    planes = Counter(str(nic.plane) for nic in nics if nic.plane is not None)
    rails = Counter(str(nic.rail) for nic in nics if nic.rail is not None)
    return TopologySummary(
        routing=topology.routing,
        hosts=len(topology.hosts),
        gpus=sum(len(host.gpus) for host in topology.hosts),
        nics=len(nics),
        links=len(topology.links),
        down=sum(not link.up for link in topology.links),
        tiers=tuple(_summarise_tiers(topology)),
        planes=dict(sorted(planes.items())),
        rails=dict(sorted(rails.items(), key=lambda item: int(item[0]))),
        uneven=tuple(find_uneven(topology)),
    )


def find_uneven(topology: Topology) -> Iterator[str]:
    """Yield a sentence for each link that is down, slow or missing, and each host unlike the others."""
    ranks = _ranks(topology)
    yield from (f"link {link.id} is down" for link in topology.links if not link.up)
    yield from _find_slow(topology, ranks)
    yield from _find_missing(topology, ranks)
    yield from _find_odd_hosts(topology)


_Ranks = Mapping[str, str]  # node to its place: host, leaf, spine, core or unknown


def _ranks(topology: Topology) -> _Ranks:
    return {node.id: "host" if node.kind == "host" else node.tier or "unknown" for node in topology.nodes}


def _ends(link: Link) -> tuple[str, str]:
    return split_end(link.a)[0], split_end(link.b)[0]


def _summarise_tiers(topology: Topology) -> Iterator[TierSummary]:
    ranks = _ranks(topology)
    up: dict[str, float] = defaultdict(float)
    down: dict[str, float] = defaultdict(float)
    for link in (link for link in topology.links if link.up):
        low, high = sorted(_ends(link), key=lambda node: _RANKS.get(ranks[node], -1))
        if _RANKS.get(ranks[low], -1) >= 0 and ranks[low] != ranks[high]:
            up[low] += link.gbps
            down[high] += link.gbps
    for tier in ("leaf", "spine", "core", "unknown"):
        switches = [node.id for node in topology.switches if ranks[node.id] == tier]
        if switches:
            yield _tier(tier, switches, up, down)


def _tier(tier: str, switches: list[str], up: Mapping[str, float], down: Mapping[str, float]) -> TierSummary:
    total_up = sum(up.get(switch, 0.0) for switch in switches)
    total_down = sum(down.get(switch, 0.0) for switch in switches)
    each = {switch: down.get(switch, 0.0) / up[switch] for switch in switches if up.get(switch)}
    worst = max(each, key=lambda switch: each[switch], default=None)
    return TierSummary(
        tier=tier,
        switches=len(switches),
        down_gbps=total_down,
        up_gbps=total_up,
        oversubscription=total_down / total_up if total_up else None,
        worst=each[worst] if worst else None,
        worst_switch=worst,
    )


def _find_slow(topology: Topology, ranks: _Ranks) -> Iterator[str]:
    kinds: dict[tuple[str, ...], list[Link]] = defaultdict(list)
    for link in topology.links:
        kinds[tuple(sorted((ranks[node] for node in _ends(link)), key=lambda rank: _RANKS.get(rank, 9)))].append(link)
    for kind, links in kinds.items():
        usual, times = Counter(link.gbps for link in links).most_common(1)[0]
        where = f"{times} of the {len(links)} links between {_PLURALS.get(kind[0], 'switches')} and "
        where += _PLURALS.get(kind[1], "switches")
        for link in links:
            if link.gbps != usual:
                yield f"link {link.id} runs at {link.gbps:g} Gbit/s, {where} at {usual:g}"


def _find_missing(topology: Topology, ranks: _Ranks) -> Iterator[str]:
    """Yield pairs of switches with fewer or more links than is usual among the switches that they share."""
    for low, high in (("leaf", "spine"), ("spine", "core"), ("leaf", "core")):
        cables: Counter[tuple[str, str]] = Counter()
        for link in topology.links:
            pair = sorted(_ends(link), key=lambda node: _RANKS.get(ranks[node], 9))
            if (ranks[pair[0]], ranks[pair[1]]) == (low, high):
                cables[pair[0], pair[1]] += 1
        lower = {pair[0] for pair in cables}
        for part in find_parts(join_nodes(cables)):  # that hangs together, such as a pod
            yield from _compare_pairs(sorted(part & lower), sorted(part - lower), cables)


def _compare_pairs(lows: list[str], highs: list[str], cables: Counter[tuple[str, str]]) -> Iterator[str]:
    if len(lows) * len(highs) > _MOST_PAIRS:
        return
    counts = Counter(cables[pair] for pair in product(lows, highs))
    usual = counts.most_common(1)[0][0]
    for low, high in product(lows, highs) if usual else ():
        found = cables[low, high]
        if found != usual:
            words = "no link" if not found else f"{found} links" if found > 1 else "1 link"
            yield f"{low} has {words} to {high}, {counts[usual]} of the {counts.total()} pairs like them have {usual}"


def _find_odd_hosts(topology: Topology) -> Iterator[str]:
    if not topology.hosts:
        return
    plugged = {end for link in topology.links for end in (link.a, link.b)}

    def cabled(host: Node) -> int:
        return sum(f"{host.id}/{nic.id}" in plugged for nic in host.nics)

    for what, count in (("GPUs", lambda host: len(host.gpus)), ("cabled NICs", cabled)):
        usual, times = Counter(count(host) for host in topology.hosts).most_common(1)[0]
        for host in topology.hosts:
            if count(host) != usual:
                yield f"host {host.id} has {count(host)} {what}, {times} of {len(topology.hosts)} hosts have {usual}"


@dataclass(frozen=True, slots=True)
class Changes:
    """What an old topology does not have, what a new one does not, and what both have and tell differently."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.changed)


def find_changes(old: Topology, new: Topology) -> Changes:
    """Return what happened from old to new. Nodes are the same by id, links by what they join, whatever their id is.

    >>> from lockstep.fabrics import leaf_spine
    >>> find_changes(leaf_spine(2, 1, 2, 1), leaf_spine(2, 1, 2, 2)).added
    ('switch spine1', 'link leaf0--spine1', 'link leaf1--spine1')
    """
    old_nodes, new_nodes = ({node.id: node for node in one.nodes} for one in (old, new))
    old_links, new_links = _by_ends(old), _by_ends(new)
    routing = [f"routing: {old.routing} became {new.routing}"] if old.routing != new.routing else []
    both = [(old_nodes[name], node) for name, node in new_nodes.items() if name in old_nodes]
    pairs = [(old_links[ends], link) for ends, link in new_links.items() if ends in old_links]
    return Changes(
        added=tuple(_only(new_nodes, old_nodes, new_links, old_links)),
        removed=tuple(_only(old_nodes, new_nodes, old_links, new_links)),
        changed=(
            *routing,
            *(change for one, two in both for change in _node_changes(one, two)),
            *(change for one, two in pairs for change in _link_changes(one, two)),
        ),
    )


_Ends = tuple[str, str, int]  # both ends in order, and a number among parallel links


def _by_ends(topology: Topology) -> dict[_Ends, Link]:
    times: dict[tuple[str, str], int] = defaultdict(int)
    found: dict[_Ends, Link] = {}
    for link in sorted(topology.links, key=lambda link: link.id):
        low, high = sorted((link.a, link.b))
        found[low, high, times[low, high]] = link
        times[low, high] += 1
    return found


def _only(
    nodes: Mapping[str, Node],
    other_nodes: Mapping[str, Node],
    links: Mapping[_Ends, Link],
    other: Mapping[_Ends, Link],
) -> Iterator[str]:
    yield from (f"{node.kind} {name}" for name, node in nodes.items() if name not in other_nodes)
    yield from (f"link {link.id}" for ends, link in links.items() if ends not in other)


def _node_changes(old: Node, new: Node) -> Iterator[str]:
    name = f"{new.kind} {new.id}"
    for what in ("kind", "tier", "rack", "addresses"):
        one, two = getattr(old, what), getattr(new, what)
        if one != two:
            yield f"{name}: {what} {_word(one)} became {_word(two)}"
    yield from _part_changes(name, "NIC", {nic.id: nic for nic in old.nics}, {nic.id: nic for nic in new.nics})
    yield from _part_changes(name, "GPU", {gpu.id: gpu for gpu in old.gpus}, {gpu.id: gpu for gpu in new.gpus})


def _part_changes(name: str, kind: str, old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[str]:
    if gone := [part for part in old if part not in new]:
        yield f"{name}: lost {kind} {', '.join(gone)}"
    if come := [part for part in new if part not in old]:
        yield f"{name}: got {kind} {', '.join(come)}"
    if other := [part for part in new if part in old and old[part] != new[part]]:
        yield f"{name}: {kind} {', '.join(other)} is another now"


def _link_changes(old: Link, new: Link) -> Iterator[str]:
    if old.gbps != new.gbps:
        yield f"link {new.id}: {old.gbps:g} Gbit/s became {new.gbps:g}"
    if old.up != new.up:
        yield f"link {new.id}: went {'up' if new.up else 'down'}"


def _word(value: object) -> str:
    return "unknown" if value is None else ", ".join(value) if isinstance(value, tuple) else str(value)
