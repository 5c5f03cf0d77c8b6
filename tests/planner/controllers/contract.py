"""What every job controller must keep, whatever is behind it: one set of checks, run by each controller's tests.

A test module makes a `Rig` for its controller and calls `check_contract(rig)`. Each check begins with nodes that are
all in service.
"""

from collections.abc import Callable
from dataclasses import dataclass

from planner.controllers.protocol import Controller, Node, Report


@dataclass(frozen=True)
class Rig:
    """A controller under test, and the eyes that see what it has done outside."""

    make: Callable[[bool], Controller]  # a new controller on the same outside, as after a crash; True: a dry run
    look: Callable[[], object]  # the outside's state, to compare before and after
    node: str
    other: str  # a second node
    reset: Callable[[], None]  # all nodes in service again
    occupy: Callable[[str], object] | None = None  # take a node out of service as somebody else would


def check_contract(rig: Rig) -> None:
    for check in _CHECKS:
        rig.reset()
        check(rig)
    if rig.occupy is not None:
        rig.reset()
        _foreign_isolation_is_left_alone(rig)


def _isolated_node_takes_no_work(rig: Rig) -> None:
    controller = rig.make(False)
    _expect(controller.isolate(rig.node, "mark-1", "xid 79 on GPU 3"), "done")
    seen = _find(controller, rig.node)
    if seen is not None:
        assert not seen.is_usable
        assert seen.mark == "mark-1"
        assert "xid 79 on GPU 3" in seen.reason
        beside = _find(controller, rig.other)
        assert beside is None or beside.is_usable


def _each_act_is_done_once_and_a_release_gives_back_what_was_taken(rig: Rig) -> None:
    free = rig.look()
    _expect(rig.make(False).isolate(rig.node, "mark-1", "xid 79"), "done")
    taken = rig.look()
    assert taken != free
    _expect(rig.make(False).isolate(rig.node, "mark-1", "xid 79"), "already")
    assert rig.look() == taken
    for outcome in ("done", "already"):
        _expect(rig.make(False).release(rig.node, "mark-1"), outcome)
        assert rig.look() == free


def _dry_run_changes_nothing(rig: Rig) -> None:
    before = rig.look()
    _expect(rig.make(True).isolate(rig.node, "mark-1", "xid 79"), "would")
    assert rig.look() == before
    _expect(rig.make(False).isolate(rig.node, "mark-1", "xid 79"), "done")
    before = rig.look()
    _expect(rig.make(True).release(rig.node, "mark-1"), "would")
    assert rig.look() == before


def _another_mark_releases_nothing(rig: Rig) -> None:
    _expect(rig.make(False).isolate(rig.node, "mark-1", "xid 79"), "done")
    before = rig.look()
    _expect(rig.make(False).release(rig.node, "mark-2"), "refused")
    _expect(rig.make(False).isolate(rig.node, "mark-2", "slow"), "refused")
    assert rig.look() == before


def _nodes_are_isolated_one_by_one(rig: Rig) -> None:
    _expect(rig.make(False).isolate(rig.node, "mark-1", "xid 79"), "done")
    _expect(rig.make(False).isolate(rig.other, "mark-2", "slow"), "done")
    _expect(rig.make(False).release(rig.node, "mark-1"), "done")
    other = _find(rig.make(False), rig.other)
    assert other is None or other.mark == "mark-2"


def _foreign_isolation_is_left_alone(rig: Rig) -> None:
    assert rig.occupy is not None
    rig.occupy(rig.node)
    before = rig.look()
    _expect(rig.make(False).release(rig.node, "mark-1"), "refused")
    assert rig.look() == before
    rig.make(False).isolate(rig.node, "mark-1", "xid 79")
    rig.make(False).release(rig.node, "mark-1")
    assert rig.look() == before


_CHECKS = (
    _isolated_node_takes_no_work,
    _each_act_is_done_once_and_a_release_gives_back_what_was_taken,
    _dry_run_changes_nothing,
    _another_mark_releases_nothing,
    _nodes_are_isolated_one_by_one,
)


def _expect(report: Report, outcome: str) -> None:
    assert report.outcome == outcome, report
    assert report.what, "a report without a sentence"


def _find(controller: Controller, name: str) -> Node | None:
    return next((node for node in controller.nodes() if node.name == name), None)
