"""Records as Arrow tables: the exact schema of each, and the check that foreign rows pass before use."""

from collections.abc import Callable, Mapping
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from lockstep.errors import BadRows
from lockstep.records import HostRecord
from lockstep.tables import Column, Table, columns_of

ARROW_TYPES: dict[str, pa.DataType] = {
    "u8": pa.uint8(),
    "u16": pa.uint16(),
    "u32": pa.uint32(),
    "u64": pa.uint64(),
    "i32": pa.int32(),
    "i64": pa.int64(),
    "f64": pa.float64(),
    "bool": pa.bool_(),
    "str": pa.string(),
    "choice": pa.string(),
    "timestamp": pa.int64(),
    "duration": pa.int64(),
    "texts": pa.list_(pa.field("item", pa.string(), nullable=False)),
    "counters": pa.map_(pa.string(), pa.uint64()),
}


@cache
def schema_of(table: Table) -> pa.Schema:
    """Return the one Arrow schema in which rows of this table travel inside Lockstep."""
    return pa.schema([pa.field(c.name, ARROW_TYPES[c.kind], nullable=c.nullable) for c in columns_of(table).values()])


def rows_of(table: Table, records: list[HostRecord]) -> pa.Table:
    """Return records as rows; for tests and for sources that see a handful of things a second."""
    columns = {name: [getattr(record, name) for record in records] for name in columns_of(table)}
    return pa.table(columns, schema=schema_of(table))


def fill_rows(table: Table, length: int, columns: Mapping[str, object]) -> pa.Table:
    """Return rows made of arrays and of single values that are the same in all of them; what is missing is null,
    and counters are none."""
    schema = schema_of(table)

    def filled(value: object, kind: pa.DataType) -> pa.Array:
        if value is None and pa.types.is_map(kind):
            return _no_counters(length)
        is_array = hasattr(value, "__array__")  # of numpy or of Arrow
        return pa.array(value).cast(kind) if is_array else pa.repeat(pa.scalar(value, kind), length)

    return pa.Table.from_arrays([filled(columns.get(field.name), field.type) for field in schema], schema=schema)


def _no_counters(length: int) -> pa.Array:
    nothing = [pa.array([], pa.string()), pa.array([], pa.uint64())]
    return pa.MapArray.from_arrays(pa.array([0] * (length + 1), pa.int32()), *nothing)


def conform(table: Table, rows: pa.Table) -> pa.Table:
    """Return the rows in the table's exact schema, or raise BadRows naming the first column and row at fault.

    Integers of other widths, dictionaries and large strings are accepted when every value fits. Missing
    columns that may be null become null, and counters that a release before ours did not have are none; columns
    that we do not know are left out, because a newer release may have added them.
    """
    arrays = [_conform_column(table, column, rows) for column in columns_of(table).values()]
    return pa.Table.from_arrays(arrays, schema=schema_of(table))


def find_duplicate(table: Table, rows: pa.Table) -> tuple[int, int] | None:
    """Return the first row whose key comes again and the last row that has it, or None; nulls equal each other."""
    if not table.key or rows.num_rows < 2:
        return None
    numbered = rows.select(list(table.key)).append_column("_row", pa.array(range(rows.num_rows), pa.int64()))
    groups = numbered.group_by(list(table.key)).aggregate([("_row", "count"), ("_row", "min"), ("_row", "max")])
    twice = groups.filter(pc.greater(groups["_row_count"], 1)).sort_by("_row_min")
    if twice.num_rows == 0:
        return None
    return twice["_row_min"][0].as_py(), twice["_row_max"][0].as_py()


def _conform_column(table: Table, column: Column, rows: pa.Table) -> pa.ChunkedArray:
    indices = rows.schema.get_all_field_indices(column.name)
    if len(indices) > 1:
        raise BadRows(f"the column is there {len(indices)} times", table=table.name, column=column.name)
    if not indices and not column.may_lack:
        raise BadRows("the column is missing", table=table.name, column=column.name)
    if not indices and not column.nullable:
        return pa.chunked_array([_no_counters(rows.num_rows)])
    if not indices:
        return pa.chunked_array([pa.nulls(rows.num_rows, ARROW_TYPES[column.kind])])
    values = rows.column(indices[0])
    if not _is_sound(values):  # before anybody follows buffers that contradict each other: bytes may claim anything
        row = _first_at_fault(values, lambda part: not _is_sound(part))
        problem = "is broken: text that is not UTF-8, or a bad offset"
        raise BadRows(problem, table=table.name, column=column.name, row=row)
    values = _cast(table, column, values)
    for check in (_check_nulls, _check_range, _check_choices, _check_inner_nulls):
        check(table, column, values)
    return values


def _is_sound(values: pa.ChunkedArray) -> bool:
    try:
        values.validate(full=True)
    except pa.ArrowException:
        return False
    return True


