"""What is different between two topologies, a sentence per difference."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lockstep.topology import Link, Node, Topology


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
            *(said for one, two in both for said in _node_changes(one, two)),
            *(said for one, two in pairs for said in _link_changes(one, two)),
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
