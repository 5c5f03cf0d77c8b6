"""From a fault in a real fabric to the verdict in the API: ranks that send, plugin, collectors, store, analyzer."""

import os

import pytest

from lockstep.sim.library import find_story
from testbed.fabric.ownership import owner_of, prefix_of
from testbed.stories.telling import tell


@pytest.mark.slow
@pytest.mark.needs_root
@pytest.mark.parametrize(
    "name",
    [
        "testbed-host-link-strong-socket",
        "testbed-host-link-healthy-socket",
        "testbed-hang-stopped-socket",
    ],
)
def test_story_told_on_a_real_fabric_gets_the_verdicts_it_expects_and_no_other(name: str) -> None:
    told = tell(find_story(name), seed=7, note=print)
    assert told.is_right, told.incidents
    assert told.steps > 10
    left = [prefix for space in os.listdir("/run/netns") if (prefix := prefix_of(space))]
    assert os.getpid() not in map(owner_of, left)
