"""Which processes of this host use NCCL, and what the kernel and their environment say of each.

One is a process that holds a ring file, whose environment names a file for NCCL's log, or that is somebody's rank and
has NCCL loaded. An environment is inherited: a launcher and the workers of a data loader look like ranks, so whoever
draws a conclusion from a process alone asks `holds_ring` first.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from collector.kernel.process import RingHolders, list_pids, read_environment, read_link, read_stat
from collector.nccl.finding import attempt_of, job_of, read_group
from collector.supervision import Membership, membership
from lockstep.errors import NotPresent

_MAPS_BYTES = 8 << 20  # a rank of PyTorch has about one
_MOST_FILES = 65_536  # open in one process
_PATH_LETTERS = 4_096
_HOSTNAME_LETTERS = 253
_FILES = ("NCCL_DEBUG_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_TOPO_DUMP_FILE")
_MOST_PROCESSES = 256  # each keeps a file open; a host has a rank for each of its GPUs, and some workers of each
_FORGET_AFTER = 12  # looks, after which a process that was none is asked again: it may load NCCL late
# The library, or the memory that NCCL shares between processes where it is linked into another library.
_MARKS = (b"libnccl", b"/dev/shm/nccl-")


@dataclass(frozen=True)
class NcclProcess:
    """A process that uses NCCL, or looks like one."""

    pid: int
    start_ticks: int  # tells it from a later process with the same number
    uid: int  # whose files it makes
    namespace_pid: int  # its number as it sees it itself
    hostnames: tuple[str, ...]  # as it may see them itself, likeliest first
    member: Membership
    environment_job: str  # what its environment says; empty where it says nothing
    attempt: int
    files: Mapping[str, str]  # what NCCL was told to write to, by variable
    holds_ring: bool


class NcclProcesses:
    """Finds them, and remembers who is none, so that a scan costs little on a host with many processes."""

    def __init__(
        self, root: Path, find_holders: Callable[[], Iterable[int]] | None = None, host: str | None = None
    ) -> None:
        """`host`: a process in another network namespace that says it is on another host is left out.

        One machine may play many hosts; a name that is merely spelt differently is no reason.
        """
        self._root, self._host = root, host
        self._proc = root / "proc"
        self._find_holders = find_holders or RingHolders(root)
        self._known: dict[int, NcclProcess] = {}
        self._others: set[int] = set()
        self._scans = 0

    def scan(self) -> list[NcclProcess]:
        """Return those there are now; NotPresent where there is no /proc."""
        pids = list_pids(self._proc)
        self._scans += 1
        self._others = self._others & pids if self._scans % _FORGET_AFTER else set()
        holders = self._holders()
        # Those that surely are ranks come first, should there be too many; workers are younger than their rank.
        order = sorted(pids - self._others, key=lambda pid: (pid not in holders, pid))
        judged = (self._judge(pid, pid in holders) for pid in order)
        found = list(islice((process for process in judged if process), _MOST_PROCESSES))
        self._known = {process.pid: process for process in found}
        return found

    def _holders(self) -> set[int]:
        try:
            return set(self._find_holders())
        except (OSError, NotPresent):
            return set()

    def _judge(self, pid: int, holds_ring: bool) -> NcclProcess | None:
        with suppress(OSError, ValueError):  # it is gone, or another user's
            start_ticks = read_stat(self._proc, pid).start_ticks
            known = self._known.get(pid)
            if known and (known.start_ticks, known.holds_ring) == (start_ticks, holds_ring):
                return known
            if process := self._meet(pid, start_ticks, holds_ring):
                return process
        self._others.add(pid)
        return None

    def _is_elsewhere(self, pid: int, environment: Mapping[str, str]) -> bool:
        if self._host is None or environment.get("LOCKSTEP_HOST", self._host) == self._host:
            return False
        return network_namespace(self._proc, pid) != network_namespace(self._proc, "self")

    def _meet(self, pid: int, start_ticks: int, holds_ring: bool) -> NcclProcess | None:
        folder = self._proc / str(pid)
        environment = read_environment(self._proc, pid) or {}
        if self._is_elsewhere(pid, environment):
            return None
        member = membership(environment)
        is_rank = member.rank is not None
        if not (holds_ring or environment.get("NCCL_DEBUG_FILE") or (is_rank and _has_nccl(folder))):
            return None
        uid, namespace_pid = _read_status(folder, pid)
        return NcclProcess(
            pid,
            start_ticks,
            uid,
            namespace_pid,
            hostnames=tuple(_hostnames(self._root, folder, environment)),
            member=member,
            environment_job=job_of(environment),
            attempt=attempt_of(environment),
            files={name: value for name in _FILES if 0 < len(value := environment.get(name, "")) <= _PATH_LETTERS},
            holds_ring=holds_ring,
        )


def find_job(proc: Path, process: NcclProcess) -> str:
    """Return the job of a process: its scheduler's control group, its environment, its container, or its user."""
    group = read_group(proc, process.pid)
    return group.job or process.environment_job or group.container or f"uid-{process.uid}"


def socket_inodes(proc: Path, pid: int) -> set[int]:
    """Return the sockets that a process has open; none when it is gone."""
    folder = f"{proc}/{pid}/fd"
    inodes: set[int] = set()
    with suppress(OSError):
        for name in os.listdir(folder)[:_MOST_FILES]:
            target = read_link(f"{folder}/{name}")
            if target.startswith("socket:[") and target[8:-1].isdecimal():
                inodes.add(int(target[8:-1]))
    return inodes


def network_namespace(proc: Path, pid: int | str) -> str:
    """Return what tells the network namespace of a process from others; empty where the kernel does not say."""
    return read_link(f"{proc}/{pid}/ns/net")


def _has_nccl(folder: Path) -> bool:
    with open(folder / "maps", "rb") as file:
        maps = file.read(_MAPS_BYTES)
    return any(mark in maps for mark in _MARKS)


def _read_status(folder: Path, pid: int) -> tuple[int, int]:
    """Return the user whose files the process makes, and its number in its own namespace."""
    text = (folder / "status").read_bytes()[:65_536].decode(errors="replace")
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    uids, pids = fields.get("Uid", "").split(), fields.get("NSpid", str(pid)).split()
    if len(uids) != 4 or not pids:
        raise ValueError(f"the status of process {pid} names no user or no number")
    return int(uids[3]), int(pids[-1])  # real, effective, saved and, last, that of the file system


def _hostnames(root: Path, folder: Path, environment: Mapping[str, str]) -> Iterable[str]:
    names = [
        environment.get("HOSTNAME", ""),
        _first_word(root / "proc/sys/kernel/hostname"),
        _first_word(folder / "root/etc/hostname"),
    ]
    return dict.fromkeys(name for name in names if 0 < len(name) <= _HOSTNAME_LETTERS and "/" not in name)


def _first_word(file: Path) -> str:
    """Return the word in a small file; the file of a container may be anything, so a link there is not followed."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(descriptor, 256).decode(errors="replace").strip()
        finally:
            os.close(descriptor)
    except OSError:
        return ""
