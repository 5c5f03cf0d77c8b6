"""DeepSpeed's own converter, run by the planner, makes a universal checkpoint that is then the one to load."""

import importlib.util
import sys
from pathlib import Path

import pytest

from planner.recovery.checkpoints.checkpoint import Layout
from planner.recovery.checkpoints.choosing import CONVERTER, ChoiceOptions, choose_checkpoint
from planner.recovery.checkpoints.converting import Conversion, Converter
from tests.planner.recovery.checkpoints.build import copy_real, make_old, read
from tests.planner.recovery.checkpoints.test_converting import look_until_over

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"),
]

TARGET = Layout(tp=1, pp=1, dp=4)


@pytest.mark.parametrize("stage", [1, 3])
def test_command_makes_a_complete_universal_checkpoint(tmp_path: Path, stage: int) -> None:
    source = copy_real(f"zero_{stage}/global_step3", tmp_path / "job" / "global_step3")
    options = ChoiceOptions(converter=(sys.executable, *CONVERTER[1:]))
    choice = choose_checkpoint(read(tmp_path / "job"), TARGET, options)
    made = Path(choice.load_from or "")
    wanted = Conversion(choice.convert, str(source), str(made))
    report = look_until_over(Converter(timeout_s=300), wanted, limit_s=300)
    assert report.outcome == "done", report.what
    assert (tmp_path / "job" / "latest_universal").read_text() == "global_step3_universal"
    written_ns = max(path.stat().st_mtime_ns for path in made.rglob("*") if path.is_file())
    assert [each.state for each in read(tmp_path / "job", written_ns).checkpoints] == ["writing", "complete"]
    make_old(tmp_path / "job")
    found = read(tmp_path / "job")
    assert (found.remarks, [each.format for each in found.complete]) == ((), ["ds_zero", "universal"])
    again = choose_checkpoint(found, TARGET)
    assert (again.load_from, again.convert) == (choice.load_from, ())
