"""What the collectors of simulated hosts would tell as events, in the same words, at the moment it happens.

Processes that are killed, stopped or asked to end; carriers that are lost and come back; and what NCCL itself says of
a connection whose other end is gone: on sockets at once, on IB when all retries are used up. A host that is gone says
nothing. A GPU whose kernel never ends raises no XID, and ranks that are late or absent look healthy from outside.
"""

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from signal import Signals

import numpy as np

from lockstep.clock import NS_PER_S
from lockstep.records import Event
from lockstep.topology import host_name, nic_name, split_end
from simulator.faults import FOREVER, Fault, Interval, intervals_of, is_within
from simulator.job import Placement, place_ranks
from simulator.operations import Operation, Transfers
from simulator.pairs import Flags
from simulator.scenario import Scenario
from simulator.traffic import LinkFaults

_FATAL = ("down", "gone", "killed")


@dataclass(frozen=True, order=True)
class Connection:
    """One connection between two ranks; the sender's NIC is counted over the cluster."""

    src: int
    dst: int
    tx_nic: int
    sport: int


class Connections:
    """Remembers the connections that operations have used, by attempt; where none ever dies it keeps none."""

    def __init__(self, scenario: Scenario) -> None:
        self._restarts_s = sorted(fault.at_s for fault in scenario.timeline if fault.effect == "restart")
        self._is_fatal = any(fault.effect in _FATAL for fault in scenario.timeline)
        self._placements = {0: place_ranks(scenario)}
        self._used: dict[int, dict[int, Transfers]] = {}

    def note(self, operation: Operation) -> None:
        """Learn from an operation where its ranks are, and who is connected to whom."""
        self._placements[operation.attempt] = operation.comms.placement
        used = operation.transfers
        if used is None or not self._is_fatal:
            return
        mine = self._used.setdefault(operation.attempt, {})
        mine.setdefault(zlib.crc32(used.dst.tobytes(), zlib.crc32(used.src.tobytes())), used)

    def attempt_at(self, now_s: float) -> int:
        """Return the attempt that runs at a moment, or ends with it."""
        return sum(timestamp < now_s for timestamp in self._restarts_s)

    def placement_at(self, now_s: float) -> Placement:
        """Return where the ranks are at a moment."""
        attempt = self.attempt_at(now_s)
        return self._placements[max(known for known in self._placements if known <= attempt)]

    def find(self, now_s: float, is_wanted: Callable[[Transfers], Flags]) -> list[Connection]:
        """Return the connections of the attempt at a moment that are wanted."""
        found: set[Connection] = set()
        for used in self._used.get(self.attempt_at(now_s), {}).values():
            rows = np.flatnonzero(is_wanted(used))
            columns = (column[rows].tolist() for column in (used.src, used.dst, used.tx_nic, used.sport))
            found |= {Connection(*row) for row in zip(*columns, strict=True)}
        return sorted(found)


FIRST_PID = 1000  # on every host, of the rank with its first GPU
_PROGRAM = "python"
# A link that goes down so often within so many seconds flaps; those who watch real links count the same way.
_FLAPPING_DOWNS, _FLAPPING_S = 3, 600.0
# NCCL_IB_TIMEOUT is 20 and NCCL_IB_RETRY_CNT 7: seven times 4.096 us * 2**20, 30 s in all.
_ACK_TIMEOUT_S, _RETRIES = 4.096e-6 * 2**20, 7
RETRY_BUDGET_S = _RETRIES * _ACK_TIMEOUT_S
_RTO_S, _MOST_RTOS = 0.2, 10  # TCP's first time-out, which doubles each time; the tenth comes after three minutes
CLOSING_S = 0.1  # until the peers of a process that was killed find its sockets closed

Due = tuple[float, Callable[[float], Iterable[Event]]]  # when, and what tells it, given when


