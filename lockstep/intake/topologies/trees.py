"""Fabrics that are told as a tree: which hosts and switches are below which switch, and no ports or cables.

Slurm, topograph and the Lingjun data set do so. A switch of the tree may stand for several that work as one, and a
line of it for several cables; who reads the topology is told so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lockstep.intake.topologies.survey import End, SeenCable, SeenNode, Survey, in_words
from lockstep.topology import Tier

_TIERS: Mapping[int, Tier] = {1: "leaf", 2: "spine", 3: "core"}
_MOST_SHOWN = 8  # switches of a circle; a longer one is cut


_Names = dict[str, None]  # a set that keeps its order


@dataclass
class Tree:
    """Who is below whom; `racks` is by host."""

    hosts: dict[str, _Names] = field(default_factory=dict)  # by the switch above
    switches: dict[str, _Names] = field(default_factory=dict)  # by the switch above
    racks: dict[str, str] = field(default_factory=dict)
    alone: list[str] = field(default_factory=list)  # hosts under no switch

    def put_hosts(self, switch: str, hosts: Iterable[str]) -> None:
        self.hosts.setdefault(switch, {}).update(dict.fromkeys(hosts))
        self.switches.setdefault(switch, {})

    def put_switches(self, switch: str, below: Iterable[str]) -> None:
        self.switches.setdefault(switch, {}).update(dict.fromkeys(below))


def survey_tree(tree: Tree, survey: Survey) -> Survey:
    """Put the nodes and cables of a tree into a survey, with what contradicts itself."""
    for sentence in (*_find_circles(tree), *_find_twice(tree)):
        survey.complain(sentence)
    if survey.complaints:
        return survey
    _note_undescribed(tree, survey)
    levels = _find_levels(tree)
    if max(levels.values(), default=0) > len(_TIERS):
        survey.assumed.append(f"{survey.source}: has {max(levels.values())} tiers; the third and all above are core")
    for switch, level in levels.items():
        tier = _TIERS[min(level, len(_TIERS))]
        survey.nodes.append(SeenNode(switch, survey.source, "switch", tier=tier))
        below = (*tree.hosts.get(switch, {}), *tree.switches.get(switch, {}))
        survey.cables += [SeenCable(End(name), End(switch), survey.source) for name in below]
    hosts = dict.fromkeys([*(host for below in tree.hosts.values() for host in below), *tree.alone])
    survey.nodes += [SeenNode(host, survey.source, "host", rack=tree.racks.get(host)) for host in hosts]
    if any(tree.switches.values()):
        survey.assumed.append(
            f"{survey.source}: tells a tree and no cables: a switch or a link of it may stand for several"
        )
    return survey


def _find_twice(tree: Tree) -> list[str]:
    above: dict[str, str] = {}
    return [
        f"host {host} is under switch {above[host]} and under switch {switch}, but has one leaf"
        for switch, hosts in tree.hosts.items()
        for host in hosts
        if above.setdefault(host, switch) != switch
    ]


def _find_circles(tree: Tree) -> list[str]:
    """Return each switch that is above itself, by a depth-first walk without recursion."""
    done: set[str] = set()
    found = []
    for start in tree.switches:
        way = {} if start in done else {start: iter(tree.switches[start])}  # from the start down, in order
        while way:
            switch, rest = next(reversed(way.items()))
            below = next(rest, None)
            if below is None:
                done.add(switch)
                del way[switch]
            elif below in way:
                names = list(way)
                circle = [*names[names.index(below) :], below][-_MOST_SHOWN:]
                found.append(f"switch {below} is its own ancestor: {' > '.join(circle)}")
            elif below not in done:
                way[below] = iter(tree.switches.get(below, {}))
    return found


def _note_undescribed(tree: Tree, survey: Survey) -> None:
    named = dict.fromkeys(name for below in tree.switches.values() for name in below)
    unknown = [name for name in named if name not in tree.switches]
    if unknown:
        one = "a leaf" if len(unknown) == 1 else "leaves"
        survey.assumed.append(
            f"{survey.source}: names {in_words(unknown)} and tells nothing more of it: taken for {one} without hosts"
        )


def _find_levels(tree: Tree) -> dict[str, int]:
    """Return how far up each switch is, a leaf 1; the tree has no circle."""
    levels: dict[str, int] = {}
    names = dict.fromkeys((*tree.switches, *(name for below in tree.switches.values() for name in below)))
    order = {name: number for number, name in enumerate(names)}
    for start in order:
        way = [start]
        while way:
            below = tree.switches.get(way[-1], {})
            if waiting := [name for name in below if name not in levels]:
                way += waiting
            else:
                switch = way.pop()
                levels[switch] = 1 + max((levels[name] for name in below), default=0)
    return {name: levels[name] for name in sorted(levels, key=order.__getitem__)}
