"""What a source is: something on this host that can be read again and again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from lockstep.wish import Wish


@dataclass(frozen=True)
class Reading:
    """What one read gave: rows by table, each with its exact schema."""

    tables: Mapping[str, pa.Table]
    watermark_ns: int  # rows older than this will not come any more


class Source(Protocol):
    """Reads one kind of thing. A source that finds nothing to read on this host raises NotPresent and rests."""

    @property
    def name(self) -> str: ...

    @property
    def period_s(self) -> float:
        """How long to wait between two reads."""
        ...

    def read(self, now_ns: int, wishes: Sequence[Wish]) -> Reading:
        """Return what is new; `wishes` are the server's, not yet expired."""
        ...
