"""DeepSpeed's own converter, started by our command, makes a universal checkpoint that is then the one to load."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.recovery.checkpoints.checkpoint import Layout
from planner.recovery.checkpoints.choosing import ChoiceOptions, choose_checkpoint
from tests.planner.recovery.checkpoints.build import copy_real, make_old, read

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"),
]

TARGET = Layout(tp=1, pp=1, dp=4)


@pytest.mark.parametrize("stage", [1, 3])
def test_command_makes_a_complete_universal_checkpoint(tmp_path: Path, stage: int) -> None:
    copy_real(f"zero_{stage}/global_step3", tmp_path / "job" / "global_step3")
    choice = choose_checkpoint(read(tmp_path / "job"), TARGET, ChoiceOptions(python=sys.executable))
    ended = subprocess.run(
        choice.convert,
        env=os.environ | {"DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    made = Path(choice.load_from or "")
    written_ns = max(path.stat().st_mtime_ns for path in made.rglob("*") if path.is_file())
    assert [each.state for each in read(tmp_path / "job", written_ns).checkpoints] == ["writing", "complete"]
    make_old(tmp_path / "job")
    found = read(tmp_path / "job")
    assert (found.remarks, [each.format for each in found.complete]) == ((), ["ds_zero", "universal"])
    again = choose_checkpoint(found, TARGET)
    assert (again.load_from, again.convert) == (choice.load_from, ())
