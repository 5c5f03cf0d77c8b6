"""The layout of one version of NCCL's profiler interface, for code that builds or reads descriptors byte by byte.

The files in nccl_releases are made by nccl_plugin/abi/read_dwarf.py, a release of NCCL each; names are those of
nccl_plugin/descriptors.h. Releases agree on every version that they share (a test holds them to it).
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypedDict

from lockstep.errors import NotPresent

RELEASES = ("2.27.7", "2.28.9", "2.30.7", "2.32.3")  # each the last one, so far, that brings its newest version


class Field(NamedTuple):
    """Where a field stands in its structure, in bytes; v1 numbers in one byte what later versions point to."""

    offset: int
    size: int


class StructureFacts(TypedDict):
    """One structure as the files hold it: each field's offset and size, in the order of the structure."""

    size: int
    fields: dict[str, tuple[int, int]]


class VersionFacts(TypedDict):
    """What a release says about one version of the interface."""

    table: StructureFacts
    descriptor: StructureFacts
    arguments: StructureFacts


class ReleaseFacts(TypedDict):
    """One file: the tables that a release looks for, its numbers for events and states, its structures by version."""

    nccl: str
    symbols: list[str]
    events: dict[str, int]
    states: dict[str, int]
    versions: dict[str, VersionFacts]


class Layout(Mapping[str, Field]):
    """The fields of one structure by dotted name (`coll.seq`), with its size in bytes."""

    def __init__(self, facts: StructureFacts) -> None:
        self.size = facts["size"]
        self._fields = {name: Field(*values) for name, values in facts["fields"].items()}

    def __getitem__(self, name: str) -> Field:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def layout(api_version: int) -> Layout:
    """Return the event descriptor of this version.

    >>> layout(5)["coll.seq"], layout(5).size
    (Field(offset=24, size=8), 112)
    >>> layout(1)["coll.func"].size, layout(2)["coll.func"].size
    (1, 8)
    """
    return _layout(api_version, "descriptor")


def arguments_layout(api_version: int) -> Layout:
    """Return what comes with a state in this version.

    >>> dict(arguments_layout(1))
    {'bytes': Field(offset=0, size=8), 'steps': Field(offset=8, size=4), 'appended': Field(offset=0, size=4)}
    """
    return _layout(api_version, "arguments")


def facts_file(release: str) -> Path:
    """Return where the facts of this release stand, or are to be written."""
    return Path(__file__).parent / "nccl_releases" / f"{release}.json"


@cache
def release_facts(release: str) -> ReleaseFacts:
    """Return what was read out of this release's binary."""
    facts: ReleaseFacts = json.loads(facts_file(release).read_text(encoding="utf-8"))
    return facts


@cache
def _layout(api_version: int, structure: str) -> Layout:
    for release in reversed(RELEASES):
        version = release_facts(release)["versions"].get(str(api_version))
        if version is not None:
            return Layout(version["descriptor"] if structure == "descriptor" else version["arguments"])
    raise NotPresent(f"no NCCL release that we know has version {api_version} of the profiler interface")
