"""Batches are looked at together, and one that is bad takes nobody else down with it."""

import struct
from collections.abc import Iterator
from concurrent.futures import Future

import pyarrow as pa
import pytest

from api.ingest.checking import Arrival, BatchChecker, Bundle, CheckLimits, Rows, check_group
from api.ingest.log import Entry
from lockstep.arrow import schema_of
from lockstep.batches import encode_batch
from lockstep.errors import BadBatch, GatewayFull
from lockstep.records import Event
from lockstep.tables import TABLE_BY_NAME
from tests.builders import T0, make, rows

LIMITS = CheckLimits(max_bytes=1 << 20, max_rows=100)


def _batch(host: str, **facts: object) -> bytes:
    return encode_batch({"events": rows(make(Event, host=host, **facts))})


def _arrival(host: str, body: bytes | None = None) -> Arrival:
    return Arrival(Entry(host, "b1", 1, T0, _batch(host) if body is None else body), LIMITS)


def _negative_time(host: str) -> bytes:
    good = rows(make(Event, host=host))
    place = good.schema.get_field_index("ts_ns")
    return encode_batch({"events": good.set_column(place, good.schema.field(place), pa.array([-1], pa.int64()))})


def _unsound_text(host: str) -> bytes:
    """Return a batch whose message is no UTF-8, as it would come from a broken or hostile sender."""
    good = rows(make(Event, host=host, message="plain"))
    broken = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    place = good.schema.get_field_index("message")
    return encode_batch({"events": good.set_column(place, good.schema.field(place), broken)})


def _bad_offsets(host: str, offsets: list[int]) -> bytes:
    """Return a batch in which texts begin and end where a hostile sender says."""
    good = rows(*(make(Event, host=host) for _ in offsets[1:]))
    buffers = [None, pa.py_buffer(struct.pack(f"<{len(offsets)}i", *offsets)), pa.py_buffer(b"abc")]
    broken = pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
    place = good.schema.get_field_index("message")
    return encode_batch({"events": good.set_column(place, good.schema.field(place), broken)})


class Log:
    """Stands for the gateway's log: keeps what it is handed and acknowledges it with 7."""

    def __init__(self) -> None:
        self.bundles: list[Bundle] = []

    def take(self, bundle: Bundle) -> None:
        self.bundles.append(bundle)
        for future in bundle.futures:
            future.set_result(7)

    @property
    def hosts(self) -> list[str]:
        return [entry.agent for bundle in self.bundles for entry in bundle.entries]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def checker(log: Log) -> Iterator[BatchChecker]:
    checker = BatchChecker(log.take)
    checker.start()
    yield checker
    checker.close()


def _submit(checker: BatchChecker, arrival: Arrival) -> "Future[int]":
    checker.submit(arrival)
    return arrival.future


def _hosts(rows_by_shape: Rows) -> list[str]:
    return [host for table in rows_by_shape.values() for host in table["host"].to_pylist()]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"nothing", "not zstd"),
        (_negative_time("h1"), "negative time"),
        (_unsound_text("h1"), "not UTF-8"),
        (_bad_offsets("h1", [0, 100, 3]), "a bad offset"),
        (_bad_offsets("h1", [0, -7, 3]), "a bad offset"),
        (_batch("h2"), "this token is for h1, the row is from h2"),
        (encode_batch({"events": rows(*(make(Event, host="h1") for _ in range(101)))}), "more than 100 rows"),
    ],
)
def test_a_bad_batch_is_named_and_its_neighbours_pass(body: bytes, reason: str) -> None:
    (before, verdict, after), found = check_group([_arrival("h0"), _arrival("h1", body), _arrival("h2")])
    assert (before, after) == (None, None)
    assert isinstance(verdict, BadBatch)
    assert reason in str(verdict)
    assert _hosts(found) == ["h0", "h2"]


def test_every_bad_batch_of_a_group_has_its_own_reason() -> None:
    verdicts, found = check_group([_arrival("h0", _negative_time("h0")), _arrival("h1", b""), _arrival("h2")])
    assert ("negative time" in str(verdicts[0]), "empty" in str(verdicts[1]), verdicts[2]) == (True, True, None)
    assert _hosts(found) == ["h2"]
    assert [table.schema for table in found.values()] == [schema_of(TABLE_BY_NAME["events"])]
    mixed = encode_batch({"events": rows(make(Event, host="h5"), make(Event, host="h6"))})
    group = [_arrival(f"h{number}", mixed if number == 5 else None) for number in range(10)]
    verdicts, found = check_group(group)
    assert [place for place, verdict in enumerate(verdicts) if verdict] == [5]
    assert str(verdicts[5]) == "events, row 1: this token is for h5, the row is from h6"
    assert _hosts(found) == [f"h{number}" for number in range(10) if number != 5]
    verdicts, found = check_group([_arrival("h0", _batch("h1")), _arrival("h1", _batch("h0"))])
    assert [verdict.slug for verdict in verdicts if verdict] == ["wrong-host", "wrong-host"]
    assert _hosts(found) == []
    nothing = encode_batch({"events": rows(make(Event, host="h1")).slice(0, 0)})
    verdicts, found = check_group([_arrival("h0"), _arrival("h1", nothing), _arrival("h2")])
    assert verdicts == [None] * 3
    assert _hosts(found) == ["h0", "h2"]
    assert check_group([_arrival("h1", nothing)])[0] == [None]


def test_what_is_sound_goes_on_in_order_and_what_is_bad_is_answered_at_once(checker: BatchChecker, log: Log) -> None:
    hosts = [f"h{number}" for number in range(200)]
    futures = [_submit(checker, _arrival(host)) for host in hosts]
    bad = _submit(checker, _arrival("h0", b"nothing"))
    assert [future.result(20) for future in futures] == [7] * 200
    assert isinstance(bad.exception(20), BadBatch)
    assert log.hosts == hosts
    for bundle in log.bundles:
        assert _hosts(bundle.rows or {}) == [entry.agent for entry in bundle.entries]


def test_what_came_before_the_end_is_answered_and_what_comes_after_is_told(checker: BatchChecker) -> None:
    early = [_submit(checker, _arrival("h0")) for _ in range(50)]
    checker.close()
    assert all(future.exception(0) is None for future in early)
    assert isinstance(_submit(checker, _arrival("h0")).exception(0), GatewayFull)


def test_a_fault_of_ours_is_an_answer_too(checker: BatchChecker, monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    body = _batch("h0")
    monkeypatch.setitem(TABLE_BY_NAME, "events", None)
    assert _submit(checker, _arrival("h0", body)).exception(20) is not None
    assert log.bundles == []
    monkeypatch.undo()
    assert _submit(checker, _arrival("h0", body)).result(20) == 7
