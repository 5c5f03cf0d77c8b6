"""Rows are kept as whole segments or not at all, and never more of them than was said."""

import tracemalloc

import pyarrow as pa

from api.ingest.checking import Arrival, CheckLimits, Rows, check_group
from api.ingest.log import Entry
from api.ingest.segments import KeptRows, Piece, size_of
from lockstep.records import Event
from tests.api.ingest.build import entry
from tests.builders import make, rows

LIMITS = CheckLimits(max_bytes=64 << 20, max_rows=100_000)


def rows_of(*entries: Entry) -> Rows:
    verdicts, rows = check_group([Arrival(one, LIMITS) for one in entries])
    assert verdicts == [None] * len(entries)
    return rows


def test_a_segment_comes_back_in_its_order_read_or_not() -> None:
    kept = KeptRows(1 << 20)
    pieces: list[Piece] = [rows_of(entry(1), entry(2)), [entry(3)], rows_of(entry(4))]
    for piece in pieces:
        kept.add(1, piece)
        kept.add(2, piece)
    assert kept.get(1) == kept.get(2) == pieces
    assert kept.get(3) is None


def test_what_does_not_fit_is_not_kept_and_what_fitted_before_stays() -> None:
    one = rows_of(entry(1), entry(2))
    kept = KeptRows(size_of(one) * 2)
    kept.add(1, one)
    for _ in range(5):
        kept.add(2, one)
        assert kept.size <= size_of(one) * 2
    assert kept.get(1) == [one]
    assert kept.get(2) is None
    assert kept.size == size_of(one)


def test_batches_that_were_not_read_count_with_their_bodies() -> None:
    kept = KeptRows(len(entry(1).body))
    kept.add(1, [entry(1)])
    assert kept.size == len(entry(1).body)
    kept.add(2, [entry(2)])
    assert kept.get(2) is None


def test_what_is_forgotten_makes_room() -> None:
    one = rows_of(entry(1))
    kept = KeptRows(size_of(one))
    kept.add(1, one)
    kept.forget(1)
    assert (kept.size, kept.get(1)) == (0, None)
    kept.add(2, one)
    assert kept.get(2) == [one]


def test_rows_hold_on_to_nothing_of_their_batch_but_themselves() -> None:
    named = rows(make(Event, host="h0")).append_column("novelty", pa.array(["x" * 5_000_000]))
    sink = pa.BufferOutputStream()
    schema = named.schema.with_metadata({"table": "events"})
    with pa.CompressedOutputStream(sink, "zstd") as packed, pa.ipc.new_stream(packed, schema) as stream:
        stream.write_table(named)
    large = entry(1, body=bytes(sink.getvalue()))
    tracemalloc.start()
    try:
        kept = rows_of(large)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    assert size_of(kept) < 1_000
