"""Fabrics that are told as a tree: which hosts and switches are below which switch, and no ports or cables.

Slurm, topograph and the Lingjun data set do so. A switch of the tree may stand for several that work as one, and a
line of it for several cables; who reads the topology is told so.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from pydantic import Field

from importers.topology.survey import End, SeenCable, SeenNode, Source, Survey, in_words, read_json, read_yaml, shaped
from importers.traces.readings import Loose
from lockstep.errors import BadInput
from lockstep.hostlists import expand_hostlist
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
    named = dict.fromkeys(name for below in tree.switches.values() for name in below)
    if unknown := [name for name in named if name not in tree.switches]:
        taken = "taken for a leaf" if len(unknown) == 1 else "taken for leaves"
        told = f"names {in_words(unknown)} and tells nothing more of it: {taken} without hosts"
        survey.assumed.append(f"{survey.source}: {told}")
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
        path = {} if start in done else {start: iter(tree.switches[start])}  # from the start down, in order
        while path:
            switch, rest = next(reversed(path.items()))
            below = next(rest, None)
            if below is None:
                done.add(switch)
                del path[switch]
            elif below in path:
                names = list(path)
                circle = [*names[names.index(below) :], below][-_MOST_SHOWN:]
                found.append(f"switch {below} is its own ancestor: {' > '.join(circle)}")
            elif below not in done:
                path[below] = iter(tree.switches.get(below, {}))
    return found


def _find_levels(tree: Tree) -> dict[str, int]:
    """Return how far up each switch is, a leaf 1; the tree has no circle."""
    levels: dict[str, int] = {}
    names = dict.fromkeys((*tree.switches, *(name for below in tree.switches.values() for name in below)))
    order = {name: number for number, name in enumerate(names)}
    for start in order:
        stack = [start]
        while stack:
            below = tree.switches.get(stack[-1], {})
            if waiting := [name for name in below if name not in levels]:
                stack += waiting
            else:
                switch = stack.pop()
                levels[switch] = 1 + max((levels[name] for name in below), default=0)
    return {name: levels[name] for name in sorted(levels, key=order.__getitem__)}


_DOMAINS = ("/sub-domain", "/domain")  # ends of the labels' names, which sites may choose; the narrower first


class Instance(Loose):
    """A node and the switches above it."""

    id: str = Field(min_length=1)
    network_layers: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}


class Graph(Loose):
    """What the graph engine answers."""

    instances: tuple[Instance, ...]


class Above(Loose):
    """A switch of a model, with the switches below."""

    switches: tuple[str, ...] = ()


class Block(Loose):
    """Nodes of a model on one leaf; each entry is a hostlist expression."""

    switch: str = ""
    nodes: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class Model(Loose):
    """A simulated cluster."""

    switches: Mapping[str, Above] = {}
    blocks: tuple[Block, ...] = ()


def parse_topograph(source: Source) -> Survey:
    """Return what a graph or a model tells."""
    survey = Survey(source.name)
    if source.data.lstrip()[:1] in (b"{", b"["):
        tree = _graph_tree(shaped(Graph, read_json(source), source), survey)
    else:
        tree = _model_tree(shaped(Model, read_yaml(source), source), survey)
    if tree.racks:
        survey.assumed.append(f"{source.name}: accelerator domains are kept as racks")
    return survey_tree(tree, survey)


def _graph_tree(graph: Graph, survey: Survey) -> Tree:
    tree, seen = Tree(), set[str]()
    for instance in graph.instances:
        if instance.id in seen:
            survey.complain(f"instance {instance.id} is there twice")
        seen.add(instance.id)
        _set_rack(tree, [instance.id], instance.labels)
        layers = instance.network_layers
        if not layers:
            tree.alone.append(instance.id)
            continue
        tree.put_hosts(layers[0], [instance.id])
        for below, above in pairwise(layers):
            tree.put_switches(above, [below])
    if tree.alone:
        survey.assumed.append(f"{survey.source}: no switch is known for {in_words(tree.alone)}")
    return tree


def _model_tree(model: Model, survey: Survey) -> Tree:
    if not model.switches and not model.blocks:
        survey.complain("is no model: it has neither switches nor blocks")
    tree = Tree()
    for switch, above in model.switches.items():
        tree.put_switches(switch, above.switches)
    for block in model.blocks:
        try:
            hosts = [host for text in block.nodes for host in expand_hostlist(text)]
        except BadInput as error:
            survey.complain(str(error))
            continue
        _set_rack(tree, hosts, {**block.annotations, **block.labels})
        if block.switch:
            tree.put_hosts(block.switch, hosts)
        else:
            tree.alone += hosts
    return tree


def _set_rack(tree: Tree, hosts: list[str], labels: Mapping[str, str]) -> None:
    named = [labels[label] for end in _DOMAINS for label in sorted(labels) if label.endswith(end) and labels[label]]
    if named:
        tree.racks |= dict.fromkeys(hosts, named[0])


_COLUMNS = ("ip", "DSW", "PSW", "ASW")
_Row = dict[str, str]


def parse_lingjun(source: Source) -> Survey:
    """Return what the file tells, each ASW under the name of its PSW where several have that number."""
    survey = Survey(source.name)
    rows = _read(source, survey)
    parents: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        parents[row["ASW"]].add(row["PSW"])
    shared = [name for name, above in parents.items() if len(above) > 1]
    if shared:
        survey.assumed.append(
            f"{source.name}: {in_words(shared)} stand below several PSWs: taken for another leaf below each"
        )
    tree = Tree()
    for row in rows:
        leaf = f"{row['PSW']}-{row['ASW']}" if len(parents[row["ASW"]]) > 1 else row["ASW"]
        tree.put_switches(row["DSW"], [row["PSW"]])
        tree.put_switches(row["PSW"], [leaf])
        tree.put_hosts(leaf, [row["ip"]])
    return survey_tree(tree, survey)


def _read(source: Source, survey: Survey) -> list[_Row]:
    lines = csv.reader(io.StringIO(source.text(), newline=""))
    try:
        header = next(lines, [])
        if missing := [name for name in _COLUMNS if name not in header]:
            raise BadInput(f"{source.name}: has no column {', '.join(missing)}")
        rows = [(lines.line_num, dict(zip(header, line, strict=False))) for line in lines if line]
    except csv.Error as error:
        raise BadInput(f"{source.name}: is no CSV: {error}") from None
    for number, row in rows:
        if not all(row.get(name) for name in _COLUMNS):
            survey.complain(f"line {number}: has an empty column or too few")
    return [row for _, row in rows if all(row.get(name) for name in _COLUMNS)]
