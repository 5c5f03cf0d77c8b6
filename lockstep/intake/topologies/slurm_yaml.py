"""Slurm's topology.yaml, since 25.05: several topologies of one cluster, each a tree, blocks, or flat."""

from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from lockstep.errors import BadInput
from lockstep.intake.readings import Loose
from lockstep.intake.topologies.documents import read_yaml, shaped
from lockstep.intake.topologies.hostlists import expand_hostlist
from lockstep.intake.topologies.slurm_conf import with_blocks
from lockstep.intake.topologies.survey import Source, Survey
from lockstep.intake.topologies.trees import Tree, survey_tree


class Switch(Loose):
    """A switch with the switches or the nodes below, as hostlist expressions."""

    switch: str = Field(min_length=1)
    children: str = ""
    nodes: str = ""


class TreeKind(Loose):
    """A topology of the kind tree."""

    switches: tuple[Switch, ...]


class Block(Loose):
    """A block and its nodes."""

    block: str = Field(min_length=1)
    nodes: str = ""


class BlockKind(Loose):
    """A topology of the kind block."""

    blocks: tuple[Block, ...]


class Named(Loose):
    """One of the topologies of the file; the loader makes all scalars text."""

    topology: str
    cluster_default: str = "false"
    tree: TreeKind | None = None
    block: BlockKind | None = None

    @property
    def is_default(self) -> bool:
        return self.cluster_default.lower() in ("true", "yes", "on")


class Whole(Loose):
    """The file: a list, put into a field so that complaints have a place."""

    topologies: tuple[Named, ...]


def parse_slurm_yaml(source: Source) -> Survey:
    """Return the tree that is the default, else the first; hosts get their racks from the blocks chosen alike."""
    survey = Survey(source.name)
    whole = shaped(Whole, {"topologies": _listed(read_yaml(source), source)}, source)
    by_rank = sorted(whole.topologies, key=lambda named: not named.is_default)
    trees = [named for named in by_rank if named.tree]
    blocks = [named for named in by_rank if named.block]
    used = [kind[0].topology for kind in (trees, blocks) if kind]
    if not used:
        survey.complain("holds neither a tree nor blocks")
    if left := [named.topology for named in whole.topologies if named.topology not in used]:
        survey.assumed.append(f"{source.name}: {', '.join(used)} used, {', '.join(left)} left out")
    tree = _grow(trees[0].tree, survey) if trees else Tree()
    return survey_tree(with_blocks(tree, _collect(blocks[0].block, survey) if blocks else {}, survey), survey)


def _listed(value: Any, source: Source) -> list[Any]:  # Any: as YAML gave it
    try:
        return TypeAdapter(list[Any]).validate_python(value)
    except ValidationError:
        raise BadInput(f"{source.name}: is no list of topologies") from None


def _grow(kind: TreeKind | None, survey: Survey) -> Tree:
    tree, seen = Tree(), set[str]()
    for switch in kind.switches if kind else ():
        if switch.switch in seen:
            survey.complain(f"switch {switch.switch} is described twice")
        seen.add(switch.switch)
        tree.put_switches(switch.switch, _expand(switch.children, survey))
        tree.put_hosts(switch.switch, _expand(switch.nodes, survey))
    return tree


def _collect(kind: BlockKind | None, survey: Survey) -> dict[str, list[str]]:
    return {block.block: _expand(block.nodes, survey) for block in (kind.blocks if kind else ())}


def _expand(text: str, survey: Survey) -> list[str]:
    try:
        return expand_hostlist(text)
    except BadInput as error:
        survey.complain(str(error))
        return []
