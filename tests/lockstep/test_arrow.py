"""Foreign rows become exact rows, or are refused with the column and the row that is at fault."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.arrow import ARROW_TYPES, conform, fill_rows, find_duplicate, rows_of, schema_of
from lockstep.errors import BadRows
from lockstep.records import Agent, Collective, Comm, Connection, GpuHealth, NicCounter, Probe, Transfer, TransferStat
from lockstep.tables import TABLE_BY_NAME, TABLES, Table, columns_of
from tests.builders import T0, make, rows
from tests.lockstep.record_strategies import records_of

QUICK = settings(max_examples=40, deadline=None)  # no deadline: machines that run tests differ
PROBE = Probe(
    host="h0",
    ts_ns=T0,
    src_nic="eth0",
    dst="h1",
    dst_nic="eth0",
    proto="udp",
    sport=1,
    dport=2,
    rtt_ns=5,
    hops=["leaf0"],
)
GPU = GpuHealth(
    host="h0",
    ts_ns=T0,
    gpu=0,
    gpu_uuid="GPU-1",
    sm_mhz=1980,
    temp_c=40.0,
    power_w=None,
    throttle="",
    ecc_sbe=None,
    ecc_dbe=None,
    nvlink_errors=None,
    pcie_replays=None,
    util=0.5,
)
# Two rows of the table that has a column of the kind.
SAMPLES = {
    "collectives": rows(make(Collective, seq=0), make(Collective, seq=1)),
    "transfers": rows(make(Transfer, seq=0), make(Transfer, seq=1)),
    "nic_counters": rows(make(NicCounter, nic="eth0"), make(NicCounter, nic="eth1")),
    "probes": rows(PROBE, PROBE),
    "gpu_health": rows(GPU, GPU),
}

every_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)


def with_column(table: str, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    sample = SAMPLES[table]
    return sample.set_column(sample.schema.get_field_index(name), name, values)


def conformed(table: str, name: str, values: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """Put values into a column of two sound rows, conform them, and return the column."""
    return conform(TABLE_BY_NAME[table], with_column(table, name, values))[name]


def refusal(table: str, name: str, values: pa.Array | pa.ChunkedArray) -> BadRows:
    """Return why two rows with these values in a column are refused, and see that it names the column."""
    with pytest.raises(BadRows) as caught:
        conformed(table, name, values)
    assert caught.value.column == name
    assert str(caught.value).startswith(f"{table}, column {name}")
    return caught.value


# What becomes rows.


@QUICK
@given(st.data())
def test_records_survive_becoming_rows(data: st.DataObject) -> None:
    table = data.draw(st.sampled_from(TABLES))
    records = data.draw(st.lists(records_of(table), max_size=4))
    made = conform(table, rows_of(table, records))
    assert made.schema.equals(schema_of(table), check_metadata=True)
    assert [table.record(**with_dicts(row)) for row in made.to_pylist()] == records


def with_dicts(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with its map as the record has it; Arrow gives maps as lists of pairs."""
    return row | {"extra": dict(row["extra"])} if "extra" in row else row


@every_table
def test_exact_rows_pass_unchanged(table: Table) -> None:
    empty = schema_of(table).empty_table()
    assert conform(table, empty).equals(empty)


@every_table
def test_columns_without_a_single_chunk_pass(table: Table) -> None:
    schema = schema_of(table)
    chunkless = pa.Table.from_arrays([pa.chunked_array([], field.type) for field in schema], schema=schema)
    assert conform(table, chunkless).schema == schema


@pytest.mark.parametrize(
    "given_type", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()], ids=str
)
@pytest.mark.parametrize("name", ["channels", "attempt", "rank", "seq", "peer", "end_ns"])
def test_integers_of_any_width_fit_when_their_values_do(name: str, given_type: pa.DataType) -> None:
    found = conformed("collectives", name, pa.array([0, 127], given_type))
    assert found.type == schema_of(TABLE_BY_NAME["collectives"]).field(name).type
    assert found.to_pylist() == [0, 127]


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_text_of_any_width_is_text(text: pa.DataType) -> None:
    assert conformed("collectives", "func", pa.array(["Send", "Recv"], text)).to_pylist() == ["Send", "Recv"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("func", pa.array(["Send", "Recv"])),
        ("func", pa.array(["Send", "Recv"], pa.large_string())),
        ("clock", pa.array(["gpu", "none"])),
        ("channels", pa.array([1, 255], pa.int64())),
        ("captured", pa.array([True, False])),
        ("end_ns", pa.array([None, 5], pa.int64())),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else str(value.type),
)
def test_dictionaries_are_taken_apart(name: str, values: pa.Array) -> None:
    assert conformed("collectives", name, values.dictionary_encode()).to_pylist() == values.to_pylist()


