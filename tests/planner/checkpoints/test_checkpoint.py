"""What is known of checkpoints travels as JSON, so that a job or a collector may tell it."""

import pytest
from pydantic import ValidationError

from planner.checkpoints.checkpoint import (
    Checkpoint,
    ReadRate,
    SavedLayout,
    estimate_convert_s,
    estimate_load_s,
    newest_first,
)
from tests.planner.checkpoints.build import checkpoint, zero


@pytest.mark.parametrize(
    "change", [{"state": "fine"}, {"bytes": -1}, {"format": "zarr"}, {"more": 1}, {"reason": None}]
)
def test_what_a_job_tells_is_checked(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Checkpoint.model_validate(checkpoint().model_dump() | change)


def test_layout_is_taken_from_a_decisions_target_and_reads_as_people_write_it() -> None:
    target = {"nnodes": 3, "tp": 8, "pp": 4, "dp": 3, "global_batch": 1536}
    assert SavedLayout.of(target) == SavedLayout(tp=8, pp=4, dp=3)
    layouts = (SavedLayout(tp=8, dp=3), SavedLayout(world=4), SavedLayout())
    assert [str(each) for each in layouts] == ["tp8 dp3", "4 ranks", "unknown"]


def test_checkpoints_without_a_step_come_last() -> None:
    ordered = sorted([checkpoint(None), checkpoint(0), checkpoint(7), checkpoint(30)], key=newest_first)
    assert [each.step for each in ordered] == [30, 7, 0, None]


GIVEN = ReadRate(source="remote", bytes_per_s=1e9)


def test_loading_takes_the_time_of_the_source_and_converting_reads_and_writes_twice() -> None:
    assert estimate_load_s(checkpoint(bytes=8_000_000_000), [GIVEN]) == pytest.approx(8.0)
    assert estimate_load_s(checkpoint(source="peer"), [GIVEN]) is None
    assert estimate_convert_s(zero(bytes=10_000_000_000), [GIVEN]) == pytest.approx(8.6 + 40.0)
    assert estimate_convert_s(zero(), []) is None
