"""What one process has written about its connections: its log, its graph, its topology; read on where it was left."""

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from xml.etree import ElementTree

from collector.connections.log_lines import LINE_BYTES, Warned
from collector.connections.log_report import LogReport
from collector.connections.processes import NcclProcess
from lockstep.errors import BadInput
from lockstep.records import Direction

GRAPH_BYTES = 1 << 20  # NCCL writes 30 KB for 8 GPUs and 32 channels
_RING = "0"  # the graph of rings; those of trees use the same devices in another order
_MOST_CHANNELS = 256
_MOST_DEVICE = 4_096


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A channel uses a device in one direction."""

    channel: int
    direction: Direction
    device: int


def parse_graph(content: bytes) -> list[DeviceUse]:
    """Return what the rings use; BadInput where it is no such file."""
    root = _parse(content)
    graph = next((graph for graph in root.iter("graph") if graph.get("id") == _RING), None)
    channels = list(graph.iter("channel"))[:_MOST_CHANNELS] if graph is not None else []
    return [use for number, channel in enumerate(channels) for use in _uses_of(number, channel)]


def parse_device_names(content: bytes) -> dict[int, str]:
    """Return the names of the devices in a dump of the topology; BadInput where it is no such file."""
    nets = [(_number(net.get("dev")), net.get("name")) for net in _parse(content).iter("net")]
    return {device: name[:64] for device, name in nets if device is not None and name and name.isprintable()}


def _parse(content: bytes) -> ElementTree.Element:
    if len(content) > GRAPH_BYTES:
        raise BadInput(f"has more than {GRAPH_BYTES} bytes")
    if b"<!" in content:  # NCCL writes none; a declaration could make the rest grow without end
        raise BadInput("has a declaration")
    try:
        return ElementTree.fromstring(content)  # noqa: S314 because without declarations there is nothing to expand
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise BadInput(f"is no XML: {error}") from None


def _uses_of(number: int, channel: ElementTree.Element) -> Iterator[DeviceUse]:
    parts = list(channel)
    if len(parts) < 3 or parts[0].tag != "net" or parts[-1].tag != "net":
        return  # a host that is alone needs no network
    into, out = _number(parts[0].get("dev")), _number(parts[-1].get("dev"))
    if into is not None and out is not None:
        yield DeviceUse(number, "recv", into)
        yield DeviceUse(number, "send", out)


def _number(text: str | None) -> int | None:
    found = re.fullmatch("[0-9]{1,4}", text or "")
    return int(found[0]) if found and int(found[0]) < _MOST_DEVICE else None


READ_BYTES = 1 << 20  # of one file at a time; a log of NCCL has some ten KB a communicator
_MOST_STEPS = 128  # directories and links on the way to a file; each holds a descriptor until it is found


def expand_name(pattern: str, hostname: str, pid: int) -> str:
    """Return the name that NCCL makes of NCCL_DEBUG_FILE.

    >>> expand_name("/tmp/%h.%p.100%%.%x", "n1.cluster", 42)
    '/tmp/n1.42.100%.%x'
    """
    values = {"h": hostname.partition(".")[0], "p": str(pid), "%": "%"}
    return re.sub("%([hp%])", lambda code: values[code[1]], pattern)


class LogTail:
    """Reads a file from where it last stopped; begins anew when the file was replaced or cut."""

    def __init__(self) -> None:
        self.inode: tuple[int, int] | None = None
        self.offset = 0  # behind the last whole line
        self._passes_over = False  # the rest of a line that is too long to be one

    def read(self, descriptor: int, limit: int = READ_BYTES) -> list[bytes]:
        """Return the whole lines that are new, of `limit` bytes at most; OSError when it cannot be read."""
        found = os.fstat(descriptor)
        inode = (found.st_dev, found.st_ino)
        if inode != self.inode or found.st_size < self.offset:
            self.inode, self.offset, self._passes_over = inode, 0, False
        return self._whole_lines(os.pread(descriptor, limit, self.offset))

    def _whole_lines(self, chunk: bytes) -> list[bytes]:
        end = chunk.rfind(b"\n") + 1
        lines = chunk[:end].splitlines()
        if self._passes_over and end:
            lines, self._passes_over = lines[1:], False
        if len(chunk) - end > LINE_BYTES:  # whoever writes this will not end it soon, and it is not NCCL
            end, self._passes_over = len(chunk), True
        self.offset += end
        return lines


def open_log(start: Path, root: Path, name: str, uid: int) -> int:
    """Return a descriptor of the file that a process calls `name`.

    `root` is /proc/PID/root; a name that does not begin with a slash counts from `start`, which is /proc/PID/cwd.
    Raises FileNotFoundError and other OSErrors, and BadInput where it is no regular file of the user `uid`.
    """
    with ExitStack() as opened:
        descriptor = _find_below(opened, root if name.startswith("/") else start, root, name)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise BadInput("is no regular file")
        if found.st_uid != uid:
            raise BadInput(f"belongs to uid {found.st_uid}, and its process to uid {uid}")
        # Only now is it opened for reading: a device or a pipe would notice.
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)


def _find_below(opened: ExitStack, start: Path, root: Path, name: str) -> int:
    """Return a descriptor that only names the file; a link on the way is read by us and leads on below `root`."""
    steps = _steps_of(name)
    here = _name(opened, start, os.O_DIRECTORY)
    for _ in range(_MOST_STEPS):
        if not steps:
            return here
        there = _name(opened, steps[0], os.O_NOFOLLOW, here)
        if not stat.S_ISLNK(os.fstat(there).st_mode):
            here, steps = there, steps[1:]
            continue
        target = os.readlink("", dir_fd=there)
        here = _name(opened, root, os.O_DIRECTORY) if target.startswith("/") else here
        steps = _steps_of(target) + steps[1:]
    raise BadInput(f"is more than {_MOST_STEPS} directories and links away")


def _name(opened: ExitStack, path: Path | str, flags: int, directory: int | None = None) -> int:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | flags, dir_fd=directory)
    opened.callback(os.close, descriptor)
    return descriptor


def _steps_of(name: str) -> list[str]:
    steps = [step for step in name.split("/") if step not in ("", ".")]
    if ".." in steps or "\0" in name:
        raise BadInput("has a name that goes up again, which is not followed")
    return steps


_LAST_READS = 4  # of a log whose process has ended; what it wrote since the last look fits

Inode = tuple[int, int]  # device and number
_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class NewTroubles:
    """Warnings that are new in a log, and when its last line was written."""

    reported: list[Warned] = field(default_factory=list)
    written_ns: int = 0


class ProcessFiles:
    """Follows the files of one process; `reported` is up to where the warnings of a file were told before a restart.

    The log stays open: what a process writes right before it ends says why, and then /proc leads to it no more.
    """

    def __init__(self, proc: Path, process: NcclProcess, reported: Mapping[Inode, int]) -> None:
        self.process = process
        self.report = LogReport(process.namespace_pid)
        self.problem = ""  # why a file cannot be read; empty when all is well or there is none
        self._folder = proc / str(process.pid)
        self._reported = dict(reported)
        self._tail = LogTail()
        self._log: int | None = None  # descriptor

    @property
    def position(self) -> tuple[Inode, int] | None:
        """Which log was read, and up to where its warnings were told."""
        inode = self._tail.inode
        return (inode, max(self._tail.offset, self._reported.get(inode, 0))) if inode else None

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
        return NewTroubles([each for part in parts for each in part.reported], max(part.written_ns for part in parts))

    def close(self) -> None:
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
        if found.st_size < self._reported.get(inode, 0):  # it was cut: what is in it now was never told
            del self._reported[inode]
        reported, at = self._reported.get(inode, 0), self._tail.offset if self._tail.inode == inode else 0
        is_old = at < reported  # read again after a restart, for the connections only
        try:
            lines = self._tail.read(self._log, min(READ_BYTES, reported - at) if is_old else READ_BYTES)
        except OSError as error:  # of a file system that has gone
            self.problem = f"NCCL_DEBUG_FILE cannot be read: {error.strerror}"
            return NewTroubles()
        for line in lines:
            self.report.take(line)
        troubles = self.report.pop_troubles()
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
