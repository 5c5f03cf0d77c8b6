"""Replays of fault histories: small ones whose sums can be done by hand, then real ones where they are at hand."""

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from benchmarks.recovery_policies import (
    FLEET,
    FLEET_RECOVERY,
    SPOT_JOB,
    Change,
    History,
    PipelineJob,
    Planned,
    Rerouting,
    Spares,
    merge_faults,
    read_servers,
    read_spot,
)
from benchmarks.recovery_replay import (
    Ledger,
    MakePolicy,
    bootstrap,
    draw_nodes,
    find_least,
    measure_replay,
    replay,
    shorten,
)
from lockstep.errors import BadInput
from planner.allocation.cluster import Recovery

JOB = PipelineJob("j", 2, 2, 4)  # four nodes
WAYS = Recovery(restart_s=1_800, lost_work_s=1_800, save_s=0, peer_s=360, drop_s=360, recycle_s=36)
FREE = Recovery(restart_s=0, lost_work_s=0, save_s=0, peer_s=0, drop_s=0, recycle_s=0)
ALL: tuple[MakePolicy, ...] = (Spares, Rerouting, Planned)


def history(*changes: tuple[float, str, bool], hours: float = 100.0, nodes: str = "abcdef") -> History:
    return History("told", hours, tuple(nodes), tuple(Change(*one) for one in changes))


def run(make: MakePolicy, told: History, nodes: Sequence[str], ways: Recovery = WAYS) -> Ledger:
    return replay(told, (JOB,), nodes, ways, make)


ONE_FAULT = history((10.0, "b", False), (30.0, "b", True))
SLOW = 4 * 5 / 8  # one of two workers of a stage is gone: 8 micro-batches on the other, 8 slots instead of 5
HALF = 4 * 5 / 9  # one pipeline with 8 micro-batches is left, 9 slots instead of 5
THREE_GONE = history((10.0, "a", False), (10.0, "b", False), (10.0, "c", False), (60.0, "a", True))
AGAIN = history((10.0, "b", False), (30.0, "b", True), (40.0, "c", False))
TWO = history((10.0, "b", False), (20.0, "c", False), (50.0, "b", True))
BLINK = history((10.0, "b", False), (10.0, "b", True))


@pytest.mark.parametrize("make", ALL)
def test_without_faults_or_with_one_of_a_spare_nothing_is_lost(make: MakePolicy) -> None:
    ledger = run(make, history(), "abcdef")
    assert (ledger.goodput, ledger.availability, ledger.lost_gpu_hours) == (1.0, 1.0, 0.0)
    assert run(make, history((10.0, "e", False)), "abcde").goodput == 1.0


@pytest.mark.parametrize(
    ("make", "told", "nodes", "useful"),
    [
        (Spares, ONE_FAULT, "abcd", 4 * (100 - 20 - 1)),  # one hour to restart and compute again
        (Spares, BLINK, "abcd", 4 * 99),  # a fault that ends at once still kills the job
        (Spares, ONE_FAULT, "abcde", 4 * 99),
        (Spares, AGAIN, "abcde", 4 * 98),  # the repaired node is the spare of the next fault
        (Spares, TWO, "abcde", 4 * (10 + 9 + 49)),  # no spare is left: any repair will do
        (Rerouting, ONE_FAULT, "abcd", 4 * 10 + SLOW * (20 - 0.01) + 4 * (70 - 0.1)),
        (Rerouting, THREE_GONE, "abcd", 4 * 10 + SLOW * (40 - 1)),  # a stage has nobody left
        (Planned, ONE_FAULT, "abcde", 4 * (100 - 0.1)),
        (Planned, ONE_FAULT, "abcd", 4 * 10 + SLOW * (20 - 0.01) + 4 * (70 - 0.1)),  # better than to drop a pipeline
    ],
)
def test_work_is_what_can_be_added_up_by_hand(make: MakePolicy, told: History, nodes: str, useful: float) -> None:
    assert run(make, told, nodes).useful == pytest.approx(useful)


def test_plan_goes_on_with_the_whole_pipeline_that_is_left_and_what_runs_is_available() -> None:
    ledger = run(Planned, ONE_FAULT, "abcd", replace(WAYS, recycle_s=None))
    assert ledger.useful == pytest.approx(4 * 10 + HALF * (20 - 0.1) + 4 * (70 - 0.1))
    told = history((10.0, "a", False), (10.0, "b", False), (11.0, "a", True))
    assert [len(changes) for _, changes in told.timestamps()] == [2, 1]
    assert len(list(BLINK.timestamps())) == 2
    assert run(Spares, ONE_FAULT, "abcd").availability == pytest.approx(0.79)
    assert run(Rerouting, ONE_FAULT, "abcd").availability > 0.99


