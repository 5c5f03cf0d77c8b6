"""A host that freezes is named by the analyzer, tried again, and taken away by Slurm when it freezes again."""

from pathlib import Path

import pytest

from tests.testbed.drill.site import drill_site, find_loss_difference
from tests.testbed.frozen_host import freeze

# Long: the drill stops a host on the same site; this one waits until it freezes again.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.needs_root,
    pytest.mark.usefixtures("slurm_is_installed"),
]


def test_host_that_freezes_twice_is_taken_away_and_the_job_goes_on_without_it(tmp_path: Path) -> None:
    with drill_site(tmp_path, nodes_per_hour=1) as site:
        frozen = site.nodes_of(site.job)[1]
        told = freeze(site, frozen, print)
        print(told)
        assert [run.action for run in told.runs] == ["restart_process", "replace"]
        assert {run.component for run in told.runs} == {f"host:{frozen}"}
        assert [run.state for run in told.runs] == ["done", "done"]
        assert frozen not in site.nodes_of(told.runs[-1].new_job or "")
    assert find_loss_difference(tmp_path) < 1e-5