class SimulatedEvents:
    """Tells everything that happens in a scenario once, in order; times are those of its hosts' true clock."""

    def __init__(self, scenario: Scenario, link_faults: LinkFaults, hosts: list[str], start_ns: int) -> None:
        self._scenario, self._link_faults, self._hosts, self._start_ns = scenario, link_faults, hosts, start_ns
        self.retries = np.zeros(len(hosts) * scenario.cluster.nics_per_host)  # by NIC: what nobody acknowledged
        self._seen = Connections(scenario)
        gone = [fault for fault in scenario.timeline if fault.effect == "gone"]
        self._gone = {fault.name: self._intervals(fault) for fault in gone}
        agenda = [*self._carriers(), *self._processes(), *self._cut_off()]
        self._agenda = deque(sorted((due for due in agenda if due[0] < FOREVER), key=lambda due: due[0]))

    def note(self, operation: Operation) -> None:
        self._seen.note(operation)

    def until(self, now_s: float) -> list[Event]:
        """Return what has happened since the last time; hosts that are gone by then are silent."""
        events: list[Event] = []
        while self._agenda and self._agenda[0][0] <= now_s:
            at_s, describe = self._agenda.popleft()
            # A host that is off, or just boots, tells nothing: what it finds then is where it begins.
            gone = {host for host, times in self._gone.items() if any(begin <= at_s <= end for begin, end in times)}
            events += (event for event in describe(at_s) if event.host not in gone)
        return events

    def _intervals(self, fault: Fault) -> list[Interval]:
        return intervals_of(fault, self._scenario.timeline, self._scenario.duration_s)

    # Carriers, as the source `links` tells them.

    def _carriers(self) -> Iterator[Due]:
        cables = {number: split_end(link.a) for number, link in enumerate(self._link_faults.links)}
        for number, intervals in self._link_faults.intervals.items():
            host, nic = cables[number]
            if nic is None:  # between switches: nobody on a host sees that
                continue
            downs_s = [begin for begin, _ in intervals if begin > 0]  # the first sight of a NIC is no event
            yield from ((timestamp, partial(self._report_link, host, nic, False)) for timestamp in downs_s)
            yield from ((end, partial(self._report_link, host, nic, True)) for _, end in intervals)
            yield from ((at_s, partial(self._report_flapping, host, nic)) for at_s in find_flapping(downs_s))

    def _report_link(self, host: str, nic: str, is_up: bool, at_s: float) -> Iterator[Event]:
        word, severity = ("link_up", "info") if is_up else ("link_down", "error")
        message = f"{nic} has its carrier" if is_up else f"{nic} went down: its state is down"
        yield self._event(at_s, host, "links", word, nic_name(host, nic), severity, message)

    def _report_flapping(self, host: str, nic: str, at_s: float) -> Iterator[Event]:
        message = f"{nic} went down {_FLAPPING_DOWNS} times within {_FLAPPING_S / 60:.0f} minutes"
        yield self._event(at_s, host, "links", "link_flapping", nic_name(host, nic), "error", message)

    # Processes, as the source `processes` tells them.

    def _processes(self) -> Iterator[Due]:
        for fault in self._scenario.timeline:
            if fault.effect == "restart":
                yield fault.at_s, self._report_restart
            elif fault.effect == "killed":
                yield fault.at_s, partial(self._report_exit, int(fault.name), Signals.SIGKILL, "error")
            elif fault.effect == "stopped":
                words = ("process_stopped", "warning", "was stopped by a signal")
                for begin, end in self._intervals(fault):
                    yield begin, partial(self._report_process, int(fault.name), *words)
                    yield end, partial(self._report_process, int(fault.name), "process_continued", "info", "goes on")

    def _report_exit(self, rank: int, signal: Signals, severity: str, at_s: float) -> Iterator[Event]:
        for event in self._report_process(rank, "process_exit", severity, f"was killed by {signal.name}", at_s):
            yield replace(event, signal=int(signal))

    def _report_process(self, rank: int, kind: str, severity: str, how: str, at_s: float) -> Iterator[Event]:
        placement = self._seen.placement_at(at_s)
        if rank >= placement.ranks:
            return
        host = self._hosts[int(placement.host_of[rank])]
        pid = FIRST_PID + int(placement.gpu_of[rank])
        message = f"rank {rank} (pid {pid}, {_PROGRAM}) {how}"
        event = self._event(at_s, host, "processes", kind, host_name(host), severity, message)
        yield replace(event, rank=rank, pid=pid)

    def _report_restart(self, at_s: float) -> Iterator[Event]:
        """Yield the end of every process of the old attempt that is still there: the scheduler asks for it."""
        killed = [fault for fault in self._scenario.timeline if fault.effect == "killed" and fault.at_s <= at_s]
        dead = {int(fault.name) for fault in killed if is_within(self._intervals(fault), at_s)}
        for rank in range(self._seen.placement_at(at_s).ranks):
            if rank not in dead:
                yield from self._report_exit(rank, Signals.SIGTERM, "warning", at_s)

    # Connections whose other end is lost, as NCCL warns of them and the source `connections` tells it.

    def _cut_off(self) -> Iterator[Due]:
        is_ib = self._scenario.cluster.transport == "ib"
        for fault in self._scenario.timeline:
            if fault.effect == "killed" and not is_ib:
                yield fault.at_s + CLOSING_S, partial(self._report_closed, fault)
            elif fault.effect in ("killed", "gone", "down"):
                for begin, end in self._intervals(fault):
                    again = [begin + wait for wait in _retry_waits(is_ib) if begin + wait < end]
                    yield from ((timestamp, partial(self._retry, fault, begin)) for timestamp in again)
                    if is_ib and end - begin >= RETRY_BUDGET_S:
                        yield begin + RETRY_BUDGET_S, partial(self._report_unanswered, fault, begin)

    def _report_closed(self, fault: Fault, at_s: float) -> Iterator[Event]:
        dead, reported = int(fault.name), set()
        for each in self._seen.find(fault.at_s, lambda used: (used.src == dead) | (used.dst == dead)):
            peer = each.src if each.dst == dead else each.dst
            if peer not in reported:
                reported.add(peer)
                remote = f"{self._host_of(dead, fault.at_s)}<{each.sport}>"
                words = f"socketProgress: Connection closed by remote peer {remote}"
                host = self._host_of(peer, at_s)
                yield self._warning(at_s, host, host_name(host), peer, "socket_closed", "warning", words)

    def _retry(self, fault: Fault, since_s: float, at_s: float) -> tuple[()]:
        """Count that each sender that waits for an acknowledgement sends again; that is no event."""
        for each in self._unanswered(fault, since_s, at_s):
            self.retries[each.tx_nic] += 1
        return ()

    def _report_unanswered(self, fault: Fault, since_s: float, at_s: float) -> Iterator[Event]:
        for each in _once_a_nic(self._unanswered(fault, since_s, at_s)):
            host = self._host_of(each.src, at_s)
            nic = f"eth{each.tx_nic % self._scenario.cluster.nics_per_host}"
            words = (
                f"NET/IB: Got completion from peer {self._host_of(each.dst, at_s)}<{each.sport}> with status=12 "
                f"opcode=0 len=0 vendor err 129 (Send) hca {nic} "
                "(status 12: the other side did not acknowledge, and all retries are used up)"
            )
            yield self._warning(at_s, host, nic_name(host, nic), each.src, "ib_completion_error", "error", words)

    def _unanswered(self, fault: Fault, since_s: float, at_s: float) -> list[Connection]:
        """Return the connections over which nothing arrives any more, unless who waits or is dead has been ended."""
        if self._seen.attempt_at(at_s) != self._seen.attempt_at(since_s):
            return []
        if fault.effect == "down":
            links = self._link_faults.links_of(fault)
            return self._seen.find(since_s, lambda used: np.asarray(np.isin(used.paths, links).any(axis=1)))
        if fault.kind == "rank":
            ranks = np.array([int(fault.name)])
        else:
            ranks = np.flatnonzero(self._seen.placement_at(since_s).host_of == self._hosts.index(fault.name))
        return self._seen.find(since_s, lambda used: np.isin(used.dst, ranks) & ~np.isin(used.src, ranks))

    def _warning(self, at_s: float, host: str, part: str, rank: int, kind: str, severity: str, words: str) -> Event:
        pid = FIRST_PID + int(self._seen.placement_at(at_s).gpu_of[rank])
        message = f"rank {rank} (pid {pid}): {words}"
        return replace(self._event(at_s, host, "connections", kind, part, severity, message), rank=rank, pid=pid)

    def _host_of(self, rank: int, at_s: float) -> str:
        return self._hosts[int(self._seen.placement_at(at_s).host_of[rank])]

    def _event(self, at_s: float, host: str, source: str, kind: str, part: str, severity: str, message: str) -> Event:
        return Event(
            host=host,
            ts_ns=self._start_ns + round(at_s * NS_PER_S),
            source=source,
            kind=kind,
            component=part,
            severity=severity,
            message=message,
        )


