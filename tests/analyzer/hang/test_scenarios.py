"""Scenarios of hangs are told by the part that caused them, in time; pauses and restarts stay silent."""

import pytest

from analyzer.hang.facts import HangMemory, HangOptions
from analyzer.hang.hangs import find_hangs
from analyzer.hang.reading import read_progress
from analyzer.windows.jobs import read_roster
from analyzer.windows.window import Context, Finding, Window
from lockstep.store.store import Store
from simulator.scenario import Scenario, find_scenario
from tests.builders import SECOND, T0
from tests.simulated import JOB, load, tell
from tests.tiers import long_except

SEED = 3
pytestmark = pytest.mark.slow


def look_through(store: Store, scenario: Scenario) -> list[tuple[int, Finding]]:
    """Return the findings of all evaluations at a scenario, each with the second in which it was made."""
    load(store, tell(scenario, SEED, every_s=10))
    found: list[tuple[int, Finding]] = []
    for attempt in range(1 + sum(turn.effect == "restart" for turn in scenario.timeline)):
        roster, memory = read_roster(store, JOB, attempt), HangMemory()
        for end_s in range(6, int(scenario.duration_s) + 1, 2):
            window = Window(T0 + (end_s - 5) * SECOND, T0 + end_s * SECOND)
            context = Context(JOB, attempt, window, T0, roster, None)
            findings, memory = find_hangs(read_progress(store, context), memory, context, HangOptions())
            found += [(end_s, finding) for finding in findings]
    return found


@pytest.mark.parametrize(
    "name",
    long_except(
        ("hang-absent-ib", "deadlock-ib"),
        ("hang-absent-ib", "hang-stopped-socket", "gpu-stuck-socket", "nic-dead-ib", "deadlock-ib", "host-gone-ib"),
    ),
)
def test_hang_is_told_in_time_and_nothing_else(embedded_store: Store, name: str) -> None:
    scenario = find_scenario(name)
    (truth,), (fault,) = scenario.expect, scenario.timeline
    found = look_through(embedded_store, scenario)
    assert truth.within_s is not None
    assert found[0][0] <= fault.at_s + truth.within_s
    right = {truth.component.replace(name, JOB), *truth.also_right}
    assert {(finding.fault_class, finding.component in right) for _, finding in found} == {(truth.fault_class, True)}


@pytest.mark.parametrize(
    "name",
    long_except(("restart-strong-ib",), ("pauses-strong-ib", "restart-strong-ib", "garbage-collection-strong-ib")),
)
def test_pauses_stay_silent(embedded_store: Store, name: str) -> None:
    assert look_through(embedded_store, find_scenario(name)) == []
