"""NVIDIA topograph: the JSON of its graph engine, and the YAML of the models that it simulates.

The graph lists instances with the switches above, the nearest first. A model has switches with those below, and
blocks of nodes on a leaf. Both may name the NVLink domain of a node, which becomes its rack.
"""

from collections.abc import Mapping
from itertools import pairwise

from pydantic import Field

from lockstep.errors import BadInput
from lockstep.intake.readings import Loose
from lockstep.intake.topologies.documents import read_json, read_yaml, shaped
from lockstep.intake.topologies.hostlists import expand_hostlist
from lockstep.intake.topologies.survey import Source, Survey, in_words
from lockstep.intake.topologies.trees import Tree, survey_tree

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
        survey.assumed.append(f"{survey.source}: no switch is told for {in_words(tree.alone)}")
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