def find_flapping(downs_s: list[float]) -> list[float]:
    """Return the moments at which a link begins to flap: its third loss within ten minutes, and again after quiet.

    >>> find_flapping([20.0, 80.0, 140.0, 200.0])
    [140.0]
    """
    last = _FLAPPING_DOWNS - 1
    begins = []
    for number in range(last, len(downs_s)):
        is_flapping = downs_s[number] - downs_s[number - last] <= _FLAPPING_S
        did_flap = number > last and downs_s[number] - downs_s[number - last - 1] <= _FLAPPING_S
        if is_flapping and not did_flap:
            begins.append(downs_s[number])
    return begins


def _once_a_nic(connections: Iterable[Connection]) -> list[Connection]:
    """Return the first connection of each rank and NIC: NCCL gives up with its first failed completion."""
    first: dict[tuple[int, int], Connection] = {}
    for each in connections:
        first.setdefault((each.src, each.tx_nic), each)
    return list(first.values())


def _retry_waits(is_ib: bool) -> list[float]:
    """Return after how many seconds without an acknowledgement a sender sends again."""
    if is_ib:
        return [number * _ACK_TIMEOUT_S for number in range(1, _RETRIES + 1)]
    return [_RTO_S * (2**number - 1) for number in range(1, _MOST_RTOS + 1)]
