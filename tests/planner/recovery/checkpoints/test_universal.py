"""A universal checkpoint is complete when every parameter that its model states name is there, value and moments."""

import shutil
from pathlib import Path

import pytest

from tests.planner.recovery.checkpoints.build import copy_real, make_old, read_one


@pytest.fixture(params=[1, 3])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return copy_real(f"zero_{request.param}/global_step3_universal", tmp_path / "global_step3_universal")


def test_what_the_converter_wrote_is_complete_and_loads_anywhere(real: Path) -> None:
    found = read_one(real)
    assert (found.format, found.state, found.step, found.moves) == ("universal", "complete", 3, "any")
    assert found.reason == "all 4 parameters that the model states name are there, and each file has its end"
    assert found.files == sum(path.is_file() for path in real.rglob("*"))


def test_parameter_that_is_missing_is_named(real: Path) -> None:
    shutil.rmtree(real / "zero" / "2.weight")
    found = read_one(real)
    assert (found.state, found.reason) == ("incomplete", "zero lacks 2.weight")


def test_moment_that_is_missing_is_named_and_a_parameter_without_any_is_right(real: Path) -> None:
    (real / "zero" / "0.bias" / "exp_avg.pt").unlink()
    assert read_one(real).reason == "zero/0.bias has no exp_avg.pt, and it has the other moment"
    (real / "zero" / "0.bias" / "exp_avg_sq.pt").unlink()
    assert read_one(real).state == "complete"


def test_value_that_is_missing_or_cut_is_named(real: Path) -> None:
    value = real / "zero" / "0.weight" / "fp32.pt"
    value.write_bytes(value.read_bytes()[:500])
    make_old(real)
    assert read_one(real).reason == "zero/0.weight/fp32.pt is cut short or no file of torch: its zip has no end"
    value.unlink()
    assert read_one(real).reason == "zero/0.weight has no fp32.pt"


def test_converter_that_was_killed_leaves_an_incomplete_one(real: Path) -> None:
    (real / "tmp").mkdir()
    make_old(real)
    assert read_one(real).reason == "the converter has not ended: its folder tmp is still there"
    (real / "tmp").rmdir()
    (real / "zero" / "optimizer_state.pt").unlink()
    assert read_one(real).reason == "has no zero/optimizer_state.pt, which the converter writes after the parameters"
