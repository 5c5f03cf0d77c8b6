"""The gateway's log: acknowledged batches in files, whole again after any crash.

A file grows as `<number>.open` and is immutable as `<number>.segment` once it is cut. Each entry is framed by its
lengths and a checksum; what a crash left torn at the end was never acknowledged and is cut off when it is found.
"""

import json
import os
import struct
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lockstep.bounds import BOUNDS
from lockstep.directories import sync_directory

_FRAME = struct.Struct("<4sIII")  # magic, header bytes, body bytes, checksum of both
_MAGIC = b"LKS1"


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch as it came in."""

    agent: str
    boot: str
    number: int
    received_ns: int
    body: bytes


class OpenSegment:
    """The file that batches are appended to; what `append` has returned from survives a power cut."""

    def __init__(self, directory: Path, number: int) -> None:
        self._directory = directory
        self.number = number
        self.path = directory / f"{number:012}.open"
        self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115  # held open until it is cut
        self.size = 0  # of what is committed
        try:
            sync_directory(directory)
        except OSError:
            self._file.close()
            self.path.unlink()
            raise

    def append(self, entries: list[Entry]) -> None:
        """Write and sync entries together; on an error the file is as before and OSError is raised."""
        data = b"".join(_encode(entry) for entry in entries)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file.fileno(), view) :]
            os.fsync(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), self.size)
            os.lseek(self._file.fileno(), self.size, os.SEEK_SET)
            raise
        self.size += len(data)

    def cut(self) -> Path:
        """Close the file under its final name; from now on it never changes.

        The new name is not forced to the disk: after a power cut `recover` gives the file the same name again.
        """
        final = self._directory / f"{self.number:012}.segment"
        self.path.rename(final)
        self._file.close()
        return final


@dataclass(frozen=True, slots=True)
class Segment:
    """What a cut file holds; in a whole one nothing is left behind the last entry."""

    entries: list[Entry]
    damaged_at: int | None = None  # place of the first byte that cannot be read


def read_segment(path: Path) -> Segment:
    """Return the entries of a segment in order, up to the first that is damaged."""
    data = path.read_bytes()
    decoded = list(_decode_all(data))
    end = decoded[-1][1] if decoded else 0
    return Segment([entry for entry, _ in decoded], None if end == len(data) else end)


def list_segments(directory: Path) -> list[Path]:
    """Return the cut segments, oldest first."""
    return sorted(directory.glob("*.segment"))


def segment_number(path: Path) -> int:
    return int(path.name.split(".")[0])


def recover(directory: Path) -> None:
    """Cut what a crash left open: whole entries are kept, a torn one at the end is dropped."""
    for path in sorted(directory.glob("*.open")):
        data = path.read_bytes()
        whole = max((end for _, end in _decode_all(data)), default=0)
        with open(path, "r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())
        if whole:
            path.rename(path.with_suffix(".segment"))
        else:
            path.unlink()
        sync_directory(directory)


def identify(directory: Path) -> str:
    """Return this log's own name, which goes into every token."""
    path = directory / "identity"
    if not path.exists():
        write_atomically(path, uuid.uuid4().hex.encode())
    return path.read_text(encoding="ascii")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a small file so that a crash leaves the old one or the new one."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_directory(path.parent)


def _encode(entry: Entry) -> bytes:
    names = {"agent": entry.agent, "boot": entry.boot, "number": entry.number, "received_ns": entry.received_ns}
    header = json.dumps(names, separators=(",", ":")).encode()
    checksum = zlib.crc32(entry.body, zlib.crc32(header))
    return _FRAME.pack(_MAGIC, len(header), len(entry.body), checksum) + header + entry.body


def _decode_all(data: bytes) -> Iterator[tuple[Entry, int]]:
    """Yield entries with the place where each ends, up to the first that is not whole."""
    offset = 0
    while offset + _FRAME.size <= len(data):
        magic, header_size, body_size, checksum = _FRAME.unpack_from(data, offset)
        begin, middle = offset + _FRAME.size, offset + _FRAME.size + header_size
        end = middle + body_size
        # A page that never reached the disk reads as zeros, which are their own checksum; no entry is without header.
        if magic != _MAGIC or not header_size or end > len(data):
            return
        header, body = data[begin:middle], data[middle:end]
        if zlib.crc32(body, zlib.crc32(header)) != checksum:
            return
        yield Entry(**json.loads(header), body=body), end
        offset = end


_KEEP_NS = 30 * 86_400_000_000_000  # a boot that was silent for a month will not come back with old batches


class Watermarks:
    """The highest number acknowledged per agent and boot; agents send in order, one batch at a time.

    `last_segment` is the highest number that a segment ever had. It outlives the segments, because a number used
    twice would make the store take new rows for old ones.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._marks: dict[tuple[str, str], tuple[int, int]] = {}  # number, when it came
        self.last_segment = 0
        if path.exists():
            saved = json.loads(path.read_text(encoding="utf-8"))
            self.last_segment = saved["last_segment"]
            self._marks = {(agent, boot): (number, seen_ns) for agent, boot, number, seen_ns in saved["marks"]}

    def get(self, agent: str, boot: str) -> int:
        """Return the highest number acknowledged, 0 when there is none."""
        return self._marks.get((agent, boot), (0, 0))[0]

    def is_new(self, entry: Entry) -> bool:
        return entry.number > self.get(entry.agent, entry.boot)

    def advance(self, entry: Entry) -> None:
        if self.is_new(entry):
            self._marks[entry.agent, entry.boot] = (entry.number, entry.received_ns)

    def save(self, now_ns: int) -> None:
        """Write them down; called before the log that they came from is deleted."""
        self._marks = {key: mark for key, mark in self._marks.items() if now_ns - mark[1] < _KEEP_NS}
        self._forget_boots()
        marks = [[agent, boot, number, seen] for (agent, boot), (number, seen) in sorted(self._marks.items())]
        document = {"last_segment": self.last_segment, "marks": marks}
        write_atomically(self._path, json.dumps(document).encode())

    def _forget_boots(self) -> None:
        """Keep the newest of each agent: it sends what an earlier run left over before anything of its own."""
        for agent, count in Counter(agent for agent, _ in self._marks).items():
            # Of intake a subject stands for the boot.
            most = BOUNDS.notices if agent.startswith("intake:") else BOUNDS.boots
            if count > most:
                mine = sorted((mark[1], key) for key, mark in self._marks.items() if key[0] == agent)
                for _, key in mine[: count - most]:
                    del self._marks[key]


def read_backlog(directory: Path, watermarks: Watermarks) -> int:
    """Return the bytes that wait in the log, and learn from it what was acknowledged."""
    total = 0
    for path in list_segments(directory):
        for entry in read_segment(path).entries:
            watermarks.advance(entry)
        watermarks.last_segment = max(watermarks.last_segment, segment_number(path))
        total += path.stat().st_size
    return total
