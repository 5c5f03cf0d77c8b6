"""Complete rows folded per second: what a host sends of every operation, whether sampled or not."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.arrow import schema_of
from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME

_JOB = ["host", "job", "attempt", "comm", "func", "size_class", "rank"]
_EDGE = ["channel", "peer", "direction", "transport", "nic"]
_WHO = ["job", "attempt", "comm", "rank"]  # a rank means something inside its communicator only
_NUMBERED = ["job", "attempt", "comm", "func", "seq", "replay", "epoch", "of_rank", "of_peer"]
_OF_OPERATIONS = ["host", "job", "attempt", "comm", "func", "rank", "bytes", "start_ns", "end_ns"]
_OF_SIZES = ["job", "attempt", "comm", "func", "seq", "replay", "epoch", "rank", "peer", "bytes"]
_POWERS_OF_TWO = 2 ** np.arange(64, dtype=np.uint64)  # exact, where a logarithm rounds up just below a power


def fold_operations(collectives: pa.Table, since_ns: int, until_ns: int) -> pa.Table:
    """Return op_stats of the operations that ended from `since_ns` up to `until_ns`.

    Earlier rows may be among them: the gap before an operation is measured from the one before it on its rank.
    Operations without a start or an end were seen by no clock and count nowhere; one that ends before it starts
    was seen by a clock that jumped, and lasts no time.
    """
    rows = collectives.select(_OF_OPERATIONS)  # sorting moves every column
    timed = rows.filter(pc.and_(pc.is_valid(rows["start_ns"]), pc.is_valid(rows["end_ns"])))
    by_rank_and_end = np.lexsort((timed["end_ns"].to_numpy(), *(_numbers(timed, name) for name in _WHO)))
    timed = timed.take(pa.array(by_rank_and_end))
    lasted = pc.max_element_wise(pc.subtract(timed["end_ns"], timed["start_ns"]), 0)
    timed = timed.append_column("dur", lasted)
    timed = timed.append_column("gap", pa.array(_gaps(timed)))
    inside = _with_class(_ended(timed, "end_ns", since_ns, until_ns), "end_ns", "bytes")
    sums = inside.group_by([*_JOB, "ts_ns"]).aggregate(
        [([], "count_all"), ("bytes", "sum"), ("dur", "sum"), ("dur", "max"), ("gap", "sum")]
    )
    renamed = {"count_all": "n", "bytes_sum": "bytes", "dur_sum": "dur_sum_ns", "dur_max": "dur_max_ns"}
    return _as_table("op_stats", sums, renamed | {"gap_sum": "gap_sum_ns"}, late_n=0)


def fold_transfers(transfers: pa.Table, sizes: pa.Table, since_ns: int, until_ns: int) -> pa.Table:
    """Return transfer_stats of the transfers that ended from `since_ns` up to `until_ns`.

    `sizes` holds collectives; the size class of a transfer is that of its operation, and a transfer whose
    operation is not among them counts nowhere.
    """
    operations = _with_ends(sizes.select(_OF_SIZES)).group_by(_NUMBERED).aggregate([("bytes", "max")])
    ended = _with_ends(_ended(transfers, "last_ns", since_ns, until_ns))
    inside = ended.join(operations, _NUMBERED, join_type="inner")
    summed = [(name, "sum") for name in ("bytes", "gpu_wait_ns", "peer_wait_ns", "wire_ns")]
    groups = _with_class(inside, "last_ns", "bytes_max").group_by([*_JOB, *_EDGE, "ts_ns"])
    sums = groups.aggregate([([], "count_all"), *summed, ("wire_ns", "max")])
    renamed = {"count_all": "n", "bytes_sum": "bytes", "wire_ns_sum": "wire_ns", "wire_ns_max": "wire_max_ns"}
    waits = {"gpu_wait_ns_sum": "gpu_wait_ns", "peer_wait_ns_sum": "peer_wait_ns"}
    return _as_table("transfer_stats", sums, renamed | waits)


def _numbers(rows: pa.Table, column: str) -> np.ndarray:
    """Return the same number for the same value."""
    numbers: np.ndarray = rows[column].combine_chunks().dictionary_encode().indices.to_numpy()
    return numbers


def _gaps(timed: pa.Table) -> np.ndarray:
    """Return the idle time before each row on its rank; overlapping operations have none."""
    start, end = timed["start_ns"].to_numpy(), timed["end_ns"].to_numpy()
    same = np.arange(len(start)) > 0
    for column in _WHO:
        numbers = _numbers(timed, column)
        same[1:] &= numbers[1:] == numbers[:-1]
    gaps = np.zeros(len(start), np.int64)
    gaps[same] = np.maximum(start[same] - np.roll(end, 1)[same], 0)
    return gaps


def _with_ends(rows: pa.Table) -> pa.Table:
    """Add who counts the operation: Send and Recv are counted by each rank for each peer, the others by all (-1)."""
    pairwise = pc.is_in(rows["func"], value_set=pa.array(["Send", "Recv"]))
    for end in ("rank", "peer"):
        rows = rows.append_column(f"of_{end}", pc.if_else(pairwise, rows[end].cast(pa.int64()), -1))
    return rows


def _ended(rows: pa.Table, column: str, since_ns: int, until_ns: int) -> pa.Table:
    return rows.filter(pc.and_(pc.greater_equal(rows[column], since_ns), pc.less(rows[column], until_ns)))


def _with_class(rows: pa.Table, timestamp: str, size: str) -> pa.Table:
    seconds = rows[timestamp].to_numpy() // NS_PER_S * NS_PER_S
    sizes = np.maximum(rows[size].to_numpy(), 1)
    classes = (np.searchsorted(_POWERS_OF_TWO, sizes, side="right") - 1).astype(np.uint8)
    return rows.append_column("ts_ns", pa.array(seconds)).append_column("size_class", pa.array(classes))


def _as_table(name: str, sums: pa.Table, renamed: dict[str, str], **constants: int) -> pa.Table:
    table = sums.rename_columns([renamed.get(column, column) for column in sums.column_names])
    # Arrow groups and joins in parallel; in order, the same rows give the same statistics to the last byte.
    order = [column for column in ("ts_ns", *_JOB, *_EDGE) if column in table.column_names]
    table = table.sort_by([(column, "ascending") for column in order])
    for column, value in constants.items():
        table = table.append_column(column, pa.array(np.full(table.num_rows, value)))
    schema = schema_of(TABLE_BY_NAME[name])
    return table.select(schema.names).cast(schema)
