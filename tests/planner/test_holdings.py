"""A node is free when it was seen to become so, and for an hour at the most."""

from dataclasses import replace

import pytest

from planner.controllers.protocol import Node
from planner.holdings import FreeNodes
from tests.planner.build import seconds


def nodes(*unusable: str) -> list[Node]:
    return [Node(f"h{number}", f"h{number}" not in unusable) for number in range(6)]


BACK, TWO, ONE = {"h3": seconds(5)}, {"a": ["h0", "h1"]}, {"a": ["h0"]}
EXCLUDED = [node for node in nodes("h5") if not node.is_usable]


@pytest.mark.parametrize(
    ("rounds"),
    [
        pytest.param([(0, TWO, {}, "")], id="idle at the controller is not free by itself"),
        pytest.param(
            [(0, TWO, {}, ""), (10, ONE, {}, "h1"), (3600, ONE, {}, "h1"), (3611, ONE, {}, "")], id="an hour"
        ),
        pytest.param(
            [(0, ONE | {"b": ["h1"]}, {}, ""), (10, ONE, {"silent": ["b"]}, ""), (20, ONE, {}, "h1")],
            id="a silent job keeps its nodes until it is known to be over",
        ),
        pytest.param(
            [(10, ONE, {"returned": BACK}, "h3"), (20, {"a": ["h0", "h3"]}, {"returned": BACK}, "")],
            id="returned, until somebody has it",
        ),
        pytest.param([(5000, ONE, {"returned": BACK}, "")], id="returned long ago"),
        pytest.param([(0, TWO, {}, ""), (10, ONE, {"nodes": nodes("h1")}, "")], id="out of service"),
        pytest.param(
            [(0, TWO, {}, ""), (10, ONE, {}, "h1"), (20, {}, {"nodes": None}, "h1")], id="no answer changes nothing"
        ),
        pytest.param(
            [
                (0, TWO, {}, ""),
                (30, {"a+1": ["h0"]}, {"nodes": nodes("h1")}, ""),
                (4000, {"a+1": ["h0"]}, {"nodes": nodes("h1")}, ""),
                (7201, {"a+1": ["h0"]}, {"returned": {"h1": seconds(7200)}}, "h1"),
            ],
            id="rested for long, free from its return on",
        ),
        pytest.param(
            [(6, ONE, {"returned": BACK, "nodes": [node for node in nodes() if node.name != "h3"]}, "")],
            id="no longer listed by the controller",
        ),
        pytest.param([(6, ONE, {"returned": BACK, "nodes": EXCLUDED}, "h3")], id="it lists no sound ones"),
        *(
            pytest.param(
                [(6, ONE, {"returned": BACK, "nodes": [replace(node, is_idle=idle) for node in nodes()]}, free)],
                id=f"idle: {idle}",
            )
            for idle, free in ((False, ""), (True, "h3"), (None, "h3"))
        ),
        pytest.param(
            [(0, TWO, {}, ""), (10, ONE, {"blamed": {"h1"}}, ""), (20, ONE, {}, "h1")], id="blamed until that is over"
        ),
    ],
)
def test_node_is_free_when_it_is_known_that_nobody_has_it(
    rounds: list[tuple[float, dict[str, list[str]], dict[str, object], str]],
) -> None:
    free = FreeNodes()
    for at_s, jobs, more, expected in rounds:
        known: dict[str, object] = {"silent": (), "returned": {}, "nodes": nodes()}
        found = free.update(jobs, now_ns=seconds(at_s), **(known | more))  # type: ignore[arg-type]
        assert found == free.names == tuple(expected.split())
