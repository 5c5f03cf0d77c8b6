"""A job goes on elsewhere when a host dies, seems to die, or freezes; the wrong verdict is undone by a person."""

import time
from pathlib import Path

import pytest

from lockstep.state.decisions import list_executions
from tests.testbed.drill.phases import FALSE_VERDICT, HOST_DIES, run_drill
from tests.testbed.drill.site import drill_site, find_loss_difference
from tests.testbed.slurm_rank import faults_of

pytestmark = [pytest.mark.slow, pytest.mark.needs_root, pytest.mark.usefixtures("slurm_is_installed")]

WARM_UP_S = 15.0  # that a new attempt runs before its host freezes again: its rhythm must be known


def test_dead_host_is_replaced_and_a_second_within_the_hour_is_held_and_undone_by_a_person(tmp_path: Path) -> None:
    timeline = run_drill(tmp_path / "drill", [HOST_DIES, FALSE_VERDICT], print)
    print(timeline.as_json())
    assert timeline.problems == []
    lost, doubted = timeline.phases
    assert (lost.verdict or "").startswith(f"crash {lost.part} ")
    assert lost.held_because is None
    assert lost.decision is not None
    assert lost.decision.action == "replace"
    assert (doubted.verdict or "").startswith(f"crash {doubted.part} ")
    assert doubted.held_because == "1 nodes were isolated in the last hour, and 1 is the limit"


@pytest.mark.long  # the drill stops a host on the same site
def test_host_that_freezes_again_after_a_restart_is_taken_away_and_the_job_goes_on_without_it(tmp_path: Path) -> None:
    with drill_site(tmp_path, nodes_per_hour=1) as site:
        frozen, frozen_ns = site.nodes_of(site.job)[1], time.time_ns()
        faults_of(tmp_path, frozen).write_text(str(WARM_UP_S))
        site.await_step(site.await_taken(frozen).ended_ns or frozen_ns)
        faults_of(tmp_path, frozen).unlink()
        site.await_returned(frozen)
        runs = sorted(list_executions(site.control), key=lambda run: run.began_ns)
        assert [(run.action, run.state) for run in runs] == [("restart_process", "done"), ("replace", "done")]
        assert {run.component for run in runs} == {f"host:{frozen}"}
        assert frozen not in site.nodes_of(runs[-1].new_job or "")
    assert find_loss_difference(tmp_path) < 1e-5
