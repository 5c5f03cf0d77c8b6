"""What the kernel says of the sockets and queue pairs of processes, in whatever network namespace each lives."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from collector.connections.addresses import list_addresses
from collector.connections.flows import BulkSockets, read_chosen_ports
from collector.connections.processes import NcclProcess, network_namespace, socket_inodes
from collector.inet_diag import TcpSocket, list_tcp_sockets
from collector.rdma_ports.netlink import QueuePair, list_queue_pairs
from lockstep.errors import NotPresent

_log = structlog.get_logger("connections")

_MOST_NAMESPACES = 64  # looked into at a time; a host has a handful of jobs

ListSockets = Callable[[int | None], Iterable[TcpSocket]]
ListAddresses = Callable[[int | None], Mapping[str, str]]
ListPairs = Callable[[], Iterable[QueuePair]]


def _established(namespace_fd: int | None) -> list[TcpSocket]:
    return list_tcp_sockets(with_info=True, namespace_fd=namespace_fd)


@dataclass(frozen=True)
class Kernel:
    """The questions that are asked; each raises NotPresent where the kernel has no answer."""

    sockets: ListSockets = _established
    addresses: ListAddresses = list_addresses
    pairs: ListPairs = list_queue_pairs


@dataclass(frozen=True)
class OpenSockets:
    """The sockets of a process that carry bulk data, and the interface of each address where it lives."""

    bulk: list[TcpSocket] = field(default_factory=list)
    addresses: Mapping[str, str] = field(default_factory=dict)


class KernelView:
    """Asks the kernel, and remembers of each namespace what its sockets had sent."""

    def __init__(self, root: Path, kernel: Kernel) -> None:
        self._root, self._proc, self._kernel = root, root / "proc", kernel
        self._bulk: dict[str, BulkSockets] = {}  # by namespace
        self._absences: dict[str, str] = {}

    def sockets_of(self, processes: Iterable[NcclProcess]) -> dict[int, OpenSockets]:
        """Return the open sockets by process id."""
        homes: dict[str, list[NcclProcess]] = defaultdict(list)
        for process in processes:
            homes[network_namespace(self._proc, process.pid)].append(process)
        self._bulk = {home: self._bulk.get(home, BulkSockets()) for home in list(homes)[:_MOST_NAMESPACES]}
        return {pid: found for home in self._bulk for pid, found in self._look_into(home, homes[home]).items()}

    def pairs_by_pid(self) -> dict[int, list[QueuePair]]:
        """Return the queue pairs of each process."""
        by_pid: dict[int, list[QueuePair]] = defaultdict(list)
        try:
            for pair in self._kernel.pairs():
                if pair.pid is not None:
                    by_pid[pair.pid].append(pair)
            self._say("queue pairs", "")
        except NotPresent as absence:
            self._say("queue pairs", str(absence))
        return by_pid

    def _look_into(self, home: str, processes: list[NcclProcess]) -> dict[int, OpenSockets]:
        descriptor = None
        try:
            if home != _target_of_self(self._proc):
                descriptor = os.open(self._proc / str(processes[0].pid) / "ns/net", os.O_RDONLY | os.O_CLOEXEC)
            sockets, addresses = self._kernel.sockets(descriptor), self._kernel.addresses(descriptor)
            self._say("sockets", "")
        except (NotPresent, OSError) as absence:  # also when the process has just gone
            self._say("sockets", str(absence))
            return {}
        finally:
            if descriptor is not None:
                os.close(descriptor)
        bulk = self._bulk[home].choose(sockets, read_chosen_ports(self._root))
        return {pid: OpenSockets(mine, addresses) for pid, mine in self._share_out(bulk, processes).items()}

    def _share_out(self, sockets: list[TcpSocket], processes: list[NcclProcess]) -> dict[int, list[TcpSocket]]:
        """Return whose each socket is: a worker has inherited it from the rank that began before it."""
        shares: dict[int, list[TcpSocket]] = {}
        left = {each.inode: each for each in sockets}
        for process in sorted(processes, key=lambda each: each.start_ticks):
            mine = socket_inodes(self._proc, process.pid) & left.keys() if left else set()
            shares[process.pid] = [left.pop(inode) for inode in sorted(mine)]
        return shares

    def _say(self, what: str, absence: str) -> None:
        """Say it when it changes, not each time round."""
        if absence and absence != self._absences.get(what):
            _log.info("the kernel does not tell all of connections", what=what, reason=absence)
        self._absences[what] = absence


def _target_of_self(proc: Path) -> str:
    try:
        return os.readlink(proc / "self/ns/net")
    except OSError:
        return ""
