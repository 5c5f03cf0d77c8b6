"""From a fault in a real fabric to the verdict in the API: ranks that send, plugin, collectors, store, analyzer."""

import os

import pytest

from simulator.scenario import find_scenario
from tests.testbed.fabric.ownership import owner_of, prefix_of
from tests.testbed.scenarios.telling import tell
from tests.tiers import long_except


@pytest.mark.slow
@pytest.mark.needs_root
@pytest.mark.parametrize(
    "name",
    long_except(
        ("testbed-host-link-strong-socket",),
        ("testbed-host-link-strong-socket", "testbed-host-link-healthy-socket", "testbed-hang-stopped-socket"),
    ),
)
def test_scenario_told_on_a_real_fabric_gets_the_verdicts_it_expects_and_no_other(name: str) -> None:
    told = tell(find_scenario(name), seed=7, note=print)
    assert told.is_right, told.incidents
    assert told.steps > 10
    left = [prefix for space in os.listdir("/run/netns") if (prefix := prefix_of(space))]
    assert os.getpid() not in map(owner_of, left)
