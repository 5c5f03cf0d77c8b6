"""Processes as the kernel shows them: state, begin, environment, whether they hold a ring file, and how they end."""

import errno
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from collector.kernel.netlink import NETLINK_CONNECTOR, NetlinkSocket
from collector.supervision import REPORT_DIRECTORIES, Membership, clean, membership
from lockstep.errors import NotPresent

Environment = Mapping[str, str]

_ENVIRONMENT_BYTES = 1 << 20  # launchers put their variables far in front of that
_BELIEVED_CALLS = 5  # a rank has usually locked nothing else before its ring
_NAME_LETTERS = 64


@dataclass(frozen=True)
class ProcessStat:
    """One look at a process; `start_ticks` tells it from a later process with the same number."""

    pid: int
    name: str
    state: str  # one letter, as proc(5) explains it: R, S, D, T, t, Z, X, I
    start_ticks: int


def read_stat(proc: Path, pid: int) -> ProcessStat:
    """Return the state of a process; OSError when it is gone, ValueError when the kernel's line is not one.

    The state is that of its first thread, which in a rank is the one that calls NCCL.
    """
    line = (proc / str(pid) / "stat").read_bytes().decode(errors="replace")
    before, _, after = line.rpartition(")")  # the name may hold spaces and brackets of its own
    fields = after.split()
    if len(fields) < 20 or len(fields[0]) != 1:
        raise ValueError(f"the stat of process {pid} is no such line")
    return ProcessStat(pid, clean(before.partition("(")[2], _NAME_LETTERS), fields[0], int(fields[19]))


def read_membership(proc: Path, pid: int) -> Membership:
    """Return which rank of which job a process is; unknown where its environment is not for us to read."""
    return membership(read_environment(proc, pid) or {})


def read_environment(proc: Path, pid: int) -> Environment | None:
    """Return the environment with which a process was started; None where it is not for us to read."""
    try:
        with open(proc / str(pid) / "environ", "rb") as file:
            pairs = file.read(_ENVIRONMENT_BYTES).decode(errors="surrogateescape").split("\0")
    except OSError:
        return None
    return {name: value for name, found, value in (pair.partition("=") for pair in pairs) if found}


def read_wait_channel(proc: Path, pid: int) -> str:
    """Return the function of the kernel in which a process waits; empty where the kernel does not tell."""
    try:
        channel = (proc / str(pid) / "wchan").read_bytes()[:200].decode(errors="replace")
    except OSError:
        return ""
    return "" if channel.strip() == "0" else clean(channel, _NAME_LETTERS)


class RingHolders:
    """Finds the processes that hold a ring file: they have it locked, and open below one of `directories`.

    The list of all locks of the host says who may be one, so that only few processes are looked at; one that was
    found stays one as long as it holds a lock, and one that was not is looked at again after some calls. Cost: one
    file, and the open files of whoever is new.
    """

    def __init__(self, root: Path, directories: Sequence[Path] = REPORT_DIRECTORIES) -> None:
        self._proc = root / "proc"
        self._prefixes = tuple(f"{directory}/" for directory in directories)
        self._found: set[int] = set()
        self._others: dict[int, int] = {}  # who holds locks and no ring, and for how many calls that is believed

    def __call__(self) -> set[int]:
        """Return their process ids; NotPresent where there is no /proc."""
        candidates = self._candidates()
        self._others = {pid: calls - 1 for pid, calls in self._others.items() if pid in candidates and calls > 1}
        self._found = {pid for pid in candidates - self._others.keys() if pid in self._found or self._has_ring(pid)}
        self._others |= dict.fromkeys(candidates - self._found - self._others.keys(), _BELIEVED_CALLS)
        return set(self._found)

    def _candidates(self) -> set[int]:
        try:
            locks = (self._proc / "locks").read_text(errors="replace")
        except OSError:
            return list_pids(self._proc)
        return _find_lockers(locks)

    def _has_ring(self, pid: int) -> bool:
        opened = self._proc / str(pid) / "fd"
        try:
            return any(self._is_ring(read_link(opened / name)) for name in os.listdir(opened))
        except OSError:  # it is gone, or another user's
            return False

    def _is_ring(self, target: str) -> bool:
        return target.startswith(self._prefixes) and target.removesuffix(" (deleted)").endswith(".ring")


