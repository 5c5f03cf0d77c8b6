"""Batches are looked at together, and one that is bad takes nobody else down with it."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from api.gateway.checking import Arrival, BatchChecker, CheckLimits, check_group, join_tables
from lockstep.batches import encode_batch
from lockstep.errors import BadBatch, GatewayFull
from lockstep.records import Event
from lockstep.tables import TABLE_BY_NAME
from tests.builders import make, rows

LIMITS = CheckLimits(max_bytes=1 << 20, max_rows=100)


def _batch(host: str, **facts: object) -> bytes:
    return encode_batch({"events": rows(make(Event, host=host, **facts))})


def _arrival(host: str, body: bytes | None = None) -> Arrival:
    return Arrival(_batch(host) if body is None else body, host, LIMITS)


def _negative_time(host: str) -> bytes:
    good = rows(make(Event, host=host))
    place = good.schema.get_field_index("ts_ns")
    return encode_batch({"events": good.set_column(place, good.schema.field(place), pa.array([-1], pa.int64()))})


@pytest.fixture
def checker() -> Iterator[BatchChecker]:
    checker = BatchChecker()
    checker.start()
    yield checker
    checker.close()


def test_sound_batches_of_many_hosts_pass_together() -> None:
    assert check_group([_arrival(f"h{number}") for number in range(20)]) == [None] * 20


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"nothing", "not zstd"),
        (_negative_time("h1"), "negative time"),
        (_batch("h2"), "this token is for h1, the row is from h2"),
        (encode_batch({"events": rows(*(make(Event, host="h1") for _ in range(101)))}), "more than 100 rows"),
    ],
)
def test_a_bad_batch_is_named_and_its_neighbours_pass(body: bytes, reason: str) -> None:
    before, verdict, after = check_group([_arrival("h0"), _arrival("h1", body), _arrival("h2")])
    assert (before, after) == (None, None)
    assert isinstance(verdict, BadBatch)
    assert reason in str(verdict)


def test_every_bad_batch_of_a_group_has_its_own_reason() -> None:
    verdicts = check_group([_arrival("h0", _negative_time("h0")), _arrival("h1", b""), _arrival("h2")])
    assert "negative time" in str(verdicts[0])
    assert "empty" in str(verdicts[1])
    assert verdicts[2] is None


def test_batches_of_agents_of_two_releases_are_joined_apart() -> None:
    now = rows(make(Event, host="h0"))
    newer = now.append_column("novelty", pa.array([1]))
    pieces = join_tables([{"events": now}, {"events": newer}, {"events": now}])["events"]
    assert [piece.num_rows for piece in pieces] == [2, 1]
    assert [piece.schema.names == now.schema.names for piece in pieces] == [True, False]


def test_a_batch_is_answered_while_others_wait(checker: BatchChecker) -> None:
    futures = [checker.submit(_batch(f"h{number}"), f"h{number}", LIMITS) for number in range(200)]
    bad = checker.submit(b"nothing", "h0", LIMITS)
    assert [future.result(20) for future in futures] == [None] * 200
    assert isinstance(bad.exception(20), BadBatch)


def test_what_came_before_the_end_is_answered_and_what_comes_after_is_told(checker: BatchChecker) -> None:
    early = [checker.submit(_batch("h0"), "h0", LIMITS) for _ in range(50)]
    checker.close()
    assert all(future.exception(0) is None for future in early)
    assert isinstance(checker.submit(_batch("h0"), "h0", LIMITS).exception(0), GatewayFull)


def test_a_fault_of_ours_is_an_answer_too(checker: BatchChecker, monkeypatch: pytest.MonkeyPatch) -> None:
    body = _batch("h0")
    monkeypatch.setitem(TABLE_BY_NAME, "events", None)
    assert checker.submit(body, "h0", LIMITS).exception(20) is not None
    monkeypatch.undo()
    assert checker.submit(body, "h0", LIMITS).exception(20) is None
