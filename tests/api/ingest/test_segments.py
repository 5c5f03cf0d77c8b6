"""What of a segment is stored: the same rows from memory as from the log, and no rank of another host's."""

import threading
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from api.ingest import gateway as gateway_module
from api.ingest import segments
from api.ingest.checking import Arrival, Bundle, CheckLimits, Rows, check_group
from api.ingest.gateway import Gateway, GatewayOptions
from api.ingest.log import Entry, OpenSegment, Segment, read_segment
from api.ingest.segments import KeptRows, Piece, RankClaims, inserts_of, size_of
from lockstep.batches import encode_batch
from lockstep.records import Agent, Comm, Connection, Event, Progress
from lockstep.store.store import Parameters
from tests.api.fake_store import FakeStore, away
from tests.api.ingest.build import NOW_NS, PATIENT_S, entry, newer_batch, running
from tests.builders import SECOND, T0, make, rows
from tests.waiting import eventually

LIMIT_S = 60.0


LIMITS = CheckLimits(max_bytes=64 << 20, max_rows=100_000)


def take(gateway: Gateway, *entries: Entry) -> list[int]:
    """Hand over entries and return their watermarks, once all are acknowledged; the first may go ahead alone."""
    return [future.result(LIMIT_S) for future in [gateway.take(one, LIMITS) for one in entries]]


def messages(store: FakeStore) -> list[object]:
    return store.column("events", "message")


def newer(number: int) -> Entry:
    return entry(number, body=newer_batch(f"h0/b1/{number}"))


def two_tables(number: int) -> Entry:
    body = encode_batch({"agents": rows(make(Agent, host="h0")), "events": rows(make(Event, host="h0", message="x"))})
    return Entry("h0", "b1", number, NOW_NS, body)


@pytest.fixture
def segments_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    read: list[str] = []

    def watched(path: Path) -> Segment:
        read.append(path.name)
        return read_segment(path)

    monkeypatch.setattr(gateway_module, "read_segment", watched)
    return read


def test_memory_stays_within_its_bound_while_the_store_is_away(tmp_path: Path, segments_read: list[str]) -> None:
    store, bound = FakeStore(fault=away()), 500
    options = GatewayOptions(segment_s=60_000.0, max_segment_bytes=1, max_kept_bytes=bound, leave_s=PATIENT_S)
    with running(tmp_path, store, options) as gateway:
        for number in range(1, 13):
            take(gateway, entry(number))
            assert gateway._kept.size <= bound
        assert gateway._kept.size > 0
        store.fault = None
        eventually(lambda: gateway.backlog_bytes == gateway._kept.size == 0)
    assert messages(store) == [f"h0/b1/{number}" for number in range(1, 13)]
    assert 0 < len(segments_read) < 12


def test_batches_in_memory_are_stored_without_being_read_again(tmp_path: Path, segments_read: list[str]) -> None:
    store = FakeStore()
    with running(tmp_path, store, GatewayOptions(segment_s=60_000.0, leave_s=PATIENT_S)) as gateway:
        assert take(gateway, entry(1)) == [1]
        assert gateway.submit(entry(2)).result(LIMIT_S) == 2
        assert take(gateway, entry(3), entry(1, agent="h1")) == [3, 1]
    assert messages(store) == ["h0/b1/1", "h0/b1/2", "h0/b1/3", "h1/b1/1"]
    assert segments_read == []


def test_rows_do_not_pile_up_before_a_disk_that_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, ready = FakeStore(), threading.Event()
    append = OpenSegment.append

    def slow(segment: OpenSegment, entries: list[Entry]) -> None:
        assert ready.wait(LIMIT_S)
        append(segment, entries)

    bundles: list[Bundle] = []
    plain = Gateway._take_group

    def watched(gateway: Gateway) -> tuple[list[Bundle], bool]:
        group, running = plain(gateway)
        bundles.extend(bundle for bundle in group if bundle.entries)  # others only wake the thread
        return group, running

    monkeypatch.setattr(OpenSegment, "append", slow)
    monkeypatch.setattr(Gateway, "_take_group", watched)
    with running(tmp_path, store) as gateway:
        futures = []
        for number in range(1, 13):
            futures.append(gateway.take(entry(number), LIMITS))
            eventually(
                lambda: gateway._checker._queue.empty() and gateway._queue.qsize() + len(bundles) == len(futures)
            )
        ready.set()
        assert [future.result(LIMIT_S) for future in futures][-1] == 12
    assert len(bundles) == 12
    assert 0 < sum(bundle.rows is not None for bundle in bundles) < 12
    assert messages(store) == [f"h0/b1/{number}" for number in range(1, 13)]


