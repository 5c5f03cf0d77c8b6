"""A node is free when it was seen to become so, and for an hour at the most."""

from dataclasses import replace

import pytest

from planner.controllers.protocol import Node
from planner.holdings import FreeNodes
from tests.planner.build import seconds


def nodes(*unusable: str) -> list[Node]:
    return [Node(f"h{number}", f"h{number}" not in unusable) for number in range(6)]


TWO, ONE = {"a": ["h0", "h1"]}, {"a": ["h0"]}
BACK: dict[str, object] = {"returned": {"h3": seconds(5)}}
WITHOUT_H1: dict[str, object] = {"nodes": nodes("h1")}


# Of each case: seconds, nodes of jobs, what else is known, and the nodes that are free then.
Rounds = list[tuple[float, dict[str, list[str]], dict[str, object], str]]
CASES: dict[str, Rounds] = {
    "idle at the controller is not free by itself": [(0, TWO, {}, "")],
    "an hour": [(0, TWO, {}, ""), (10, ONE, {}, "h1"), (3600, ONE, {}, "h1"), (3611, ONE, {}, "")],
    "a silent job keeps its nodes until it is known to be over": [
        (0, ONE | {"b": ["h1"]}, {}, ""),
        (10, ONE, {"silent": ["b"]}, ""),
        (20, ONE, {}, "h1"),
    ],
    "returned, until somebody has it": [(10, ONE, BACK, "h3"), (20, {"a": ["h0", "h3"]}, BACK, "")],
    "returned long ago": [(5000, ONE, BACK, "")],
    "out of service": [(0, TWO, {}, ""), (10, ONE, WITHOUT_H1, "")],
    "no answer changes nothing": [(0, TWO, {}, ""), (10, ONE, {}, "h1"), (20, {}, {"nodes": None}, "h1")],
    "rested for long, free from its return on": [
        (0, TWO, {}, ""),
        (30, ONE, WITHOUT_H1, ""),
        (4000, ONE, WITHOUT_H1, ""),
        (7201, ONE, {"returned": {"h1": seconds(7200)}}, "h1"),
    ],
    "no longer listed by the controller": [(6, ONE, BACK | {"nodes": [n for n in nodes() if n.name != "h3"]}, "")],
    "it lists no sound ones": [(6, ONE, BACK | {"nodes": [n for n in nodes("h5") if not n.is_usable]}, "h3")],
    "blamed until that is over": [(0, TWO, {}, ""), (10, ONE, {"blamed": {"h1"}}, ""), (20, ONE, {}, "h1")],
}
IDLE: dict[str, Rounds] = {
    f"idle: {idle}": [(6, ONE, BACK | {"nodes": [replace(node, is_idle=idle) for node in nodes()]}, free)]
    for idle, free in ((False, ""), (True, "h3"), (None, "h3"))
}


@pytest.mark.parametrize("case", [*CASES, *IDLE])
def test_node_is_free_when_it_is_known_that_nobody_has_it(case: str) -> None:
    free = FreeNodes()
    for at_s, jobs, more, expected in (CASES | IDLE)[case]:
        known: dict[str, object] = {"silent": (), "returned": {}, "nodes": nodes()}
        found = free.update(jobs, now_ns=seconds(at_s), **(known | more))  # type: ignore[arg-type]
        assert found == free.names == tuple(expected.split())
