"""Records become rows: each once, when it is over, with what is known and nothing that is not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from collector.nccl.aggregator import Aggregator
from collector.nccl.budget import WHOLE_SHARE
from collector.nccl.draining import KINDS
from collector.nccl.host_aggregator import DELAY_NS, PATIENCE_NS, HostAggregator
from collector.nccl.ledger import Ledger
from collector.nccl.ringfile import INDEXED_COMM, INDEXED_ROW
from collector.nccl.snapshot import Losses, Reading
from lockstep import wire
from lockstep.arrow import conform
from lockstep.tables import TABLE_BY_NAME
from tests.builders import SECOND, T0
from tests.collector.nccl.readings import (
    IDENTITY,
    MS,
    ORIGIN,
    Array,
    communicator,
    enqueued,
    handle,
    kernel,
    reading,
    running,
    step,
    transfer,
)
from tests.tiers import long_except

SOON = T0 + 10 * MS
LATER = T0 + 10 * MS + DELAY_NS
CLOSED = DELAY_NS + SECOND  # how long after its begin a second is told


def rows(tables: dict[str, pa.Table], name: str = "collectives") -> list[dict[str, Any]]:
    return list(tables[name].to_pylist())


def only(tables: dict[str, pa.Table], name: str = "collectives") -> dict[str, Any]:
    (one,) = rows(tables, name)
    return one


def test_operation_has_its_row_once_and_only_after_the_bound_on_lateness() -> None:
    aggregator = Aggregator(ORIGIN)
    assert rows(aggregator.fold(reading(enqueued(), transfer(), kernel()), SOON)) == []
    written = only(aggregator.fold(reading(), LATER))
    assert rows(aggregator.fold(reading(), LATER + SECOND)) == []
    assert rows(aggregator.finish(reading(), LATER + SECOND, died=True)) == []
    expected = {"host": "h0", "job": "j1", "attempt": 0, "comm": 7, "func": "AllReduce", "peer": -1, "seq": 1}
    expected |= {"replay": 0, "seq_valid": True, "captured": False, "epoch": 1, "rank": 0, "algo": "RING"}
    expected |= {"proto": "SIMPLE", "dtype": "ncclFloat32", "bytes": 1 << 20, "channels": 2, "clock": "gpu"}
    assert written.items() >= expected.items()
    assert written["enqueue_ns"] == T0 + MS
    assert written["start_ns"] == pytest.approx(T0 + 2 * MS, abs=1_100)  # heard 1 us late, and by drift
    assert written["end_ns"] == pytest.approx(T0 + 6 * MS, abs=1_100)


def test_operation_with_an_open_part_waits_for_it_or_has_no_end_if_its_process_died() -> None:
    aggregator, last = Aggregator(ORIGIN), reading(enqueued(), transfer(), live=[running()])
    assert rows(aggregator.fold(last, LATER)) == []
    tables = aggregator.fold(reading(transfer(channel=1, duration=9 * MS)), LATER + DELAY_NS)
    assert (only(tables)["start_ns"], only(tables)["end_ns"]) == (T0 + 2 * MS, T0 + 11 * MS)
    assert aggregator.losses == Losses()
    assert rows(Aggregator(ORIGIN).finish(last, SOON, died=False)) == []
    written = only(Aggregator(ORIGIN).finish(last, SOON, died=True))
    assert (written["start_ns"], written["end_ns"], written["clock"]) == (T0 + 2 * MS, None, "proxy")
    quiet = reading(enqueued(), identity=replace(IDENTITY, kernel_channels=False))  # of which nothing was seen
    written = only(Aggregator(ORIGIN).fold(quiet, LATER))
    assert (written["start_ns"], written["end_ns"], written["clock"]) == (None, None, "none")


def test_kernel_that_has_not_begun_is_waited_for_and_transfers_give_the_times_where_one_of_it_is_stale() -> None:
    aggregator = Aggregator(ORIGIN)
    not_begun = [running(open=0, began=0)]
    assert rows(aggregator.fold(reading(enqueued(), live=not_begun), LATER)) == []
    assert rows(aggregator.fold(reading(live=not_begun), T0 + PATIENCE_NS)) == []
    assert only(aggregator.fold(reading(live=not_begun), T0 + MS + PATIENCE_NS))["clock"] == "none"
    stale = kernel(start=-50 * MS, stop=-46 * MS, channel=1, start_ticks=3 * MS, stop_ticks=7 * MS)
    aggregator = Aggregator(ORIGIN)
    written = only(aggregator.fold(reading(enqueued(), transfer(), kernel(), stale), LATER))
    assert (written["start_ns"], written["end_ns"], written["clock"]) == (T0 + 2 * MS, T0 + 5 * MS, "proxy")
    assert aggregator.losses == Losses(stale_kernels=1)


def test_part_waits_for_its_operation_is_given_up_then_and_has_its_row_when_it_comes_too_late() -> None:
    aggregator = Aggregator(ORIGIN)
    assert rows(aggregator.fold(reading(transfer(1), step(2)), SOON), "transfers") == []
    tables = aggregator.fold(reading(enqueued(1)), SOON + SECOND)
    assert only(tables, "transfers")["seq"] == 1
    aggregator.fold(reading(), SOON + DELAY_NS)
    assert rows(aggregator.fold(reading(enqueued(2)), LATER + SECOND), "step_samples") == []
    assert aggregator.losses == Losses(orphans=1)
    tables = aggregator.fold(reading(transfer(channel=1)), LATER + 2 * SECOND)
    assert only(tables, "transfers")["channel"] == 1
    assert rows(tables) == []
    assert aggregator.losses == Losses(orphans=1, late=1)
    strangers = Aggregator(ORIGIN)
    strangers.fold(reading(enqueued(comm=3), enqueued(2, comm=wire.NO_COMM), lost=5), LATER)
    assert strangers.losses == Losses(unknown_comm=2, overwritten=5)


def test_communicator_has_a_row_when_it_is_new_and_when_it_is_destroyed_unless_its_size_is_unknown() -> None:
    aggregator = Aggregator(replace(ORIGIN, gpu=3, pid=99))
    made = only(aggregator.fold(reading(), SOON), "comms")
    assert rows(aggregator.fold(reading(), SOON), "comms") == []
    gone = only(aggregator.fold(reading(comms=[communicator(destroy_ticks=9 * MS)]), SOON), "comms")
    assert (made["name"], made["nranks"], made["gpu"], made["pid"], made["destroy_ns"]) == ("world", 4, 3, 99, None)
    assert gone == made | {"destroy_ns": T0 + 9 * MS}
    assert rows(Aggregator(ORIGIN).fold(reading(comms=[communicator(nranks=0)]), SOON), "comms") == []
    second = communicator(incarnation=2, id=8, rank=3, init_ticks=5 * MS)  # its index may serve another one later
    aggregator.fold(reading(enqueued(1, ticks=4 * MS), enqueued(2, ticks=5 * MS), comms=[second]), SOON)
    written = rows(aggregator.finish(reading(comms=[second]), SOON, died=False))
    assert {(one["seq"], one["comm"], one["rank"]) for one in written} == {(1, 7, 0), (2, 8, 3)}


def test_only_a_share_of_operations_has_complete_rows_and_all_are_counted() -> None:
    operations = [enqueued(number) for number in range(1, 101)]
    transfers = [transfer(number) for number in range(1, 101)]
    ledgers = Ledger(), Ledger()
    for ledger, keeps_rest in zip(ledgers, (False, True), strict=True):
        aggregator = Aggregator(ORIGIN, HostAggregator(ledger, keeps_rest))
        aggregator.finish(reading(*operations, *transfers), SOON, died=False, share=1 << 14)
    both = [ledger.rows() | ledger.seconds.close(T0 + 9 * SECOND) for ledger in ledgers]
    kept, others = ([one["seq"] for one in rows(tables)] for tables in both)
    assert 10 < len(kept) < 40
    assert sorted(kept + others) == list(range(1, 101))
    assert [one["seq"] for one in rows(both[0], "transfers")] == kept
    assert [ledger.left_out for ledger in ledgers] == [2 * len(others), 2 * len(kept)]
    assert all(only(tables, "op_stats")["n"] == only(tables, "transfer_stats")["n"] == 100 for tables in both)
    none = Ledger()
    Aggregator(ORIGIN, HostAggregator(none)).finish(reading(*operations), SOON, died=False, share=0)
    assert rows(none.rows()) == []


def test_seconds_are_reported_once_and_what_is_late_counts_in_the_next_with_its_gaps() -> None:
    aggregator = Aggregator(ORIGIN)
    first = aggregator.fold(reading(enqueued(1), transfer(1)), T0 + 2 * SECOND + CLOSED)
    assert only(first, "op_stats").items() >= {"n": 1, "late_n": 0, "ts_ns": T0, "dur_sum_ns": 3 * MS}.items()
    late = enqueued(2, ticks=20 * MS), transfer(2, first_ticks=21 * MS)
    on_time = enqueued(3, ticks=3 * SECOND), transfer(3, first_ticks=3 * SECOND)
    second = aggregator.fold(reading(*late, *on_time), T0 + 5 * SECOND + CLOSED)
    reported = {one["ts_ns"] - T0: (one["n"], one["late_n"], one["bytes"]) for one in rows(second, "op_stats")}
    assert reported == {2 * SECOND: (1, 1, 1 << 20), 3 * SECOND: (1, 0, 1 << 20)}
    assert sum(one["n"] for one in rows(second, "transfer_stats")) == 2
    aggregator = Aggregator(ORIGIN)  # what is late joins what its new second has
    aggregator.fold(reading(), T0 + 2 * SECOND + CLOSED)
    late = enqueued(1), transfer(1)
    on_time = enqueued(2, ticks=2 * SECOND), transfer(2, first_ticks=2 * SECOND, duration=5 * MS)
    stats = only(aggregator.fold(reading(*late, *on_time), T0 + 4 * SECOND + CLOSED), "op_stats")
    assert (stats["ts_ns"], stats["n"], stats["late_n"]) == (T0 + 2 * SECOND, 2, 1)
    assert (stats["dur_sum_ns"], stats["dur_max_ns"]) == (8 * MS, 5 * MS)
    later = enqueued(3, ticks=5 * SECOND), transfer(3, first_ticks=5 * SECOND)
    aggregator.fold(reading(*later), T0 + 5 * SECOND + CLOSED)
    stats = only(aggregator.fold(reading(), T0 + 7 * SECOND + CLOSED), "op_stats")
    assert stats["gap_sum_ns"] == 3 * SECOND - 5 * MS


def test_memory_is_bounded_and_what_is_dropped_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collector.nccl.host_aggregator._MOST_OPERATIONS", 2)
    aggregator = Aggregator(ORIGIN)
    aggregator.fold(reading(*(enqueued(number) for number in range(1, 6))), SOON)
    assert aggregator.losses == Losses(forgotten=3)
    assert {one["seq"] for one in rows(aggregator.finish(reading(), SOON, died=False))} == {4, 5}


OPERATIONS, INDICES = 9, 4


def forge(rng: np.random.Generator, struct: np.dtype[np.void], count: int) -> Array:
    """Return elements of random bytes, some of them 0, whose codes and places are ones that a reader lets through."""
    raw = rng.integers(0, 256, (count, struct.itemsize), np.uint8)
    raw[rng.random(raw.shape) < rng.random()] = 0
    forged = raw.view(struct).reshape(count)
    limits = {"func": len(wire.FUNCS), "dtype": len(wire.DTYPES), "algo": len(wire.ALGOS), "proto": len(wire.PROTOS)}
    limits |= {"comm": INDICES + 1, "index": INDICES}
    names = struct.names or ()
    for name in limits.keys() & names:
        forged[name] %= limits[name]
    for name in {"operation", "handle"} & set(names):
        forged[name] = [handle(number) for number in rng.integers(0, OPERATIONS, count).tolist()]
    for name in {"seq", "bytes", "gpu_start_ns", "gpu_stop_ns", "enqueued", "started", "done"} & set(names):
        forged[name] >>= 1
    return forged


def forge_reading(rng: np.random.Generator) -> Reading:
    comms = forge(rng, INDEXED_COMM, INDICES)
    comms["index"], comms["incarnation"] = range(INDICES), rng.integers(1, 3, INDICES)
    rows = forge(rng, INDEXED_ROW, 4)
    peers = rng.integers(0, 1 << 32, 4).tolist()
    rows["key"] = [index << 40 | wire.SEND << 32 | peer for index, peer in enumerate(peers, 1)]
    transfers = forge(rng, wire.TRANSFER, 6)
    transfers["wait"] %= len(wire.WAITS) << 56
    records = [forge(rng, struct, 30) for _, struct in KINDS.values()]
    return reading(*records, live=[rows, forge(rng, wire.OPERATION, 5), transfers], comms=[comms])


@pytest.mark.parametrize("seed", long_except(range(2), range(20)))
def test_rows_of_forged_records_fit_their_tables(seed: int) -> None:
    rng = np.random.default_rng(seed)
    aggregator = Aggregator(ORIGIN)
    count = 0
    for number in range(4):
        now_ns = T0 + number * 3 * SECOND
        forged = forge_reading(rng)
        tables = (
            aggregator.fold(forged, now_ns) if number < 3 else aggregator.finish(forged, now_ns, died=seed % 2 == 0)
        )
        tables["progress"] = aggregator.progress(forged, now_ns)
        for name, rows in tables.items():
            conform(TABLE_BY_NAME[name], rows)
            count += rows.num_rows
    assert count > 0


@pytest.mark.parametrize("seed", long_except([0], range(10)))
def test_forged_records_of_one_process_do_not_touch_those_of_another_that_are_folded_with_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    together, alone = Ledger(), Ledger()
    host = HostAggregator(together)
    honest, forger = (Aggregator(replace(ORIGIN, job=job), host) for job in ("honest", "forger"))
    reference = Aggregator(replace(ORIGIN, job="honest"), HostAggregator(alone))
    found: dict[str, list[list[dict[str, Any]]]] = {"together": [], "alone": []}
    for number in range(4):
        now_ns, numbers = T0 + number * 3 * SECOND, range(number * 20, number * 20 + 20)
        parts = [part for one in numbers for part in (enqueued(one), transfer(one), step(one), kernel(one))]
        reported = reading(*parts, identity=replace(IDENTITY, nccl_version="2.28.9"))
        host.fold([honest.snapshot(reported)[0], forger.snapshot(forge_reading(rng))[0]], now_ns, WHOLE_SHARE)
        reference.fold(reported, now_ns)
        for name, ledger in (("together", together), ("alone", alone)):
            tables = ledger.rows() | ledger.seconds.close(now_ns - 2 * SECOND)
            rows = [row for table in tables.values() for row in table.to_pylist()]
            found[name].append([row for row in rows if row["job"] == "honest"])
    assert found["together"] == found["alone"]
    assert sum(map(len, found["alone"])) > 200