def _find_lockers(locks: str) -> set[int]:
    """Return who holds a write lock over a whole file, which is how a ring file is held.

    >>> _find_lockers("1: POSIX  ADVISORY  WRITE 42 00:19:7 0 EOF\\n2: FLOCK  ADVISORY  WRITE 43 00:19:8 0 EOF\\n")
    {42}
    """
    lines = (line.split() for line in locks.splitlines())
    held = (words for words in lines if len(words) == 8 and words[1] == "POSIX" and words[3] == "WRITE")
    return {int(words[4]) for words in held if words[6:] == ["0", "EOF"] and words[4].isdecimal() and words[4] != "0"}


def list_pids(proc: Path) -> set[int]:
    """Return all processes of the host; NotPresent where there is no /proc."""
    try:
        return {int(name) for name in os.listdir(proc) if name.isascii() and name.isdecimal()}
    except OSError as error:
        raise NotPresent(f"no processes in {proc}: {error.strerror}") from None


def read_link(link: Path | str) -> str:
    """Return where a link of /proc leads; empty when it is gone, or not for us to know."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


# linux/netlink.h, linux/connector.h and linux/cn_proc.h
_CN_IDX_PROC, _CN_VAL_PROC = 1, 1
_LISTEN, _IGNORE = 1, 2
_ACKNOWLEDGED, _EXITED = 0, 0x8000_0000
_NLMSG_DONE = 3
_NETLINK = struct.Struct("=IHHII")  # length, type, flags, number, port
_CONNECTOR = struct.Struct("=IIIIHH")  # index, value, number, acknowledges, length, flags
_EVENT = struct.Struct("=IIQ")  # what, processor, nanoseconds of the monotonic clock
_EXIT = struct.Struct("=iiII")  # thread, process, wait status, signal to the parent
_EVENT_AT = _NETLINK.size + _CONNECTOR.size
_EXIT_AT = _EVENT_AT + _EVENT.size

_ANSWER_MS = 1_000

# Answers and the exits of whole processes; of linux/bpf_common.h, combined. The filter reads words as the network
# orders them, and the kernel writes them in the processor's order.
_LOAD, _LOAD_X, _EQUALS, _EQUALS_X, _END = 0x20, 0x07, 0x15, 0x1D, 0x06
_ONLY_EXITS = (
    (_LOAD, 0, 0, _EVENT_AT),
    (_EQUALS, 6, 0, _ACKNOWLEDGED),  # six further down: take it
    (_EQUALS, 0, 4, socket.htonl(_EXITED)),  # four further down: leave it
    (_LOAD, 0, 0, _EXIT_AT),
    (_LOAD_X, 0, 0, 0),
    (_LOAD, 0, 0, _EXIT_AT + 4),
    (_EQUALS_X, 1, 0, 0),
    (_END, 0, 0, 0),
    (_END, 0, 0, 0xFFFF_FFFF),
)


@dataclass(frozen=True)
class Exit:
    """The end of a process, by the kernel's monotonic clock."""

    pid: int
    monotonic_ns: int
    status: int  # as wait() gives it

    @property
    def exit_code(self) -> int | None:
        return None if self.signal else (self.status >> 8) & 0xFF

    @property
    def signal(self) -> int | None:
        return self.status & 0x7F or None

    @property
    def dumped_core(self) -> bool:
        return bool(self.status & 0x80)


