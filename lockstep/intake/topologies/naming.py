"""Names as topology.json allows them: without whitespace, slashes and --, and the same everywhere."""

import re
from collections.abc import Iterable
from dataclasses import replace

from lockstep.intake.topologies.survey import End, SeenNode, Survey, in_words

_GAPS = re.compile(r"\s+")
_DASHES = re.compile(r"-{2,}")  # link:a--b would no longer come apart


def clean_names(surveys: Iterable[Survey]) -> tuple[list[Survey], list[str], list[str]]:
    """Return the surveys with names that can be used, what was changed, and complaints where two become one."""
    surveys = list(surveys)
    raw = dict.fromkeys(name for survey in surveys for name in _nodes_of(survey))
    taken: dict[str, str] = {}
    complaints = [
        f"nodes {taken[clean]!r} and {name!r} would both be called {clean}"
        for name in raw
        if taken.setdefault(clean := clean_node(name), name) != name
    ]
    changed = [f"{name!r} is called {clean_node(name)}" for name in raw if clean_node(name) != name]
    assumed = [f"names that topology.json cannot hold were changed: {in_words(changed)}"] if changed else []
    return [_cleaned(survey) for survey in surveys], assumed, complaints


def clean_node(name: str) -> str:
    """Return the name of a node without what it may not contain.

    >>> clean_node("rack 1/leaf--2")
    'rack_1.leaf-2'
    """
    return clean_port(name).replace("/", ".")


def clean_port(name: str) -> str:
    """Return the name of a port or a NIC, which may contain a slash."""
    if name.isprintable() and " " not in name and "--" not in name:
        return name  # nearly all are
    visible = "".join(letter if letter.isprintable() else " " for letter in name)
    return _DASHES.sub("-", _GAPS.sub("_", visible.strip()))


def _nodes_of(survey: Survey) -> Iterable[str]:
    ends = [end.node for cable in survey.cables for end in (cable.near, cable.far)]
    return [*(node.id for node in survey.nodes), *ends]


def _cleaned(survey: Survey) -> Survey:
    cables = [replace(cable, near=_end(cable.near), far=_end(cable.far)) for cable in survey.cables]
    return replace(survey, nodes=[_node(node) for node in survey.nodes], cables=cables)


def _end(end: End) -> End:
    return End(clean_node(end.node), None if end.port is None else clean_port(end.port))


def _node(node: SeenNode) -> SeenNode:
    return replace(
        node,
        id=clean_node(node.id),
        rack=clean_port(node.rack) if node.rack else None,
        gpus=tuple(gpu.model_copy(update={"nics": tuple(map(clean_port, gpu.nics))}) for gpu in node.gpus),
        nics=tuple(replace(nic, id=clean_port(nic.id)) for nic in node.nics),
    )
