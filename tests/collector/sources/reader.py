"""A host that is read second by second, by one of its sources."""

from typing import Any

from lockstep.arrow import schema_of
from lockstep.tables import TABLE_BY_NAME
from tests.builders import SECOND, T0

Row = dict[str, Any]  # Any: what a row holds


class Reader:
    """Reads a source that is complete up to now; every table has to have its schema."""

    def __init__(self, source: Any, about: tuple[str, ...] = ("kind", "component", "message")) -> None:
        """`about` is what `events` tells of each; Any: tests look into their source."""
        self.source, self.now_ns, self._about = source, T0, about

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a table that the next second brings."""
        self.now_ns += SECOND
        reading = self.source.read(self.now_ns, ())
        assert reading.watermark_ns == self.now_ns
        for name, rows in reading.tables.items():
            assert rows.schema == schema_of(TABLE_BY_NAME[name])
        return reading.tables[table].to_pylist() if table in reading.tables else []

    def events(self) -> list[tuple[str, ...]]:
        return [tuple(row[name] for name in self._about) for row in self.rows("events")]

    def kinds(self) -> list[str]:
        return [row["kind"] for row in self.rows("events")]
