"""The fleet's benchmark climbs to the largest sustained number of agents, and a real small one loses no row."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet import FleetResult, Options, figures_of, find_largest, measure_fleet
from benchmarks.fleet_head import machine_cpu_seconds
from benchmarks.fleet_outage import Ledger, Outage, OutageOutcome, find_differences, rows_per_batch
from benchmarks.fleet_run import Cores, Judgement, Quantiles, RunOutcome, RunPlan
from benchmarks.fleet_sender import BATCH_SECONDS, Sent
from tests.testbed.services import cpu_seconds

QUICK = Quantiles(0.01, 0.2)
FINE = Judgement(512, 150_000.0, 5e6, QUICK, QUICK, Quantiles(1.2, 1.9), 0.0, Cores(0.8, 0.4, 0.2, 0.1), ())


def _climb(capacity: int) -> Callable[[int], Judgement]:
    def try_fleet(agents: int) -> Judgement:
        return replace(FINE, agents=agents, trouble=() if agents <= capacity else ("too many",))

    return try_fleet


@pytest.mark.parametrize(
    ("capacity", "best", "failed"),
    [(2_000, 400, None), (300, 300, 400), (299, 200, 300), (100, 100, 150), (99, None, 100)],
)
def test_the_ladder_ends_at_the_first_fleet_that_is_too_large_and_looks_once_between(
    capacity: int, best: int | None, failed: int | None
) -> None:
    found = find_largest((100, 200, 400), _climb(capacity), narrow=True)
    assert [judgement.agents if judgement else None for judgement in found] == [best, failed]


def _result() -> FleetResult:
    run = RunOutcome(RunPlan(range(256), 0, 100), 0, (), (), {})
    outage = OutageOutcome(run, 300_000_000, 12.5, True, Quantiles(0.01, 0.3))
    failed = replace(FINE, agents=512, trouble=("receipts took 3.0 s (p99)", "more"))
    return FleetResult(FINE, failed, 500_000.0, 8.0, 10_000, outage, 0, 0, 30_000)


def test_figures_say_what_a_core_carries_and_why_more_did_not_go() -> None:
    figures = {figure.name: figure for figure in figures_of(_result(), quick=False)}

    agents = figures["agents sustained"]
    assert (agents.value, agents.floor, agents.goal, agents.met) == (512, 512, 1_280, True)
    assert agents.reference == "512 not: receipts took 3.0 s (p99)"
    assert figures["GPUs carried"].value == pytest.approx(512 * 8 / 1.2)
    assert figures["on disk"].value == pytest.approx(150_000 * 8 * 3600 / 1e9)
    drained = figures["store back: drained after"]
    assert (drained.value, drained.reference) == (12.5, "under the same load")
    assert (figures["rows lost"].met, figures["rows doubled"].met) == (True, True)


@pytest.mark.parametrize(
    ("changes", "quick", "name", "value", "met"),
    [
        ({"missing": 1}, False, "rows lost", 1, False),
        ({"surplus": 2}, False, "rows doubled", 2, False),
        ({}, True, "agents sustained", 512, None),  # a quick run claims nothing about the floor
        ({"best": None}, False, "agents sustained", 0, False),
    ],
)
def test_what_goes_wrong_breaks_the_floor(
    changes: dict[str, Any], quick: bool, name: str, value: float, met: bool | None
) -> None:
    figures = {figure.name: figure for figure in figures_of(replace(_result(), **changes), quick)}
    assert (figures[name].value, figures[name].met) == (value, met)
    assert ("GPUs carried" in figures) == ("best" not in changes)


def test_cpu_time_of_a_process_is_part_of_the_machines() -> None:
    own = cpu_seconds(os.getpid())
    assert 0 < own < machine_cpu_seconds()


def _sent(host: int, number: int, is_taken: bool) -> Sent:
    return Sent(host, number, due_ns=1, sent_ns=2, acked_ns=3 * is_taken, tries=1, rows=5, bytes=6)


def test_what_was_acknowledged_must_be_there_once_and_a_loss_and_a_double_do_not_cancel_out() -> None:
    ledger = Ledger()
    ledger.add([_sent(0, 1, True), _sent(0, 2, True), _sent(0, 3, False), _sent(9, 1, True)])
    beats = BATCH_SECONDS  # a heartbeat for each second
    assert ledger.expected()["agents"] == {"h00000": (2 * beats, 3 * beats), "h00009": (beats, beats)}
    assert ledger.taken == 3
    assert {table: hosts["h00009"] for table, hosts in ledger.expected().items()} == {
        table: (rows, rows) for table, rows in rows_per_batch(9).items()
    }
    expected = {"agents": {"h1": (3, 3)}, "progress": {"h1": (30, 30)}}
    assert find_differences(expected, {"agents": {"h1": 3}, "progress": {"h1": 30}}) == (0, 0)
    assert find_differences(expected, {"agents": {"h1": 4}, "progress": {"h1": 29}}) == (1, 1)
    assert find_differences(expected, {"agents": {"h1": 3}}) == (30, 0)


@pytest.mark.slow
def test_a_small_fleet_has_every_row_exactly_once_although_the_store_was_killed(tmp_path: Path) -> None:
    times: dict[str, Any] = {"warm_up_s": 0, "measured_s": 4, "limit_seconds": 1, "settle_s": 2.0}
    outage = Outage(before_s=2, away_s=2, after_s=2)
    options = Options(ladder=(4,), outage=outage, outage_agents=4, limit_hosts=2, **times)
    notes: list[str] = []

    result = measure_fleet(options, tmp_path, notes.append)

    assert (result.batches, result.missing, result.surplus) == (4 * 2 + 4 * 3, 0, 0)
    tried = result.best or result.failed
    assert tried is not None
    assert tried.agents == 4
    assert tried.cores.gateway > 0
    assert result.store_rows_per_core_s > 0
    assert result.bytes_per_row > 0
    assert result.outage.peak_bytes > 0
    assert result.outage.drain_s < 180  # it came to an end
    assert any("the store is back" in note for note in notes)
    assert not list(tmp_path.glob("state/gateway/*.segment"))
