"""NICs: state, speed, counters, queues, and what their TCP flows suffer; events when one goes down, returns or flaps.

By netlink, in the network namespace of this process; from /sys where the kernel refuses netlink or where `root` is a
folder. An event carries the time at which the kernel told the change; one that it did not tell, that of the reading
that saw it. What the counters of TCP mean is in kernel/inet_diag.py.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from collector.kernel.inet_diag import FlowWatch, NicFlows, TcpTable, read_tcp_table
from collector.kernel.link_reader import KernelLinks, read_files, read_speed
from collector.kernel.links import REQUIRED, Link, LinkSnapshot, Queue
from collector.sources.source import ChangeLog, EventReporter, PlainSource, Reading, tables_of
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S, Clock, SystemClock
from lockstep.errors import NotPresent
from lockstep.records import Event, NicCounter

# A cable that is moved or a switch that boots gives one loss, or two while the speed is negotiated.
FLAPPING_DOWNS = 3
FLAPPING_NS = 600 * NS_PER_S


class LinkWatch:
    """Remembers what one interface was like; the first sight of it is where it begins and no event.

    Sights come in order from notifications and readings. The kernel's count of lost carriers tells what neither
    showed: notifications are merged when changes follow each other closely, and lost when there are too many.
    """

    def __init__(self, host: str, nic: str) -> None:
        self._nic = nic
        self._reporter = EventReporter(host, "links", f"nic:{host}/{nic}")
        self._was: Link | None = None
        self._is_gone = False
        self._downs: deque[tuple[int, int]] = deque(maxlen=FLAPPING_DOWNS)  # when, and how many
        self._is_flapping = False

    def observe(self, now_ns: int, link: Link, is_notice: bool = False) -> list[Event]:
        """Take a sight of the interface and return what happened since the one before."""
        was, was_gone = self._was, self._is_gone
        if was is not None and (_is_older(link, was) or (is_notice and _is_unsettled(link, was))):
            return []
        self._was, self._is_gone = link, False
        if was_gone and link.is_up:
            return [self._reporter.report(now_ns, "link_up", "info", f"{self._nic} is there again and up")]
        if was is None or was_gone:
            return []
        return self._changes(now_ns, was, link)

    def lose(self, now_ns: int) -> list[Event]:
        """Note that the interface is not listed any more; tell it once."""
        if self._is_gone or self._was is None:
            return []
        self._is_gone = True
        message = f"{self._nic} is no longer there; before it was {'up' if self._was.is_up else 'down'}"
        return [self._reporter.report(now_ns, "nic_gone", "error", message)]

    def _changes(self, now_ns: int, was: Link, link: Link) -> list[Event]:
        events = []
        downs = max(_counted_downs(was, link), int(was.is_up and not link.is_up))
        if downs:
            events.append(self._reporter.report(now_ns, "link_down", "error", self._describe_down(link, downs)))
        if link.is_up and (downs or not was.is_up):
            events.append(self._reporter.report(now_ns, "link_up", "info", f"{self._nic} has its carrier"))
        return events + self._judge_flapping(now_ns, downs)

    def _describe_down(self, link: Link, downs: int) -> str:
        times = f" {downs} times since the last reading" if downs > 1 else ""
        if link.is_up:
            return f"{self._nic} lost its carrier{times} and had it again before it was read"
        cause = f"its state is {link.operstate}" if link.is_enabled else "it was taken down on this host"
        return f"{self._nic} went down{times}: {cause}"

    def _judge_flapping(self, now_ns: int, downs: int) -> list[Event]:
        """Tell once that the interface flaps, and again only after it was quiet."""
        if downs:
            self._downs.append((now_ns, downs))
        while self._downs and now_ns - self._downs[0][0] > FLAPPING_NS:
            self._downs.popleft()
        count = sum(each for _, each in self._downs)
        was_flapping, self._is_flapping = self._is_flapping, count >= FLAPPING_DOWNS
        if was_flapping or not self._is_flapping:
            return []
        message = f"{self._nic} went down {count} times within {FLAPPING_NS // (60 * NS_PER_S)} minutes"
        return [self._reporter.report(now_ns, "link_flapping", "error", message)]


def _counted_downs(was: Link, link: Link) -> int:
    if link.index != was.index or link.carrier_downs is None or was.carrier_downs is None:
        return 0
    return max(0, link.carrier_downs - was.carrier_downs)


def _is_older(link: Link, was: Link) -> bool:
    """Return whether a notification tells of a moment before one already seen."""
    return link.index == was.index and _carrier_changes(link) < _carrier_changes(was)


def _is_unsettled(link: Link, was: Link) -> bool:
    """Return whether a notification says down only because the kernel corrects the state after the carrier."""
    is_same_carrier = link.index == was.index and _carrier_changes(link) == _carrier_changes(was) != (0, 0)
    return is_same_carrier and link.is_enabled and not link.is_up


def _carrier_changes(link: Link) -> tuple[int, int]:
    return link.carrier_downs or 0, link.carrier_ups or 0


_log = structlog.get_logger("links")

_NO_NETLINK = "the kernel refuses netlink, files are read instead"
_NO_RETRANS = "retransmissions are not counted"
_MAX_WATCHES = 1024  # interfaces remembered; beyond it those that are gone are forgotten


class LinksSource(PlainSource):
    """Reads every NIC that has a device behind it; `root` is where the host's / is.

    Interfaces without a device count when the topology names them as NICs of this host (`named`: in virtual machines
    and namespaces nothing else tells). Where `root` is the real one the kernel is asked, by what `open_kernel` gives,
    and else the files below it are read.
    """

    name = "links"
    period_s = 1.0

    def __init__(
        self,
        host: str,
        root: Path = Path("/"),
        named: Collection[str] = (),
        clock: Clock | None = None,
        open_kernel: Callable[[Path, Clock], KernelLinks] | None = None,
        read_flows: Callable[[], TcpTable] = read_tcp_table,
    ) -> None:
        self._host, self._net, self._named = host, root / "sys/class/net", frozenset(named)
        self._clock = clock or SystemClock()
        self._open_kernel = open_kernel or (KernelLinks if root == Path("/") else None)
        self._read_flows = read_flows
        self._kernel: KernelLinks | None = None
        self._flows = FlowWatch()
        self._watches: dict[str, LinkWatch] = {}
        self._problems = ChangeLog(_log)
        self._last_ns = 0  # when it was read; nothing older is told any more

    def read(self, now_ns: int, requests: Sequence[DetailRequest]) -> Reading:
        snapshot = self._snapshot()
        nics = sorted((link for link in snapshot.links if self._is_nic(link)), key=lambda link: link.name)
        if not nics and not snapshot.broken and not self._watches:
            raise NotPresent(f"no NIC with a device in {self._net}")
        flows = self._watch_flows(snapshot)
        rows = [self._row(now_ns, nic, snapshot, flows.get(nic.name)) for nic in nics]
        events = self._events(now_ns, snapshot, nics)
        return Reading(tables_of(nic_counters=rows, events=events), watermark_ns=now_ns, is_urgent=bool(events))

    def close(self) -> None:
        if self._kernel:
            self._kernel.close()
        self._kernel = None

    def _snapshot(self) -> LinkSnapshot:
        """Return what the kernel tells, or what the files do while it refuses."""
        snapshot = self._ask_kernel(self._open_kernel) if self._open_kernel else read_files(self._net)
        for name in {*snapshot.broken, *(link.name for link in snapshot.links)}:
            problem = snapshot.broken.get(name, "")
            self._problems.note("NIC cannot be read and is left out", problem, "error", nic=name)
        return snapshot

    def _ask_kernel(self, open_kernel: Callable[[Path, Clock], KernelLinks]) -> LinkSnapshot:
        try:
            self._kernel = self._kernel or open_kernel(self._net, self._clock)
            snapshot = self._kernel.read()
        except OSError as error:
            self.close()
            self._problems.note(_NO_NETLINK, error.strerror or str(error), "error")
            # The files may be those of another namespace: what they do not list need not be gone.
            return replace(read_files(self._net), is_whole=False)
        self._problems.note(_NO_NETLINK, "")
        problem = f"{lost} times" if (lost := self._kernel.overruns) else ""
        self._problems.note("too many changes of links at once, some were lost", problem, "error")
        return snapshot

    def _is_nic(self, link: Link) -> bool:
        return link.has_device or link.name in self._named

    def _watch_flows(self, snapshot: LinkSnapshot) -> Mapping[str, NicFlows]:
        if snapshot.addresses is None:
            return {}
        try:
            table = self._read_flows()
        except NotPresent as absence:
            self._problems.note(_NO_RETRANS, str(absence), "error")
            return {}
        self._problems.note(_NO_RETRANS, "only of a part of the flows" if table.is_cut else "", "error")
        nics = {link.index: link.name for link in snapshot.links if self._is_nic(link)}
        vlans = {link.index: nics[link.lower] for link in snapshot.links if link.lower in nics}
        return self._flows.observe(table, vlans | nics, snapshot.addresses)

    def _row(self, now_ns: int, nic: Link, snapshot: LinkSnapshot, flows: NicFlows | None) -> NicCounter:
        statistics = nic.statistics
        same = {name: statistics[name] for name in ("rx_bytes", "tx_bytes", "rx_errors", "tx_errors")}
        return NicCounter(
            host=self._host,
            ts_ns=now_ns,
            nic=nic.name,
            up=nic.is_up,
            speed_mbps=self._kernel.read_speed(nic) if self._kernel else read_speed(self._net, nic.name),
            **same,
            rx_drops=statistics["rx_dropped"],
            tx_drops=statistics["tx_dropped"],
            retrans=flows.retrans if flows else None,
            extra=_extra(nic, snapshot.queues.get(nic.index), flows),
        )

    def _events(self, now_ns: int, snapshot: LinkSnapshot, nics: Sequence[Link]) -> list[Event]:
        """Return what happened: first what was told since the last reading, then what this one shows."""
        events = []
        known = {nic.name for nic in nics}
        for change in snapshot.changes:
            if (name := change.link.name) in known:
                at_ns = max(self._last_ns, change.at_ns)
                events += self._watch(name).observe(at_ns, change.link, is_notice=True)
        self._last_ns = now_ns
        for nic in nics:
            events += self._watch(nic.name).observe(now_ns, nic)
        return events + (self._lost_events(now_ns, known | snapshot.broken.keys()) if snapshot.is_whole else [])

    def _watch(self, nic: str) -> LinkWatch:
        if nic not in self._watches:
            self._watches[nic] = LinkWatch(self._host, nic)
        return self._watches[nic]

    def _lost_events(self, now_ns: int, known: Collection[str]) -> list[Event]:
        gone = [nic for nic in self._watches if nic not in known]
        events = [event for nic in gone for event in self._watches[nic].lose(now_ns)]
        for nic in gone[: max(0, len(self._watches) - _MAX_WATCHES)]:
            del self._watches[nic]
        return events


def _extra(nic: Link, queue: Queue | None, flows: NicFlows | None) -> dict[str, int]:
    carrier = {"carrier_downs": nic.carrier_downs, "carrier_ups": nic.carrier_ups}
    return {
        **{name: value for name, value in nic.statistics.items() if name not in REQUIRED},
        **{name: value for name, value in carrier.items() if value is not None},
        **(queue.counters() if queue else {}),
        **(flows.counters if flows else {}),
    }
