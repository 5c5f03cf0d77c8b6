"""What is acknowledged is on disk, reaches the store once and in order, and survives whatever happens between."""

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from api.ingest import checking, log
from api.ingest.checking import Arrival, CheckLimits, Rows, Tally
from api.ingest.gateway import Gateway, GatewayOptions
from api.ingest.log import Entry, OpenSegment, list_segments
from lockstep.clock import ManualClock
from lockstep.errors import BadBatch, GatewayFull, LockstepError, StoreRefused
from lockstep.state.claims import BatchClaims
from lockstep.state.database import ControlDatabase
from lockstep.tables import Table
from tests.api.fake_store import FakeStore, away
from tests.api.ingest.build import PATIENT_S, batch, entry, running
from tests.waiting import HastyClock, eventually

LIMIT_S = 60.0
LIMITS = CheckLimits(1 << 20, 1_000)
UNCUT = GatewayOptions(segment_s=60_000.0, leave_s=PATIENT_S)  # one segment for all, until the end


def acknowledge(gateway: Gateway, *entries: Entry) -> list[int]:
    return [future.result(LIMIT_S) for future in [gateway.submit(one) for one in entries]]


def messages(store: FakeStore) -> list[object]:
    return store.column("events", "message")


def counted(gateway: Gateway, result: str) -> float:
    return gateway.metrics.registry.get_sample_value("lockstep_ingest_batches_total", {"result": result}) or 0.0