def test_integers_are_numbers_too() -> None:
    assert conformed("gpu_health", "temp_c", pa.array([40, 41], pa.int32())).to_pylist() == [40.0, 41.0]
    assert conformed("gpu_health", "temp_c", pa.array([0.5, None], pa.float32())).to_pylist() == [0.5, None]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.string()),
        pa.large_list(pa.string()),
        pa.list_(pa.large_string()),
        pa.list_(pa.field("element", pa.string())),
    ],
    ids=str,
)
def test_lists_of_text_become_our_lists(kind: pa.DataType) -> None:
    found = conformed("probes", "hops", pa.array([["leaf0", "spine1"], []], kind))
    assert found.type == ARROW_TYPES["texts"]
    assert found.to_pylist() == [["leaf0", "spine1"], []]


def test_lists_that_are_all_empty_need_no_type() -> None:
    assert conformed("probes", "hops", pa.array([[], []], pa.list_(pa.null()))).to_pylist() == [[], []]


@pytest.mark.parametrize("kind", [pa.map_(pa.large_string(), pa.uint64()), pa.map_(pa.string(), pa.int8())], ids=str)
def test_maps_of_counters_become_our_maps(kind: pa.DataType) -> None:
    found = conformed("nic_counters", "extra", pa.array([[("rx", 1)], []], kind))
    assert found.type == ARROW_TYPES["counters"]
    assert found.to_pylist() == [[("rx", 1)], []]


def test_missing_column_that_may_be_null_is_null() -> None:
    without = SAMPLES["collectives"].drop_columns(["start_ns"])
    made = conform(TABLE_BY_NAME["collectives"], without)
    assert made["start_ns"].to_pylist() == [None, None]
    assert made.schema == schema_of(TABLE_BY_NAME["collectives"])


def test_column_of_nulls_without_a_type_is_unknown() -> None:
    assert conformed("collectives", "start_ns", pa.nulls(2)).to_pylist() == [None, None]
    assert conformed("transfers", "transport", pa.nulls(2)).to_pylist() == [None, None]


def test_columns_of_a_newer_release_are_left_out() -> None:
    newer = SAMPLES["collectives"].append_column("mood", pa.array(["fine", "fine"]))
    assert conform(TABLE_BY_NAME["collectives"], newer).equals(SAMPLES["collectives"])


def test_columns_may_come_in_any_order() -> None:
    backwards = SAMPLES["collectives"].select(SAMPLES["collectives"].column_names[::-1])
    assert conform(TABLE_BY_NAME["collectives"], backwards).equals(SAMPLES["collectives"])


def test_filled_rows_repeat_single_values_and_leave_the_rest_null() -> None:
    made = fill_rows(TABLE_BY_NAME["steps"], 2, {"host": "h0", "step": pa.array([4, 5]), "end_ns": None})
    assert made.schema == schema_of(TABLE_BY_NAME["steps"])
    assert [made[name].to_pylist() for name in ("host", "step", "end_ns", "job")] == [
        ["h0", "h0"],
        [4, 5],
        [None, None],
        [None, None],
    ]


# What is refused.


@every_table
def test_missing_column_that_must_be_there_is_refused(table: Table) -> None:
    for name, column in columns_of(table).items():
        if not column.nullable:
            with pytest.raises(BadRows, match=rf"^{table.name}, column {name}: the column is missing$"):
                conform(table, schema_of(table).empty_table().drop_columns([name]))


def test_column_that_is_there_twice_is_refused() -> None:
    twice = SAMPLES["collectives"].append_column("rank", pa.array([7, 8], pa.uint32()))
    with pytest.raises(BadRows, match=r"^collectives, column rank: the column is there 2 times$"):
        conform(TABLE_BY_NAME["collectives"], twice)


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
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.type),
)
def test_wrong_type_is_refused_with_both_types(table: str, name: str, values: pa.Array) -> None:
    wanted = schema_of(TABLE_BY_NAME[table]).field(name).type
    assert refusal(table, name, values).problem == f"is {values.type}, not {wanted}"


def test_dictionary_of_what_cannot_be_taken_apart_is_refused() -> None:
    lists = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), pa.array([["leaf0"]]))
    assert refusal("probes", "hops", lists).problem.startswith("is dictionary<")


