"""The gateway's log: acknowledged batches in files, whole again after any crash.

A file grows as `<number>.open` and is immutable as `<number>.segment` once it is cut. Each entry is framed by its
lengths and a checksum; what a crash left torn at the end was never acknowledged and is cut off when it is found.
"""

import json
import os
import re
import struct
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lockstep.batches import BatchName
from lockstep.bounds import BOUNDS
from lockstep.directories import sync_directory
from lockstep.errors import LockstepError

_FRAME = struct.Struct("<4sIII")  # magic, header bytes, body bytes, checksum of both
_MAGIC = b"LKS1"
_IDENTITY = re.compile(rb"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch as it came in."""

    agent: str
    boot: str
    number: int
    received_ns: int
    body: bytes

    @property
    def name(self) -> BatchName:
        return BatchName(self.agent, self.boot, self.number)


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
    identity = path.read_bytes()
    if not _IDENTITY.fullmatch(identity):
        raise _damaged(path, "it holds no name" if identity else "it is empty")
    return identity.decode()


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
_MOST_APPENDED = 4_096  # marks, at least, before the file is written anew


@dataclass(frozen=True, slots=True)
class _Changes:
    """What is to be written down: all marks, or those that changed."""

    last_segment: int
    marks: list[tuple[str, str, int, int]]  # agent, boot, number, when it came
    is_whole: bool

    def encode(self) -> bytes:
        return json.dumps({"last_segment": self.last_segment, "marks": self.marks}).encode()


class Watermarks:
    """The highest number acknowledged per agent and boot; agents send in order, one batch at a time.

    `last_segment` is the highest number that a segment ever had. It outlives the segments, because a number used
    twice would make the store take new rows for old ones. The file is a line with all marks, and one with what
    changed for each time they were saved since.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._marks: dict[str, OrderedDict[str, tuple[int, int]]] = {}  # by agent and boot, the newest last
        self._changed: dict[tuple[str, str], tuple[int, int]] = {}
        self._appended = 0  # marks in the file behind its first line
        self._must_rewrite = not path.exists()
        self.last_segment = 0
        if path.exists():
            self._read(path.read_bytes().split(b"\n"))
            self._changed = {}

    def get(self, agent: str, boot: str) -> int:
        """Return the highest number acknowledged, 0 when there is none."""
        boots = self._marks.get(agent)
        return boots.get(boot, (0, 0))[0] if boots else 0

    def is_new(self, entry: Entry) -> bool:
        return entry.number > self.get(entry.agent, entry.boot)

    def choose_new(self, groups: Iterable[Iterable[Entry]]) -> list[list[Entry]]:
        """Return of each group the batches that were not acknowledged before, each once, in the order they came."""
        seen: set[BatchName] = set()

        def is_first(entry: Entry) -> bool:
            is_known = entry.name in seen
            seen.add(entry.name)
            return not is_known

        return [[one for one in group if self.is_new(one) and is_first(one)] for group in groups]

    def advance(self, entry: Entry) -> None:
        if self.is_new(entry):
            self._note(entry.agent, entry.boot, entry.number, entry.received_ns)

    def take_changes(self, now_ns: int) -> _Changes:
        """Return what `write` has to write down, and forget who was silent for long."""
        is_whole = self._forget(now_ns) or self._must_rewrite
        is_whole |= self._appended > max(_MOST_APPENDED, 2 * sum(map(len, self._marks.values())))
        if is_whole:
            marks = [(agent, boot, *mark) for agent, boots in self._marks.items() for boot, mark in boots.items()]
        else:
            marks = [(*key, *mark) for key, mark in self._changed.items()]
        self._changed = {}
        return _Changes(self.last_segment, marks, is_whole)

    def write(self, changes: _Changes) -> None:
        """Write changes down; done before the log that they came from is deleted."""
        self._must_rewrite = True  # unless it works: half a line may be left behind
        if changes.is_whole:
            write_atomically(self._path, changes.encode())
        else:
            with open(self._path, "ab") as file:
                file.write(b"\n" + changes.encode())
                file.flush()
                os.fsync(file.fileno())
        self._must_rewrite = False
        self._appended = 0 if changes.is_whole else self._appended + len(changes.marks) + 1

    def _note(self, agent: str, boot: str, number: int, seen_ns: int) -> None:
        boots = self._marks.setdefault(agent, OrderedDict())
        boots[boot] = self._changed[agent, boot] = (number, seen_ns)
        boots.move_to_end(boot)
        # To the intake each subject is a boot.
        if len(boots) > (BOUNDS.notices if agent.startswith("intake:") else BOUNDS.boots):
            boots.popitem(last=False)

    def _forget(self, now_ns: int) -> bool:
        """Forget boots that were silent for long; return whether there was one."""
        is_any = False
        for agent, boots in list(self._marks.items()):
            while boots and now_ns - next(iter(boots.values()))[1] >= _KEEP_NS:
                boots.popitem(last=False)
                is_any = True
            if not boots:
                del self._marks[agent]
        return is_any

    def _read(self, lines: list[bytes]) -> None:
        for index, line in enumerate(lines):
            try:
                saved = json.loads(line)
                self.last_segment = max(self.last_segment, int(saved["last_segment"]))
                for agent, boot, number, seen_ns in saved["marks"]:
                    self._note(agent, boot, number, seen_ns)
            except (ValueError, TypeError, LookupError) as error:
                if index and index == len(lines) - 1:
                    self._must_rewrite = True  # a crash cut it off; its segments are still there
                    return
                raise _damaged(self._path, f"line {index + 1} cannot be read") from error


def _damaged(path: Path, why: str) -> LockstepError:
    return LockstepError(
        f"{path} is damaged, {why}: restore it from a backup, or move all of {path.parent} away; what waits there is "
        "then not stored, and what agents repeat may be stored twice"
    )


def read_backlog(directory: Path, watermarks: Watermarks) -> int:
    """Return the bytes that wait in the log, and learn from it what was acknowledged."""
    total = 0
    for path in list_segments(directory):
        for entry in read_segment(path).entries:
            watermarks.advance(entry)
        watermarks.last_segment = max(watermarks.last_segment, segment_number(path))
        total += path.stat().st_size
    return total
