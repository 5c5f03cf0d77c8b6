"""A topology is scaled so that this machine can carry it."""

import pytest

from lockstep.errors import BadInput
from lockstep.fabrics import FabricOptions, leaf_spine
from tests.testbed.fabric.options import ShapeOptions, scale_of


def test_all_nics_together_stay_within_what_the_machine_carries() -> None:
    topology = leaf_spine(
        hosts=8, nics_per_host=2, leaves=2, spines=2, options=FabricOptions(gbps=400, uplink_gbps=100)
    )
    scale = scale_of(topology, ShapeOptions(most_mbps=1500))
    assert scale * 400 * 16 == pytest.approx(1500)


def test_nothing_runs_faster_than_the_topology_says() -> None:
    topology = leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=1, options=FabricOptions(gbps=0.1))
    assert scale_of(topology, ShapeOptions()) == 1000


def test_scale_that_is_too_much_is_refused_with_both_figures() -> None:
    topology = leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=1, options=FabricOptions(gbps=100))
    assert scale_of(topology, ShapeOptions(mbps_per_gbps=7.5)) == 7.5
    with pytest.raises(BadInput, match="2000 Mbit/s in all, but this testbed carries 1500"):
        scale_of(topology, ShapeOptions(mbps_per_gbps=10))
