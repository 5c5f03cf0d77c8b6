"""Complete rows folded per second: what a host sends of every operation, whether sampled or not."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.arrow import schema_of
from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME

_JOB = ["host", "job", "attempt", "comm", "func", "size_class", "rank"]
_EDGE = ["channel", "peer", "direction", "transport", "nic"]


def fold_operations(collectives: pa.Table, since_ns: int, until_ns: int) -> pa.Table:
    """Return op_stats of the operations that ended from `since_ns` up to `until_ns`.

    Earlier rows may be among them: the gap before an operation is measured from the one before it on its rank.
    Operations without a start or an end were seen by no clock and count nowhere.
    """
    timed = collectives.filter(pc.and_(pc.is_valid(collectives["start_ns"]), pc.is_valid(collectives["end_ns"])))
    timed = timed.sort_by([("host", "ascending"), ("rank", "ascending"), ("end_ns", "ascending")])
    timed = timed.append_column("dur", pc.subtract(timed["end_ns"], timed["start_ns"]))
    timed = timed.append_column("gap", pa.array(_gaps(timed)))
    inside = _with_class(_ended(timed, "end_ns", since_ns, until_ns), "end_ns", "bytes")
    sums = inside.group_by([*_JOB, "ts_ns"]).aggregate(
        [([], "count_all"), ("bytes", "sum"), ("dur", "sum"), ("dur", "max"), ("gap", "sum")]
    )
    renamed = {"count_all": "n", "bytes_sum": "bytes", "dur_sum": "dur_sum_ns", "dur_max": "dur_max_ns"}
    return _as_table("op_stats", sums, renamed | {"gap_sum": "gap_sum_ns"}, late_n=0)


def fold_transfers(transfers: pa.Table, sizes: pa.Table, since_ns: int, until_ns: int) -> pa.Table:
    """Return transfer_stats of the transfers that ended from `since_ns` up to `until_ns`.

    `sizes` holds collectives; the size class of a transfer is that of its operation.
    """
    operations = sizes.select(["job", "attempt", "comm", "func", "seq", "replay", "epoch", "bytes"])
    keys = operations.column_names[:-1]
    operations = operations.group_by(keys).aggregate([("bytes", "max")])
    inside = _ended(transfers, "last_ns", since_ns, until_ns).join(operations, keys, join_type="inner")
    sums = (
        _with_class(inside, "last_ns", "bytes_max")
        .group_by([*_JOB, *_EDGE, "ts_ns"])
        .aggregate(
            [
                ([], "count_all"),
                ("bytes", "sum"),
                ("gpu_wait_ns", "sum"),
                ("peer_wait_ns", "sum"),
                ("wire_ns", "sum"),
                ("wire_ns", "max"),
            ]
        )
    )
    renamed = {"count_all": "n", "bytes_sum": "bytes", "wire_ns_sum": "wire_ns", "wire_ns_max": "wire_max_ns"}
    waits = {"gpu_wait_ns_sum": "gpu_wait_ns", "peer_wait_ns_sum": "peer_wait_ns"}
    return _as_table("transfer_stats", sums, renamed | waits)


def _gaps(timed: pa.Table) -> np.ndarray:
    """Return the idle time before each row on its rank; overlapping operations have none."""
    start, end = timed["start_ns"].to_numpy(), timed["end_ns"].to_numpy()
    same = np.zeros(len(start), bool)
    if len(start) > 1:
        rank, host = timed["rank"].to_numpy(), timed["host"].combine_chunks().dictionary_encode().indices.to_numpy()
        same[1:] = (rank[1:] == rank[:-1]) & (host[1:] == host[:-1])
    gaps = np.zeros(len(start), np.int64)
    gaps[same] = np.maximum(start[same] - np.roll(end, 1)[same], 0)
    return gaps


def _ended(rows: pa.Table, column: str, since_ns: int, until_ns: int) -> pa.Table:
    return rows.filter(pc.and_(pc.greater_equal(rows[column], since_ns), pc.less(rows[column], until_ns)))


def _with_class(rows: pa.Table, moment: str, size: str) -> pa.Table:
    seconds = rows[moment].to_numpy() // NS_PER_S * NS_PER_S
    classes = np.log2(np.maximum(rows[size].to_numpy(), 1).astype(np.float64)).astype(np.uint8)
    return rows.append_column("ts_ns", pa.array(seconds)).append_column("size_class", pa.array(classes))


def _as_table(name: str, sums: pa.Table, renamed: dict[str, str], **constants: int) -> pa.Table:
    table = sums.rename_columns([renamed.get(column, column) for column in sums.column_names])
    for column, value in constants.items():
        table = table.append_column(column, pa.array(np.full(table.num_rows, value)))
    schema = schema_of(TABLE_BY_NAME[name])
    return table.select(schema.names).cast(schema)
