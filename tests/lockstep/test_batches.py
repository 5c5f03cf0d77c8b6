"""A batch comes out as it went in, or is refused with a reason; nothing in it can hurt the gateway."""

from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lockstep import batches
from lockstep.arrow import conform, rows_of, schema_of
from lockstep.batches import ACCEPTED_VERSIONS, decode_batch, encode_batch, unpack_body
from lockstep.errors import BadBatch
from lockstep.records import RECORDS_VERSION, Agent, Collective, NicCounter
from lockstep.tables import TABLE_BY_NAME, TABLES
from tests.builders import make, rows
from tests.lockstep.memory import taking_less_than
from tests.lockstep.record_strategies import records_of

QUICK = settings(max_examples=15)
MAX_BYTES, MAX_ROWS = 8 << 20, 1_000

TABLES_SENT = {
    "collectives": rows(*(make(Collective, seq=seq) for seq in range(20))),
    "nic_counters": rows(make(NicCounter, extra={"rx_pause": 3}), make(NicCounter, nic="eth1")),
}
BODY = encode_batch(TABLES_SENT)
PLAIN = unpack_body(BODY, MAX_BYTES)
ONE_STREAM = unpack_body(encode_batch({"collectives": TABLES_SENT["collectives"]}), MAX_BYTES)
AGENTS = rows(make(Agent), make(Agent, ts_ns=5))
GARBAGE = (b"garbage", b"{}", b"\x00" * 100, b"\xff" * 100)


def decoded(body: bytes) -> dict[str, pa.Table]:
    return decode_batch(body, MAX_BYTES, MAX_ROWS)


def refusal(body: bytes) -> str:
    with pytest.raises(BadBatch) as caught:
        decoded(body)
    assert (caught.value.slug, caught.value.status) == ("bad-batch", 400)
    return str(caught.value)


def packed(*pieces: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        for piece in pieces:
            stream.write(piece)
    return bytes(sink.getvalue())


def stream_of(
    table: pa.Table, name: str | None = "agents", **options: Any
) -> bytes:  # Any: whatever Arrow's options take
    """Return rows as a foreign sender might send them: with their own schema, under a table's name."""
    sink = pa.BufferOutputStream()
    named = table.replace_schema_metadata({"table": name} if name is not None else None)
    with pa.ipc.new_stream(sink, named.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_table(named)
    return bytes(sink.getvalue())


def with_column(name: str, values: pa.Array) -> pa.Table:
    return AGENTS.set_column(AGENTS.schema.get_field_index(name), name, values)


@QUICK
@given(st.data())
def test_batches_survive_the_way(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(TABLE_BY_NAME)), min_size=1, max_size=3, unique=True))
    tables = [TABLE_BY_NAME[name] for name in names]
    sent = {table.name: rows_of(table, data.draw(st.lists(records_of(table), max_size=3))) for table in tables}
    received = decoded(encode_batch(sent))
    assert list(received) == names
    for name in names:
        assert received[name].equals(sent[name])
        assert received[name].schema.equals(schema_of(TABLE_BY_NAME[name]), check_metadata=True)


def test_rows_in_chunks_arrive_in_order_and_no_rows_are_a_batch() -> None:
    chunks = pa.concat_tables([AGENTS.slice(1, 1), AGENTS.slice(0, 1)])
    assert decoded(encode_batch({"agents": chunks}))["agents"].equals(chunks.combine_chunks())
    empty = {table.name: schema_of(table).empty_table() for table in TABLES}
    assert {name: got.num_rows for name, got in decoded(encode_batch(empty)).items()} == dict.fromkeys(empty, 0)


def test_columns_of_other_releases_are_left_out_or_null() -> None:
    newer = AGENTS.append_column("mood", pa.array(["fine", "fine"], pa.string_view()))
    broken = newer.append_column("text", pa.array([b"fine", b"\xff\xfe"]).view(pa.string()))
    assert decoded(packed(stream_of(broken)))["agents"].equals(AGENTS)
    older = AGENTS.drop_columns(["plugin_cost_ns"])
    assert decoded(packed(stream_of(older)))["agents"]["plugin_cost_ns"].to_pylist() == [None, None]