@pytest.mark.parametrize(
    ("name", "too_much"),
    [("channels", 2**8), ("attempt", 2**16), ("rank", 2**32), ("peer", 2**31), ("peer", -(2**31) - 1)],
)
def test_value_too_wide_for_its_column_is_refused_with_its_row(name: str, too_much: int) -> None:
    error = refusal("collectives", name, pa.array([0, too_much], pa.int64()))
    assert error.row == 1
    assert error.problem.startswith(f"{too_much} does not fit into")


@pytest.mark.parametrize("name", ["channels", "attempt", "rank", "seq"])
@pytest.mark.parametrize("given_type", [pa.int8(), pa.int64()], ids=str)
def test_negative_value_is_refused_where_none_can_be(name: str, given_type: pa.DataType) -> None:
    error = refusal("collectives", name, pa.array([0, -1], given_type))
    assert (error.row, error.problem.split()[0]) == (1, "-1")


@pytest.mark.parametrize("too_much", [2**63, 2**64 - 1])
@pytest.mark.parametrize("name", ["enqueue_ns", "end_ns"])
def test_unsigned_value_beyond_a_time_is_refused_with_its_row(name: str, too_much: int) -> None:
    error = refusal("collectives", name, pa.array([2**63 - 1, too_much], pa.uint64()))
    assert (error.row, error.problem) == (1, f"{too_much} does not fit into int64")


def test_largest_unsigned_value_fits_where_it_may() -> None:
    assert conformed("collectives", "seq", pa.array([0, 2**64 - 1], pa.uint64())).to_pylist() == [0, 2**64 - 1]


def test_overflow_inside_a_dictionary_is_refused_with_its_row() -> None:
    assert refusal("collectives", "channels", pa.array([1, 300]).dictionary_encode()).row == 1


def test_overflow_inside_a_map_is_refused_with_its_row() -> None:
    maps = pa.array([[("rx", 1)], [("rx", 2), ("tx", -1)]], pa.map_(pa.string(), pa.int64()))
    assert refusal("nic_counters", "extra", maps).row == 1


def test_integer_that_a_number_cannot_hold_is_refused_with_its_row() -> None:
    assert refusal("gpu_health", "temp_c", pa.array([1, 2**53 + 1])).row == 1


def test_negative_time_is_refused_with_its_row() -> None:
    error = refusal("collectives", "end_ns", pa.array([None, -5]))
    assert (error.row, error.problem) == (1, "negative time (-5)")


def test_negative_duration_is_refused_with_its_row() -> None:
    error = refusal("transfers", "wire_ns", pa.array([0, -1]))
    assert (error.row, error.problem) == (1, "negative duration (-1)")


@pytest.mark.parametrize(
    ("table", "name"),
    [("collectives", "func"), ("collectives", "enqueue_ns"), ("probes", "hops"), ("nic_counters", "up")],
)
def test_null_is_refused_with_its_row_where_none_may_be(table: str, name: str) -> None:
    first = SAMPLES[table][name][0].as_py()
    kind = SAMPLES[table].schema.field(name).type
    error = refusal(table, name, pa.array([first, None], kind))
    assert (error.row, error.problem) == (1, "is null, and must not be")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("given_type", [pa.float64(), pa.float32()], ids=str)
def test_what_is_no_number_is_refused_with_its_row(value: float, given_type: pa.DataType) -> None:
    error = refusal("gpu_health", "temp_c", pa.array([1.0, value], given_type))
    assert (error.row, error.problem) == (1, f"NaN or infinite ({value})")


def test_integer_column_that_pandas_turned_into_numbers_names_the_hole() -> None:
    error = refusal("collectives", "channels", pa.array([1.0, float("nan")], from_pandas=False))
    assert (error.row, error.problem) == (1, "is double, not uint8 (NaN is not a number of anything)")


@pytest.mark.parametrize(("table", "name"), [("collectives", "clock"), ("transfers", "transport")])
def test_unknown_choice_is_refused_with_its_row_and_the_known_ones(table: str, name: str) -> None:
    first = SAMPLES[table][name][0].as_py()
    error = refusal(table, name, pa.array([first, "smoke"]))
    assert error.row == 1
    assert error.problem == f"'smoke' is none of {', '.join(columns_of(TABLE_BY_NAME[table])[name].choices)}"


def test_null_inside_a_list_is_refused_with_its_row() -> None:
    error = refusal("probes", "hops", pa.array([["leaf0"], ["leaf1", None]]))
    assert (error.row, error.problem) == (1, "has a null inside a list or map")


