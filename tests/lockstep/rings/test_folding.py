"""Records become rows: each once, when it is over, with what is known and nothing that is not."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lockstep import wire
from lockstep.rings.folding import LATENESS_NS, PATIENCE_NS, Folder, Losses
from lockstep.rings.ledger import Ledger
from tests.builders import SECOND, T0
from tests.lockstep.rings.readings import (
    IDENTITY,
    MS,
    ORIGIN,
    communicator,
    enqueued,
    handle,
    kernel,
    moving,
    reading,
    row,
    running,
    step,
    transfer,
)

SOON = T0 + 10 * MS
LATER = T0 + 10 * MS + LATENESS_NS
CLOSED = LATENESS_NS + SECOND  # how long after its begin a second is told


def rows(tables: dict[str, pa.Table], name: str = "collectives") -> list[dict[str, Any]]:
    return list(tables[name].to_pylist())


def only(tables: dict[str, pa.Table], name: str = "collectives") -> dict[str, Any]:
    (one,) = rows(tables, name)
    return one


def test_operation_has_its_row_once_and_only_after_the_bound_on_lateness() -> None:
    folder = Folder(ORIGIN)
    assert rows(folder.fold(reading(enqueued(), transfer(), kernel()), SOON)) == []
    written = only(folder.fold(reading(), LATER))
    assert rows(folder.fold(reading(), LATER + SECOND)) == []
    assert rows(folder.finish(reading(), LATER + SECOND, died=True)) == []
    expected = {"host": "h0", "job": "j1", "attempt": 0, "comm": 7, "func": "AllReduce", "peer": -1, "seq": 1}
    expected |= {"replay": 0, "seq_valid": True, "captured": False, "epoch": 1, "rank": 0, "algo": "RING"}
    expected |= {"proto": "SIMPLE", "dtype": "ncclFloat32", "bytes": 1 << 20, "channels": 2, "clock": "gpu"}
    assert written.items() >= expected.items()
    assert written["enqueue_ns"] == T0 + MS
    assert written["start_ns"] == pytest.approx(T0 + 2 * MS, abs=1_100)  # heard 1 us late, and by drift
    assert written["end_ns"] == pytest.approx(T0 + 6 * MS, abs=1_100)


def test_operation_with_an_open_part_waits_for_it() -> None:
    folder = Folder(ORIGIN)
    assert rows(folder.fold(reading(enqueued(), transfer(), live=[running()]), LATER)) == []
    tables = folder.fold(reading(transfer(channel=1, duration=9 * MS)), LATER + LATENESS_NS)
    assert (only(tables)["start_ns"], only(tables)["end_ns"]) == (T0 + 2 * MS, T0 + 11 * MS)
    assert folder.losses == Losses()


def test_open_operation_has_a_row_only_if_its_process_died_and_then_no_end() -> None:
    last = reading(enqueued(), transfer(), live=[running()])
    assert rows(Folder(ORIGIN).finish(last, SOON, died=False)) == []
    written = only(Folder(ORIGIN).finish(last, SOON, died=True))
    assert (written["start_ns"], written["end_ns"], written["clock"]) == (T0 + 2 * MS, None, "proxy")


def test_operation_of_which_nothing_was_heard_has_no_times() -> None:
    quiet = replace(IDENTITY, kernel_channels=False)
    written = only(Folder(ORIGIN).fold(reading(enqueued(), identity=quiet), LATER))
    assert (written["start_ns"], written["end_ns"], written["clock"]) == (None, None, "none")


def test_kernel_that_has_not_begun_is_waited_for_with_patience() -> None:
    folder = Folder(ORIGIN)
    not_begun = [running(open=0, began=0)]
    assert rows(folder.fold(reading(enqueued(), live=not_begun), LATER)) == []
    assert rows(folder.fold(reading(live=not_begun), T0 + PATIENCE_NS)) == []
    assert only(folder.fold(reading(live=not_begun), T0 + MS + PATIENCE_NS))["clock"] == "none"


def test_times_are_the_transfers_where_one_kernel_time_cannot_be_true() -> None:
    stale = kernel(start=-50 * MS, stop=-46 * MS, channel=1, start_ticks=3 * MS, stop_ticks=7 * MS)
    folder = Folder(ORIGIN)
    written = only(folder.fold(reading(enqueued(), transfer(), kernel(), stale), LATER))
    assert (written["start_ns"], written["end_ns"], written["clock"]) == (T0 + 2 * MS, T0 + 5 * MS, "proxy")
    assert folder.losses == Losses(stale_kernels=1)


def test_part_that_comes_too_late_is_counted_and_has_its_row() -> None:
    folder = Folder(ORIGIN)
    folder.fold(reading(enqueued(), transfer()), LATER)
    tables = folder.fold(reading(transfer(channel=1)), LATER + SECOND)
    assert only(tables, "transfers")["channel"] == 1
    assert rows(tables) == []
    assert folder.losses == Losses(late=1)


def test_part_waits_for_its_operation_and_then_is_given_up() -> None:
    folder = Folder(ORIGIN)
    assert rows(folder.fold(reading(transfer(1), step(2)), SOON), "transfers") == []
    tables = folder.fold(reading(enqueued(1)), SOON + SECOND)
    assert only(tables, "transfers")["seq"] == 1
    folder.fold(reading(), SOON + LATENESS_NS)
    assert rows(folder.fold(reading(enqueued(2)), LATER + SECOND), "step_samples") == []
    assert folder.losses == Losses(orphans=1)


def test_operation_of_an_unknown_communicator_is_counted() -> None:
    folder = Folder(ORIGIN)
    folder.fold(reading(enqueued(comm=3), enqueued(2, comm=wire.NO_COMM), lost=5), LATER)
    assert folder.losses == Losses(homeless=2, overwritten=5)


def test_place_of_a_communicator_may_serve_another_one_later() -> None:
    folder = Folder(ORIGIN)
    folder.fold(reading(comms=[communicator(init_ticks=0)]), SOON)
    second = communicator(incarnation=2, id=8, rank=3, init_ticks=5 * MS)
    folder.fold(reading(enqueued(1, ticks=4 * MS), enqueued(2, ticks=5 * MS), comms=[second]), SOON)
    written = rows(folder.finish(reading(comms=[second]), SOON, died=False))
    assert {(one["seq"], one["comm"], one["rank"]) for one in written} == {(1, 7, 0), (2, 8, 3)}


def test_communicator_has_a_row_when_it_is_new_and_when_it_is_destroyed() -> None:
    folder = Folder(replace(ORIGIN, gpu=3, pid=99))
    made = only(folder.fold(reading(), SOON), "comms")
    assert rows(folder.fold(reading(), SOON), "comms") == []
    gone = only(folder.fold(reading(comms=[communicator(destroy_ticks=9 * MS)]), SOON), "comms")
    assert (made["name"], made["nranks"], made["gpu"], made["pid"], made["destroy_ns"]) == ("world", 4, 3, 99, None)
    assert gone == made | {"destroy_ns": T0 + 9 * MS}


def test_communicator_of_unknown_size_has_no_row() -> None:
    assert rows(Folder(ORIGIN).fold(reading(comms=[communicator(nranks=0)]), SOON), "comms") == []


def test_only_a_share_of_operations_has_complete_rows_and_all_are_counted() -> None:
    operations = [enqueued(number) for number in range(1, 101)]
    transfers = [transfer(number) for number in range(1, 101)]
    ledgers = Ledger(), Ledger()
    folders = Folder(ORIGIN, ledgers[0]), Folder(ORIGIN, ledgers[1], keeps_rest=True)
    for folder in folders:
        folder.finish(reading(*operations, *transfers), SOON, died=False, share=1 << 14)
    both = [ledger.rows() | ledger.seconds.close(T0 + 9 * SECOND) for ledger in ledgers]
    kept, others = ([one["seq"] for one in rows(tables)] for tables in both)
    assert 10 < len(kept) < 40
    assert sorted(kept + others) == list(range(1, 101))
    assert [one["seq"] for one in rows(both[0], "transfers")] == kept
    assert [ledger.left_out for ledger in ledgers] == [2 * len(others), 2 * len(kept)]
    assert all(only(tables, "op_stats")["n"] == only(tables, "transfer_stats")["n"] == 100 for tables in both)


def test_seconds_are_told_once_and_what_is_late_counts_in_the_next() -> None:
    folder = Folder(ORIGIN)
    first = folder.fold(reading(enqueued(1), transfer(1)), T0 + 2 * SECOND + CLOSED)
    assert only(first, "op_stats").items() >= {"n": 1, "late_n": 0, "ts_ns": T0, "dur_sum_ns": 3 * MS}.items()
    late = enqueued(2, ticks=20 * MS), transfer(2, first_ticks=21 * MS)
    on_time = enqueued(3, ticks=3 * SECOND), transfer(3, first_ticks=3 * SECOND)
    second = folder.fold(reading(*late, *on_time), T0 + 5 * SECOND + CLOSED)
    told = {one["ts_ns"] - T0: (one["n"], one["late_n"], one["bytes"]) for one in rows(second, "op_stats")}
    assert told == {2 * SECOND: (1, 1, 1 << 20), 3 * SECOND: (1, 0, 1 << 20)}
    assert sum(one["n"] for one in rows(second, "transfer_stats")) == 2


def test_gap_is_measured_from_the_operation_before_also_across_readings() -> None:
    folder = Folder(ORIGIN)
    folder.fold(reading(enqueued(1), transfer(1)), T0 + 2 * SECOND + CLOSED)
    later = enqueued(2, ticks=4 * SECOND), transfer(2, first_ticks=4 * SECOND)
    folder.fold(reading(*later), T0 + 4 * SECOND + CLOSED)
    told = only(folder.fold(reading(), T0 + 6 * SECOND + CLOSED), "op_stats")
    assert told["gap_sum_ns"] == 4 * SECOND - 5 * MS


def test_late_operation_joins_what_its_new_second_has_already() -> None:
    folder = Folder(ORIGIN)
    folder.fold(reading(), T0 + 2 * SECOND + CLOSED)
    late = enqueued(1), transfer(1)
    on_time = enqueued(2, ticks=2 * SECOND), transfer(2, first_ticks=2 * SECOND, duration=5 * MS)
    told = only(folder.fold(reading(*late, *on_time), T0 + 4 * SECOND + CLOSED), "op_stats")
    assert (told["ts_ns"], told["n"], told["late_n"]) == (T0 + 2 * SECOND, 2, 1)
    assert (told["dur_sum_ns"], told["dur_max_ns"]) == (8 * MS, 5 * MS)


def test_memory_is_bounded_and_what_is_dropped_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.rings.host_folding._MOST_OPERATIONS", 2)
    folder = Folder(ORIGIN)
    folder.fold(reading(*(enqueued(number) for number in range(1, 6))), SOON)
    assert folder.losses == Losses(forgotten=3)
    assert {one["seq"] for one in rows(folder.finish(reading(), SOON, died=False))} == {4, 5}


def test_parts_of_other_processes_are_shown_and_not_counted_as_lost() -> None:
    folder = Folder(ORIGIN)
    theirs = transfer(operation=handle(1, tag=0xCD), pid=7)
    folder.fold(reading(theirs, step(operation=handle(1, tag=0xCD))), LATER)
    assert folder.foreign is not None
    assert folder.foreign.transfers["pid"].tolist() == [7]
    assert len(folder.foreign.steps) == 1
    assert folder.losses == Losses()


def test_progress_after_a_reading_knows_its_communicators() -> None:
    folder = Folder(ORIGIN)
    shown = reading(live=[row(), running(), moving()])
    folder.fold(shown, SOON)
    told = only({"progress": folder.progress(shown, SOON)}, "progress")
    assert (told["comm"], told["rank"], told["head_state"], told["ts_ns"]) == (7, 0, "wire", SOON)