@some.composite
def histories(draw: some.DrawFn) -> History:
    up, hour, changes = set("abcdef"), 0.0, list[Change]()
    for node, gap in draw(some.lists(some.tuples(some.sampled_from("abcdef"), some.floats(0.5, 20)), max_size=8)):
        hour += gap
        (up.discard if node in up else up.add)(node)
        changes.append(Change(hour, node, node in up))
    return History("drawn", hour + 10.0, tuple("abcdef"), tuple(changes))


@given(histories(), some.sampled_from(ALL), some.sampled_from(["abcd", "abcde", "abcdef"]))
def test_nobody_does_more_than_without_faults_nor_below_nothing(told: History, make: MakePolicy, nodes: str) -> None:
    ledger = run(make, told, nodes)
    assert 0 <= ledger.useful <= ledger.asked + 1e-9
    assert ledger.useful <= ledger.running + 1e-9
    assert ledger.running <= ledger.asked + 1e-9


@given(histories(), some.sampled_from(["abcd", "abcde"]))
def test_where_changes_are_free_the_plan_is_never_behind_waiting_or_spares(told: History, nodes: str) -> None:
    planned = run(Planned, told, nodes, FREE).useful
    assert planned >= run(Spares, told, nodes, FREE).useful - 1e-9
    assert planned >= run(Spares, told, nodes[:4], FREE).useful - 1e-9


def test_bubbles_hide_a_failure_that_fits_into_them() -> None:
    roomy = PipelineJob("j", 8, 16, 32)
    assert roomy.work_on_all_but(8) == roomy.nodes  # one of each stage: 32 * 16 / 15 is below 32 + 7
    assert roomy.work_on_all_but(8 * 15 + 1) == 0.0
    tight = PipelineJob("j", 8, 4, 64)
    assert tight.work_on_all_but(1) / tight.nodes == pytest.approx(71 / 86)
    job = PipelineJob("j", 4, 8, 32)
    assert [job.work(nodes) for nodes in (8, 7, 0)] == pytest.approx([32, 32 * 35 / 40, 0.0])


def test_node_with_several_faults_is_up_after_the_last_and_each_must_have_begun() -> None:
    events = [(1.0, "a", False), (2.0, "a", False), (3.0, "a", True), (4.0, "a", True)]
    assert list(merge_faults(events)) == [Change(1.0, "a", False), Change(4.0, "a", True)]
    with pytest.raises(BadInput, match="a fault of a ends at hour 3 that never began"):
        list(merge_faults([(3.0, "a", True)]))


def test_least_number_is_found_an_interval_holds_the_mean_and_spares_move_no_job() -> None:
    assert [find_least(n.__le__, 10) for n in range(11)] == list(range(11))
    assert find_least(lambda _: False, 10) is None
    low, high = bootstrap([1.0, 2.0, 3.0, 4.0])
    assert 1.0 <= low < 2.5 < high <= 4.0
    assert bootstrap([7.0, 7.0]) == (7.0, 7.0)
    told = History("told", 1.0, tuple(f"n{number}" for number in range(400)), ())
    few, many = draw_nodes(told, 1, 0), draw_nodes(told, 1, 5)
    assert len(few) == sum(job.nodes for job in FLEET) == 320
    assert many[:320] == few
    assert draw_nodes(told, 2, 0) != few


def test_without_data_nothing_is_measured_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKSTEP_PUBLIC_DATA", raising=False)
    said: list[str] = []
    assert measure_replay(True, said.append) == ()
    assert said == ["real fault histories are left out: set LOCKSTEP_PUBLIC_DATA to the folder of third-party data"]


has_data = pytest.mark.skipif(
    "LOCKSTEP_PUBLIC_DATA" not in os.environ, reason="needs LOCKSTEP_PUBLIC_DATA, the folder of third-party data"
)


@has_data
def test_histories_of_servers_and_spot_instances_are_read_whole() -> None:
    told = read_servers()
    assert len(told.up) == 400
    assert told.hours == 174 * 24
    goes = sum(not change.is_up for change in told.changes)
    assert 250 < goes <= 312, "some faults overlap on their node"
    assert 0 <= goes - sum(change.is_up for change in told.changes) <= 3, "three faults are open at the end"
    told = read_spot()
    assert len(told.up) == 18
    up, most = set(told.up), 0
    for change in told.changes:
        assert (change.node in up) != change.is_up
        (up.add if change.is_up else up.remove)(change.node)
        most = max(most, len(up))
    assert most == SPOT_JOB.nodes


@has_data
def test_spares_beat_waiting_and_rerouting_beats_both_on_a_real_month() -> None:
    told = shorten(read_servers(), 1 / 6)
    tried = ((Spares, 0), (Spares, 4), (Rerouting, 4))
    waiting, spares, rerouting = (
        replay(told, FLEET, draw_nodes(told, 1, count), FLEET_RECOVERY, make).goodput for make, count in tried
    )
    assert waiting < spares < rerouting <= 1
