"""The pace of a job on each count of nodes is read from its own telemetry, over all its attempts and names."""

import pytest

from lockstep.arrow import rows_of
from lockstep.clock import NS_PER_S
from lockstep.control.database import ControlDatabase
from lockstep.control.incidents import save_incidents
from lockstep.records import Comm, OpStat, Step
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from planner.recovery.allocation.calibration import Known
from planner.recovery.throughput_reading import PaceReader, read_runs
from tests.builders import make
from tests.planner.recovery.build import T0, incident, seconds, verdict


def put(store: Store, table: str, *rows: object) -> None:
    """Store rows under a token of their own."""
    found = TABLE_BY_NAME[table]
    store.insert(found, rows_of(found, list(rows)), token=f"{table}{hash(repr(rows))}")  # type: ignore[arg-type]


def put_attempt(store: Store, job: str, attempt: int, nodes: int, period_s: float, since_s: float = 0.0) -> None:
    """Store an attempt of 20 steps on so many nodes of two GPUs."""
    members = [
        make(Comm, job=job, attempt=attempt, host=f"h{node}", rank=2 * node + gpu, gpu=gpu)
        for node in range(nodes)
        for gpu in range(2)
    ]
    steps = [
        Step(
            host="h0",
            job=job,
            attempt=attempt,
            world_rank=0,
            step=number,
            start_ns=seconds(since_s) + int(number * period_s * NS_PER_S),
            end_ns=seconds(since_s) + int((number + 1) * period_s * NS_PER_S),
            source="period",
        )
        for number in range(20)
    ]
    put(store, "comms", *members)
    put(store, "steps", *steps)


def test_attempts_under_all_names_are_points_of_one_table(embedded_store: Store, control: ControlDatabase) -> None:
    put_attempt(embedded_store, "train", 0, nodes=4, period_s=0.5)
    put_attempt(embedded_store, "train+1", 0, nodes=3, period_s=0.75, since_s=100)
    found = PaceReader(embedded_store, control).rates_of(["train+1", "train"], Known(), 3, 6, seconds(200))
    assert found.by_nodes[4] == pytest.approx(8.0)
    assert found.by_nodes[3] == pytest.approx(8.0 * 2 / 3)
    assert found.seen == {3, 4}


def test_steps_within_an_incident_are_left_out(embedded_store: Store, control: ControlDatabase) -> None:
    put_attempt(embedded_store, "train", 0, nodes=4, period_s=0.5)
    put_attempt(embedded_store, "train", 1, nodes=3, period_s=5.0, since_s=100)
    save_incidents(control, [incident(verdict(since_ns=seconds(90)), opened_s=95)], None)
    found = PaceReader(embedded_store, control).rates_of(["train"], Known(), 3, 6, seconds(300))
    assert found.seen == {4}


def test_told_steps_go_before_found_ones(embedded_store: Store) -> None:
    put_attempt(embedded_store, "train", 0, nodes=1, period_s=0.5)
    told = [
        Step(
            host="h0",
            job="train",
            attempt=0,
            world_rank=0,
            step=number,
            start_ns=seconds(number),
            end_ns=seconds(number + 1),
            source="told",
        )
        for number in range(5)
    ]
    put(embedded_store, "steps", *told)
    (run,) = read_runs(embedded_store, ["train"], seconds(60))
    assert run.per_s.tolist() == [1.0] * 4


def test_without_steps_the_traffic_that_moves_most_tells_the_pace(embedded_store: Store) -> None:
    for attempt, nodes, each in ((0, 2, 8), (1, 1, 5)):
        put(
            embedded_store,
            "comms",
            *[make(Comm, job="train", attempt=attempt, host=f"h{node}", rank=node) for node in range(nodes)],
        )
        stats = [
            make(
                OpStat,
                host=f"h{rank}",
                job="train",
                attempt=attempt,
                func=func,
                size_class=20,
                rank=rank,
                ts_ns=T0 + second * NS_PER_S,
                n=n,
                bytes=moved,
            )
            for second in range(5)
            for rank in range(nodes)
            for func, n, moved in (("AllReduce", each, 1 << 30), ("AllGather", 100, 1 << 10))
        ]
        put(embedded_store, "op_stats", *stats)
    runs = read_runs(embedded_store, ["train"], seconds(60))
    assert {run.nodes: run.per_s.tolist() for run in runs} == {2: [8.0] * 5, 1: [5.0] * 5}


def test_table_is_kept_for_a_minute(embedded_store: Store, control: ControlDatabase) -> None:
    reader = PaceReader(embedded_store, control)
    assert reader.rates_of(["train"], Known(), 4, 8, seconds(100)).by_nodes == {}
    put_attempt(embedded_store, "train", 0, nodes=4, period_s=0.5)
    assert reader.rates_of(["train"], Known(), 4, 8, seconds(130)).by_nodes == {}
    assert reader.rates_of(["train"], Known(), 4, 8, seconds(161)).by_nodes[4] == pytest.approx(8.0)


def test_table_stays_the_same_while_its_figures_are_nearly_so(
    embedded_store: Store, control: ControlDatabase
) -> None:
    reader = PaceReader(embedded_store, control)
    put_attempt(embedded_store, "train", 0, nodes=4, period_s=0.5)
    put_attempt(embedded_store, "train", 1, nodes=2, period_s=0.8, since_s=20)
    first = reader.rates_of(["train"], Known(), 2, 4, seconds(50))
    put_attempt(embedded_store, "train", 2, nodes=2, period_s=0.81, since_s=100)
    assert reader.rates_of(["train"], Known(), 2, 4, seconds(150)) is first
    put_attempt(embedded_store, "train", 3, nodes=2, period_s=1.2, since_s=200)
    put_attempt(embedded_store, "train", 4, nodes=2, period_s=1.2, since_s=300)
    assert reader.rates_of(["train"], Known(), 2, 4, seconds(400)).by_nodes[2] < first.by_nodes[2]


def test_without_a_store_only_hints_and_models_speak(control: ControlDatabase) -> None:
    found = PaceReader(None, control).rates_of(["train"], Known({4: 1.0}), 4, 8, seconds(10))
    assert found.is_told
