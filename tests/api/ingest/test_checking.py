"""Batches are looked at together: what no honest agent says is refused with its row and takes nobody else down."""

import struct
from collections.abc import Iterator
from concurrent.futures import Future

import pyarrow as pa
import pytest

from api.ingest.checking import Arrival, BatchChecker, Bundle, CheckLimits, Rows, Tally, check_group
from api.ingest.log import Entry
from lockstep.arrow import schema_of
from lockstep.batches import encode_batch
from lockstep.bounds import BOUNDS, keep_within
from lockstep.errors import BadBatch, GatewayFull
from lockstep.records import Agent, Comm, Event, FabricCounter, HostRecord, Progress
from lockstep.tables import TABLE_BY_NAME, TABLES
from tests.builders import SECOND, T0, make, rows

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


AHEAD = T0 + BOUNDS.ahead_ns
MANY = CheckLimits(max_bytes=64 << 20, max_rows=100_000)
PORT = make(FabricCounter, host="h1", switch="leaf1", port="1", up=True, extra={})


def arrival(*records: HostRecord, is_fabric: bool = False, received_ns: int = T0) -> Arrival:
    kinds = {table.name: [each for each in records if type(each) is table.record] for table in TABLES}
    body = encode_batch({name: rows(*found) for name, found in kinds.items() if found})
    return Arrival(Entry("h1", "b1", 1, received_ns, body), MANY, is_fabric)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            make(Event, host="h1", ts_ns=AHEAD + SECOND),
            f"row 0: ts_ns is {AHEAD + SECOND}, more than an hour ahead of {T0}: set",
        ),
        (make(Comm, host="h1", destroy_ns=2**62), "destroy_ns is"),
        (make(Comm, host="h1", rank=4), "rank is 4, which a communicator of its size cannot have"),
        (make(Comm, host="h1", nranks=4, nnodes=5), "nnodes is 5, which"),
        (make(Comm, host="h1", nranks=2**31, nnodes=1), "nranks is 2147483648, which"),
        (make(Comm, host="h1", rank=2**32 - 1, nranks=2**32 - 1), "rank is 4294967295, and must be below 1048576"),
        (make(Progress, host="h1", rank=2**32 - 1, head_state="idle"), "rank is 4294967295"),
        (make(Comm, host="h1", job="a\nb"), "job is 'a\\nb', too long, or with control characters"),
        (make(Comm, host="h1", name="\x1b[2J"), "name is '"),
        (make(Comm, host="h1", name="a\u202eb"), "name is '"),
        (make(Comm, host="h1", job="a" * 1025), "job is 'aaa"),
        (make(Event, host="h1", component="gpu:h3/0"), "h1 reports on 'gpu:h3/0', which is not its own"),
        (make(Event, host="h1", component="gpu:h10/0"), "h1 reports on 'gpu:h10/0'"),
        (make(Event, host="h1", component="switch:leaf1"), "h1 reports on 'switch:leaf1'"),
        (make(Event, host="h1", source="gateway"), "only the gateway itself"),
        (PORT, "h1 reports on switches, which needs a token of scope fabric"),
    ],
)
def test_what_no_honest_agent_says_is_refused_and_neighbours_pass(record: HostRecord, reason: str) -> None:
    (verdict, other), taken = check_group([arrival(make(Agent, host="h1"), record), _arrival("h2")])
    assert verdict is not None
    assert reason in str(verdict)
    assert (other, [table["host"].to_pylist() for table in taken.values()]) == (None, [["h2"]])


def test_a_collector_leaves_out_what_would_have_all_of_its_host_refused() -> None:
    members = (make(Comm, rank=9), make(Comm, rank=1), make(Comm, init_ns=AHEAD + 1, rank=2), make(Comm, job="a\nb"))
    assert keep_within("comms", rows(*members), T0)["rank"].to_pylist() == [1]


def test_what_honest_hosts_say_at_their_most_is_taken() -> None:
    honest = (
        make(Event, host="h1", ts_ns=AHEAD),
        make(Event, host="h1", component="nic:h1/mlx5_0", message="line\twith \x1b[1m of a driver"),
        make(Event, host="h1", component="rank:7"),
        make(Event, host="h1", component="nic:h9/eth0", source="probes", kind="probe_silent"),
        make(Comm, host="h1", job="größe 実験", rank=3),
    )
    assert check_group([arrival(*honest)])[0] == [None]
    fabric = (PORT, make(Event, host="h1", component="switch:leaf1"))
    assert check_group([arrival(*fabric, is_fabric=True)])[0] == [None]


def test_a_host_tells_of_so_many_jobs_and_communicators_a_minute() -> None:
    tally = Tally()
    many = [make(Comm, host="h1", job=f"j{number}") for number in range(BOUNDS.jobs)]
    assert check_group([arrival(*many)], tally)[0] == [None]
    assert check_group([arrival(*many[:9])], tally)[0] == [None], "the same ones again"
    one_more = make(Comm, host="h1", job="more")
    (verdict,), taken = check_group([arrival(one_more)], tally)
    assert (str(verdict), verdict and verdict.status) == ("h1 reports more than 256 jobs in a minute", 429)
    assert not taken
    assert check_group([arrival(one_more, received_ns=T0 + 60 * SECOND)], tally)[0] == [None]
    (alone,), _ = check_group([arrival(*many, one_more, received_ns=T0 + 120 * SECOND)], tally)
    assert alone is not None
    assert alone.status == 400, "waiting would not help"
    comms = [make(Comm, host="h1", comm=number) for number in range(BOUNDS.comms + 1)]
    (verdict,), _ = check_group([arrival(*comms, received_ns=T0 + 180 * SECOND)], tally)
    assert str(verdict) == "h1 reports more than 16384 comms in a minute"
