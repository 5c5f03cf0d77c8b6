"""What is known of checkpoints travels as JSON, so that a job or a collector may tell it."""

import json

import pytest
from pydantic import ValidationError

from planner.recovery.checkpoints.checkpoint import Catalogue, Checkpoint, Layout, newest_first
from tests.planner.recovery.checkpoints.build import catalogue, checkpoint, zero


def test_catalogue_comes_back_from_json_as_it_went() -> None:
    told = catalogue(
        checkpoint(300, state="writing"), zero(200, experts=8, convert_flags=("--inject_missing_state",))
    )
    assert Catalogue.model_validate(json.loads(json.dumps(told.as_json()))) == told


@pytest.mark.parametrize(
    "change", [{"state": "fine"}, {"bytes": -1}, {"format": "zarr"}, {"more": 1}, {"reason": None}]
)
def test_what_a_job_tells_is_checked(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Checkpoint.model_validate(checkpoint().model_dump() | change)


def test_layout_is_taken_from_a_decisions_target() -> None:
    assert Layout.of({"nnodes": 3, "tp": 8, "pp": 4, "dp": 3, "global_batch": 1536}) == Layout(tp=8, pp=4, dp=3)


def test_layout_reads_as_people_write_it() -> None:
    assert [str(each) for each in (Layout(tp=8, dp=3), Layout(world=4), Layout())] == [
        "tp8 dp3",
        "4 ranks",
        "unknown",
    ]


def test_checkpoints_without_a_step_come_last() -> None:
    ordered = sorted([checkpoint(None), checkpoint(0), checkpoint(7), checkpoint(30)], key=newest_first)
    assert [each.step for each in ordered] == [30, 7, 0, None]
