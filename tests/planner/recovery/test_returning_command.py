"""A site's own command says whether a node is healthy, by its exit code and its last line."""

import sys

import pytest

from lockstep.errors import BadInput
from planner.recovery.returning import CommandTester, Finding
from tests.planner.recovery.build import seconds
from tests.waiting import eventually


def look_until_over(tester: CommandTester, now_ns: int) -> Finding:
    found: list[Finding] = []

    def is_over() -> bool:
        finding = tester.look("h3", now_ns)
        found.extend([finding] if finding else [])
        return bool(found)

    eventually(is_over)
    return found[0]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("print('h3 is well')", Finding(True, "the test passed: h3 is well")),
        ("print('GPU 3 fails'); raise SystemExit(5)", Finding(False, "the test failed with 5: GPU 3 fails")),
        ("pass", Finding(True, "the test passed: it said nothing")),
    ],
)
def test_command_says_whether_a_node_is_healthy(program: str, expected: Finding) -> None:
    tester = CommandTester([sys.executable, "-c", program, "{node}"], timeout_s=60)
    assert look_until_over(tester, seconds(0)) == expected


def test_command_that_does_not_end_has_failed_and_is_gone() -> None:
    tester = CommandTester(["sh", "-c", "sleep 1000", "{node}"], timeout_s=5)
    assert tester.look("h3", seconds(0)) is None
    assert tester.look("h3", seconds(4)) is None
    assert tester.look("h3", seconds(6)) == Finding(False, "the test did not end within 5 s; it said nothing")


def test_command_without_the_node_is_refused() -> None:
    with pytest.raises(BadInput, match=r"does not say \{node\}"):
        CommandTester(["true"], timeout_s=1)


def test_command_that_is_not_there_is_said() -> None:
    with pytest.raises(BadInput, match="cannot be started"):
        CommandTester(["/no/such/test", "{node}"], timeout_s=1).look("h3", 0)