@pytest.mark.parametrize("groups", [(8,), (1,) * 8, (3, 3, 2), (1, 6, 1)])
@pytest.mark.parametrize("unread", [(), (0,), (1, 2)])
def test_parts_are_the_same_from_the_log(
    groups: Sequence[int], unread: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tokens are the same too: other rows under one of them would be lost or doubled."""
    monkeypatch.setattr(segments, "_ROWS_PER_INSERT", 3)
    makers = (entry, entry, newer, two_tables, entry, newer, entry, two_tables)
    entries = [maker(number) for number, maker in enumerate(makers, start=1)]
    pieces: list[Piece] = []
    for place, count in enumerate(groups):
        group, entries = entries[:count], [*entries[count:], *entries[:count]]
        pieces.append(group if place in unread else check_group([Arrival(one, LIMITS) for one in group])[1])
    from_memory = [(table, number, rows.to_pylist()) for table, number, rows in inserts_of(pieces)]
    from_log = [(table, number, rows.to_pylist()) for table, number, rows in inserts_of([entries])]
    assert from_memory == from_log
    assert [(table, number) for table, number, _ in from_log] == [
        ("agents", 0), ("events", 0), ("events", 1), ("events", 2)
    ]  # fmt: skip


def rows_of(*entries: Entry) -> Rows:
    verdicts, rows = check_group([Arrival(one, LIMITS) for one in entries])
    assert verdicts == [None] * len(entries)
    return rows


def test_rows_are_kept_in_their_order_as_long_as_they_fit_and_make_room_when_forgotten() -> None:
    kept = KeptRows(1 << 20)
    pieces: list[Piece] = [rows_of(entry(1), entry(2)), [entry(3)], rows_of(entry(4))]
    for piece in pieces:
        kept.add(1, piece, ())
        kept.add(2, piece, ())
    assert kept.get(1) == kept.get(2) == pieces
    assert kept.get(3) is None
    kept = KeptRows(len(entry(1).body))
    kept.add(1, [entry(1)], ())
    kept.add(2, [entry(2)], ())
    assert (kept.size, kept.get(2)) == (len(entry(1).body), None), "unread batches count with their bodies"
    one = rows_of(entry(1), entry(2))
    kept = KeptRows(size_of(one) * 2)
    kept.add(1, one, ())
    for _ in range(5):
        kept.add(2, one, ())
        assert kept.size <= size_of(one) * 2
    assert (kept.get(1), kept.get(2), kept.size) == ([one], None, size_of(one)), "what fitted before stays"
    kept.forget(1)
    assert (kept.size, kept.get(1)) == (0, None)
    kept.add(3, one, ())
    assert kept.get(3) == [one]


def test_rows_hold_on_to_nothing_of_their_batch_but_themselves() -> None:
    large = entry(1, body=newer_batch("small", novelty="x" * 5_000_000))
    tracemalloc.start()
    try:
        kept = rows_of(large)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    assert size_of(kept) < 1_000


class Held(FakeStore):
    """A store that knows some claims and counts how often it is asked."""

    def __init__(self, *known: Comm) -> None:
        super().__init__()
        self.asked: list[list[int]] = []
        self._known = rows(*known) if known else rows(make(Comm))[:0]

    def query(self, sql: str, parameters: Parameters | None = None) -> pa.Table:
        self.asked.append((parameters or {})["comms"])
        return self._known


def progress(host: str, rank: int = 0, **fields: object) -> Progress:
    return make(Progress, host=host, rank=rank, head_state="idle", **fields)


def hosts(kept: Mapping[str, pa.Table], name: str) -> list[str]:
    found: list[str] = kept[name]["host"].to_pylist()
    return found


def test_rows_of_a_rank_are_kept_from_its_first_host_and_a_second_claim_becomes_one_event() -> None:
    claims = RankClaims(Held())
    told = {"comms": rows(make(Comm, host="h3", rank=3), make(Comm, host="h9", rank=3, init_ns=1))}
    told |= {"progress": rows(progress("h9", 3), progress("h3", 3), progress("h9", 2))}
    kept, foreign = claims.admit(told, T0)
    assert (hosts(kept, "comms"), hosts(kept, "progress"), foreign) == (["h3"], ["h3", "h9"], 2)
    (event,) = kept["events"].to_pylist()
    assert (event["host"], event["source"], event["kind"]) == ("h9", "gateway", "rank_claimed_twice")
    assert event["message"].startswith("h9 claims rank 3 of communicator 0000000000000007 of job j1, which another")
    kept, _ = claims.admit(told | {"events": rows(make(Event))}, T0)
    assert hosts(kept, "events") == ["h0"], "it is told once"
    claims.tell_again()
    assert hosts(claims.admit(told, T0)[0], "events") == ["h9"], "unless it may not have been stored"


def test_other_attempts_jobs_and_communicators_are_other_ranks() -> None:
    claims = RankClaims(Held())
    claims.admit({"comms": rows(make(Comm, host="h3"))}, T0)
    again = rows(*(make(Comm, host="h9", **other) for other in ({"attempt": 1}, {"job": "j2"}, {"comm": 8})))
    kept, foreign = claims.admit({"comms": again}, T0)
    assert (kept["comms"].num_rows, foreign, "events" in kept) == (3, 0, False)


def test_who_held_a_rank_before_the_gateway_began_is_asked_once_in_a_while() -> None:
    store = Held(make(Comm, host="h3"))
    claims = RankClaims(store)
    told = {"progress": rows(progress("h3"), progress("h9"), progress("h9", comm=8))}
    told |= {"connections": rows(make(Connection, host="h9", comm=None, rank=None))}
    for later_s in (0, 1, 11):
        kept, foreign = claims.admit(told, T0 + later_s * SECOND)
        assert (hosts(kept, "progress"), hosts(kept, "connections"), foreign) == (["h3", "h9"], ["h9"], 1)
    assert store.asked == [[7, 8], [8]], "nobody has claimed 8, but another gateway may have taken it meanwhile"
