"""What a source is: something that can be read again and again; and how it reports events and problems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from lockstep.arrow import rows_of
from lockstep.batches import DetailRequest
from lockstep.records import Event, HostRecord, PluginHealth
from lockstep.tables import TABLE_BY_NAME


@dataclass(frozen=True)
class Reading:
    """What one read gave: rows by table, each with its exact schema."""

    tables: Mapping[str, pa.Table]
    watermark_ns: int  # rows older than this will not come any more
    dropped: int = 0  # rows that this source knows were lost since its last reading
    lost: Mapping[str, int] = field(default_factory=dict)  # the same by reason, and what is no row but was not seen
    folded: int = 0  # rows that were folded into statistics rather than sent, since the last reading
    plugin_cost_ns: int | None = None  # what the plugin has cost the host's jobs since the last reading
    plugins: Sequence[PluginHealth] | None = None  # how those of the host's ranks do; None: as they did
    is_urgent: bool = False  # somebody waits for it: the batch is packed at once, not when it is time
    checkpoint: bytes | None = None  # what `resume` needs to go on behind this reading; saved with its rows


class Source(Protocol):
    """Reads one kind of thing. A source that finds nothing to read on this host raises NotPresent and rests."""

    @property
    def name(self) -> str: ...

    @property
    def period_s(self) -> float:
        """How long to wait between two reads."""
        ...

    @property
    def delay_s(self) -> float:
        """How long after a moment a read gives all about it."""
        ...

    def read(self, now_ns: int, requests: Sequence[DetailRequest]) -> Reading:
        """Return what is new; `detail requests` are the server's, not yet expired."""
        ...

    def resume(self, checkpoint: bytes) -> None:
        """Go on behind the reading that carried this, which is the last one whose rows were kept; called first."""
        ...

    def close(self) -> None:
        """Let go of sockets, files and threads; the last call, from the thread that reads."""
        ...


class PlainSource:
    """Base of sources that tell of now, and have nothing to go on from and nothing to let go of."""

    delay_s = 0.0

    def resume(self, checkpoint: bytes) -> None:
        """Begin anew, whatever was saved."""

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class EventReporter:
    """Makes the events of one source about one component."""

    host: str
    source: str
    component: str  # as verdicts name it: nic:h3/eth1, gpu:h3/0

    def report(self, now_ns: int, kind: str, severity: str, message: str, **about: Any) -> Event:  # Any: any column
        return Event(
            host=self.host,
            ts_ns=now_ns,
            source=self.source,
            kind=kind,
            component=self.component,
            severity=severity,
            message=message,
            **about,
        )


def tables_of(**rows: Sequence[HostRecord]) -> dict[str, pa.Table]:
    """Return rows as tables, each with its exact schema."""
    return {name: rows_of(TABLE_BY_NAME[name], list(found)) for name, found in rows.items()}


def filled_tables_of(**rows: Sequence[HostRecord]) -> dict[str, pa.Table]:
    """Return the same without tables that have no row."""
    return tables_of(**{name: found for name, found in rows.items() if found})


class ChangeLog:
    """Logs a problem when it changes, not each time round; an empty problem means that all is well."""

    def __init__(self, log: Any, level: str = "warning") -> None:  # Any: structlog's loggers have no common type
        self._log, self._level = log, level
        self._known: dict[tuple[object, ...], str] = {}

    def note(self, message: str, problem: str, field: str = "problem", /, **about: object) -> None:
        """Log `problem` as this field of the line; `about` says what it concerns."""
        key = (message, *about.values())
        if not problem:
            self._known.pop(key, None)
        elif self._known.get(key) != problem:
            self._known[key] = problem
            getattr(self._log, self._level)(message, **about, **{field: problem})
