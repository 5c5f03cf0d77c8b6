"""Hints win, what was seen comes next, and a model that goes through it fills the rest; each figure says which."""

from typing import Any

import numpy as np
import pytest

from lockstep.arrow import rows_of
from lockstep.clock import NS_PER_S
from lockstep.records import Comm, OpStat, Step
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from planner.allocation.calibration import Known, PaceReader, Run, find_rates, in_gpus, read_runs
from planner.allocation.throughput import Transformer
from planner.context import Layout
from tests.builders import make
from tests.planner.build import T0, incident, seconds, verdict

S = 1_000_000_000


def run(nodes: int, *per_s: float, since_s: int = 0, gpus_each: int = 8) -> Run:
    begin_ns = (since_s + np.arange(len(per_s))) * S
    return Run(nodes, nodes * gpus_each, begin_ns, begin_ns + S, np.array(per_s))


def test_most_nodes_on_which_a_job_was_seen_are_worth_its_gpus_and_the_model_goes_through_them() -> None:
    found = find_rates([run(8, 2.0, 2.0, 9.0), run(6, 1.6, 1.6, 1.6)], [], Known(), held=6, gpus=48)
    assert found.by_nodes[8] == 64.0
    assert found.by_nodes[6] == pytest.approx(64 * 0.8)
    assert found.seen == {6, 8}
    assert not found.is_configured
    found = find_rates([run(8, 2.0, 2.0, 2.0), run(4, 1.2, 1.2, 1.2)], [], Known(), held=8, gpus=64)
    assert found.by_nodes[4] == pytest.approx(64 * 0.6)
    assert found.by_nodes[2] == pytest.approx(64 * 0.3), "in proportion to the nearest that was seen"
    assert found.by_nodes[4] < found.by_nodes[6] < found.by_nodes[8]
    assert found.reason == (
        "measured on 4, 8 nodes, proportion to the nodes for 1-3, 5-7 nodes, bent to go through it"
    )


def test_hints_win_and_stay_in_their_unit() -> None:
    found = find_rates([run(8, 2.0, 2.0, 2.0)], [], Known({8: 100.0, 7: 90.0}), held=8, gpus=64)
    assert (found.by_nodes, found.is_configured) == ({8: 100.0, 7: 90.0}, True)
    assert found.reason == "set in the settings for 7, 8 nodes"


def test_layout_gives_whole_replicas_and_their_bubble() -> None:
    layout = Layout(tensor=8, stages=2, replicas=4, micro_batches=8)
    found = find_rates([run(8, 1.0, 1.0, 1.0)], [], Known(layout=layout), held=8, gpus=64)
    assert found.by_nodes[6] == pytest.approx(64 * 9 / 12), "32 micro-batches over 3 replicas: 11 and the bubble of 1"
    assert found.by_nodes[7] == found.by_nodes[6], "half a replica does nothing"
    assert 1 not in found.by_nodes
    assert "the shape of a pipeline of 2 stages for 2-7 nodes" in found.reason


def test_without_anything_seen_a_model_of_the_job_stands_alone() -> None:
    layout = Layout(tensor=8, replicas=4, micro_batches=4)
    found = find_rates([], [], Known(layout=layout), held=4, gpus=32)
    assert found.by_nodes[4] == 32.0
    assert found.seen == frozenset()
    assert found.reason.startswith("nothing was seen of its pace: the shape of a pipeline of 1 stages for 1-4 nodes")
    assert find_rates([], [], Known(), held=8, gpus=64).by_nodes == {}


def test_transformer_of_known_size_is_modelled_and_bent_to_what_was_seen() -> None:
    seven_b = Transformer(parameters=7e9, layers=32, hidden=4096, sequence=4096, global_batch=256)
    found = find_rates([run(4, 0.5, 0.5, 0.5)], [], Known(transformer=seven_b), held=4, gpus=32)
    assert found.by_nodes[4] == 32.0
    assert 16.0 < found.by_nodes[2] < 20.0, "less than half of the communication"
    assert "the model of a transformer of its size" in found.reason


def test_table_of_another_unit_is_brought_to_gpus() -> None:
    assert in_gpus({2: 3.0, 4: 5.0}, held=4, gpus=32) == {2: 19.2, 4: 32.0}
    assert in_gpus({2: 3.0}, held=4, gpus=32) == {2: 3.0}, (
        "what it holds is not in its table: nothing to compare with"
    )


