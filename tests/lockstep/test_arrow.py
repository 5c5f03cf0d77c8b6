"""Foreign rows become exact rows, or are refused with the column and the row that is at fault."""

from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.arrow import ARROW_TYPES, conform, fill_rows, find_duplicate, rows_of, schema_of
from lockstep.errors import BadRows
from lockstep.records import Agent, Collective, Comm, Connection, GpuHealth, NicCounter, Probe, Transfer, TransferStat
from lockstep.tables import TABLE_BY_NAME, TABLES, Table, columns_of
from tests.builders import make, rows
from tests.lockstep.record_strategies import records_of

QUICK = settings(max_examples=6)
PROBE, GPU = make(Probe, hops=["leaf0"]), make(GpuHealth, temp_c=40.0)
# Two rows of the table that has a column of the kind.
SAMPLES = {
    "collectives": rows(make(Collective, seq=0), make(Collective, seq=1)),
    "transfers": rows(make(Transfer, seq=0), make(Transfer, seq=1)),
    "nic_counters": rows(make(NicCounter, nic="eth0"), make(NicCounter, nic="eth1")),
    "probes": rows(PROBE, PROBE),
    "gpu_health": rows(GPU, GPU),
}
COLLECTIVES, SAMPLE = TABLE_BY_NAME["collectives"], SAMPLES["collectives"]


