"""Which hosts and switches there are, when several sources tell of them, and where those disagree."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from reprlib import repr as shorten
from typing import TypeVar

from lockstep.intake.topologies.survey import End, SeenCable, SeenNic, SeenNode, in_words
from lockstep.topology import Gpu, Kind, Tier

Value = TypeVar("Value", bound=Hashable)


@dataclass
class KnownNode:
    """A node as all sources together know it."""

    id: str
    kind: Kind | None = None
    tier: Tier | None = None
    rack: str | None = None
    gpus: tuple[Gpu, ...] = ()
    nics: dict[str, SeenNic] = field(default_factory=dict)
    addresses: tuple[str, ...] | None = None


@dataclass
class Merged:
    """Nodes by id, the NICs that got another name, and the sentences about them."""

    nodes: dict[str, KnownNode] = field(default_factory=dict)
    renamed: dict[End, str] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def merge_nodes(seen: Iterable[SeenNode]) -> Merged:
    """Return each node once, with complaints where sources disagree about it."""
    by_id: dict[str, list[SeenNode]] = defaultdict(list)
    for node in seen:
        by_id[node.id].append(node)
    merged = Merged()
    for name, told in by_id.items():
        told = _share_nic_names(merged, told)
        merged.nodes[name] = KnownNode(
            id=name,
            kind=_kind(merged, told),
            tier=_agree(merged, told, "tier", lambda node: node.tier),
            rack=_agree(merged, told, "rack", lambda node: node.rack),
            gpus=_agree(merged, told, "GPUs", lambda node: node.gpus) or (),
            nics=_nics(merged, told),
            addresses=_agree(merged, told, "addresses", lambda node: node.addresses),
        )
    _say_renamed(merged)
    return merged


def settle_kinds(merged: Merged, cables: Iterable[SeenCable]) -> None:
    """Decide what nobody told: who looks out itself is a host, unless at hosts; who is only looked at is a switch."""
    looks_at: dict[str, set[Kind | None]] = defaultdict(set)
    for cable in cables:
        looks_at[cable.near.node].add(merged.nodes[cable.far.node].kind)
    unknown = [node for node in merged.nodes.values() if node.kind is None]
    for node in unknown:
        node.kind = "host" if node.id in looks_at and "host" not in looks_at[node.id] else "switch"
    for kind in ("host", "switch"):
        if names := [node.id for node in unknown if node.kind == kind]:
            merged.assumed.append(f"what kind of node they are is not told, taken for a {kind}: {in_words(names)}")


def rename_ports(merged: Merged, cables: Iterable[SeenCable]) -> list[SeenCable]:
    """Return the cables with the names that NICs have got."""

    def named(end: End) -> End:
        return End(end.node, merged.renamed.get(end, end.port))

    return [replace(cable, near=named(cable.near), far=named(cable.far)) for cable in cables]


def _kind(merged: Merged, told: Sequence[SeenNode]) -> Kind | None:
    sure = {node.kind: node.source for node in told if node.kind and node.is_sure}
    guessed = {node.kind: node.source for node in told if node.kind and not node.is_sure}
    if len(sure) > 1:
        words = " and ".join(f"a {kind} as {source} says" for kind, source in sure.items())
        merged.complaints.append(f"node {told[0].id} is {words}")
    elif not sure and len(guessed) > 1:
        words = " and ".join(f"a {kind} as {source} says" for kind, source in guessed.items())
        merged.complaints.append(f"node {told[0].id} is {words}")
    elif sure and guessed and sure.keys() != guessed.keys():
        kind, source = next(iter(sure.items()))
        merged.assumed.append(f"{told[0].id} forwards like a switch, but is a {kind} as {source} says: kept as that")
    return next(iter(sure or guessed), None)


def _agree(
    merged: Merged, told: Sequence[SeenNode], what: str, value_of: Callable[[SeenNode], Value | None]
) -> Value | None:
    """Return the one value that is told, or the first with a complaint."""
    values: dict[Value, str] = {}
    for node in told:
        if value := value_of(node):
            values.setdefault(value, node.source)
    if len(values) > 1:
        words = " and ".join(f"{shorten(value)} as {source} says" for value, source in values.items())
        merged.complaints.append(f"sources disagree on the {what} of {told[0].id}: {words}")
    return next(iter(values), None)


def _nics(merged: Merged, told: Sequence[SeenNode]) -> dict[str, SeenNic]:
    nics: dict[str, SeenNic] = {}
    sources: dict[str, str] = {}
    for node in told:
        for nic in node.nics:
            other, source = nics.setdefault(nic.id, nic), sources.setdefault(nic.id, node.source)
            merged.complaints += [
                f"the {what} of NIC {node.id}/{nic.id} is {one} as {source} says and {two} as {node.source} says"
                for what, one, two in _differences(other, nic)
            ]
            nics[nic.id] = other if other is nic else _both(other, nic)
    return nics


def _differences(one: SeenNic, two: SeenNic) -> Iterator[tuple[str, str, str]]:
    for what, name in (("rate in Gbit/s", "gbps"), ("plane", "plane"), ("rail", "rail"), ("address", "address")):
        here, there = getattr(one, name), getattr(two, name)
        if here is not None and there is not None and here != there:
            yield what, f"{here:g}" if name == "gbps" else str(here), f"{there:g}" if name == "gbps" else str(there)


def _both(one: SeenNic, two: SeenNic) -> SeenNic:
    return SeenNic(
        id=one.id,
        gbps=two.gbps if one.gbps is None else one.gbps,
        guid=one.guid or two.guid,
        plane=two.plane if one.plane is None else one.plane,
        rail=two.rail if one.rail is None else one.rail,
        address=one.address or two.address,
    )


def _share_nic_names(merged: Merged, told: Sequence[SeenNode]) -> list[SeenNode]:
    """Give NICs that are the same card by its GUID the name that the host's own GPUs know them by."""
    inside = next((node for node in told if node.gpus), None)
    if inside is None:
        return list(told)
    names = _unique_guids(inside)
    shared = []
    for node in told:
        new = (
            {} if node is inside else {old: names[guid] for guid, old in _unique_guids(node).items() if guid in names}
        )
        merged.renamed |= {End(node.id, old): name for old, name in new.items() if old != name}
        nics = tuple(replace(nic, id=new.get(nic.id, nic.id)) for nic in node.nics)
        shared.append(replace(node, nics=nics))
    return shared


def _unique_guids(node: SeenNode) -> dict[str, str]:
    """Return names of NICs by GUID; the ports of one card share theirs and are left out."""
    times = Counter(nic.guid for nic in node.nics)
    return {nic.guid: nic.id for nic in node.nics if nic.guid and times[nic.guid] == 1}


def _say_renamed(merged: Merged) -> None:
    if merged.renamed:
        words = [f"{end} is {name}" for end, name in merged.renamed.items()]
        merged.assumed.append(f"NICs with the same GUID are one: {in_words(words)}")
