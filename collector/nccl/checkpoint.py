"""How far ring files were read, as bytes: a collector that was killed goes on there, and sends nothing twice.

The records themselves are still in the files. What is noted is where to go on, whose the file is (its process may be
gone by then, and the kernel with its knowledge), and which operations had their row although they did not look over,
or the other way round.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collector.nccl.arrays import Array
from collector.nccl.communicators import Origin
from collector.nccl.draining import Cursor

_VERSION = 1

FileKey = tuple[int, int, int]  # device, inode, and when the file says that it was made


def _no_handles() -> Array:
    return np.empty(0, np.uint64)


@dataclass(frozen=True)
class AggregatorState:
    """What another reader needs to go on where one ended, beside the records that the file still holds."""

    now_ns: int  # of the last reading
    share: int
    pending: Array = field(default_factory=_no_handles)  # of operations that look over and have no row
    written: Array = field(default_factory=_no_handles)  # of operations that look under way and have one


@dataclass(frozen=True)
class FileMemory:
    """What is known of one file."""

    uid: int
    origin: Origin
    position: list[Cursor]
    aggregator: AggregatorState


@dataclass(frozen=True)
class Checkpoint:
    """What is known of all files after a reading."""

    since_ns: int = 0  # seconds before this one have been sent
    share: int | None = None
    files: Mapping[FileKey, FileMemory] = field(default_factory=dict)


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the checkpoint as JSON; some hundred bytes per process."""
    files = [{"key": key, **_of_file(memory)} for key, memory in checkpoint.files.items()]
    content = {"version": _VERSION, "since_ns": checkpoint.since_ns, "share": checkpoint.share, "files": files}
    return json.dumps(content, separators=(",", ":")).encode()


def decode(content: bytes) -> Checkpoint:
    """Return what was saved; of another version, or broken, it is nothing."""
    try:
        document = json.loads(content)
        if document["version"] != _VERSION:
            return Checkpoint()
        files = {}
        for each in document["files"]:
            device, inode, created_ns = each["key"]
            files[device, inode, created_ns] = _to_file(each)
        return Checkpoint(int(document["since_ns"]), document["share"], files)
    except (ValueError, LookupError, TypeError, OverflowError):
        return Checkpoint()


def _of_file(memory: FileMemory) -> dict[str, Any]:
    cursors = {number: (one.following, one.waited) for number, one in enumerate(memory.position) if one.following}
    aggregator = memory.aggregator
    return {
        "uid": memory.uid,
        "origin": vars(memory.origin),
        "rings": len(memory.position),
        "cursors": cursors,
        "now_ns": aggregator.now_ns,
        "share": aggregator.share,
        "pending": aggregator.pending.tolist(),
        "written": aggregator.written.tolist(),
    }


def _to_file(document: Mapping[str, Any]) -> FileMemory:  # Any: foreign JSON; what does not fit raises
    cursors = {int(number): Cursor(*map(int, one)) for number, one in document["cursors"].items()}
    position = [cursors.get(number, Cursor()) for number in range(int(document["rings"]))]
    handles = {name: np.array(document[name], np.uint64) for name in ("pending", "written")}
    aggregator = AggregatorState(int(document["now_ns"]), int(document["share"]), **handles)
    return FileMemory(int(document["uid"]), Origin(**document["origin"]), position, aggregator)