def with_column(sample: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    return sample.set_column(sample.schema.get_field_index(name), name, values)


def conformed(table: str, name: str, values: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return conform(TABLE_BY_NAME[table], with_column(SAMPLES[table], name, values))[name]


def maps(*values: list[tuple[str, Any]], count: pa.DataType) -> pa.Array:
    return pa.array(values, pa.map_(pa.string(), count))


@QUICK
@given(st.data())
def test_records_survive_becoming_rows(data: st.DataObject) -> None:
    table = data.draw(st.sampled_from(TABLES))
    records = data.draw(st.lists(records_of(table), max_size=2))
    made = conform(table, rows_of(table, records))
    assert made.schema.equals(schema_of(table), check_metadata=True)
    assert [table.record(**with_dicts(row)) for row in made.to_pylist()] == records


def with_dicts(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with its map as the record has it; Arrow gives maps as lists of pairs."""
    return row | {name: dict(row[name]) for name in ("extra", "stalled") if name in row}


def test_columns_may_be_missing_in_another_order_or_of_a_newer_release() -> None:
    of_before = rows(make(Agent), make(Agent)).drop_columns(["ended", "gateway", "stalled"])
    taken = conform(TABLE_BY_NAME["agents"], of_before).select(["ended", "gateway", "stalled"])
    assert taken.to_pylist() == [{"ended": None, "gateway": None, "stalled": []}] * 2
    newer = SAMPLE.append_column("mood", pa.array(["fine", "fine"]))
    assert conform(COLLECTIVES, newer.select(newer.column_names[::-1])).equals(SAMPLE)
    made = conform(COLLECTIVES, SAMPLE.drop_columns(["start_ns"]))
    assert made["start_ns"].to_pylist() == [None, None]
    assert made.schema == schema_of(COLLECTIVES)


def test_empty_rows_pass_and_no_needed_column_may_be_missing() -> None:
    for table in TABLES:
        schema = schema_of(table)
        empty = schema.empty_table()
        assert conform(table, empty).equals(empty)
        assert find_duplicate(table, empty) is None
        chunkless = pa.Table.from_arrays([pa.chunked_array([], field.type) for field in schema], schema=schema)
        assert conform(table, chunkless).schema == schema
        for name in (name for name, column in columns_of(table).items() if not column.may_lack):
            with pytest.raises(BadRows, match=rf"^{table.name}, column {name}: the column is missing$"):
                conform(table, empty.drop_columns([name]))


@pytest.mark.parametrize("name", ["channels", "attempt", "rank", "seq", "peer", "end_ns"])
def test_integers_of_any_width_fit_when_their_values_do(name: str) -> None:
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()):
        found = conformed("collectives", name, pa.array([0, 127], kind))
        assert found.type == schema_of(COLLECTIVES).field(name).type
        assert found.to_pylist() == [0, 127]


@pytest.mark.parametrize(
    ("table", "name", "values"),
    [
        ("collectives", "func", pa.array(["Send", "Recv"], pa.large_string())),
        ("collectives", "func", pa.array(["Send", "Recv"], pa.string_view())),
        ("collectives", "seq", pa.array([0, 2**64 - 1], pa.uint64())),
        ("collectives", "func", pa.array(["Send", "Recv"], pa.large_string()).dictionary_encode()),
        ("collectives", "clock", pa.array(["gpu", "none"]).dictionary_encode()),
        ("collectives", "channels", pa.array([1, 255], pa.int64()).dictionary_encode()),
        ("collectives", "end_ns", pa.array([None, 5], pa.int64()).dictionary_encode()),
        ("collectives", "start_ns", pa.nulls(2)),
        ("transfers", "transport", pa.nulls(2)),
        ("gpu_health", "temp_c", pa.array([40, 41], pa.int32())),
        ("gpu_health", "temp_c", pa.array([0.5, None], pa.float32())),
        ("probes", "hops", pa.array([["leaf0", "spine1"], []], pa.large_list(pa.large_string()))),
        ("probes", "hops", pa.array([["leaf0"], []], pa.list_(pa.field("element", pa.string())))),
        ("probes", "hops", pa.array([[], []], pa.list_(pa.null()))),
        ("probes", "hops", pa.array([[None], ["leaf0"], []], pa.list_(pa.string()))[1:]),  # the fault is outside
        ("nic_counters", "extra", pa.array([[("rx", 1)], []], pa.map_(pa.large_string(), pa.uint64()))),
        ("nic_counters", "extra", maps([("rx", 1)], [], count=pa.int8())),
        ("nic_counters", "extra", maps([("rx", None)], [("rx", 2)], [], count=pa.uint64())[1:]),
        ("nic_counters", "extra", maps([("rx", -1)], [("rx", 2)], [], count=pa.int64())[1:]),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.type),
)
def test_foreign_types_become_ours(table: str, name: str, values: pa.Array) -> None:
    found = conformed(table, name, values)
    assert found.type == schema_of(TABLE_BY_NAME[table]).field(name).type
    assert found.to_pylist() == values.to_pylist()


def test_filled_rows_repeat_single_values_and_leave_the_rest_null() -> None:
    made = fill_rows(TABLE_BY_NAME["steps"], 2, {"host": "h0", "step": pa.array([4, 5]), "end_ns": None})
    assert made.schema == schema_of(TABLE_BY_NAME["steps"])
    found = [made[name].to_pylist() for name in ("host", "step", "end_ns", "job")]
    assert found == [["h0", "h0"], [4, 5], [None, None], [None, None]]


@pytest.mark.parametrize(
    ("table", "name", "values"),
    [
        ("collectives", "rank", pa.array(["0", "1"])),
        ("collectives", "func", pa.array([b"Send", b"Recv"])),
        ("collectives", "func", pa.array([0, 1])),
        ("collectives", "end_ns", pa.array([0, 1], pa.timestamp("ns"))),
        ("collectives", "end_ns", pa.array([0.0, 1.0])),
        ("collectives", "captured", pa.array([0, 1])),
        ("gpu_health", "temp_c", pa.array(["40", "41"])),
        ("probes", "hops", pa.array(["leaf0", "leaf1"])),
        ("probes", "hops", pa.array([[0], [1]])),
        ("nic_counters", "extra", pa.array([[("rx", "1")], []], pa.map_(pa.string(), pa.string()))),
        ("nic_counters", "extra", pa.array([{"rx": 1}, {"rx": 2}])),
        ("nic_counters", "nic", pa.array([["eth0"], ["eth1"]])),
        ("probes", "hops", pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), pa.array([["leaf0"]]))),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.type),
)
def test_wrong_type_is_refused_with_both_types(table: str, name: str, values: pa.Array) -> None:
    wanted = schema_of(TABLE_BY_NAME[table]).field(name).type
    with pytest.raises(BadRows) as caught:
        conformed(table, name, values)
    assert str(caught.value) == f"{table}, column {name}: is {values.type}, not {wanted}"


NO_NULL, NO_NULL_INSIDE = "is null, and must not be", "has a null inside a list or map"
LIARS = pa.ListArray.from_arrays([0, 1, 3], pa.array(["a", "b", None]), type=ARROW_TYPES["texts"])
REFUSED: list[tuple[str, str, pa.Array, str]] = [
    *(
        ("collectives", name, pa.array([0, value], pa.int64()), f"{value} does not fit into *")
        for name, value in (
            ("channels", 2**8),
            ("attempt", 2**16),
            ("rank", 2**32),
            ("peer", 2**31),
            ("peer", -(2**31) - 1),
        )
    ),
    *(
        ("collectives", name, pa.array([0, -1], kind), "-1 *")
        for name in ("channels", "attempt", "rank", "seq")
        for kind in (pa.int8(), pa.int64())
    ),
    *(
        ("collectives", name, pa.array([2**63 - 1, value], pa.uint64()), f"{value} does not fit into int64")
        for name in ("enqueue_ns", "end_ns")
        for value in (2**63, 2**64 - 1)
    ),
    ("collectives", "channels", pa.array([1, 300]).dictionary_encode(), "*"),
    ("nic_counters", "extra", maps([("rx", 1)], [("rx", 2), ("tx", -1)], count=pa.int64()), "*"),
    ("gpu_health", "temp_c", pa.array([1, 2**53 + 1]), "*"),
    ("collectives", "end_ns", pa.array([None, -5]), "negative time (-5)"),
    ("transfers", "wire_ns", pa.array([0, -1]), "negative duration (-1)"),
    ("collectives", "func", pa.array(["Send", None]), NO_NULL),
    ("collectives", "enqueue_ns", pa.array([1, None]), NO_NULL),
    ("probes", "hops", pa.array([["leaf0"], None]), NO_NULL),
    ("nic_counters", "up", pa.array([True, None]), NO_NULL),
    ("probes", "hops", pa.array([["leaf0"], ["leaf1", None]]), NO_NULL_INSIDE),
    ("probes", "hops", LIARS, "*"),
    ("nic_counters", "extra", maps([("rx", 1)], [("rx", None)], count=pa.uint64()), NO_NULL_INSIDE),
    ("nic_counters", "extra", maps([("rx", 1)], [("rx", None)], count=pa.int16()), NO_NULL_INSIDE),
    *(
        ("gpu_health", "temp_c", pa.array([1.0, float(value)], kind), f"NaN or infinite ({value})")
        for value in ("nan", "inf", "-inf")
        for kind in (pa.float64(), pa.float32())
    ),
    # What pandas makes of integers with a hole.
    (
        "collectives",
        "channels",
        pa.array([1.0, float("nan")]),
        "is double, not uint8 (NaN is not a number of anything)",
    ),
    *(
        (table, name, pa.array([choices[0], "smoke"]), f"'smoke' is none of {', '.join(choices)}")
        for table, name in (("collectives", "clock"), ("transfers", "transport"))
        for choices in (columns_of(TABLE_BY_NAME[table])[name].choices,)
    ),
    ("collectives", "func", pa.array([b"Send", b"\xff\xfe"]).view(pa.string()), "*UTF-8*"),
]


@pytest.mark.parametrize(("table", "name", "values", "problem"), REFUSED)
def test_value_at_fault_is_refused_with_its_row(table: str, name: str, values: pa.Array, problem: str) -> None:
    with pytest.raises(BadRows) as caught:
        conformed(table, name, values)
    assert (caught.value.column, caught.value.row) == (name, 1)
    assert str(caught.value).startswith(f"{table}, column {name}, row 1: ")
    assert fnmatchcase(caught.value.problem, problem)


def test_column_is_named_that_has_bad_offsets_is_there_twice_or_is_the_first_of_several_at_fault() -> None:
    offsets = pa.array([0, 2**30, 2], pa.int32()).buffers()[1]
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    with pytest.raises(BadRows, match="column func, row 0"):
        conformed("collectives", "func", broken)
    with pytest.raises(BadRows, match=r"^collectives, column rank: the column is there 2 times$"):
        conform(COLLECTIVES, SAMPLE.append_column("rank", pa.array([7, 8], pa.uint32())))
    several = with_column(SAMPLE, "end_ns", pa.array([-1, 0])).drop_columns(["job"])
    with pytest.raises(BadRows) as caught:
        conform(COLLECTIVES, several)
    assert caught.value.column == "job"


@pytest.mark.parametrize(
    ("table", "name", "sound", "fault"),
    [
        ("collectives", "end_ns", [1, 2, None, 3], [4, -1, -2]),
        ("collectives", "channels", [1, 2, 3, 4], [5, 999, 998]),
        ("collectives", "clock", ["gpu"] * 4, ["gpu", "sun", "moon"]),
        ("probes", "hops", [["a"], [], ["b"], []], [["c"], [None], [None]]),
    ],
)
def test_row_is_counted_over_all_chunks(table: str, name: str, sound: list[Any], fault: list[Any]) -> None:
    seven = pa.concat_tables([SAMPLES[table].slice(0, 1)] * 7)
    empty = pa.array(sound + fault).slice(0, 0)
    chunks = pa.chunked_array([pa.array(sound), empty, pa.array(fault)], type=empty.type)
    with pytest.raises(BadRows) as caught:
        conform(TABLE_BY_NAME[table], with_column(seven, name, chunks))
    assert caught.value.row == 5


STATS = [make(TransferStat, **other) for other in ({}, {"channel": 1}, {"peer": 2}, {"rank": 9})]
COMMS = [make(Comm, rank=0), make(Comm, rank=1, pid=1), make(Comm, rank=2), make(Comm, rank=1, pid=2)]


@pytest.mark.parametrize(
    ("table", "found", "expected"),
    [
        ("comms", rows(*COMMS), (1, 3)),
        ("transfer_stats", rows(*STATS), None),  # they differ in one part of the key
        ("agents", rows(*(make(Agent, ts_ns=ts_ns) for ts_ns in (7, 5, 5, 9, 7))), (0, 4)),  # the earliest
        ("probes", rows(PROBE, PROBE), None),  # a table without a key may repeat itself
    ],
)
def test_rows_with_the_same_key_are_found(table: str, found: pa.Table, expected: tuple[int, int] | None) -> None:
    assert find_duplicate(TABLE_BY_NAME[table], found) == expected


def test_unknown_in_a_key_equals_unknown() -> None:
    table = Table("connections", Connection, "seen_ns", ("comm", "channel"))
    assert find_duplicate(table, pa.table({"comm": [1, None, 1, None], "channel": [0, 0, None, 0]})) == (1, 3)
