"""Rows folded per second, each second once: what comes too late for its own second counts in a later one."""

import pyarrow as pa
import pyarrow.compute as pc

from lockstep.arrow import schema_of
from lockstep.clock import NS_PER_S
from lockstep.folding import fold_operations, fold_transfers
from lockstep.tables import TABLE_BY_NAME, Table

_OPERATIONS, _TRANSFERS = TABLE_BY_NAME["op_stats"], TABLE_BY_NAME["transfer_stats"]
_COLLECTIVES = TABLE_BY_NAME["collectives"]
_MOVED = TABLE_BY_NAME["transfers"]
_LARGEST = {"dur_max_ns", "wire_max_ns"}  # of a group the largest, where other numbers are added up


class Seconds:
    """Collects rows of finished operations and transfers and hands out the statistics of seconds that are over."""

    def __init__(self) -> None:
        self._since_ns = 0
        self._operations = _empty(_COLLECTIVES)
        self._previous = _empty(_COLLECTIVES)  # the last one of each rank and communicator: gaps are measured from it
        self._transfers = _empty(_MOVED)
        self._sizes = _empty(_COLLECTIVES)  # row by row the operations of the transfers

    def add_operations(self, operations: pa.Table) -> None:
        """Take in rows of finished operations."""
        self._operations = pa.concat_tables([self._operations, operations])

    def add_transfers(self, transfers: pa.Table, sizes: pa.Table) -> None:
        """Take in rows of finished transfers; `sizes` holds row by row their operations, finished or not."""
        self._transfers = pa.concat_tables([self._transfers, transfers])
        self._sizes = pa.concat_tables([self._sizes, sizes])

    def close(self, now_ns: int) -> dict[str, pa.Table]:
        """Return the statistics of all seconds that are over by now."""
        until_ns = max(now_ns // NS_PER_S * NS_PER_S, self._since_ns)
        folded = {"op_stats": self._fold_operations(until_ns), "transfer_stats": self._fold_transfers(until_ns)}
        self._since_ns = until_ns
        return folded

    def _fold_operations(self, until_ns: int) -> pa.Table:
        ended = self._operations.filter(pc.less(self._operations["end_ns"], until_ns))
        late = fold_operations(ended, 0, self._since_ns)
        in_time = fold_operations(pa.concat_tables([self._previous, ended]), self._since_ns, until_ns)
        late = _set(_set(late, "late_n", late["n"]), "ts_ns", pa.repeat(self._since_ns, late.num_rows))
        self._operations = self._operations.filter(pc.greater_equal(self._operations["end_ns"], until_ns))
        self._previous = _newest(pa.concat_tables([self._previous, ended]))
        return _merged(_OPERATIONS, [late, in_time])

    def _fold_transfers(self, until_ns: int) -> pa.Table:
        late = fold_transfers(self._transfers, self._sizes, 0, self._since_ns)
        in_time = fold_transfers(self._transfers, self._sizes, self._since_ns, until_ns)
        late = _set(late, "ts_ns", pa.repeat(self._since_ns, late.num_rows))
        waiting = pc.greater_equal(self._transfers["last_ns"], until_ns)
        self._transfers, self._sizes = self._transfers.filter(waiting), self._sizes.filter(waiting)
        return _merged(_TRANSFERS, [late, in_time])


def _empty(table: Table) -> pa.Table:
    return schema_of(table).empty_table()


def _set(rows: pa.Table, column: str, values: pa.Array) -> pa.Table:
    place = rows.column_names.index(column)
    return rows.set_column(place, rows.schema.field(column), values.cast(rows.schema.field(column).type))


def _newest(rows: pa.Table) -> pa.Table:
    """Return the operation of each rank and communicator that ended last."""
    numbered = rows.append_column("_row", pa.array(range(rows.num_rows), pa.int64())).sort_by("end_ns")
    last = numbered.group_by(["job", "attempt", "comm", "rank"], use_threads=False).aggregate([("_row", "last")])
    return rows.take(last["_row_last"])


def _merged(table: Table, parts: list[pa.Table]) -> pa.Table:
    """Return rows with equal keys as one."""
    rows = pa.concat_tables(parts)
    if parts[0].num_rows == 0:
        return rows
    names = [name for name in rows.column_names if name not in (*table.key, "host")]
    wanted = [(name, "max" if name in _LARGEST else "sum") for name in names]
    keys = [name for name in rows.column_names if name not in names]
    merged = rows.group_by(keys, use_threads=False).aggregate(wanted)
    merged = merged.rename_columns([name.removesuffix("_sum").removesuffix("_max") for name in merged.column_names])
    return merged.select(rows.column_names).cast(schema_of(table))
