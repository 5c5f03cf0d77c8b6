"""`lockstep plan schedule` prints what failed workers cost in each way, draws it, and refuses nonsense."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import Outcome, Run, check_failure

EXAMPLE = ("--stages", 4, "--pipelines", 3, "--micro-batches", 6)


def plan(lockstep: Run, *more: object) -> Outcome:
    return lockstep("plan", "schedule", *EXAMPLE, *more)


def test_the_worked_example_is_printed_with_its_bound_and_baseline(lockstep: Run) -> None:
    outcome = plan(lockstep, "--failed", "1,2", "--json")
    written = json.loads(outcome.out)
    assert outcome.code == 0
    assert written["step"] == {
        "fault-free 1F1B": 27.0,
        "whole pipelines dropped": 36.0,
        "re-routed": 36.0,
        "re-routed, decoupled": 29.0,
        "re-routed, decoupled, staggered": 27.0,
    }
    assert written["bound"] == {"period": 27.0, "makespan": 29.0}


def test_people_get_a_table_and_a_sentence(lockstep: Run) -> None:
    outcome = plan(lockstep, "--failed", "1,2")
    assert "re-routed, decoupled, staggered  27    100.0%" in outcome.out
    assert "none that is staggered below 27" in outcome.err


def test_pipelines_that_are_all_hit_cannot_be_dropped(lockstep: Run) -> None:
    outcome = plan(lockstep, "--failed", "0,0", "--failed", "1,1", "--failed", "2,2")
    assert outcome.code == 0
    assert "impossible" in outcome.out


def test_times_and_memory_are_read_and_a_picture_is_written(lockstep: Run, tmp_path: Path) -> None:
    times = {"forward": [1, 1, 1, 2], "input": [1, 1, 1, 2], "weight": [1, 1, 1, 2], "transfer": 0.1}
    (tmp_path / "times.json").write_text(json.dumps(times))
    picture = tmp_path / "step.svg"
    more = ("--times", tmp_path / "times.json", "--memory", 4, "--svg", picture, "--json")
    written = json.loads(plan(lockstep, "--failed", "1,2", *more).out)
    assert written["bound"]["period"] >= 36.0
    assert max(written["most_held"].values()) <= 4
    assert picture.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--failed", "one"), "expected PIPELINE,STAGE"),
        (("--failed", "7,0"), "worker (7, 0) is not on a grid of 3 x 4"),
        (("--failed", "0,1", "--failed", "1,1", "--failed", "2,1"), "stage 1 has lost all 3 copies"),
        (("--times", "/nowhere/times.json"), "cannot be read as times"),
        (("--svg", "/nowhere/step.svg"), "cannot be written"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(lockstep: Run, more: tuple[str, ...], sentence: str) -> None:
    check_failure(plan(lockstep, *more), sentence)


def test_times_for_other_stages_are_refused(lockstep: Run, tmp_path: Path) -> None:
    (tmp_path / "times.json").write_text(json.dumps({"forward": [1], "input": [1], "weight": [1]}))
    check_failure(plan(lockstep, "--times", tmp_path / "times.json"), "given for 1 stages, the grid has 4")
