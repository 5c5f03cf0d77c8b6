"""Runs are kept as they come and done once; scores add up to figures; the peers' rules do what they say."""

import json
import math
from pathlib import Path

import pytest
import typer

import benchmarks.accuracy
from benchmarks.accuracy import Workload, default_results, measure, read_results, run_all
from benchmarks.accuracy_reliability import calibrate, right_at
from benchmarks.accuracy_run import Blame, Result, confirm, examine, find_least_waiting, find_slow
from benchmarks.accuracy_score import Case, Hit, Named, Score
from benchmarks.accuracy_table import Tally, figures_of, quantile, upper_bound
from benchmarks.figures import Figure
from cli.bench import command

NIC, HEALTHY = (Case(name, 64, 1) for name in ("nic-half-speed", "healthy"))
Calls = list[Case]


def result(case: Case, *components: str, error: str = "") -> Result:
    """What a run returns; each part is named at second 30."""
    usual = {"fault_class": "comm_slow", "opened_s": 30.0, "last_seen_s": 50.0, "side": None, "confidence": 0.9}
    usual |= {"grade": "alert", "ambiguous_with": [], "reason": "", "aliases": []}
    named = [{"component": component} | usual for component in components]
    told = {"scenario": case.scenario, "ranks": case.ranks, "seed": case.seed}
    made = {"key": case.key, "case": told, "named": named, "peers": {"delay matrix": []}, "step_s": 0.5}
    return {**made, "error": error}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Stand in for the processes that simulate, and remember what they were asked."""
    asked: Calls = []

    def pretend(cases: Calls, _workload: Workload) -> list[Result]:
        asked.extend(cases)
        return [result(case, *(["nic:h3/eth1"] if case == NIC else [])) for case in cases]

    monkeypatch.setattr(benchmarks.accuracy, "_examine", pretend)
    return asked


def test_results_are_kept_and_only_a_line_that_was_cut_off_is_done_again(tmp_path: Path, calls: Calls) -> None:
    file = tmp_path / "deep" / "results.jsonl"
    first = run_all(Workload([NIC], file), note=lambda _: None)
    second = run_all(Workload([NIC, HEALTHY], file), note=lambda _: None)
    assert calls == [NIC, HEALTHY]
    assert second[""][0] == first[""][0]
    assert first[""][0].hits[0].named.component == "nic:h3/eth1"
    assert first["delay matrix"][0].missed == ("nic:h3/eth1",)
    calls.clear()
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


def test_family_and_seeds_choose_runs(calls: Calls, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(benchmarks.accuracy, "default_results", lambda: tmp_path / "results.jsonl")
    measure(quick=False, note=lambda _: None, families=["healthy"], seeds="2,4-5")
    assert {(case.scenario, case.seed) for case in calls} == {("healthy", seed) for seed in (2, 4, 5)}


@pytest.mark.parametrize(("name", "quick"), [("sim", False), ("accuracy", True)])
def test_more_runs_are_refused_where_there_are_none(name: str, quick: bool) -> None:
    with pytest.raises(typer.BadParameter, match="--full is for accuracy"):
        command(name, quick=quick, full=True)  # type: ignore[arg-type]  # a name from a table


@pytest.mark.slow
def test_real_run_names_the_slow_nic_and_knows_the_length_of_a_step() -> None:
    found = examine(NIC)
    assert [named["component"] for named in found["named"]] == ["nic:h3/eth1"]
    assert found["error"] == ""
    assert found["named"][0]["lost_s"] == pytest.approx(found["lost_s"], rel=0.1), "as the simulator has it"
    assert 0.3 < found["step_s"] < 1.0, "a step of this scenario computes for 0.3 s and sums 256 MB"
    assert set(found["peers"]) == {"delay matrix", "waits least", "waits least, 10x"}


def named(confidence: float = 0.95, **words: object) -> Named:
    return Named("nic:h3/eth1", "comm_slow", 30.0, 60.0, confidence=confidence, **words)  # type: ignore[arg-type]


def hit(delay_s: float = 8.0, *, confidence: float = 0.95, class_right: bool = True, in_time: bool = True) -> Hit:
    return Hit(named(confidence), class_right, True, delay_s, in_time)


def scored(*hits: Hit, **words: object) -> Score:
    """A run of 64 ranks with one strong fault, 20 s of health, and steps of 2 s."""
    told = {"scenario": "s", "family": "f", "group": "single strong", "ranks": 64, "seed": 1, "healthy_s": 20.0}
    return Score(**{**told, "hits": hits, "step_s": 2.0, **words})  # type: ignore[arg-type]  # words are fields


def test_scores_add_up_to_precision_recall_and_delays() -> None:
    tally = Tally([scored(hit(), hit(in_time=False)), scored(missed=("a",), wrong=(named(),) * 2)])
    assert tally.recall == pytest.approx(100 / 3), "one of three in time"
    assert tally.precision == 50.0, "two of four verdicts are on a part that broke"
    assert Tally([scored(hit()), scored(alarms=(named(),))]).precision == 50.0
    tally = Tally([scored(hit(class_right=False)), scored(hit())])
    assert (tally.recall, tally.class_recall) == (100.0, 50.0)
    tally = Tally([scored(hit(8.0)), scored(hit(4.0), step_s=None), scored(hit(99.0, in_time=False))])
    assert (tally.delays_s(), tally.delays_steps()) == ([4.0, 8.0], [4.0])
    assert math.isnan(quantile([], 0.9))
    assert quantile([1.0, 2.0, 3.0], 0.9) == 3.0
    assert [upper_bound(0), upper_bound(100)] == pytest.approx([math.log(20), 118.1], abs=0.1)


def test_calibration_counts_verdicts_of_each_confidence_with_what_is_right_of_them() -> None:
    bins = calibrate(
        [scored(hit(confidence=0.97), hit(confidence=0.92, class_right=False)), scored(wrong=(named(1.0),))]
    )
    assert [(one.low, one.verdicts, one.right) for one in bins if one.verdicts] == [(0.9, 1, 0), (0.95, 2, 1)]
    assert right_at(bins, 0.9) == pytest.approx((100 / 3, 3))
    figure = by_name(scored(hit(confidence=0.9)), scored(wrong=(named(0.7),)))["reliability: comm_slow"]
    assert (figure.value, figure.reference) == (50.0, "2 verdicts, which said 80 % in the mean")


def by_name(*scores: Score, **peers: list[Score]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures_of({"": scores, **peers})}


def test_figures_have_the_floors_of_the_claim_and_one_false_alarm_breaks_them() -> None:
    figures = by_name(*[scored(hit())] * 97, *[scored(missed=("a",))] * 3, scored(hit(), group="hard"))
    recall = figures["single strong: recall, part exact"]
    assert (recall.value, recall.floor, recall.goal, recall.met) == (97.0, 97.0, 99.5, True)
    assert figures["hard: precision, part exact"].floor == 90.0
    crash = by_name(scored(hit()), scored(crashed=True, scenario="nic-tx-mild-ib"))
    figure = crash["runs in which the analyzer crashed"]
    assert (figure.value, figure.met, figure.reference) == (1, False, "nic-tx-mild-ib")
    quiet = by_name(scored(healthy_s=3_600.0, group="silence"))
    loud = by_name(scored(healthy_s=3_600.0, group="silence", alarms=(named(grade="isolate"),)))
    for name in ("false alarms", "wrong verdicts of isolation grade"):
        assert (quiet[name].met, loud[name].met) == (True, False)
    assert quiet["false alarms, 95 % upper bound"].value == pytest.approx(2.996, abs=0.001)


def test_peers_and_families_have_lines_of_their_own() -> None:
    wire = {"fault_classes": ("comm_slow",)}  # what the peer's rule is for
    ours = [scored(hit(), **wire), scored(hit(), fault_classes=("noncomm_slow",))]
    theirs = [scored(missed=("a",), **wire), scored(hit(), fault_classes=("noncomm_slow",))]
    peer = by_name(*ours, **{"delay matrix": theirs})["peer delay matrix: recall"]
    assert peer.value == 0.0
    assert "the analyzer there 100.0 %" in peer.reference
    figures = by_name(
        scored(hit(), family="a"), scored(family="a", missed=("x",), wrong=(named(),)), scored(family="b")
    )
    assert figures["family a: recall"].value == 50.0
    assert "wrong 1: nic:h3/eth1 comm_slow" in figures["family a: recall"].reference
    assert figures["family b: false alarms"].value == 0


NORMAL = {(f"{a}/e", f"{b}/e"): 1.0 for a in "abcdef" for b in "abcdef" if a != b}


@pytest.mark.parametrize(
    ("hot", "blamed"),
    [
        ([("c/e", f"{target}/e") for target in "abdef"], {Blame("nic:c/e", "tx")}),
        ([(f"{source}/e", "c/e") for source in "abdef"], {Blame("nic:c/e", "rx")}),
        ([("c/e", "d/e")], {Blame("link:c/e--d/e")}),
        ([], set()),
    ],
)
def test_hot_rows_columns_and_cells_are_blamed(hot: list[tuple[str, str]], blamed: set[Blame]) -> None:
    assert find_slow(NORMAL | dict.fromkeys(hot, 3.0)) == blamed
    assert find_slow({}) == set()
    hosts = {(a, b): 3.0 if a == "c" else 1.0 for a in "abcd" for b in "abcd" if a != b}
    assert find_slow(hosts) == {Blame("host:c", "tx")}


@pytest.mark.parametrize(
    ("waited", "operations", "margin", "named"),
    [(9, 60, 10.0, True), (50, 60, 10.0, False), (50, 60, 1.0, True), (1, 100, 1.0, False)],
)
def test_rank_that_waits_least_by_a_margin_in_a_slow_window_is_named_by_all_its_names(
    waited: int, operations: int, margin: float, named: bool
) -> None:
    usual = [{"host": f"h{rank}", "gpu": 0, "world": rank, "waited": 50, "operations": 100} for rank in range(3)]
    last = [
        row | {"waited": time, "operations": operations} for row, time in zip(usual, (90, waited, 90), strict=True)
    ]
    found = find_least_waiting({0: usual, 1: usual, 2: usual, 3: usual, 4: last}, margin)
    assert found[4] == ({Blame("gpu:h1/0", None, ("host:h1", "rank:1"))} if named else set())
    assert found[3] == set(), "the job runs at its usual pace"


def test_what_two_windows_in_succession_show_is_told_at_the_end_of_the_second() -> None:
    blame = Blame("nic:h3/eth1", "tx")
    (found,) = confirm({0: {blame}, 1: set(), 2: {blame}, 3: {blame}, 4: {blame}}, start_ns=0)
    assert (found.component, found.side, found.opened_s, found.last_seen_s) == ("nic:h3/eth1", "tx", 20.0, 25.0)
    assert found.fault_class == "comm_slow"