def test_acknowledged_batch_reaches_the_store_and_its_segment_is_deleted(tmp_path: Path) -> None:
    store, known = FakeStore(), list[object]()
    with running(tmp_path, store) as gateway:
        gateway.inserted = lambda: known.append(messages(store))
        assert acknowledge(gateway, entry(1)) == [1]
        eventually(lambda: known == [["h0/b1/1"]])
        eventually(lambda: gateway.backlog_bytes == 0)
        assert acknowledge(gateway, entry(2), entry(1, boot="b2"), entry(1, "a", "b", agent="h1")) == [2, 1, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["identity", "watermarks.json"]
    assert "lockstep_ingest_rows_total 5.0" in generate_latest(gateway.metrics.registry).decode()


class StillClock(ManualClock):
    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(0.01)


@contextmanager
def standing(directory: Path, store: FakeStore, segment_s: float = 60.0) -> Iterator[tuple[Gateway, StillClock]]:
    """Give a started gateway with a clock that stands still."""
    clock = StillClock()
    gateway = Gateway(directory, store, clock, GatewayOptions(segment_s=segment_s, leave_s=PATIENT_S))
    gateway.start()
    try:
        yield gateway, clock
    finally:
        gateway.close()


def test_what_came_is_inserted_sooner_when_nothing_more_comes(tmp_path: Path) -> None:
    store = FakeStore()
    with standing(tmp_path, store) as (gateway, clock):
        acknowledge(gateway, entry(1))
        clock.advance(31.0)
        eventually(lambda: messages(store) == ["h0/b1/1"])


def test_a_segment_is_cut_at_once_when_all_hosts_that_send_regularly_have_sent(tmp_path: Path) -> None:
    store = FakeStore()
    with standing(tmp_path, store, segment_s=1.0) as (gateway, clock):
        acknowledge(gateway, entry(1), entry(1, agent="h1"))
        clock.advance(1.0)
        eventually(lambda: gateway.backlog_bytes == 0)
        clock.advance(1.0)
        acknowledge(gateway, entry(2))
        settle(gateway)
        assert len(messages(store)) == 2  # h1 is waited for
        acknowledge(gateway, entry(2, agent="h1"))
        eventually(lambda: len(messages(store)) == 4)
        acknowledge(gateway, entry(3), entry(3, agent="h1"))
        settle(gateway)
        assert len(messages(store)) == 4  # who sends ten times a second does not have as many inserts
        clock.advance(0.6)
        eventually(lambda: len(messages(store)) == 6)


def settle(gateway: Gateway) -> None:
    """Let the log look several times whether to cut."""
    looks, cut = list[bool](), gateway._cut_when_due

    def counted(force: bool, is_lull: bool) -> None:
        cut(force, is_lull)
        looks.append(is_lull)

    gateway._cut_when_due = counted  # type: ignore[method-assign]
    eventually(lambda: looks[-3:] == [True, True, True])
    gateway._cut_when_due = cut  # type: ignore[method-assign]


def test_what_is_still_checked_is_waited_for_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of a hundred batches takes longer than the pause that would be a lull."""
    free, rounds, check, cut = threading.Event(), list[bool](), checking.check_group, Gateway._cut_when_due

    def slow(group: Sequence[Arrival], tally: Tally | None = None) -> tuple[list[BadBatch | None], Rows]:
        assert group[0].entry.number == 1 or free.wait(LIMIT_S)
        return check(group, tally)

    def noted(gateway: Gateway, force: bool, is_lull: bool) -> None:
        cut(gateway, force, is_lull)
        rounds.append(is_lull)

    monkeypatch.setattr(checking, "check_group", slow)
    monkeypatch.setattr(Gateway, "_cut_when_due", noted)
    with standing(tmp_path, FakeStore()) as (gateway, clock):
        gateway.take(entry(1), LIMITS).result(LIMIT_S)
        waiting = gateway.take(entry(2), LIMITS)
        try:
            clock.advance(119.0)
            seen = len(rounds)
            eventually(lambda: len(rounds) > seen + 2)
            assert (list_segments(tmp_path), gateway.backlog_bytes > 0) == ([], True)
            clock.advance(2.0)
            eventually(lambda: gateway.backlog_bytes == 0)
        finally:
            free.set()
        assert waiting.result(LIMIT_S) == 2


def test_what_comes_while_the_store_is_busy_is_one_insert_up_to_three_segments_long(tmp_path: Path) -> None:
    class BusyStore(FakeStore):
        free = threading.Event()

        def insert(self, table: Table, rows: pa.Table, token: str) -> None:
            assert self.free.wait(LIMIT_S)
            super().insert(table, rows, token)

    store = BusyStore()
    with standing(tmp_path, store) as (gateway, clock):
        try:
            for number in (1, 2, 3, 4):
                acknowledge(gateway, entry(number))
                clock.advance(59.0 if number > 1 else 61.0)
                eventually(lambda: len(list_segments(tmp_path)) == 1)
            clock.advance(4.0)  # now the second segment is three times as old as one that finds the store idle
            eventually(lambda: len(list_segments(tmp_path)) == 2)
        finally:
            store.free.set()
    assert (len(store.tokens), messages(store)) == (2, [f"h0/b1/{number}" for number in (1, 2, 3, 4)])


def test_batch_that_comes_again_at_once_or_later_is_acknowledged_again_and_kept_once(tmp_path: Path) -> None:
    store = FakeStore()
    gateway = Gateway(tmp_path, store, HastyClock(), GatewayOptions(leave_s=PATIENT_S))
    one = entry(1)
    futures = [gateway.submit(each) for each in (one, one, entry(1), entry(2), entry(1, agent="h1"))]
    assert futures[-1].cancel() is False, "a request that gives up takes nobody with it"
    gateway.start()  # all of them wait already, so they share one sync
    assert [future.result(LIMIT_S) for future in futures] == [2, 2, 2, 2, 1]
    assert acknowledge(gateway, entry(1)) == [2]
    assert acknowledge(gateway, entry(2, "the same number with other rows")) == [2]
    gateway.close()
    assert sorted(map(str, messages(store))) == ["h0/b1/1", "h0/b1/2", "h1/b1/1"]
    assert (counted(gateway, "accepted"), counted(gateway, "repeated")) == (3, 4)


def test_group_is_synced_at_once_and_one_insert_per_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    appended: list[int] = []
    append = OpenSegment.append

    def count(segment: OpenSegment, entries: list[Entry]) -> None:
        appended.append(len(entries))
        append(segment, entries)

    monkeypatch.setattr(OpenSegment, "append", count)
    store = FakeStore()
    gateway = Gateway(tmp_path, store, HastyClock(), UNCUT)
    body = batch("the same in all")
    futures = [gateway.submit(entry(number, body=body)) for number in range(1, 301)]
    gateway.start()
    wait_for_all(futures, LIMIT_S)
    gateway.close()
    assert appended == [256, 44]
    assert (len(store.tokens), len(messages(store))) == (1, 300)


def test_each_segment_has_a_token_of_its_own_also_after_a_restart_with_an_empty_log(tmp_path: Path) -> None:
    store = FakeStore()
    for first in (1, 3):
        with running(tmp_path, store) as gateway:
            for number in (first, first + 1):
                acknowledge(gateway, entry(number))
                eventually(lambda: gateway.backlog_bytes == 0)
    identity = (tmp_path / "identity").read_text()
    assert store.tokens == [f"{identity}/{number}/events/0" for number in (1, 2, 3, 4)]
    assert messages(store) == [f"h0/b1/{number}" for number in (1, 2, 3, 4)]


def test_close_puts_everything_acknowledged_into_the_store_and_refuses_what_comes_later(tmp_path: Path) -> None:
    store = FakeStore()
    with running(tmp_path, store, UNCUT) as gateway:
        acknowledge(gateway, *(entry(number) for number in range(1, 6)))
        assert messages(store) == []
    assert messages(store) == [f"h0/b1/{number}" for number in range(1, 6)]
    with pytest.raises(GatewayFull, match="the gateway is closing"):
        gateway.submit(entry(6)).result(LIMIT_S)


def test_every_batch_that_races_with_the_end_gets_an_answer(tmp_path: Path) -> None:
    store, body = FakeStore(), batch("the same in all")
    futures: list[Future[int]] = []
    with running(tmp_path, store) as gateway:

        def hurry() -> None:
            futures.extend(gateway.submit(entry(number, body=body)) for number in range(1, 2001))

        sender = threading.Thread(target=hurry)
        sender.start()
        eventually(lambda: len(futures) > 0 or not sender.is_alive())
    sender.join()
    taken = [future for future in futures if future.exception(LIMIT_S) is None]
    assert len(messages(store)) == len(taken)


def test_batches_are_acknowledged_while_the_store_is_away_and_drained_when_it_is_back(tmp_path: Path) -> None:
    store = FakeStore(fault=away())
    with capture_logs() as lines, running(tmp_path, store) as gateway:
        acknowledge(gateway, entry(1))
        eventually(lambda: gateway.trouble is not None)
        assert acknowledge(gateway, entry(2), entry(1, agent="h1")) == [2, 1]
        eventually(lambda: len(store.attempts) >= 3)
        assert gateway.trouble == "the store at nowhere does not answer"
        assert len(set(store.attempts)) == 1, "a repeated insert carries the token of the first"
        assert gateway.backlog_bytes > 0
        store.fault = None
        eventually(lambda: len(messages(store)) == 3)
        eventually(lambda: gateway.trouble is None and gateway.backlog_bytes == 0)
        eventually(lambda: len(lines) >= 2)
    assert messages(store)[0] == "h0/b1/1"
    said = ["store takes nothing, batches wait on disk", "store takes batches again"]
    assert [line["event"] for line in lines] == said


@pytest.mark.parametrize("fault", [StoreRefused("no such column", 47), RuntimeError("a bug")])
def test_fault_of_any_kind_is_told_and_nothing_is_lost(tmp_path: Path, fault: Exception) -> None:
    store = FakeStore(fault=fault)
    with running(tmp_path, store) as gateway:
        acknowledge(gateway, entry(1))
        eventually(lambda: gateway.trouble == str(fault))
        store.fault = None
        eventually(lambda: messages(store) == ["h0/b1/1"])
        eventually(lambda: gateway.trouble is None)


def test_close_waits_for_no_store_that_is_away_nor_too_long_and_the_next_start_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, FakeStore(fault=away()), UNCUT) as gateway:
        acknowledge(gateway, entry(1), entry(2))
        before = gateway.backlog_bytes
    assert len(list_segments(tmp_path)) == 1
    again = Gateway(tmp_path, FakeStore(), HastyClock(), GatewayOptions(leave_s=PATIENT_S))
    assert again.backlog_bytes == before > 0, "the backlog of an earlier life counts"
    again.close()
    hurried, store = FakeStore(), FakeStore()
    with running(tmp_path, hurried, GatewayOptions(segment_s=60_000.0, leave_s=-1.0)) as gateway:
        eventually(lambda: messages(hurried) == ["h0/b1/1", "h0/b1/2"])
        assert (acknowledge(gateway, entry(2)), acknowledge(gateway, entry(3))) == ([2], [3])
    assert (messages(hurried), len(list_segments(tmp_path))) == (["h0/b1/1", "h0/b1/2"], 1)
    with running(tmp_path, store):
        eventually(lambda: messages(store) == ["h0/b1/3"])


def test_full_backlog_refuses_until_the_store_has_taken_it(tmp_path: Path) -> None:
    store = FakeStore(fault=away())
    with running(tmp_path, store, GatewayOptions(max_backlog_bytes=10, leave_s=PATIENT_S)) as gateway:
        acknowledge(gateway, entry(1))
        unseen = gateway.take(entry(2, body=b"nothing"), CheckLimits(max_bytes=1, max_rows=1))
        for refused in (gateway.submit(entry(2)), unseen):  # it is refused before it is looked at
            with pytest.raises(GatewayFull, match="0 MiB wait for the store already"):
                refused.result(LIMIT_S)
        store.fault = None
        eventually(lambda: gateway.backlog_bytes == 0)
        assert acknowledge(gateway, entry(2)) == [2]
    assert messages(store) == ["h0/b1/1", "h0/b1/2"]


def test_full_disk_acknowledges_nothing_and_leaves_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore()
    with running(tmp_path, store, UNCUT) as gateway:
        with monkeypatch.context() as patch:
            patch.setattr(log, "sync_directory", _disk_full)  # no room for another file
            with pytest.raises(GatewayFull, match="No space left on device"):
                gateway.submit(entry(1)).result(LIMIT_S)
        acknowledge(gateway, entry(1))
        (open_file,) = tmp_path.glob("*.open")
        before = open_file.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", _disk_full)
            with pytest.raises(GatewayFull, match="the gateway's log cannot be written: No space left on device"):
                gateway.submit(entry(2)).result(LIMIT_S)
        assert open_file.read_bytes() == before
        assert acknowledge(gateway, entry(2)) == [2]
        assert (counted(gateway, "accepted"), counted(gateway, "refused")) == (2, 2)
    assert messages(store) == ["h0/b1/1", "h0/b1/2"]


def test_segment_that_cannot_be_decoded_is_set_aside_and_does_not_block_the_rest(tmp_path: Path) -> None:
    store = FakeStore()
    # Each is cut for its size, whatever its age.
    options = GatewayOptions(segment_s=60_000.0, max_segment_bytes=1, leave_s=PATIENT_S)
    with capture_logs() as lines, running(tmp_path, store, options) as gateway:
        acknowledge(gateway, entry(1, body=b"no batch at all"))
        acknowledge(gateway, entry(2))
        eventually(lambda: messages(store) == ["h0/b1/2"])
        eventually(lambda: gateway.backlog_bytes == 0)
        assert counted(gateway, "set_aside") == 1
    assert [path.name for path in tmp_path.glob("*.bad")] == ["000000000001.bad"]
    (line,) = [line for line in lines if line["log_level"] == "error"]
    assert (line["event"], line["segment"]) == ("segment cannot be read and is set aside", "000000000001.segment")
    assert "not zstd" in line["reason"]


def test_damaged_segment_is_inserted_as_far_as_it_is_whole_and_then_set_aside(tmp_path: Path) -> None:
    with running(tmp_path, FakeStore(fault=away()), UNCUT) as gateway:
        acknowledge(gateway, entry(1), entry(2))
    (path,) = list_segments(tmp_path)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    store = FakeStore()
    with capture_logs() as lines, running(tmp_path, store):
        eventually(lambda: list(tmp_path.glob("*.bad")) != [])
    assert messages(store) == ["h0/b1/1"]
    assert path.with_suffix(".bad").read_bytes() == bytes(damaged)
    assert "what stands before it is in the store" in lines[0]["reason"]


def test_second_gateway_on_the_same_log_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    in_use = pytest.raises(LockstepError, match=f"another gateway uses the log in {tmp_path}")
    with running(tmp_path, FakeStore()), in_use:
        Gateway(tmp_path, FakeStore(), HastyClock(), GatewayOptions(leave_s=PATIENT_S))
    with running(tmp_path, FakeStore()):
        pass


def test_a_batch_that_two_gateways_acknowledged_is_stored_once(tmp_path: Path, control: ControlDatabase) -> None:
    store, down = FakeStore(), FakeStore(fault=away())
    first, second = tmp_path / "first", tmp_path / "second"
    with running(first, down, UNCUT, BatchClaims(control)) as gateway:
        acknowledge(gateway, entry(1), entry(2), entry(1, agent="h1"))
    # It has claimed all three, stored none, and is gone. Its last receipt was lost, so h0 tries elsewhere.
    with running(second, store, UNCUT, BatchClaims(control)) as gateway:
        assert acknowledge(gateway, entry(2), entry(3)) == [3, 3]
    assert messages(store) == ["h0/b1/3"], "2 is on the first gateway's disk, and its to store"
    with running(first, store, UNCUT, BatchClaims(control)) as gateway:
        acknowledge(gateway, entry(3), entry(4))  # the receipt of 3 was lost as well
    expected = [*(f"h0/b1/{number}" for number in range(1, 5)), "h1/b1/1"]
    assert sorted(map(str, messages(store))) == expected


def test_a_batch_of_a_dead_gateway_is_stored_by_who_is_asked_next(tmp_path: Path, control: ControlDatabase) -> None:
    left = OpenSegment(tmp_path, 5)
    left.append([entry(1), entry(2)])  # killed before the segment was cut, and before anybody heard of 2
    left._file.close()
    store = FakeStore()
    with running(tmp_path / "other", store, claims=BatchClaims(control)) as gateway:
        acknowledge(gateway, entry(2), entry(3))
    assert messages(store) == ["h0/b1/2", "h0/b1/3"], "nobody waits for the dead"
    with running(tmp_path, store, claims=BatchClaims(control)) as gateway:
        acknowledge(gateway, entry(4))
    assert messages(store) == ["h0/b1/2", "h0/b1/3", "h0/b1/1", "h0/b1/4"]
    assert [token.split("/")[1] for token in store.tokens[-2:]] == ["5", "6"], "its number is not used again"


def _disk_full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
