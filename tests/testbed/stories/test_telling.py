"""From a fault in a real fabric to the verdict in the API: ranks that send, plugin, collectors, store, analyzer."""

import os
from typing import Any

import pytest

from lockstep.clock import NS_PER_S
from lockstep.sim.library import find_story
from lockstep.sim.story import Story
from testbed.fabric.ownership import owner_of, prefix_of
from testbed.stories.telling import Outcome, tell

STORY = find_story("testbed-host-link-strong-socket")
BEGAN_NS = 1_000 * NS_PER_S


def incident(component: str, after_s: float, fault_class: str = "comm_slow") -> dict[str, Any]:
    verdict = {"class": fault_class, "component": component}
    return {"verdict": verdict, "opened_ns": BEGAN_NS + int(after_s * NS_PER_S)}


def outcome(*incidents: dict[str, Any], story: Story = STORY) -> Outcome:
    return Outcome(story, BEGAN_NS, incidents, steps=50)


@pytest.mark.parametrize("component", ["link:h6/eth1--leaf1", "nic:h6/eth1"])
def test_expected_verdict_in_time_is_right(component: str) -> None:
    assert outcome(incident(component, after_s=35)).is_right


@pytest.mark.parametrize(
    "said",
    [
        incident("nic:h5/eth1", after_s=35),
        incident("nic:h6/eth1", after_s=51),  # the fault comes at 20 s, the verdict is due within 30
        incident("nic:h6/eth1", after_s=35, fault_class="comm_hang"),
    ],
)
def test_another_part_class_or_a_late_verdict_is_missed_and_wrong(said: dict[str, Any]) -> None:
    judged = outcome(said)
    assert not judged.is_right
    assert (judged.missed, judged.wrong) == (list(STORY.expect), [said])


def test_silence_is_right_only_where_nothing_breaks() -> None:
    assert not outcome().is_right
    assert outcome(story=find_story("testbed-host-link-healthy-socket")).is_right


@pytest.mark.slow
@pytest.mark.needs_root
@pytest.mark.parametrize("name", ["testbed-host-link-strong-socket", "testbed-host-link-healthy-socket"])
def test_story_told_on_a_real_fabric_gets_the_verdicts_it_expects_and_no_other(name: str) -> None:
    told = tell(find_story(name), seed=7, note=print)
    assert told.is_right, told.incidents
    assert told.steps > 20
    left = [prefix for space in os.listdir("/run/netns") if (prefix := prefix_of(space))]
    assert os.getpid() not in map(owner_of, left)