def test_null_inside_a_list_that_promises_none_is_refused_all_the_same() -> None:
    liars = pa.ListArray.from_arrays([0, 1, 3], pa.array(["a", "b", None]), type=ARROW_TYPES["texts"])
    assert refusal("probes", "hops", liars).row == 1


@pytest.mark.parametrize("count", [pa.uint64(), pa.int16()], ids=str)
def test_null_inside_a_map_is_refused_with_its_row(count: pa.DataType) -> None:
    maps = pa.array([[("rx", 1)], [("rx", None)]], pa.map_(pa.string(), count))
    error = refusal("nic_counters", "extra", maps)
    assert (error.row, error.problem) == (1, "has a null inside a list or map")


@pytest.mark.parametrize("count", [pa.uint64(), pa.int64()], ids=str)
def test_faults_outside_of_a_slice_do_not_count(count: pa.DataType) -> None:
    fault = None if count == pa.uint64() else -1
    maps = pa.array([[("rx", fault)], [("rx", 2)], [("rx", 3)]], pa.map_(pa.string(), count))
    assert conformed("nic_counters", "extra", maps[1:]).to_pylist() == [[("rx", 2)], [("rx", 3)]]
    lists = pa.array([[None], ["leaf0"], []], pa.list_(pa.string()))
    assert conformed("probes", "hops", lists[1:]).to_pylist() == [["leaf0"], []]


def test_text_that_is_not_utf8_is_refused_with_its_row() -> None:
    broken = pa.array([b"Send", b"\xff\xfe"]).view(pa.string())
    error = refusal("collectives", "func", broken)
    assert error.row == 1
    assert "UTF-8" in error.problem


def test_offsets_that_point_outside_are_refused_before_anybody_follows_them() -> None:
    offsets = pa.array([0, 2**30, 2], pa.int32()).buffers()[1]
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    assert refusal("collectives", "func", broken).row == 0


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
    record = TABLE_BY_NAME[table]
    seven = pa.concat_tables([SAMPLES[table].slice(0, 1)] * 7)
    empty = pa.array(sound + fault).slice(0, 0)
    chunks = pa.chunked_array([pa.array(sound), empty, pa.array(fault)], type=empty.type)
    with pytest.raises(BadRows) as caught:
        conform(record, seven.set_column(seven.schema.get_field_index(name), name, chunks))
    assert caught.value.row == 5


def test_first_column_of_the_record_is_named_when_several_are_at_fault() -> None:
    several = with_column("collectives", "end_ns", pa.array([-1, 0])).drop_columns(["job"])
    with pytest.raises(BadRows) as caught:
        conform(TABLE_BY_NAME["collectives"], several)
    assert caught.value.column == "job"


# Duplicates.


def test_rows_with_the_same_key_are_found_whatever_else_they_say() -> None:
    same = rows(make(Comm, rank=0), make(Comm, rank=1, pid=1), make(Comm, rank=2), make(Comm, rank=1, pid=2))
    assert find_duplicate(TABLE_BY_NAME["comms"], same) == (1, 3)


def test_rows_that_differ_in_one_part_of_the_key_are_not_the_same() -> None:
    stats = [
        make(TransferStat),
        make(TransferStat, channel=1),
        make(TransferStat, peer=2),
        make(TransferStat, rank=9),
    ]
    assert find_duplicate(TABLE_BY_NAME["transfer_stats"], rows(*stats)) is None


def test_earliest_of_several_duplicates_is_named() -> None:
    agents = rows(*(make(Agent, ts_ns=ts_ns) for ts_ns in (7, 5, 5, 9, 7)))
    assert find_duplicate(TABLE_BY_NAME["agents"], agents) == (0, 4)


def test_table_without_a_key_may_repeat_itself() -> None:
    assert find_duplicate(TABLE_BY_NAME["probes"], rows(PROBE, PROBE)) is None


def test_unknown_in_a_key_equals_unknown() -> None:
    table = Table("connections", Connection, "seen_ns", ("comm", "channel"))
    pairs = pa.table(
        {"comm": pa.array([1, None, 1, None], pa.uint64()), "channel": pa.array([0, 0, None, 0], pa.uint16())}
    )
    assert find_duplicate(table, pairs) == (1, 3)


@every_table
def test_empty_table_has_no_duplicates(table: Table) -> None:
    assert find_duplicate(table, schema_of(table).empty_table()) is None