def _cast(table: Table, column: Column, values: pa.ChunkedArray) -> pa.ChunkedArray:
    wanted = ARROW_TYPES[column.kind]
    if values.type == wanted:
        return values
    problem, row = f"is {values.type}, not {wanted}", None
    try:
        if _may_become(values.type, wanted):
            return _converted(values, wanted)
        row = _first_row(pc.is_nan(values)) if pa.types.is_floating(values.type) else None
        problem += " (NaN is not a number of anything)" if row is not None else ""
    except pa.ArrowInvalid:
        row = _first_at_fault(values, lambda part: not _fits(part, wanted))
        problem = f"{values[row].as_py()!r} does not fit into {wanted}"
    except pa.ArrowNotImplementedError:  # a nesting that Arrow itself cannot undo, such as a dictionary of lists
        pass
    raise BadRows(problem, table=table.name, column=column.name, row=row)


def _may_become(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_null(given) or given == wanted:
        return True
    if pa.types.is_dictionary(given):
        return _may_become(given.value_type, wanted)
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_integer(given))
    if pa.types.is_floating(wanted):
        return bool(pa.types.is_floating(given) or pa.types.is_integer(given))
    if pa.types.is_string(wanted):
        return _is_text(given)
    if pa.types.is_list(wanted):
        is_list = pa.types.is_list(given) or pa.types.is_large_list(given)
        return bool(is_list and (pa.types.is_null(given.value_type) or _is_text(given.value_type)))
    if pa.types.is_map(wanted):
        return bool(pa.types.is_map(given) and _is_text(given.key_type) and pa.types.is_integer(given.item_type))
    return False


def _is_text(given: pa.DataType) -> bool:
    return bool(pa.types.is_string(given) or pa.types.is_large_string(given) or pa.types.is_string_view(given))


def _fits(values: pa.ChunkedArray, wanted: pa.DataType) -> bool:
    try:
        _converted(values, wanted)
    except pa.ArrowInvalid:
        return False
    return True


def _converted(values: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_map(wanted):  # a cast looks at all children of a map, also at those outside of a slice: copy
        values = values.take(pa.array(range(len(values)), pa.int64()))
    return values.cast(wanted)


def _check_nulls(table: Table, column: Column, values: pa.ChunkedArray) -> None:
    if not column.nullable and values.null_count:
        row = _first_row(pc.is_null(values))
        raise BadRows("is null, and must not be", table=table.name, column=column.name, row=row)


def _check_range(table: Table, column: Column, values: pa.ChunkedArray) -> None:
    if column.kind in ("timestamp", "duration"):
        lowest = pc.min(values).as_py()  # in one look; that nothing is wrong is what is usual
        if lowest is None or lowest >= 0:
            return
        row = _first_row(pc.less(values, 0))
        problem = "negative time" if column.kind == "timestamp" else "negative duration"
    elif column.kind == "f64":
        row = _first_row(pc.invert(pc.is_finite(values)))
        problem = "NaN or infinite"
    else:
        return
    if row is not None:
        raise BadRows(f"{problem} ({values[row].as_py()})", table=table.name, column=column.name, row=row)


def _check_choices(table: Table, column: Column, values: pa.ChunkedArray) -> None:
    if not column.choices:
        return
    known = pc.is_in(values, value_set=_choices(column.choices))
    if (pc.sum(known).as_py() or 0) + values.null_count < len(values):
        row = _first_row(pc.and_(pc.invert(known), pc.is_valid(values))) or 0
        problem = f"{values[row].as_py()!r} is none of {', '.join(column.choices)}"
        raise BadRows(problem, table=table.name, column=column.name, row=row)


@cache
def _choices(choices: tuple[str, ...]) -> pa.Array:
    return pa.array(choices, pa.string())


def _check_inner_nulls(table: Table, column: Column, values: pa.ChunkedArray) -> None:
    if column.kind in ("texts", "counters") and _has_inner_nulls(values):
        row = _first_at_fault(values, _has_inner_nulls)
        raise BadRows("has a null inside a list or map", table=table.name, column=column.name, row=row)


def _has_inner_nulls(values: pa.ChunkedArray) -> bool:
    return any(part.null_count for chunk in values.chunks for part in _inner_arrays(chunk))


def _inner_arrays(chunk: pa.Array) -> list[pa.Array]:
    if not pa.types.is_map(chunk.type):
        return [chunk.flatten()]
    begin, end = chunk.offsets[0].as_py(), chunk.offsets[-1].as_py()  # a map's children ignore that it is a slice
    return [chunk.keys[begin:end], chunk.items[begin:end]]


def _first_row(mask: pa.ChunkedArray) -> int | None:
    if not pc.any(mask).as_py():  # a tenth of what finding the place costs
        return None
    row: int = pc.index(mask, pa.scalar(True)).as_py()
    return row


def _first_at_fault(values: pa.ChunkedArray, is_at_fault: Callable[[pa.ChunkedArray], bool]) -> int:
    """Return the first row at fault of values that are, by halving; cost: that of two looks at all of them."""
    begin, end = 0, len(values)
    while end - begin > 1:
        middle = (begin + end) // 2
        if is_at_fault(values.slice(begin, middle - begin)):
            end = middle
        else:
            begin = middle
    return begin
