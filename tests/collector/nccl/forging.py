"""Builds ring files by hand, right ones and wrong ones, without the plugin."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from collector.kernel.foreign_file import ForeignFile
from lockstep import wire
from lockstep.wire import Table

RECORDS = 256  # per ring: the smallest ring that the reader takes


@dataclass(frozen=True)
class Sizes:
    """How many elements the tables have; of the last three, per ring."""

    rings: int = 2
    clocks: int = wire.CLOCK_PAIRS
    comms: int = 8
    rows: int = 16
    records: int = RECORDS
    operations: int = 8
    transfers: int = 4


class Forged:
    """A ring file in memory; every table can be changed before it is written."""

    def __init__(self, sizes: Sizes | None = None, stretch: int = 0) -> None:
        """Lay out the tables; `stretch` makes each element longer, as a later version may."""
        self.sizes = sizes or Sizes()
        per_ring = {"records": wire.RECORD, "operations": wire.OPERATION, "transfers": wire.TRANSFER}
        self.elements = {"requests": wire.REQUEST, "status": wire.STATUS, "clocks": wire.CLOCK_PAIR}
        self.elements |= {"comms": wire.COMM, "rows": wire.ROW, "rings": wire.RING} | per_ring
        end = wire.PAGE
        indices = {}
        for name, element in self.elements.items():
            count = getattr(self.sizes, name, 1) * (self.sizes.rings if name in per_ring else 1)
            indices[name] = (end, count, element.itemsize + stretch)
            end += -(-count * (element.itemsize + stretch) // wire.PAGE) * wire.PAGE
        self.content = bytearray(end)
        for name, index in indices.items():
            self.header[name] = index
        self._introduce(end)
        self.set_clock([(1_000, 1_700_000_000_000_001_000)])

    def _introduce(self, end: int) -> None:
        header = self.header
        header["magic"], header["version"], header["ready"], header["file_bytes"] = wire.MAGIC, wire.VERSION, 1, end
        header["pid"], header["created_ns"], header["tag"] = 4711, 1_700_000_000_000_000_000, 0xBEEF
        header["clock_kind"], header["nccl_version"], header["api_version"] = wire.CLOCK_MONOTONIC, 22809, 5
        header["world_rank"], header["world_size"], header["local_rank"] = 3, 8, -1
        header["host"], header["job"], header["plugin_version"] = b"node-7", b"train", b"0.1.0"

    @property
    def header(self) -> np.void:
        header: np.void = np.frombuffer(self.content, wire.HEADER, 1)[0:1].view(wire.HEADER)[0]
        return header

    def table(self, name: str, element: np.dtype[np.void] | None = None) -> Table:
        """Return a table that can be written into; records as the kind that `element` is."""
        offset, count, stride = self.header[name].tolist()
        element = element or self.elements[name]
        return np.ndarray((count,), element, self.content, offset, (stride,))

    def set_clock(self, pairs: list[tuple[int, int]], error_ticks: int = 20) -> None:
        """Put these pairs (ticks, UNIX time) as if they had been written one after the other."""
        table = self.table("clocks")
        for number, (ticks, unix_ns) in enumerate(pairs):
            table[number % len(table)] = (ticks, unix_ns, error_ticks, number + 1)

    def append(self, ring: int, count: int, kind: int = wire.KIND_ENQUEUED) -> None:
        """Write so many records as a thread would; `seq` of each is its number."""
        head = int(self.table("rings")["head"][ring])
        self.put(ring, *range(head, head + count)[-self.sizes.records :], kind=kind)
        self.table("rings")["head"][ring] = head + count

    def put(self, ring: int, *numbers: int, kind: int = wire.KIND_ENQUEUED, stamp: int | None = None) -> None:
        """Write records into their slots, without announcing them."""
        count, seq = self.sizes.records, np.array(numbers)
        table, slots = self.table("records", wire.ENQUEUED), ring * count + seq % count
        written = {"seq": seq, "kind": kind, "comm": 1, "bytes": seq * 3}
        for name, value in (written | {"stamp": seq // count + 1 if stamp is None else stamp}).items():
            table[name][slots] = value

    def write(self, path: Path) -> Path:
        """Write the file, or what has changed since; the same file stays the same."""
        if not path.exists():
            path.touch(0o600)
        with path.open("r+b") as file:
            file.write(self.content)
        return path


class ChangingFile(ForeignFile):
    """A file of which one table is different at every read, as if its writer had been there in between."""

    def __init__(self, path: Path, offset: int, contents: list[Table]) -> None:
        super().__init__(path)
        self.offset, self.contents = offset, [content.tobytes() for content in contents]

    def read_at(self, offset: int, size: int) -> NDArray[np.uint8]:
        inside = offset - self.offset
        if not self.contents or not 0 <= inside < len(self.contents[0]):
            return super().read_at(offset, size)
        return np.frombuffer(self.contents.pop(0)[inside : inside + size], np.uint8).copy()


def forge(path: Path, change: Callable[[Forged], object] = lambda _: None, sizes: Sizes | None = None) -> Path:
    """Write a ring file that is right but for one change."""
    forged = Forged(sizes)
    change(forged)
    return forged.write(path)
