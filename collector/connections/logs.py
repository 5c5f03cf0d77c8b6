"""What one process has written about its connections: its log, its graph, its topology; read on where it was left."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from collector.connections.graph import GRAPH_BYTES, DeviceUse, parse_device_names, parse_graph
from collector.connections.processes import NcclProcess
from collector.nccl_log.facts import FailedCompletion, Warned
from collector.nccl_log.files import READ_BYTES, LogTail, expand_name, open_log
from collector.nccl_log.story import LogStory
from lockstep.errors import BadInput

_LAST_READS = 4  # of a log whose process has ended; what it wrote since the last look fits

Inode = tuple[int, int]  # device and number
_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class NewTroubles:
    """Warnings that are new in a log, and when its last line was written."""

    told: list[FailedCompletion | Warned] = field(default_factory=list)
    written_ns: int = 0


class ProcessFiles:
    """Follows the files of one process; `told` is up to where the warnings of a file were told before a restart.

    The log stays open: what a process writes right before it ends says why, and then /proc leads to it no more.
    """

    def __init__(self, proc: Path, process: NcclProcess, told: Mapping[Inode, int]) -> None:
        self.process = process
        self.story = LogStory(process.namespace_pid)
        self.problem = ""  # why a file cannot be read; empty when all is well or there is none
        self._folder = proc / str(process.pid)
        self._told = dict(told)
        self._tail = LogTail()
        self._log: int | None = None  # descriptor

    @property
    def position(self) -> tuple[Inode, int] | None:
        """Which log was read, and up to where its warnings were told."""
        inode = self._tail.inode
        return (inode, max(self._tail.offset, self._told.get(inode, 0))) if inode else None

    def read_log(self) -> NewTroubles:
        """Read on in the log; one that is not there is none, one that must not be read is said in `problem`."""
        self.problem = ""
        descriptor = self._open("NCCL_DEBUG_FILE")
        if descriptor is not None:  # its name may mean another file by now
            self.close()
            self._log = descriptor
        return self._read_on()

    def read_last(self) -> NewTroubles:
        """Read what a process that has ended wrote last, and let go of its log."""
        parts = [self._read_on() for _ in range(_LAST_READS)]
        self.close()
        return NewTroubles([each for part in parts for each in part.told], max(part.written_ns for part in parts))

    def close(self) -> None:
        """Let go of the log."""
        if self._log is not None:
            os.close(self._log)
        self._log = None

    def read_graph(self) -> list[DeviceUse]:
        """Return what the graph says that channels use; empty where there is none."""
        return self._parse("NCCL_GRAPH_DUMP_FILE", parse_graph) or []

    def read_device_names(self) -> dict[int, str]:
        """Return the names of network devices in the dump of the topology; empty where there is none."""
        return self._parse("NCCL_TOPO_DUMP_FILE", parse_device_names) or {}

    def _read_on(self) -> NewTroubles:
        if self._log is None:
            return NewTroubles()
        found = os.fstat(self._log)
        inode = (found.st_dev, found.st_ino)
        if found.st_size < self._told.get(inode, 0):  # it was cut: what is in it now was never told
            del self._told[inode]
        told, at = self._told.get(inode, 0), self._tail.offset if self._tail.inode == inode else 0
        is_old = at < told  # read again after a restart, for the connections only
        try:
            lines = self._tail.read(self._log, min(READ_BYTES, told - at) if is_old else READ_BYTES)
        except OSError as error:  # of a file system that has gone
            self.problem = f"NCCL_DEBUG_FILE cannot be read: {error.strerror}"
            return NewTroubles()
        for line in lines:
            self.story.take(line)
        troubles = self.story.pop_troubles()
        return NewTroubles([] if is_old else troubles, found.st_mtime_ns)

    def _parse(self, variable: str, parse: Callable[[bytes], _Parsed]) -> _Parsed | None:
        descriptor = self._open(variable)
        if descriptor is None:
            return None
        try:
            return parse(os.pread(descriptor, GRAPH_BYTES + 1, 0))
        except (OSError, BadInput) as error:  # it may be half written; the next look will tell
            self.problem = f"{variable} {error}"
            return None
        finally:
            os.close(descriptor)

    def _open(self, variable: str) -> int | None:
        """Return a descriptor of the file that a variable of the process names, or None."""
        pattern = self.process.files.get(variable)
        if not pattern:
            return None
        is_log = variable == "NCCL_DEBUG_FILE"  # only its name has codes
        names = [expand_name(pattern, host, self.process.namespace_pid) for host in self.process.hostnames or ("",)]
        for name in dict.fromkeys(names if is_log else [pattern]):
            try:
                return open_log(self._folder / "cwd", self._folder / "root", name, self.process.uid)
            except FileNotFoundError:
                continue
            except (OSError, BadInput) as error:
                self.problem = f"{variable} {error}"
        return None
