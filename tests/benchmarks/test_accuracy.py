"""Runs are kept as they come and done once; the command scores what it is told to."""

import argparse
import json
from pathlib import Path

import pytest
import typer

import benchmarks.accuracy
from benchmarks.accuracy import Workload, choose, default_results, find_captures, read_results, run_all
from benchmarks.accuracy_run import Result, examine
from benchmarks.accuracy_score import Case
from cli.bench import command

NIC = Case("nic-half-speed", 64, 1)
HEALTHY = Case("healthy", 64, 1)
Calls = list[Case]


def result(case: Case, *components: str, error: str = "") -> Result:
    """What a run returns; each part is named at second 30."""
    named = [
        {"component": component, "fault_class": "comm_slow", "opened_s": 30.0, "last_seen_s": 50.0, "side": None}
        | {"confidence": 0.9, "grade": "alert", "ambiguous_with": [], "reason": "", "aliases": []}
        for component in components
    ]
    told = {"scenario": case.scenario, "ranks": case.ranks, "seed": case.seed}
    return {
        "key": case.key,
        "case": told,
        "named": named,
        "peers": {"delay matrix": []},
        "step_s": 0.5,
        "error": error,
    }


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Stand in for the processes that simulate, and remember what they were asked."""
    asked: Calls = []

    def pretend(cases: Calls, _workload: Workload) -> list[Result]:
        asked.extend(cases)
        return [result(case, *(["nic:h3/eth1"] if case == NIC else [])) for case in cases]

    monkeypatch.setattr(benchmarks.accuracy, "_examine", pretend)
    return asked


def test_results_are_kept_and_not_done_again(tmp_path: Path, calls: Calls) -> None:
    file = tmp_path / "deep" / "results.jsonl"
    first = run_all(Workload([NIC], file), note=lambda _: None)
    second = run_all(Workload([NIC, HEALTHY], file), note=lambda _: None)
    assert calls == [NIC, HEALTHY]
    assert second[""][0] == first[""][0]
    assert first[""][0].hits[0].named.component == "nic:h3/eth1"
    assert first["delay matrix"][0].missed == ("nic:h3/eth1",)


def test_line_that_was_cut_off_is_done_again(tmp_path: Path, calls: Calls) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text(json.dumps(result(NIC)) + "\n" + json.dumps(result(HEALTHY))[:40])
    assert set(read_results(file)) == {NIC.key}
    run_all(Workload([NIC, HEALTHY], file), note=lambda _: None)
    assert calls == [HEALTHY]
    assert set(read_results(file)) == {NIC.key, HEALTHY.key}


def test_progress_says_what_was_right_missed_and_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = [result(NIC, "nic:h3/eth1", "nic:h4/eth1"), result(HEALTHY, error="ValueError: zero")]
    monkeypatch.setattr(benchmarks.accuracy, "_examine", lambda *_: results)
    said: list[str] = []
    scores = run_all(Workload([NIC, HEALTHY], tmp_path / "r"), said.append)
    assert said[1] == "1/2 nic-half-speed/64/1: nic:h3/eth1 +10 s, WRONG nic:h4/eth1 comm_slow at 30 s (0.90)"
    assert said[2] == "2/2 healthy/64/1: ValueError: zero"
    assert [score.crashed for score in scores[""]] == [False, True]


def test_other_sources_have_other_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "analyzer"
    folder.mkdir()
    monkeypatch.setattr(benchmarks.accuracy, "__file__", str(tmp_path / "benchmarks" / "accuracy.py"))
    files = []
    for text in ("one", "two", "one"):
        (folder / "service.py").write_text(text)
        files.append(default_results())
    assert files[0] == files[2] != files[1]


def arguments(**told: object) -> argparse.Namespace:
    usual: dict[str, object] = {"family": [], "scenario": [], "seeds": "", "ranks": None, "full": False}
    return argparse.Namespace(**{"captures": None} | usual | told)


def test_captures_are_found_by_scenario_and_seed(tmp_path: Path) -> None:
    for name in ("nic-tx-strong-ib-3", "healthy-12", "no-scenario-1", "healthy", "nic-tx-strong-ib-4"):
        (tmp_path / name).mkdir()
        if not name.endswith("-4"):
            (tmp_path / name / "capture.json").touch()
    assert find_captures(tmp_path) == [Case("healthy", 64, 12), Case("nic-tx-strong-ib", 64, 3)]
    assert choose(arguments(captures=tmp_path, family=["healthy"])) == [Case("healthy", 64, 12)]
    assert choose(arguments(captures=tmp_path, seeds="1-5")) == [Case("nic-tx-strong-ib", 64, 3)]


def test_scenario_family_and_seeds_choose_runs() -> None:
    assert choose(arguments(scenario=["healthy"], seeds="2,4-5")) == [Case("healthy", 64, seed) for seed in (2, 4, 5)]
    assert choose(arguments(scenario=["healthy"], ranks=128)) == [Case("healthy", 128, 1)]
    assert {case.scenario for case in choose(arguments(family=["healthy"]))} == {"healthy"}


@pytest.mark.parametrize(("name", "quick"), [("sim", False), ("accuracy", True)])
def test_more_runs_are_refused_where_there_are_none(name: str, quick: bool) -> None:
    with pytest.raises(typer.BadParameter, match="--full is for accuracy"):
        command(name, quick=quick, full=True)  # type: ignore[arg-type]  # a name from a table


@pytest.mark.slow
def test_real_run_names_the_slow_nic_and_knows_the_length_of_a_step() -> None:
    found = examine(NIC)
    assert [named["component"] for named in found["named"]] == ["nic:h3/eth1"]
    assert found["error"] == ""
    assert 0.3 < found["step_s"] < 1.0, "a step of this scenario computes for 0.3 s and sums 256 MB"
    assert set(found["peers"]) == {"delay matrix", "waits least", "waits least, 10x"}
