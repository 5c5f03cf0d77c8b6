"""Reads ring files with nothing but the standard library: as much of wire.h as the tests on a GPU ask about."""

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# magic, version, ready, file_bytes, created_ns, pid, tag, clock, nccl, api, kernel
HEADER = struct.Struct("<8sIIQQ6I")
SECTION = struct.Struct("<QII")
SECTIONS = ("requests", "status", "clocks", "comms", "rows", "rings", "records", "operations", "transfers")
IDENTITY = struct.Struct("<iiiI16s80s80s128s")
STATUS = struct.Struct("<8Ii3I6Q")
STATUS_FIELDS = (
    "stamp", "level", "share", "budget_ppm", "mask", "epoch", "lowered", "callback_ppm", "paid_ppm", "paid_error_ppm",
    "paid_pairs", "unused", "refused_comms", "refused_rows", "overwritten", "stale", "foreign", "shared_threads",
)  # fmt: skip
CLOCK_PAIR = struct.Struct("<QQQQ")
COMM = struct.Struct("<QQQQIIII80s")
ROW = struct.Struct("<QQQQQQQII")
RING = struct.Struct("<QQQQQQI76x")
TRANSFER = struct.Struct("<QQQQQQIiHBBIII4QQ16x")
RECORD_HEAD = struct.Struct("<IBBH")
ENQUEUED = struct.Struct("<QQQQiI6BHiI")

DEAD_ROW = 0xFFFFFFFFFFFFFFFF  # its communicator is gone, and a new one may take the place
ENQUEUED_KIND, TRANSFER_KIND, CALLBACK_KIND = 1, 2, 5
LEVELS = ("off", "operations", "transfers", "steps", "trace")
FUNCS = (
    "", "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce",
    "Send", "Recv", "AlltoAll", "Gather", "Scatter",
)  # fmt: skip


class NotARing(Exception):
    """The file is no ring file of the version that this kit knows, or not a whole one."""


@dataclass(frozen=True)
class Section:
    """A table in the file."""

    offset: int
    count: int
    stride: int


@dataclass(frozen=True)
class Comm:
    """A communicator in its slot of the table."""

    index: int
    id: int
    init_ticks: int
    destroy_ticks: int
    rank: int
    nranks: int
    nnodes: int
    kernel_untrusted: bool
    name: str


@dataclass(frozen=True)
class Row:
    """How far one function on one communicator got."""

    comm: int
    func: str
    peer: int
    enqueued: int
    started: int
    done: int


@dataclass(frozen=True)
class Ring:
    """A copy of a ring file, taken at one moment."""

    path: Path
    content: bytes
    pid: int
    nccl_version: int
    api_version: int
    kernel_channels: bool
    host: str
    sections: dict[str, Section]

    @property
    def nccl_release(self) -> str:
        version = self.nccl_version
        return f"{version // 10000}.{version // 100 % 100}.{version % 100}"

    def status(self) -> dict[str, int]:
        """What was in force, and the counts of what did not go as it should."""
        return dict(zip(STATUS_FIELDS, STATUS.unpack_from(self.content, self.sections["status"].offset), strict=True))

    def comms(self) -> list[Comm]:
        """Places that were ever used."""
        found = []
        for index, offset in enumerate(_offsets(self.sections["comms"])):
            whole, ident, init, destroy, rank, nranks, nnodes, wrong, name = COMM.unpack_from(self.content, offset)
            if whole:
                found.append(Comm(index, ident, init, destroy, rank, nranks, nnodes, bool(wrong), _text(name)))
        return found

    def rows(self) -> list[Row]:
        """The live table."""
        found = []
        for offset in _offsets(self.sections["rows"]):
            key, enqueued, started, done, *_ = ROW.unpack_from(self.content, offset)
            if key not in (0, DEAD_ROW):
                peer = struct.unpack("<i", struct.pack("<I", key & 0xFFFFFFFF))[0]
                found.append(Row((key >> 40) - 1, FUNCS[key >> 32 & 0xFF], peer, enqueued, started, done))
        return found

    def heads(self) -> list[int]:
        """How many records each ring has ever had."""
        return [RING.unpack_from(self.content, offset)[0] for offset in _offsets(self.sections["rings"])]

    def records(self, kind: int, after: Sequence[int] = ()) -> Iterator[bytes]:
        """The records of one kind that are still there, ring after ring, each in the order it was written.

        With earlier `heads()`, those since then.
        """
        rings, slots = self.sections["rings"], self.sections["records"]
        per_ring = slots.count // rings.count
        for number, head in enumerate(self.heads()):
            for index in range(max(0, head - per_ring, after[number] if after else 0), head):
                at = slots.offset + (number * per_ring + index % per_ring) * slots.stride
                stamp, found_kind, _, _ = RECORD_HEAD.unpack_from(self.content, at)
                if found_kind == kind and stamp == index // per_ring + 1:
                    yield self.content[at : at + 64]

    def overwritten_records(self) -> int:
        """How many records are gone because their ring went round."""
        rings, slots = self.sections["rings"], self.sections["records"]
        return sum(max(0, head - slots.count // rings.count) for head in self.heads())

    def enqueued_by_func(self) -> Counter[str]:
        """How many operations of each function were enqueued, by the records that are still there."""
        return Counter(FUNCS[ENQUEUED.unpack_from(record, 8)[6]] for record in self.records(ENQUEUED_KIND))

    def open_transfers(self) -> int:
        offsets = _offsets(self.sections["transfers"])
        fields = (TRANSFER.unpack_from(self.content, offset) for offset in offsets)
        return sum(1 for handle, _, _, _, _, last_ticks, *_ in fields if handle and not last_ticks)

    def unix_ns(self, ticks: int) -> int:
        """UNIX time of a reading of the counter: the line through the first and the last pair."""
        read = [CLOCK_PAIR.unpack_from(self.content, offset) for offset in _offsets(self.sections["clocks"])]
        pairs = sorted((ticks, unix_ns) for ticks, unix_ns, _, stamp in read if stamp)
        (first, first_ns), (last, last_ns) = pairs[0], pairs[-1]
        if first == last:
            raise NotARing(f"{self.path} has one clock pair, so the length of a tick is unknown")
        return first_ns + (ticks - first) * (last_ns - first_ns) // (last - first)


def read_ring(path: Path) -> Ring:
    """The file as it is now; also that of a process that is stopped or gone."""
    content = path.read_bytes()
    if len(content) < 4096:
        raise NotARing(f"{path} has no header: it is {len(content)} bytes long")
    magic, version, ready, file_bytes, _, pid, _, _, nccl, api, kernel = HEADER.unpack_from(content, 0)
    if magic != b"LOCKSTEP" or version != 1 or not ready or file_bytes != len(content):
        raise NotARing(
            f"{path}: magic {magic!r}, version {version}, ready {ready}, {file_bytes} bytes of {len(content)}"
        )
    sections, offset = {}, HEADER.size
    for name in SECTIONS:
        sections[name] = Section(*SECTION.unpack_from(content, offset))
        offset += SECTION.size
    host = _text(IDENTITY.unpack_from(content, offset)[5])
    return Ring(path, content, pid, nccl, api, bool(kernel), host, sections)


def _offsets(section: Section) -> Iterator[int]:
    return (section.offset + number * section.stride for number in range(section.count))


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode(errors="replace")
