"""Stories of hangs are told by the part that caused them, in time; pauses and restarts stay silent."""

import pytest

from analyzer.context import Context
from analyzer.finding import Finding
from analyzer.hangs.facts import HangMemory, HangOptions
from analyzer.hangs.reading import read_progress
from analyzer.hangs.stage import find_hangs
from analyzer.roster import read_roster
from analyzer.windows import Window
from lockstep.sim.library import find_story
from lockstep.sim.story import Story
from lockstep.store.store import Store
from tests.builders import SECOND, T0
from tests.simulated import JOB, load, tell

SEED = 3
pytestmark = pytest.mark.slow


def look_through(store: Store, story: Story) -> list[tuple[int, Finding]]:
    """Return the findings of all looks at a story, each with the second in which it was made."""
    load(store, tell(story, SEED, every_s=10))
    found: list[tuple[int, Finding]] = []
    for attempt in range(1 + sum(turn.effect == "restart" for turn in story.timeline)):
        roster, memory = read_roster(store, JOB, attempt), HangMemory()
        for end_s in range(6, int(story.duration_s) + 1, 2):
            window = Window(T0 + (end_s - 5) * SECOND, T0 + end_s * SECOND)
            context = Context(JOB, attempt, window, T0, roster, None)
            findings, memory = find_hangs(read_progress(store, context), memory, context, HangOptions())
            found += [(end_s, finding) for finding in findings]
    return found


@pytest.mark.parametrize(
    "name",
    ["hang-absent-ib", "hang-stopped-socket", "gpu-stuck-socket", "nic-dead-ib", "deadlock-ib", "host-gone-ib"],
)
def test_hang_is_told_in_time_and_nothing_else(embedded_store: Store, name: str) -> None:
    story = find_story(name)
    (truth,), (fault,) = story.expect, story.timeline
    found = look_through(embedded_store, story)
    assert truth.within_s is not None
    assert found[0][0] <= fault.at_s + truth.within_s
    right = {truth.component.replace(name, JOB), *truth.also_right}
    assert {(finding.fault_class, finding.component in right) for _, finding in found} == {(truth.fault_class, True)}


@pytest.mark.parametrize("name", ["pauses-strong-ib", "restart-strong-ib", "garbage-collection-strong-ib"])
def test_pauses_stay_silent(embedded_store: Store, name: str) -> None:
    assert look_through(embedded_store, find_story(name)) == []
