"""What the header of a ring file claims: who writes it, and where its tables stand; each compared with a limit."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from collector.kernel.foreign_file import ForeignFile
from lockstep import wire
from lockstep.errors import RingNotReady
from lockstep.wire import Table

ACCEPTED_VERSIONS = (wire.VERSION,)  # and the one before, as soon as there is one


@dataclass(frozen=True)
class Identity:
    """What a process says of itself; None where its environment does not tell."""

    pid: int  # in its own namespace
    created_ns: int
    tag: int  # in every handle of this process
    host: str
    job: str
    attempt: int
    world_rank: int | None
    world_size: int | None
    local_rank: int | None
    plugin_version: str
    nccl_version: str | None
    api_version: int
    kernel_channels: bool
    clock_kind: int


def read_header(file: ForeignFile) -> np.void:
    """Return the header of a file that says it is a ring file, of a version we know, and complete."""
    if file.size < wire.PAGE:
        raise RingNotReady(f"has {file.size} bytes, not even a header", file=file.name)
    header: np.void = file.read_at(0, wire.HEADER.itemsize).view(wire.HEADER)[0]
    if not header["magic"] or (header["magic"] == wire.MAGIC and header["ready"] == 0):
        raise RingNotReady("is not complete yet", file=file.name)
    if header["magic"] != wire.MAGIC:
        raise file.bad("is no ring file")
    if header["version"] not in ACCEPTED_VERSIONS:
        raise file.bad(
            f"has version {header['version']}, and this reader knows {', '.join(map(str, ACCEPTED_VERSIONS))}"
        )
    if header["ready"] != 1:
        raise file.bad(f"is neither complete nor incomplete: ready is {header['ready']}")
    return header


def identify(file: ForeignFile, header: np.void) -> Identity:
    """Return who writes the file, or raise BadRing for what no plugin writes."""
    tag, clock_kind, created_ns = (int(header[name]) for name in ("tag", "clock_kind", "created_ns"))
    if tag > 0xFFFF:
        raise file.bad(f"has the tag {tag}, which does not fit into a handle")
    if not wire.CLOCK_TSC <= clock_kind <= wire.CLOCK_REPLAY:
        raise file.bad(f"counts time in a way we do not know: {clock_kind}")
    if created_ns >= 1 << 63:
        raise file.bad(f"was made at {created_ns} ns, which is no time")
    return Identity(
        pid=int(header["pid"]),
        created_ns=created_ns,
        tag=tag,
        attempt=int(header["attempt"]),
        world_rank=_known(header["world_rank"]),
        world_size=_known(header["world_size"]) or None,
        local_rank=_known(header["local_rank"]),
        nccl_version=_nccl_version(int(header["nccl_version"])),
        api_version=int(header["api_version"]),
        kernel_channels=bool(header["kernel_channels"]),
        clock_kind=clock_kind,
        **{name: wire.text_of(header[name]) for name in ("host", "job", "plugin_version")},
    )


def _known(number: np.int32) -> int | None:
    return int(number) if number >= 0 else None


def _nccl_version(code: int) -> str | None:
    """Return NCCL's number as people write it; before 2.9 it had a digit less."""
    major, rest = divmod(code, 10_000 if code >= 10_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}" if code else None


MAX_SECTION_BYTES = 64 << 20  # what one read may take of our memory
MAX_RECORDS_BYTES = 256 << 20  # the plugin makes no file larger than this, and nobody reads all of it at once
MAX_STRIDE = wire.PAGE
MIN_RING_RECORDS = 256  # with fewer, the records that may be overwritten while we read would be most of them


# What a table holds, and how many of it at least and at most.
_LIMITS = {
    "requests": (wire.REQUEST, 1, 1),
    "status": (wire.STATUS, 1, 1),
    "clocks": (wire.CLOCK_PAIR, 2, 4096),
    "comms": (wire.COMM, 1, wire.NO_COMM),  # records have 16 bits for it
    "rows": (wire.ROW, 1, 1 << 20),
    "rings": (wire.RING, 1, 1024),
    "records": (wire.RECORD, MIN_RING_RECORDS, 1 << 22),
    "operations": (wire.OPERATION, 1, 1 << 16),  # handles have 16 bits for the slot
    "transfers": (wire.TRANSFER, 1, 1 << 16),
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
    ordered = sorted(sections.items(), key=lambda one: one[1].offset)
    for (name, section), (following, after) in pairwise(ordered):
        if section.end > after.offset:
            raise file.bad(f"has {name} and {following} in one place")
    rings = sections["rings"].count
    for name in ("records", "operations", "transfers"):
        if sections[name].count % rings:
            raise file.bad(f"has {sections[name].count} {name} for {rings} rings")
    if sections["records"].count // rings < MIN_RING_RECORDS:
        raise file.bad(f"has rings of less than {MIN_RING_RECORDS} records")
    return Layout(**sections)


def _check_section(file: ForeignFile, name: str, claim: np.void, file_bytes: int) -> Section:
    element, fewest, most = _LIMITS[name]
    offset, count, stride = (int(claim[field]) for field in ("offset", "count", "stride"))
    section = Section(offset, count, stride, element)
    if not fewest <= count <= most:
        raise file.bad(f"has {count} {name}, not {fewest} to {most}")
    most_bytes = MAX_RECORDS_BYTES if name == "records" and stride <= 2 * element.itemsize else MAX_SECTION_BYTES
    if not element.itemsize <= stride <= MAX_STRIDE or count * stride > most_bytes:
        raise file.bad(f"has {count} {name} of {stride} bytes each")
    if offset < wire.PAGE or section.end > file_bytes or offset % 8 or stride % 8:
        raise file.bad(f"has its {name} at {offset} to {section.end} of {file_bytes} bytes")
    return section