def put(store: Store, table: str, *rows: object) -> None:
    found = TABLE_BY_NAME[table]
    store.insert(found, rows_of(found, list(rows)), token=f"{table}{hash(repr(rows))}")  # type: ignore[arg-type]


def step(number: int, start_s: float, period_s: float, **changes: Any) -> Step:  # Any: whatever field matters
    usual: dict[str, Any] = {"host": "h0", "job": "train", "attempt": 0, "world_rank": 0, "source": "period"}
    ends = {"step": number, "start_ns": seconds(start_s), "end_ns": seconds(start_s + period_s)}
    return Step(**(usual | ends | changes))


def put_attempt(store: Store, job: str, attempt: int, nodes: int, period_s: float, since_s: float = 0.0) -> None:
    members = [
        make(Comm, job=job, attempt=attempt, host=f"h{node}", rank=2 * node + gpu, gpu=gpu)
        for node in range(nodes)
        for gpu in range(2)
    ]
    steps = [step(number, since_s + number * period_s, period_s, job=job, attempt=attempt) for number in range(20)]
    put(store, "comms", *members)
    put(store, "steps", *steps)


def test_attempts_under_all_names_are_one_table(embedded_store: Store, control: ControlDatabase) -> None:
    put_attempt(embedded_store, "train", 0, nodes=4, period_s=0.5)
    put_attempt(embedded_store, "train", 1, nodes=2, period_s=5.0, since_s=200)
    put_attempt(embedded_store, "train+1", 0, nodes=3, period_s=0.75, since_s=100)
    save_incidents(control, [incident(verdict(since_ns=seconds(190)), opened_s=195)], None)
    found = PaceReader(embedded_store, control).rates_of(["train+1", "train"], Known(), 3, 6, seconds(400))
    assert found.by_nodes[4] == pytest.approx(8.0)
    assert found.by_nodes[3] == pytest.approx(8.0 * 2 / 3)
    assert found.seen == {3, 4}


def test_told_steps_go_before_found_ones(embedded_store: Store) -> None:
    put_attempt(embedded_store, "train", 0, nodes=1, period_s=0.5)
    put(embedded_store, "steps", *(step(number, number, 1.0, source="told") for number in range(5)))
    (run,) = read_runs(embedded_store, ["train"], seconds(60))
    assert run.per_s.tolist() == [1.0] * 4


def test_without_steps_the_traffic_that_moves_most_tells_the_pace(embedded_store: Store) -> None:
    for attempt, nodes, each in ((0, 2, 8), (1, 1, 5)):
        named = [{"job": "train", "attempt": attempt, "host": f"h{rank}", "rank": rank} for rank in range(nodes)]
        put(embedded_store, "comms", *[make(Comm, **fields) for fields in named])
        stats = [
            make(OpStat, **fields, func=func, size_class=20, ts_ns=T0 + second * NS_PER_S, n=n, bytes=moved)
            for second in range(5)
            for fields in named
            for func, n, moved in (("AllReduce", each, 1 << 30), ("AllGather", 100, 1 << 10))
        ]
        put(embedded_store, "op_stats", *stats)
    runs = read_runs(embedded_store, ["train"], seconds(60))
    assert {run.nodes: run.per_s.tolist() for run in runs} == {2: [8.0] * 5, 1: [5.0] * 5}


def test_table_is_kept_while_its_figures_are_nearly_so(embedded_store: Store, control: ControlDatabase) -> None:
    reader = PaceReader(embedded_store, control)
    assert reader.rates_of(["train"], Known(), 2, 4, seconds(50)).by_nodes == {}
    put_attempt(embedded_store, "train", 0, nodes=4, period_s=0.5)
    put_attempt(embedded_store, "train", 1, nodes=2, period_s=0.8, since_s=20)
    assert reader.rates_of(["train"], Known(), 2, 4, seconds(80)).by_nodes == {}
    first = reader.rates_of(["train"], Known(), 2, 4, seconds(111))
    assert first.by_nodes[4] == pytest.approx(8.0)
    put_attempt(embedded_store, "train", 2, nodes=2, period_s=0.81, since_s=120)
    assert reader.rates_of(["train"], Known(), 2, 4, seconds(180)) is first
    put_attempt(embedded_store, "train", 3, nodes=2, period_s=1.2, since_s=200)
    put_attempt(embedded_store, "train", 4, nodes=2, period_s=1.2, since_s=300)
    assert reader.rates_of(["train"], Known(), 2, 4, seconds(400)).by_nodes[2] < first.by_nodes[2]
