"""Looks at the head node four times a second: CPU time, backlog, and which rows of a few hosts a query finds."""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.fleet_head import Head, machine_cpu_seconds
from benchmarks.fleet_layout import plan_host
from lockstep.clock import NS_PER_S
from lockstep.errors import StoreAway
from testbed.services import cpu_seconds

_PERIOD_S = 0.25
_LAST_LOOK_S = 10.0
_MARKERS = 8  # hosts, all in one data-parallel group, so that one small query asks for all of them
_QUERY = (
    "SELECT host, max(ts_ns) AS newest_ns FROM transfer_stats WHERE job = {job:String} AND attempt = 0 "
    "AND comm = {comm:UInt64} AND direction = 'send' AND host IN {hosts:Array(String)} "
    "AND ts_ns >= {after:Int64} GROUP BY host"
)


@dataclass(frozen=True)
class Moment:
    """The head node at one moment; CPU seconds since each process began, None while the store is away."""

    at_ns: int
    backlog_bytes: int
    gateway_cpu_s: float
    store_cpu_s: float | None
    senders_cpu_s: float
    machine_cpu_s: float = 0.0  # of everybody on it


class Watch:
    """Looks from `with` on until its end."""

    def __init__(self, head: Head, senders: list[int], hosts: range, first_second: int) -> None:
        self._head, self._senders = head, senders
        self._markers = {plan_host(host).name: host for host in hosts[:_MARKERS]}
        self._next = dict.fromkeys(self._markers.values(), first_second)  # the oldest second not found yet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="fleet-watch")
        self.moments: list[Moment] = []
        self.sighted: dict[tuple[int, int], int] = {}

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_markers(self, end_second: int) -> None:
        """Look on until the rows of the last batch are found, or for a while where the store fell behind."""
        deadline_ns = time.monotonic_ns() + int(_LAST_LOOK_S * NS_PER_S)
        while min(self._next.values()) < end_second and time.monotonic_ns() < deadline_ns:
            self._stop.wait(_PERIOD_S)

    def _look_on(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            with suppress(OSError):  # a process has just ended
                self.moments.append(self._look())
            with suppress(StoreAway):  # until it is started again
                self._find_markers()

    def _look(self) -> Moment:
        return Moment(
            time.monotonic_ns(),
            self._head.backlog_bytes,
            cpu_seconds(self._head.gateway_pid),
            cpu_seconds(pid) if (pid := self._head.store_pid) else None,
            sum(map(cpu_seconds, self._senders)),
            machine_cpu_seconds(),
        )

    def _find_markers(self) -> None:
        first = plan_host(next(iter(self._markers.values())))
        group = next(group for group in first.groups if group.next_peers)
        after_ns = min(self._next.values()) * NS_PER_S
        asked = {"job": first.job, "comm": group.comm, "hosts": list(self._markers), "after": after_ns}
        found = self._head.store.query(_QUERY, asked).to_pylist()
        now_ns = time.monotonic_ns()
        for row in found:
            self._sight(self._markers[row["host"]], row["newest_ns"] // NS_PER_S, now_ns)

    def _sight(self, host: int, newest_second: int, now_ns: int) -> None:
        """Batches are stored in order, so with one second all before it are there."""
        for second in range(self._next[host], newest_second + 1):
            self.sighted[host, second] = now_ns
        self._next[host] = max(self._next[host], newest_second + 1)
