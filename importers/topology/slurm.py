"""Slurm's topology.conf: lines of SwitchName= with Nodes= or Switches=, or of BlockName= with Nodes=."""

import re
from collections.abc import Iterator, Mapping

from pydantic import Field

from importers.topology.survey import Source, Survey, read_yaml, shaped
from importers.topology.trees import Tree, survey_tree
from importers.traces.readings import Loose
from lockstep.errors import BadInput
from lockstep.hostlists import expand_hostlist

CONF_LINE = re.compile(r"^\s*(?:SwitchName|BlockName|BlockSizes)\s*=", re.IGNORECASE | re.MULTILINE)

_SETTING = re.compile(r"""([A-Za-z]+)\s*=\s*("[^"]*"|\S*)""")
_KNOWN = {
    "switchname": {"switchname", "nodes", "switches", "linkspeed"},
    "blockname": {"blockname", "nodes"},
    "blocksizes": {"blocksizes"},
}
NO_CABLES = (
    "blocks tell who is near whom and not what is cabled: each is taken for a rack with one leaf, joined by nothing"
)


def parse_slurm_conf(source: Source) -> Survey:
    """Return what the file tells; all lines that cannot be understood are complained of."""
    survey, tree, blocks = Survey(source.name), Tree(), dict[str, list[str]]()
    seen: dict[str, int] = {}
    speeds = 0
    for number, line in _lines(source.text()):
        try:
            settings = _settings(line)
            speeds += "linkspeed" in settings
            name = settings.get("switchname") or settings.get("blockname")
            if name and seen.setdefault(name, number) != number:
                raise BadInput(f"{name} is described again, after line {seen[name]}")
            _take(settings, tree, blocks)
        except BadInput as error:
            survey.complain(f"line {number}: {error}")
    if speeds:
        survey.assumed.append(f"{source.name}: LinkSpeed has no unit in Slurm and was not used")
    return survey_tree(with_blocks(tree, blocks, survey), survey)


def with_blocks(tree: Tree, blocks: Mapping[str, list[str]], survey: Survey) -> Tree:
    """Put blocks into a tree: racks of the hosts, and leaves too where nothing else tells of switches."""
    for block, hosts in blocks.items():
        for host in hosts:
            if tree.racks.setdefault(host, block) != block:
                survey.complain(f"host {host} is in block {tree.racks[host]} and in block {block}")
    if blocks and not tree.switches:
        survey.assumed.append(f"{survey.source}: {NO_CABLES}")
        for block, hosts in blocks.items():
            tree.put_hosts(block, hosts)
    elif blocks:
        survey.assumed.append(f"{survey.source}: blocks are kept as racks")
        placed = {host for hosts in tree.hosts.values() for host in hosts}
        tree.alone += [host for host in tree.racks if host not in placed]
    return tree


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments, those that a backslash continues as one, with the number of the first."""
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.partition("#")[0].strip()
        first = first if begun else number
        begun += bare.removesuffix("\\")
        if bare.endswith("\\"):
            begun += " "
            continue
        if begun.strip():
            yield first, begun
        begun = ""
    if begun.strip():
        yield first, begun


def _settings(line: str) -> dict[str, str]:
    settings = {name.lower(): value.strip('"') for name, value in _SETTING.findall(line)}
    if _SETTING.sub("", line).strip() or not settings:
        raise BadInput(f"is not made of NAME=VALUE: {line.strip()[:60]!r}")
    subject = next(iter(settings))
    if subject not in _KNOWN:
        raise BadInput(f"begins with {subject}, and only SwitchName, BlockName and BlockSizes are known")
    if unknown := sorted(settings.keys() - _KNOWN[subject]):
        raise BadInput(f"{', '.join(unknown)} is not known beside {subject}")
    return settings


def _take(settings: Mapping[str, str], tree: Tree, blocks: dict[str, list[str]]) -> None:
    if "blockname" in settings:
        blocks[_one(settings["blockname"])] = expand_hostlist(settings.get("nodes", ""))
    elif "switchname" in settings:
        switch = _one(settings["switchname"])
        if not settings.get("nodes") and not settings.get("switches"):
            raise BadInput(f"switch {switch} has neither Nodes nor Switches")
        tree.put_switches(switch, expand_hostlist(settings.get("switches", "")))
        tree.put_hosts(switch, expand_hostlist(settings.get("nodes", "")))


def _one(text: str) -> str:
    names = expand_hostlist(text)
    if len(names) != 1:
        raise BadInput(f"{text[:60]!r} must be one name")
    return names[0]


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
    topologies = read_yaml(source)
    if not isinstance(topologies, list):
        raise BadInput(f"{source.name}: is no list of topologies")
    whole = shaped(Whole, {"topologies": topologies}, source)
    by_rank = sorted(whole.topologies, key=lambda named: not named.is_default)
    trees = [named for named in by_rank if named.tree]
    blocks = [named for named in by_rank if named.block]
    used = [kind[0].topology for kind in (trees, blocks) if kind]
    if not used:
        survey.complain("holds neither a tree nor blocks")
    if left := [named.topology for named in whole.topologies if named.topology not in used]:
        survey.assumed.append(f"{source.name}: {', '.join(used)} used, {', '.join(left)} left out")
    tree = _grow(trees[0].tree, survey) if trees else Tree()
    kept = blocks[0].block.blocks if blocks and blocks[0].block else ()
    racks = {block.block: _expand(block.nodes, survey) for block in kept}
    return survey_tree(with_blocks(tree, racks, survey), survey)


def _grow(kind: TreeKind | None, survey: Survey) -> Tree:
    tree, seen = Tree(), set[str]()
    for switch in kind.switches if kind else ():
        if switch.switch in seen:
            survey.complain(f"switch {switch.switch} is described twice")
        seen.add(switch.switch)
        tree.put_switches(switch.switch, _expand(switch.children, survey))
        tree.put_hosts(switch.switch, _expand(switch.nodes, survey))
    return tree


def _expand(text: str, survey: Survey) -> list[str]:
    try:
        return expand_hostlist(text)
    except BadInput as error:
        survey.complain(str(error))
        return []
