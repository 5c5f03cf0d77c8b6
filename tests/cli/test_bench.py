"""A benchmark prints its figures as a table or as JSON, with where and on what they were measured."""

import json
from types import SimpleNamespace

import pytest

from benchmarks.figures import Figure, Note
from cli.screenshots import choose_shots
from tests.cli.commands import Run, check_failure

FIGURES = (
    Figure("insert", 1_250_000.0, "rows/s", floor=1_000_000.0, goal=2_000_000.0, reference="disk [sync] 2 GB/s"),
    Figure("query", 12.345678, "ms", floor=10.0, higher_is_better=False),
    Figure("size", 31.0, "bytes/row"),
)


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
        note(f"measuring [{'quick' if quick else 'full'}]")
        return FIGURES

    monkeypatch.setattr(
        "cli.bench.import_module", lambda name: {"benchmarks.store": SimpleNamespace(measure=measure)}[name]
    )


def test_figures_are_a_table_that_says_which_floor_does_not_hold_or_json(lockstep: Run) -> None:
    outcome = lockstep("bench", "store")
    assert (outcome.code, outcome.err) == (0, "measuring [full]\n")
    lines = {line.split()[0]: line.split() for line in outcome.out.splitlines()}
    assert lines["insert"][1:] == ["1,250,000", "rows/s", "1e+06", "2e+06", "yes", "disk", "[sync]", "2", "GB/s"]
    assert lines["query"][1:] == ["12.35", "ms", "10", "no"]
    assert lines["size"][1:] == ["31", "bytes/row"]
    outcome = lockstep("bench", "store", "--quick", "--json")
    assert outcome.err == "measuring [quick]\n"
    report = json.loads(outcome.out)
    assert set(report) == {"bench", "commit", "machine", "figures"}
    assert report["bench"] == "store"
    assert [figure["met"] for figure in report["figures"]] == [True, False, None]
    check_failure(lockstep("bench", "dance"), "'dance'", code=2)
    check_failure(lockstep("bench", "store", "--seeds", "1-5"), "--family and --seeds are for accuracy", code=2)
    check_failure(lockstep("bench", "store", "--jobs"), "--jobs is for fleet", code=2)


def test_every_picture_has_a_name_and_a_page_of_its_own_and_none_is_of_nothing(lockstep: Run) -> None:
    shots = list(choose_shots("i1", "team/run 7"))
    assert len({shot.name for shot in shots}) == len(shots) >= 8
    assert {shot.theme for shot in shots} == {"light", "dark"}
    assert "/matrix?job=team%2Frun+7" in {shot.path for shot in shots}
    check_failure(lockstep("screenshots", "--url", "http://127.0.0.1:1"), "no server with open reads is at")