def test_shape_of_a_table_is_read_once_and_is_that_of_its_columns_alone() -> None:
    decoded(packed(stream_of(AGENTS)))
    before = batches._known_shape.cache_info()
    decoded(packed(stream_of(AGENTS)))
    large = AGENTS.append_column("x" * (16 << 10), pa.array([1, 2]))
    assert decoded(packed(stream_of(large)))["agents"].equals(AGENTS)
    after = batches._known_shape.cache_info()
    assert (after.hits - before.hits, after.misses - before.misses, after.currsize) == (1, 0, before.currsize)
    remarked = AGENTS.schema.with_metadata({"table": "agents", "remark": "hello"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, remarked) as stream:
        stream.write_table(AGENTS.cast(remarked))
    newer = stream_of(AGENTS.append_column("mood", AGENTS["host"]))
    bodies = [packed(content) for content in (stream_of(AGENTS), bytes(sink.getvalue()), newer)]
    plain, same, other = (next(iter(batches.read_batch(body, MAX_BYTES, MAX_ROWS))) for body in bodies)
    assert plain == same != other


def test_this_version_and_the_one_before_are_accepted() -> None:
    assert RECORDS_VERSION in ACCEPTED_VERSIONS
    assert RECORDS_VERSION + 1 not in ACCEPTED_VERSIONS
    assert RECORDS_VERSION - 2 not in ACCEPTED_VERSIONS


NOT_ZSTD = "the body is not zstd: *"
NOT_STREAMS = "the body is not a sequence of whole Arrow streams: *"
PLAIN_ONLY = "the streams must hold plain record batches, neither dictionaries nor compressed buffers"


def test_body_cut_short_is_refused() -> None:
    for length in range(1, len(BODY), 97):
        assert fnmatchcase(refusal(BODY[:length]), NOT_ZSTD)
    for length in range(1, len(ONE_STREAM), 97):
        assert fnmatchcase(refusal(packed(ONE_STREAM[:length])), NOT_STREAMS)
    # A stream without its end mark reads like a whole one with fewer rows.
    assert refusal(packed(stream_of(AGENTS)[:-8])) == NOT_STREAMS.replace("*", "agents has no end")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        *((garbage, NOT_ZSTD) for garbage in GARBAGE),
        *((packed(garbage), NOT_STREAMS) for garbage in GARBAGE),
        (b"", "the batch is empty"),
        (packed(b""), "the batch is empty"),
        *((packed(PLAIN, tail), NOT_STREAMS) for tail in (b"x", b"\x00" * 8, PLAIN[:100])),
        *((BODY + packed(tail), NOT_STREAMS) for tail in (b"x", b"\x00" * 8, PLAIN[:100])),
        (BODY + b"tail", NOT_ZSTD),
        (BODY + BODY, "the batch holds collectives twice"),
    ],
)
def test_body_that_is_no_batch_is_refused(body: bytes, problem: str) -> None:
    assert fnmatchcase(refusal(body), problem)


@pytest.mark.parametrize("name", ["agent", "AGENTS", "", "agents; DROP TABLE agents", "migrations", None])
def test_table_that_does_not_exist_is_refused(name: str | None) -> None:
    assert refusal(packed(stream_of(AGENTS, name))) == f"there is no table {name or ''!r}"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (with_column("ts_ns", pa.array([1, 2], pa.int32())), "agents, column ts_ns: is int32, not int64"),
        (
            with_column("version", pa.array(["1", "2"]).dictionary_encode()),
            "agents, column version: is dictionary<values=string, indices=int32, ordered=0>*",
        ),
        (with_column("plugin_cost_ns", pa.nulls(2)), "agents, column plugin_cost_ns: is null, not int64"),
        (with_column("ts_ns", pa.array([5, -5])), "agents, column ts_ns, row 1: negative time (-5)"),
        (AGENTS.append_column("mood", pa.array(["fine", "fine"]).dictionary_encode()), PLAIN_ONLY),
        (
            with_column("version", pa.array([b"1", b"\xff\xfe"]).view(pa.string())),
            "agents, column version, row 1: is broken*",
        ),
    ],
)
def test_rows_at_fault_are_refused_by_column_and_row(table: pa.Table, problem: str) -> None:
    assert fnmatchcase(refusal(packed(stream_of(table))), problem)


def test_compressed_buffers_which_could_unpack_into_far_more_are_refused() -> None:
    for codec in ("lz4", "zstd"):
        assert refusal(packed(stream_of(AGENTS, compression=codec))) == PLAIN_ONLY


def test_rows_and_bytes_are_taken_up_to_their_limits_and_refused_as_too_large_beyond() -> None:
    body = encode_batch({"agents": AGENTS, "nic_counters": TABLES_SENT["nic_counters"]})
    assert sum(table.num_rows for table in decode_batch(body, MAX_BYTES, max_rows=4).values()) == 4
    with pytest.raises(BadBatch, match="more than 3 rows") as caught:
        decode_batch(body, MAX_BYTES, max_rows=3)
    assert (caught.value.slug, caught.value.status) == ("too-large", 413)
    assert unpack_body(BODY, len(PLAIN)) == PLAIN
    with pytest.raises(BadBatch, match="unpacks to more than") as caught:
        unpack_body(BODY, len(PLAIN) - 1)
    assert (caught.value.slug, caught.value.status) == ("too-large", 413)


def test_bomb_is_refused_without_being_unpacked() -> None:
    unpacked = 256 << 20
    bomb = packed(*[bytes(1 << 20)] * (unpacked >> 20))
    assert len(bomb) < 64 << 10
    before = pa.total_allocated_bytes()
    with taking_less_than(3 * MAX_BYTES), pytest.raises(BadBatch, match="more than 8 MiB"):
        decoded(bomb)
    assert pa.total_allocated_bytes() - before < MAX_BYTES


FLIPS = st.lists(st.tuples(st.integers(0, len(PLAIN) - 1), st.integers(0, 7)), min_size=1, max_size=4)


def flipped(sound: bytes, flips: list[tuple[int, int]]) -> bytes:
    broken = bytearray(sound)
    for place, bit in flips:
        broken[place % len(broken)] ^= 1 << bit
    return bytes(broken)


@given(FLIPS)
@example([(4, 7)])  # the length of the first message
def test_flipped_bits_give_sound_rows_or_a_refusal(flips: list[tuple[int, int]]) -> None:
    for body in (packed(flipped(PLAIN, flips)), flipped(BODY, flips)):
        try:
            found = decoded(body)
        except BadBatch:
            continue
        for name, got in found.items():
            assert conform(TABLE_BY_NAME[name], got).equals(got)
