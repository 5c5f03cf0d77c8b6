"""Which ports a changed link makes doubtful.

A switch that loses a next hop hashes flows anew that did not use it, so all ports between two leaves are in doubt
when a link on any shortest way between them went up or down, whether they use it or not.

Cost: a breadth-first search for each leaf and each end of a changed link; then a look-up.
"""

from collections import defaultdict
from collections.abc import Mapping

from lockstep.records import Path
from lockstep.topology import Topology, TopologyIndex, split_end


class Changes:
    """Which entries a changed link makes doubtful: all between leaves that it lies between, whether they use it."""

    def __init__(self, topology: Topology, changed_ns: Mapping[str, int]) -> None:
        links = {link.id: tuple(split_end(end)[0] for end in (link.a, link.b)) for link in topology.links}
        hosts = {host.id for host in topology.hosts}
        self._index = TopologyIndex(topology)
        self._neighbours: dict[str, list[str]] = defaultdict(list)  # also over links that are down now
        for a, b in links.values():
            if not {a, b} & hosts:
                self._neighbours[a].append(b)
                self._neighbours[b].append(a)
        self._hops: dict[str, dict[str, int]] = {}
        self._between: dict[tuple[str | None, str | None], set[str]] = {}
        known = ((moment, link, links[link]) for link, moment in changed_ns.items() if link in links)
        self._changed = sorted(known, reverse=True)

    def since(self, path: Path) -> str:
        """Return a link that changed after an entry was seen, or nothing."""
        if not self._changed or self._changed[0][0] < path.seen_ns:
            return ""
        leaves = self._index.leaf_of(path.host, path.src_nic), self._index.leaf_of(str(path.dst), path.dst_nic)
        if leaves not in self._between:
            self._between[leaves] = {link for _, link, ends in self._changed if self._is_between(*leaves, *ends)}
        suspects = (link for moment, link, _ in self._changed if moment >= path.seen_ns)
        return next((link for link in suspects if link in self._between[leaves] or link in path.links), "")

    def _is_between(self, near: str | None, far: str | None, a: str, b: str) -> bool:
        """Return whether a link between two switches is on a shortest way between two leaves."""
        if near is None or far is None or a not in self._neighbours or b not in self._neighbours:
            return False
        hops, from_a, from_b = (self._count_hops(node) for node in (near, a, b))
        ways = ((from_a.get(near), from_b.get(far)), (from_b.get(near), from_a.get(far)))
        return any(x is not None and y is not None and x + 1 + y == hops.get(far) for x, y in ways)

    def _count_hops(self, start: str) -> dict[str, int]:
        """Return the distance of each switch from one, found once."""
        if start not in self._hops:
            hops, front = {start: 0}, [start]
            while front:
                level = hops[front[0]] + 1
                front = list({far for near in front for far in self._neighbours[near]} - hops.keys())
                hops |= dict.fromkeys(front, level)
            self._hops[start] = hops
        return self._hops[start]
