"""A host dies under a real job and another one only looks so: the first is replaced, a person undoes the second."""

from pathlib import Path

import pytest

from tests.testbed.drill.phases import FALSE_VERDICT, HOST_DIES, run_drill

pytestmark = [pytest.mark.slow, pytest.mark.needs_root, pytest.mark.usefixtures("slurm_is_installed")]


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