class ProcConnector:
    """An open subscription to all exits on this host; NotPresent where the kernel does not grant one.

    The kernel sends every fork and exec of the host too; a filter in the kernel keeps them away from us. It tells
    only processes in the host's own namespaces of processes, users and networks, and before Linux 6.6 only root.
    """

    def __init__(self) -> None:
        try:
            self._netlink = NetlinkSocket(NETLINK_CONNECTOR, (_CN_IDX_PROC,), only=_ONLY_EXITS)
        except OSError as error:
            raise NotPresent(f"this kernel has no connector: {error.strerror}") from None
        try:
            self._send(_LISTEN)
            if not self._is_granted():
                raise OSError(errno.EPERM, "no answer; it reports only to the host's own namespaces")
        except OSError as error:
            self.close()
            raise NotPresent(f"the kernel does not report exits to us: {error.strerror or error}") from None

    @property
    def overruns(self) -> int:
        """How often exits were lost because there were too many between two reads."""
        return self._netlink.overruns

    def read(self) -> list[Exit]:
        """Return the exits of processes since the last time, in order."""
        return [end for datagram in self._netlink.notices() if (end := decode_exit(datagram.data))]

    def close(self) -> None:
        """End the subscription; before Linux 6.6 the kernel would otherwise report to nobody for ever."""
        if self._netlink.fileno() >= 0:
            with suppress(OSError):  # it has already forgotten us
                self._send(_IGNORE)
            self._netlink.close()

    def _send(self, word: int) -> None:
        body = struct.pack("=I", word)
        message = _CONNECTOR.pack(_CN_IDX_PROC, _CN_VAL_PROC, 0, os.getpid(), len(body), 0) + body
        self._netlink.send(_NETLINK.pack(_NETLINK.size + len(message), _NLMSG_DONE, 0, 0, 0) + message)

    def _is_granted(self) -> bool:
        """Wait for the kernel's answer; it goes to all listeners, so answers to others are passed over."""
        waiting = select.poll()
        waiting.register(self._netlink, select.POLLIN)
        while waiting.poll(_ANSWER_MS):
            for datagram in self._netlink.notices():
                refusal = _decode_answer(datagram.data)
                if refusal is not None:
                    return refusal == 0
        return False


def decode_exit(message: bytes) -> Exit | None:
    """Return the exit of a process that a message tells, or None for everything else, exits of threads included.

    A first thread that leaves before the others counts as its process; ranks do not do that.
    """
    if len(message) < _EXIT_AT + _EXIT.size:
        return None
    what, _, monotonic_ns = _EVENT.unpack_from(message, _EVENT_AT)
    thread, process, status, _ = _EXIT.unpack_from(message, _EXIT_AT)
    return Exit(process, monotonic_ns, status) if what == _EXITED and thread == process else None


def describe_end(exit_code: int | None, number: int | None) -> str:
    """Return how a process ended in words.

    >>> describe_end(None, 9), describe_end(3, None)
    ('was killed by SIGKILL', 'exited with code 3')
    """
    if number is None:
        return f"exited with code {exit_code}"
    known = {int(each): each.name for each in signal.Signals}
    return f"was killed by {known.get(number, f'signal {number}')}"


def _decode_answer(message: bytes) -> int | None:
    """Return the error number in the kernel's answer to our own request, 0 when it agreed."""
    if len(message) < _EXIT_AT + 4:
        return None
    # The kernel writes its own count over the number of our request, and adds one to what we acknowledged.
    acknowledged: int = _CONNECTOR.unpack_from(message, _NETLINK.size)[3]
    (what,) = struct.unpack_from("=I", message, _EVENT_AT)
    (refusal,) = struct.unpack_from("=I", message, _EXIT_AT)
    return refusal if what == _ACKNOWLEDGED and acknowledged == os.getpid() + 1 else None


_MOST_AT_ONCE = 64


class EndTimes:
    """Waits for the ends of processes in a thread of its own; kernels before 5.3 tell none."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._epoll.register(self._stop, select.EPOLLIN)
        self._pid_of: dict[int, int] = {}  # by descriptor
        self._ended: dict[int, int] = {}
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._follow, name="end-times", daemon=True)
        self._thread.start()

    def watch(self, pid: int) -> None:
        """Note when this process ends; one that is gone already, or not ours to watch, is never told."""
        with suppress(OSError):
            descriptor = os.pidfd_open(pid)
            with self._guard:
                self._pid_of[descriptor] = pid
            self._epoll.register(descriptor, select.EPOLLIN)

    def take(self, pid: int) -> int | None:
        """Return when a process ended by the monotonic clock, once; None when that was not seen."""
        with self._guard:
            return self._ended.pop(pid, None)

    def close(self) -> None:
        """Watch nobody any more."""
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        for descriptor in (*self._pid_of, self._stop):
            os.close(descriptor)
        self._epoll.close()

    def _follow(self) -> None:
        while True:
            ready = [descriptor for descriptor, _ in self._epoll.poll(maxevents=_MOST_AT_ONCE)]
            now_ns = time.monotonic_ns()
            if self._stop in ready:
                return
            for descriptor in ready:
                self._epoll.unregister(descriptor)
                with self._guard:
                    self._ended[self._pid_of.pop(descriptor)] = now_ns
                os.close(descriptor)
