"""What a verdict costs and how long it lasted is said as people say it, and not at all where it is not known."""

import pytest

from cli.report import cost_words, coverage_words, lasting_words, part_words
from lockstep.verdict import FaultClass
from lockstep.words import lost_gpu_hours
from tests.cli.report.build import cost, found


def test_slow_step_loses_the_share_that_is_waiting() -> None:
    verdict = found(0, 3_600, impact=cost(1.25, 1_000)).verdict
    assert lost_gpu_hours(verdict) == pytest.approx(200.0), "a fifth of an hour on each of a thousand GPUs"


@pytest.mark.parametrize("fault_class", ["comm_hang", "noncomm_hang", "crash"])
def test_job_that_stands_still_loses_all_of_the_time(fault_class: FaultClass) -> None:
    verdict = found(0, 1_800, fault_class=fault_class, impact=cost(None, 64)).verdict
    assert lost_gpu_hours(verdict) == pytest.approx(32.0)
    assert cost_words(verdict) == "the job stands still, 64 ranks wait, 32 GPU-hours lost"


def test_cost_that_nobody_knows_is_not_made_up() -> None:
    verdict = found(impact=cost(None, 0)).verdict
    assert (lost_gpu_hours(verdict), cost_words(verdict)) == (None, "what it costs is not known")


def test_job_that_became_faster_has_lost_nothing() -> None:
    verdict = found(0, 3_600, impact=cost(0.5, 10)).verdict
    assert lost_gpu_hours(verdict) == 0
    assert cost_words(verdict) == "10 ranks wait"


def test_cost_is_step_time_ranks_and_hours() -> None:
    verdict = found(0, 36, impact=cost(2.0, 1)).verdict
    assert cost_words(verdict) == "steps take 2.00 times as long, 1 rank waits, 0.005 GPU-hours lost"


def test_part_is_told_with_its_side() -> None:
    assert part_words(found().verdict) == "nic:h3/eth1 tx"
    assert part_words(found(side=None).verdict) == "nic:h3/eth1"


def test_fault_that_came_back_says_how_often() -> None:
    assert lasting_words(found(0, 90)) == "1 min 30 s"
    assert lasting_words(found(0, 90, flaps=3)) == "1 min 30 s, came back 3 times"


def test_hosts_that_told_nothing_are_mentioned() -> None:
    assert coverage_words(found(coverage=1.0).verdict) == ""
    assert coverage_words(found(coverage=0.75).verdict) == "25 % of the job's hosts told nothing"
