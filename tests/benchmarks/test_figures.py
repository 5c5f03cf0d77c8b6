"""A figure knows whether its floor holds, and a report says where it was measured."""

import json
import os
from pathlib import Path

import pytest

from benchmarks import figures
from benchmarks.figures import Figure, Report, describe_commit, describe_machine


@pytest.mark.parametrize(
    ("value", "floor", "higher_is_better", "met"),
    [
        (11.0, 10.0, True, True),
        (10.0, 10.0, True, True),
        (9.0, 10.0, True, False),
        (9.0, 10.0, False, True),
        (10.0, 10.0, False, True),
        (11.0, 10.0, False, False),
        (11.0, None, True, None),
        (0.0, 0.0, True, True),
    ],
)
def test_floor_holds_or_not_in_the_direction_that_is_better(
    value: float, floor: float | None, higher_is_better: bool, met: bool | None
) -> None:
    assert Figure("f", value, "s", floor=floor, higher_is_better=higher_is_better).met is met


def test_report_has_the_documented_shape() -> None:
    figure = Figure("insert", 5.0, "rows/s", floor=4.0, goal=6.0, reference="disk 9")
    report = Report("store", "abc", "2 x cpu", (figure,)).as_json()
    assert json.loads(json.dumps(report)) == {
        "bench": "store",
        "commit": "abc",
        "machine": "2 x cpu",
        "figures": [
            {
                "name": "insert",
                "value": 5.0,
                "unit": "rows/s",
                "floor": 4.0,
                "goal": 6.0,
                "met": True,
                "reference": "disk 9",
            }
        ],
    }


def test_machine_is_described_by_cores_memory_and_system() -> None:
    described = describe_machine()
    assert described.startswith(f"{os.cpu_count()} x ")
    assert " GiB, Linux " in described


def test_commit_outside_of_a_checkout_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "__file__", str(tmp_path / "figures.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert describe_commit() == "unknown"


def test_commit_without_git_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert describe_commit() == "unknown"
