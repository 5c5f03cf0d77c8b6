"""A checkpoint saved on one mesh of ranks is loaded on another, and the losses go on as if nothing had changed."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.testbed.training.checkpointed import read_log
from tests.waiting import LIMIT_S

SAVED_AT, STEPS = 3, 6
OTHERS = ("4x1", "1x2", "3x1")  # with 12 samples and 32 rows, 3 replicas share unevenly
RANKS = {"2x2": 4, "4x1": 4, "1x2": 2, "3x1": 3}
IN_TURN = """
import json, os, sys
from tests.testbed.training.checkpointed import RESUME_FROM, main

for resume_from, arguments in json.loads(sys.argv[1]):  # in one process, which imports torch once
    os.environ[RESUME_FROM] = resume_from
    main(arguments)
"""


@pytest.mark.slow
def test_losses_go_on_on_another_mesh(tmp_path: Path) -> None:
    def arguments(name: str, layout: str) -> list[str]:
        where = [f"--dir={tmp_path / name}", f"--log={tmp_path / name}.jsonl"]
        return [*where, f"--steps={STEPS}", f"--every={SAVED_AT}", f"--ranks={RANKS[layout]}", f"--layout={layout}"]

    saved = str(tmp_path / "whole" / f"step-{SAVED_AT}")
    jobs = [("", arguments("whole", "2x2")), *((saved, arguments(layout, layout)) for layout in OTHERS)]
    subprocess.run([sys.executable, "-c", IN_TURN, json.dumps(jobs)], check=True, timeout=LIMIT_S)

    whole = read_log(tmp_path / "whole.jsonl")
    losses = [line.loss for line in whole.values()]
    assert list(whole) == [1, 2, 3, 4, 5, 6]
    assert min(abs(a - b) for a, b in pairwise(losses)) > 1e-3, "a state of step 0 could not hide"
    for layout in OTHERS:
        ranks = RANKS[layout]
        resumed = read_log(tmp_path / f"{layout}.jsonl")
        assert list(resumed) == [4, 5, 6]
        assert {(line.layout, line.ranks, line.resumed_from) for line in resumed.values()} == {
            (layout, ranks, SAVED_AT)
        }
        assert [line.loss for line in resumed.values()] == pytest.approx(losses[SAVED_AT:], abs=1e-6), layout
