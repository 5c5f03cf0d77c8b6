"""A job that saves far too seldom or too often for the failures seen is told so, and others are left in peace."""

import pytest

from planner.recovery.checkpoints.intervals import find_failure_rate
from planner.recovery.facts import JobFacts
from planner.recovery.saving import advise_saving
from tests.planner.recovery.build import cluster, job

SEEN = find_failure_rate(30, 1000.0)  # one node of eight fails every four days


def saves(every_s: float | None) -> JobFacts:
    return job(save_every_s=every_s)


def test_job_that_saves_once_a_day_is_told_to_save_more_often() -> None:
    said = advise_saving(saves(86_400.0), cluster(failure_rate=SEEN))
    assert said is not None
    assert said.startswith("train saves every 24.0 hours: save every 77 minutes: a save holds 8 nodes up for 30 s")
    assert said.endswith("(if a save lasts as long as loading one)")


def test_job_that_saves_all_the_time_is_told_to_save_less_often() -> None:
    said = advise_saving(saves(300.0), cluster(failure_rate=SEEN))
    assert said is not None
    assert "10.0% at the 5 minutes of today" in said


@pytest.mark.parametrize("every_s", [3600.0, 5400.0])
def test_job_that_saves_about_right_is_left_in_peace(every_s: float) -> None:
    assert advise_saving(saves(every_s), cluster(failure_rate=SEEN)) is None


def test_what_is_not_known_is_not_advised_on() -> None:
    assert advise_saving(saves(86_400.0), cluster()) is None
    assert advise_saving(saves(None), cluster(failure_rate=SEEN)) is None
    assert advise_saving(job(save_every_s=86_400.0, resume=None), cluster(failure_rate=SEEN)) is None
    assert advise_saving(job(save_every_s=86_400.0, nodes=()), cluster(failure_rate=SEEN)) is None
