"""How tests hand texts to importers: one fabric in every format, and changes to it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from importers.topology.formats import FORMATS
from importers.topology.joining import Imported, JoinOptions, join_surveys
from importers.topology.survey import Source
from lockstep.errors import BadTopology
from lockstep.topology import Topology

DATA = Path(__file__).parents[2] / "data/topologies"

Given = tuple[str, Sequence[Source]]  # a format and its files


def source(text: str, name: str = "file", node: str = "n1") -> Source:
    """Return a file with this content."""
    return Source(name, node, text.encode())


def stored(name: str) -> str:
    """Return one of the committed files."""
    return (DATA / name).read_text()


def stored_folder(name: str) -> list[Source]:
    """Return the committed files of a folder, each of the node that it is named after."""
    return [Source(file.name, file.stem, file.read_bytes()) for file in sorted((DATA / name).iterdir())]


def changed(sources: Sequence[Source], node: str, old: str, new: str, times: int = -1) -> list[Source]:
    """Return files of which that of one node says something else."""
    found = [one for one in sources if one.node == node and old.encode() in one.data]
    assert found, f"no file of {node} has {old!r}"
    return [
        Source(one.name, one.node, one.data.replace(old.encode(), new.encode(), times)) if one.node == node else one
        for one in sources
    ]


def join(*given: Given, options: JoinOptions | None = None) -> Imported:
    """Return what these files tell together."""
    surveys = [survey for format_name, sources in given for survey in FORMATS[format_name].parse(sources)]
    return join_surveys(surveys, options or JoinOptions())


def read(format_name: str, text: str, **facts: str) -> Imported:
    """Return what one text tells."""
    return join((format_name, [source(text, **facts)]))


def complaints(*given: Given) -> list[str]:
    """Return why these files make no topology."""
    with pytest.raises(BadTopology) as refused:
        join(*given)
    return refused.value.complaints


def links_of(topology: Topology) -> set[str]:
    return {link.id for link in topology.links}


def tiers_of(topology: Topology) -> dict[str, str | None]:
    return {switch.id: switch.tier for switch in topology.switches}


def said(imported: Imported, words: str) -> bool:
    """Return whether one of the assumptions has these words."""
    return any(words in sentence for sentence in imported.assumed)
