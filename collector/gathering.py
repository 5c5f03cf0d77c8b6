"""What the sources have given since the last batch, and how far each of them is."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from collector.parcel import Checkpoints
from collector.source import Reading
from lockstep.arrow import schema_of
from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import BadRows
from lockstep.tables import TABLE_BY_NAME

_PATIENCE_S, _PATIENCE_PERIODS = 10.0, 3.0
# Who is read less often than looks are taken tells of states (connections, clocks) rather than of what happens: if
# windows waited for it, every fault would be told so many seconds later.
_LONGEST_PERIOD_S = 2.0
MOST_ROWS = 200_000  # kept while nobody packs, because a disk hangs: some 30 MB, and minutes of a busy host


@dataclass(frozen=True)
class Gathered:
    """Rows for one batch, and the state of the sources when they had given exactly these."""

    tables: Mapping[str, pa.Table]
    checkpoints: Checkpoints
    # Every source that is read all the time has given all that is older; None: none has said anything yet.
    watermark_ns: int | None


@dataclass(frozen=True)
class _Watermark:
    ts_ns: int
    good_until_ns: int  # monotonic


class Gathering:
    """Rows of all sources, put down by their threads and taken up by the one that packs."""

    def __init__(self, checkpoints: Checkpoints, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._pieces: dict[str, list[pa.Table]] = {}
        self._rows = 0
        self._watermarks: dict[str, _Watermark] = {}
        self._checkpoints = dict(checkpoints)
        self.dropped_rows = 0
        self.plugin_cost_ns: int | None = None
        self.is_due = threading.Event()  # something was put down that somebody waits for

    def put(self, source: str, reading: Reading, period_s: float) -> None:
        """Add a reading; BadRows when a table of it would spoil the batch for all the others.

        A source that gives nothing for several of its periods, because it fails or hangs, is not waited for: windows
        of all jobs of the host would stay open for as long as one card does not answer.
        Nor is one waited for that is read seldom.
        """
        for name, rows in reading.tables.items():
            if rows.schema != schema_of(TABLE_BY_NAME[name]):
                raise BadRows("has another schema than its table", table=name)
        count = sum(rows.num_rows for rows in reading.tables.values())
        with self._guard:
            if self._rows + count > MOST_ROWS:
                self.dropped_rows += count
            else:
                self._rows += count
                for name, rows in reading.tables.items():
                    self._pieces.setdefault(name, []).append(rows)
            patience_ns = int(max(_PATIENCE_S, _PATIENCE_PERIODS * period_s) * NS_PER_S)
            if period_s <= _LONGEST_PERIOD_S:
                good_until_ns = self._clock.monotonic_ns() + patience_ns
                self._watermarks[source] = _Watermark(reading.watermark_ns, good_until_ns)
            if reading.checkpoint is not None:
                self._checkpoints[source] = reading.checkpoint
            self.dropped_rows += reading.dropped
            if reading.plugin_cost_ns is not None:
                self.plugin_cost_ns = (self.plugin_cost_ns or 0) + reading.plugin_cost_ns
        if reading.is_urgent:
            self.is_due.set()

    def forget(self, source: str) -> None:
        """Let a source that rests hold up nobody's watermark."""
        with self._guard:
            self._watermarks.pop(source, None)

    def take(self) -> Gathered:
        """Return everything since the last time."""
        self.is_due.clear()
        with self._guard:
            pieces, self._pieces, self._rows = self._pieces, {}, 0
            checkpoints, now_ns = dict(self._checkpoints), self._clock.monotonic_ns()
            heard = (mark.ts_ns for mark in self._watermarks.values() if now_ns <= mark.good_until_ns)
            watermark_ns = min(heard, default=None)
        tables = {name: pa.concat_tables(rows) for name, rows in pieces.items()}
        return Gathered(tables, checkpoints, watermark_ns)
