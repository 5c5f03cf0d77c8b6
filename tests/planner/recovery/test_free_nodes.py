"""A node is free only when it was seen to become so, and neither held, unusable nor forgotten since."""

from planner.controllers.protocol import Node
from planner.recovery.free_nodes import FreeNodes
from tests.planner.recovery.build import seconds


def nodes(*unusable: str) -> list[Node]:
    return [Node(f"h{number}", f"h{number}" not in unusable) for number in range(6)]


def look(free: FreeNodes, jobs: dict[str, list[str]], at_s: float, **more: object) -> tuple[str, ...]:
    known: dict[str, object] = {"silent": (), "returned": {}, "nodes": nodes()}
    return free.update(jobs, now_ns=seconds(at_s), **(known | more))  # type: ignore[arg-type]


def test_idle_node_of_the_controller_is_not_free_by_itself() -> None:
    assert look(FreeNodes(), {"a": ["h0", "h1"]}, 0) == ()


def test_node_that_a_job_has_left_is_free_for_an_hour() -> None:
    free = FreeNodes()
    look(free, {"a": ["h0", "h1"]}, 0)
    assert look(free, {"a": ["h0"]}, 10) == ("h1",)
    assert free.names == ("h1",)
    assert look(free, {"a": ["h0"]}, 3600) == ("h1",)
    assert look(free, {"a": ["h0"]}, 3611) == ()


def test_node_of_a_silent_job_stays_its_own() -> None:
    free = FreeNodes()
    look(free, {"a": ["h0"], "b": ["h1"]}, 0)
    assert look(free, {"a": ["h0"]}, 10, silent=["b"]) == ()
    assert look(free, {"a": ["h0"]}, 20) == ("h1",), "by now it is known to be over"


def test_node_that_was_returned_is_free_until_somebody_has_it() -> None:
    free = FreeNodes()
    back = {"h3": seconds(5)}
    assert look(free, {"a": ["h0"]}, 10, returned=back) == ("h3",)
    assert look(free, {"a": ["h0", "h3"]}, 20, returned=back) == ()


def test_node_that_came_back_long_ago_is_not_free() -> None:
    assert look(FreeNodes(), {"a": ["h0"]}, 5000, returned={"h3": seconds(5)}) == ()


def test_node_that_is_out_of_service_is_not_free() -> None:
    free = FreeNodes()
    look(free, {"a": ["h0", "h1"]}, 0)
    assert look(free, {"a": ["h0"]}, 10, nodes=nodes("h1")) == ()


def test_without_an_answer_of_the_controller_nothing_changes() -> None:
    free = FreeNodes()
    look(free, {"a": ["h0", "h1"]}, 0)
    look(free, {"a": ["h0"]}, 10)
    assert look(free, {}, 20, nodes=None) == ("h1",)
