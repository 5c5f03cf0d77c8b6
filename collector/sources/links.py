"""NICs: state, speed, counters, queues, and what their TCP flows suffer; events when one goes down, returns or flaps.

By netlink, in the network namespace of this process; from /sys where the kernel refuses netlink or where `root` is a
folder. An event carries the time at which the kernel told the change; one that it did not tell, that of the reading
that saw it. What the counters of TCP mean is in links/tcp_flows.py.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from collector.inet_diag import SENDING_STATES, TcpTable, read_tcp_table
from collector.links.events import LinkWatch
from collector.links.kernel import KernelLinks
from collector.links.readings import REQUIRED, Link, Look, Queue
from collector.links.sysfs import look_at_files, read_speed
from collector.links.tcp_flows import FlowWatch, NicFlows
from collector.source import PlainSource, Reading
from lockstep.arrow import rows_of
from lockstep.clock import Clock, SystemClock
from lockstep.errors import NotPresent
from lockstep.records import Event, HostRecord, NicCounter
from lockstep.tables import TABLE_BY_NAME
from lockstep.wish import Wish

_log = structlog.get_logger("links")

_MAX_WATCHES = 1024  # interfaces remembered; beyond it those that are gone are forgotten


def read_sending_sockets() -> TcpTable:
    """Return the TCP sockets of this namespace that may still send."""
    return read_tcp_table(states=SENDING_STATES)


class LinksSource(PlainSource):
    """Reads every NIC that has a device behind it; `root` is where the host's / is.

    Interfaces without a device count when the topology names them as NICs of this host (`named`: in virtual machines
    and namespaces nothing else tells), or when their kind is in `virtual_kinds`. `use_netlink` says whether the
    kernel is asked rather than the files below `root`; unless said, it is when `root` is the real one.
    """

    name = "links"
    period_s = 1.0

    def __init__(
        self,
        host: str,
        root: Path = Path("/"),
        virtual_kinds: Collection[str] = (),
        use_netlink: bool | None = None,
        clock: Clock | None = None,
        open_kernel: Callable[[Path, Clock], KernelLinks] = KernelLinks,
        read_flows: Callable[[], TcpTable] = read_sending_sockets,
        named: Collection[str] = (),
    ) -> None:
        self._host = host
        self._net = root / "sys/class/net"
        self._virtual_kinds, self._named = frozenset(virtual_kinds), frozenset(named)
        self._use_netlink = root == Path("/") if use_netlink is None else use_netlink
        self._clock = clock or SystemClock()
        self._open_kernel, self._read_flows = open_kernel, read_flows
        self._kernel: KernelLinks | None = None
        self._flows = FlowWatch()
        self._watches: dict[str, LinkWatch] = {}
        self._complaints: dict[tuple[str, str], str] = {}
        self._last_ns = 0  # when it was read; nothing older is told any more

    def read(self, now_ns: int, wishes: Sequence[Wish]) -> Reading:
        look = self._look()
        nics = sorted((link for link in look.links if self._is_nic(link)), key=lambda link: link.name)
        if not nics and not look.broken and not self._watches:
            raise NotPresent(f"no NIC with a device in {self._net}")
        flows = self._watch_flows(look)
        tables: dict[str, Sequence[HostRecord]] = {
            "nic_counters": [self._row(now_ns, nic, look, flows.get(nic.name)) for nic in nics],
            "events": self._events(now_ns, look, nics),
        }
        return Reading(
            {name: rows_of(TABLE_BY_NAME[name], list(records)) for name, records in tables.items()},
            watermark_ns=now_ns,
            is_urgent=bool(tables["events"]),
        )

    def close(self) -> None:
        """End the subscription to changes."""
        if self._kernel:
            self._kernel.close()
        self._kernel = None

    def _look(self) -> Look:
        """Return what the kernel tells, or what the files do while it refuses."""
        look = self._ask_kernel() if self._use_netlink else look_at_files(self._net)
        for name in {*look.broken, *(link.name for link in look.links)}:
            self._complain("NIC cannot be read and is left out", name, look.broken.get(name, ""))
        return look

    def _ask_kernel(self) -> Look:
        try:
            self._kernel = self._kernel or self._open_kernel(self._net, self._clock)
            look = self._kernel.look()
        except OSError as error:
            self.close()
            self._complain("the kernel refuses netlink, files are read instead", "", error.strerror or str(error))
            # The files may be those of another namespace: what they do not list need not be gone.
            return replace(look_at_files(self._net), is_whole=False)
        self._complain("the kernel refuses netlink, files are read instead", "", "")
        lost = self._kernel.overruns
        self._complain("too many changes of links at once, some were lost", "", f"{lost} times" if lost else "")
        return look

    def _is_nic(self, link: Link) -> bool:
        return link.has_device or link.kind in self._virtual_kinds or link.name in self._named

    def _watch_flows(self, look: Look) -> Mapping[str, NicFlows]:
        if look.addresses is None:
            return {}
        try:
            table = self._read_flows()
        except NotPresent as absence:
            self._complain("retransmissions are not counted", "", str(absence))
            return {}
        self._complain("retransmissions are not counted", "", "only of a part of the flows" if table.is_cut else "")
        return self._flows.observe(table, self._names_by_index(look.links), look.addresses)

    def _names_by_index(self, links: Iterable[Link]) -> dict[int, str]:
        """Return the NIC of each interface that is one or, as a VLAN does, lies on one."""
        names = {link.index: link.name for link in links if self._is_nic(link)}
        return {link.index: names[link.lower] for link in links if link.lower in names} | names

    def _row(self, now_ns: int, nic: Link, look: Look, flows: NicFlows | None) -> NicCounter:
        statistics = nic.statistics
        return NicCounter(
            host=self._host,
            ts_ns=now_ns,
            nic=nic.name,
            up=nic.is_up,
            speed_mbps=self._speed(nic),
            rx_bytes=statistics["rx_bytes"],
            tx_bytes=statistics["tx_bytes"],
            rx_errors=statistics["rx_errors"],
            tx_errors=statistics["tx_errors"],
            rx_drops=statistics["rx_dropped"],
            tx_drops=statistics["tx_dropped"],
            retrans=flows.retrans if flows else None,
            extra=_extra(nic, look.queues.get(nic.index), flows),
        )

    def _speed(self, nic: Link) -> int | None:
        return self._kernel.read_speed(nic) if self._kernel else read_speed(self._net, nic.name)

    def _events(self, now_ns: int, look: Look, nics: Sequence[Link]) -> list[Event]:
        """Return what happened: first what was told since the last reading, then what this one shows."""
        events = []
        known = {nic.name for nic in nics}
        for change in look.changes:
            if (name := change.link.name) in known:
                at_ns = max(self._last_ns, change.at_ns)
                events += self._watch(name).observe(at_ns, change.link, is_notice=True)
        self._last_ns = now_ns
        for nic in nics:
            events += self._watch(nic.name).observe(now_ns, nic)
        return events + (self._lost_events(now_ns, known | look.broken.keys()) if look.is_whole else [])

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

    def _complain(self, complaint: str, nic: str, problem: str) -> None:
        """Say it when it changes, not each time round; an empty problem means that all is well."""
        if problem and self._complaints.get((complaint, nic)) != problem:
            _log.warning(complaint, **({"nic": nic} if nic else {}), error=problem)
        if problem:
            self._complaints[complaint, nic] = problem
        else:
            self._complaints.pop((complaint, nic), None)


def _extra(nic: Link, queue: Queue | None, flows: NicFlows | None) -> dict[str, int]:
    carrier = {"carrier_downs": nic.carrier_downs, "carrier_ups": nic.carrier_ups}
    return {
        **{name: value for name, value in nic.statistics.items() if name not in REQUIRED},
        **{name: value for name, value in carrier.items() if value is not None},
        **(queue.counters() if queue else {}),
        **(flows.counters if flows else {}),
    }
