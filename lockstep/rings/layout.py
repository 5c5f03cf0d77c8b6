"""Where the tables of a ring file stand: the claims of its header, each compared with a limit before it is used."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lockstep import wire
from lockstep.rings.opening import ForeignFile
from lockstep.wire import Table

MAX_SECTION_BYTES = 64 << 20  # what one read may take of our memory; the plugin makes no file larger than this
MAX_STRIDE = wire.PAGE
MIN_RING_RECORDS = 256  # with fewer, the records that may be overwritten while we read would be most of them


@dataclass(frozen=True)
class _Limits:
    element: np.dtype[np.void]
    fewest: int
    most: int


_LIMITS = {
    "requests": _Limits(wire.REQUEST, 1, 1),
    "status": _Limits(wire.STATUS, 1, 1),
    "clocks": _Limits(wire.CLOCK_PAIR, 2, 4096),
    "comms": _Limits(wire.COMM, 1, wire.NO_COMM),  # records have 16 bits for it
    "rows": _Limits(wire.ROW, 1, 1 << 20),
    "rings": _Limits(wire.RING, 1, 1024),
    "records": _Limits(wire.RECORD, MIN_RING_RECORDS, 1 << 20),
    "operations": _Limits(wire.OPERATION, 1, 1 << 16),  # handles have 16 bits for the slot
    "transfers": _Limits(wire.TRANSFER, 1, 1 << 16),
}


@dataclass(frozen=True)
class Section:
    """One table of the file; all of it was inside of the file when it was opened."""

    offset: int
    count: int
    stride: int
    element: np.dtype[np.void]

    @property
    def end(self) -> int:
        return self.offset + self.count * self.stride

    def read(self, file: ForeignFile, first: int = 0, count: int | None = None) -> Table:
        """Return a copy of elements, with the part of each that this version knows."""
        count = self.count - first if count is None else count
        assert 0 <= first <= first + count <= self.count, "the caller reads beyond the section"
        raw = file.read_at(self.offset + first * self.stride, count * self.stride)
        if self.stride == self.element.itemsize:
            return raw.view(self.element)
        known = np.ascontiguousarray(raw.reshape(count, self.stride)[:, : self.element.itemsize])
        return known.reshape(-1).view(self.element)


@dataclass(frozen=True)
class Layout:
    """All tables of a file."""

    requests: Section
    status: Section
    clocks: Section
    comms: Section
    rows: Section
    rings: Section
    records: Section
    operations: Section
    transfers: Section

    @property
    def ring_records(self) -> int:
        """How many records one ring holds."""
        return self.records.count // self.rings.count


def check_layout(file: ForeignFile, header: np.void) -> Layout:
    """Return where everything is, or raise BadRing with the first claim that cannot be true."""
    claimed_bytes = int(header["file_bytes"])
    if not wire.PAGE <= claimed_bytes <= file.size:
        raise file.bad(f"says it has {claimed_bytes} bytes and has {file.size}")
    sections = {name: _check_section(file, name, header[name], claimed_bytes) for name in _LIMITS}
    _check_overlap(file, sections)
    rings = sections["rings"].count
    for name in ("records", "operations", "transfers"):
        if sections[name].count % rings:
            raise file.bad(f"has {sections[name].count} {name} for {rings} rings")
    if sections["records"].count // rings < MIN_RING_RECORDS:
        raise file.bad(f"has rings of less than {MIN_RING_RECORDS} records")
    return Layout(**sections)


def _check_section(file: ForeignFile, name: str, claim: np.void, file_bytes: int) -> Section:
    limits = _LIMITS[name]
    offset, count, stride = (int(claim[field]) for field in ("offset", "count", "stride"))
    section = Section(offset, count, stride, limits.element)
    if not limits.fewest <= count <= limits.most:
        raise file.bad(f"has {count} {name}, not {limits.fewest} to {limits.most}")
    if not limits.element.itemsize <= stride <= MAX_STRIDE or count * stride > MAX_SECTION_BYTES:
        raise file.bad(f"has {count} {name} of {stride} bytes each")
    if offset < wire.PAGE or section.end > file_bytes or offset % 8 or stride % 8:
        raise file.bad(f"has its {name} at {offset} to {section.end} of {file_bytes} bytes")
    return section


def _check_overlap(file: ForeignFile, sections: dict[str, Section]) -> None:
    ordered = sorted(sections.items(), key=lambda one: one[1].offset)
    for (name, section), (following, after) in pairwise(ordered):
        if section.end > after.offset:
            raise file.bad(f"has {name} and {following} in one place")
