"""A node is free only when it was seen to become so, and neither held, unusable nor forgotten since."""

from dataclasses import replace

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


def test_node_that_rested_for_long_is_free_from_its_return_on() -> None:
    free = FreeNodes()
    look(free, {"a": ["h0", "h1"]}, 0)
    for at_s in (30, 4000):
        assert look(free, {"a+1": ["h0"]}, at_s, nodes=nodes("h1")) == ()
    assert look(free, {"a+1": ["h0"]}, 7201, returned={"h1": seconds(7200)}) == ("h1",)


def test_node_that_the_controller_no_longer_lists_is_not_free() -> None:
    back, listed = {"h3": seconds(1)}, [node for node in nodes() if node.name != "h3"]
    assert look(FreeNodes(), {"a": ["h0"]}, 2, returned=back, nodes=listed) == ()
    excluded = [node for node in nodes("h5") if not node.is_usable]
    assert look(FreeNodes(), {"a": ["h0"]}, 2, returned=back, nodes=excluded) == ("h3",), "it lists no sound ones"


def test_node_on_which_somebody_runs_without_telemetry_is_not_free() -> None:
    back = {"h3": seconds(1)}
    for is_idle, expected in ((False, ()), (True, ("h3",)), (None, ("h3",))):
        seen = [replace(node, is_idle=is_idle) for node in nodes()]
        assert look(FreeNodes(), {"a": ["h0"]}, 2, returned=back, nodes=seen) == expected


def test_node_that_an_incident_names_is_free_once_that_is_over() -> None:
    free = FreeNodes()
    look(free, {"a": ["h0", "h1"]}, 0)
    assert look(free, {"a": ["h0"]}, 10, blamed={"h1"}) == ()
    assert look(free, {"a": ["h0"]}, 20) == ("h1",)
