"""RDMA ports from /sys/class/infiniband: state, rate, all counters, and the events that follow from them.

A row is named after the RDMA device (`mlx5_0`), and after device and port (`mlx5_0:2`) where a device has several, as
in NCCL_IB_HCA. The network interface of the same card (`ib0`, `eth0`) has rows of its own from the source `links`:
the names never clash, and what they count differs, because RDMA passes the interface by.
"""

import tomllib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import structlog

from collector.kernel.rdma import RdmaPort, find_ports, read_port
from collector.sources.source import ChangeLog, EventReporter, PlainSource, Reading, tables_of
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S
from lockstep.errors import NotPresent
from lockstep.records import Event, NicCounter

_SAMPLES = 60  # a window is remembered in so many parts, which bounds the memory and blurs its length by a sixtieth


@dataclass(frozen=True)
class CounterRule:
    """A counter must not grow by more than `threshold` within `window_s`."""

    counter: str  # name in sysfs
    threshold: int
    window_s: int
    severity: str  # as in events
    meaning: str  # what it says about the part, for a person

    @property
    def window_ns(self) -> int:
        return self.window_s * NS_PER_S


@dataclass(frozen=True)
class Rise:
    """A rule that fires, and what was seen."""

    rule: CounterRule
    before: int
    after: int
    duration_ns: int  # from `before` to `after`

    def __str__(self) -> str:
        rule = self.rule
        seen = f"{rule.counter} grew by {self.after - self.before} ({self.before} to {self.after})"
        limit = f"more than {rule.threshold} in {rule.window_s} s"
        return f"{seen} in {self.duration_ns / NS_PER_S:.1f} s, {limit}: {rule.meaning}"


def load_rules() -> tuple[CounterRule, ...]:
    text = (files("collector") / "data/rdma_rules.toml").read_text()
    return tuple(CounterRule(**rule) for rule in tomllib.loads(text)["rule"])


class RuleWatch:
    """Follows one counter of one port for one rule, and tells a rise once: again only after it has calmed down.

    A counter that falls was reset or has wrapped, and a clock that goes back says nothing about speed: both begin
    anew and tell nothing. After a pause longer than the window the mean over the pause counts.
    """

    def __init__(self, rule: CounterRule) -> None:
        self._rule = rule
        self._samples: deque[tuple[int, int]] = deque()  # (ns, value), the oldest about a window old
        self._newest = (0, 0)
        self._is_rising = False

    def observe(self, now_ns: int, value: int) -> Rise | None:
        """Take a reading; return the rise that begins with it, if one does."""
        if not self._samples or value < self._newest[1] or now_ns < self._newest[0]:
            self._samples = deque([(now_ns, value)])
            self._newest, self._is_rising = (now_ns, value), False
            return None
        self._remember(now_ns, value)
        begin_ns, before = self._samples[0]
        window_ns, lasted_ns = self._rule.window_ns, now_ns - begin_ns
        was_rising = self._is_rising
        self._is_rising = (value - before) * window_ns > self._rule.threshold * max(lasted_ns, window_ns)
        return Rise(self._rule, before, value, lasted_ns) if self._is_rising and not was_rising else None

    def _remember(self, now_ns: int, value: int) -> None:
        self._newest = (now_ns, value)
        if now_ns - self._samples[-1][0] >= self._rule.window_ns // _SAMPLES:
            self._samples.append((now_ns, value))
        # Reads come a little early or late, so the sample to compare with is the last one at least a window old.
        while len(self._samples) > 1 and self._samples[1][0] <= now_ns - self._rule.window_ns:
            self._samples.popleft()


class PortWatch:
    """Remembers what one port was like; the first reading is where it begins and no event."""

    def __init__(self, host: str, nic: str, rules: Iterable[CounterRule]) -> None:
        self._nic = nic
        self._reporter = EventReporter(host, "rdma", f"nic:{host}/{nic}")
        self._rules = tuple(rules)
        self._name = nic  # for a person: with the network interfaces, as far as they were ever seen
        self._was: RdmaPort | None = None
        self.is_gone = False
        self._forget_counters()

    def observe(self, now_ns: int, port: RdmaPort) -> list[Event]:
        """Take a reading and return what happened since the one before."""
        if port.netdevs:
            self._name = f"{self._nic} ({', '.join(port.netdevs)})"
        return self._state_events(now_ns, port) + self._counter_events(now_ns, port)

    def lose(self, now_ns: int) -> list[Event]:
        """Note that the port is not listed any more; tell it once."""
        if self.is_gone:
            return []
        self.is_gone = True
        self._forget_counters()
        state = self._was.state if self._was else "a state never read"
        message = f"{self._name} is no longer listed by the kernel; before it was {state}"
        return [self._reporter.report(now_ns, "nic_gone", "error", message)]

    def _state_events(self, now_ns: int, port: RdmaPort) -> list[Event]:
        was, self._was = self._was, port
        was_gone, self.is_gone = self.is_gone, False
        if was_gone and port.up:
            message = f"{self._name} is listed again and {port.state}"
            return [self._reporter.report(now_ns, "link_up", "info", message)]
        if was_gone or was is None or was.up == port.up:
            return []
        change = f"{self._name} went from {was.state} to {port.state}, physical state {port.phys_state or 'unknown'}"
        kind, severity = ("link_up", "info") if port.up else ("link_down", "error")
        if not port.up and port.state.startswith("ACTIVE"):
            change += "; its network interface is down"
        return [self._reporter.report(now_ns, kind, severity, change)]

    def _counter_events(self, now_ns: int, port: RdmaPort) -> list[Event]:
        events = []
        for rule, watch in self._watches:
            value = port.counters.get(rule.counter)
            if value is not None and (rise := watch.observe(now_ns, value)):
                events.append(self._reporter.report(now_ns, rule.counter, rule.severity, f"{self._name}: {rise}"))
        return events

    def _forget_counters(self) -> None:
        self._watches = [(rule, RuleWatch(rule)) for rule in self._rules]


_log = structlog.get_logger("rdma")

_NOT_IN_FULL = "RDMA port cannot be read in full"
_MAX_WATCHES = 1024  # ports remembered; beyond it those that are gone are forgotten
_WORD_BYTES = 4  # InfiniBand counts data in words of four bytes, also on RoCE
# The counters a column is read from, by preference: those of InfiniBand and mlx5, then those of EFA.
_COLUMNS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "rx_bytes": (("port_rcv_data", _WORD_BYTES), ("rx_bytes", 1)),
    "tx_bytes": (("port_xmit_data", _WORD_BYTES), ("tx_bytes", 1)),
    "rx_errors": (("port_rcv_errors", 1),),
    "tx_errors": (("port_xmit_constraint_errors", 1),),
    "rx_drops": (("out_of_buffer", 1), ("rx_drops", 1), ("VL15_dropped", 1)),
    "tx_drops": (("port_xmit_discards", 1),),
}
# On mlx5 each of these is one cause for sending again: no answer, a refusal, a gap in the answers.
_RETRANS = ("local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err")


class RdmaSource(PlainSource):
    """Reads every RDMA port; `root` is where the host's / is.

    A counter that cannot be read is left out. A port whose driver does not count what a row must have (EFA, software
    RDMA) gives no row rather than zeros, and its events all the same.
    """

    name = "rdma"
    period_s = 1.0

    def __init__(self, host: str, root: Path = Path("/")) -> None:
        self._host = host
        self._devices = root / "sys/class/infiniband"
        self._rules = load_rules()
        self._watches: dict[str, PortWatch] = {}
        self._problems = ChangeLog(_log)

    def read(self, now_ns: int, requests: Sequence[DetailRequest]) -> Reading:
        found = find_ports(self._devices)
        if not found and not self._watches:
            raise NotPresent(f"no RDMA port in {self._devices}")
        ports = [port for nic, folder in found.items() if (port := self._try_port(nic, folder))]
        rows = [row for port in ports if (row := _row_of(self._host, now_ns, port))]
        events = [event for port in ports for event in self._watch(port.nic).observe(now_ns, port)]
        events += self._lost_events(now_ns, found)
        return Reading(tables_of(nic_counters=rows, events=events), watermark_ns=now_ns)

    def _try_port(self, nic: str, folder: Path) -> RdmaPort | None:
        """Return a reading, or None when the driver answers nonsense or the port has just gone."""
        self._watch(nic)
        try:
            port = read_port(nic, folder)
        except (OSError, ValueError) as error:
            self._problems.note(_NOT_IN_FULL, f"its state cannot be read, the port is left out: {error}", nic=nic)
            return None
        self._problems.note(_NOT_IN_FULL, _complaint_about(port), nic=nic)
        return port

    def _watch(self, nic: str) -> PortWatch:
        if nic not in self._watches:
            self._watches[nic] = PortWatch(self._host, nic, self._rules)
        return self._watches[nic]

    def _lost_events(self, now_ns: int, found: Mapping[str, Path]) -> list[Event]:
        gone = [nic for nic in self._watches if nic not in found]
        events = [event for nic in gone for event in self._watches[nic].lose(now_ns)]
        for nic in gone[: max(0, len(self._watches) - _MAX_WATCHES)]:
            del self._watches[nic]
            self._problems.note(_NOT_IN_FULL, "", nic=nic)
        return events


def _complaint_about(port: RdmaPort) -> str:
    missing = [column for column in _COLUMNS if _column(port, column) is None]
    broken = f"counters that cannot be read: {', '.join(port.broken)}" if port.broken else ""
    lacks = f"no row, because nothing counts {', '.join(missing)}" if missing else ""
    return "; ".join(filter(None, (broken, lacks)))


def _row_of(host: str, now_ns: int, port: RdmaPort) -> NicCounter | None:
    columns = {column: value for column in _COLUMNS if (value := _column(port, column)) is not None}
    if len(columns) < len(_COLUMNS):
        return None
    return NicCounter(
        host=host,
        ts_ns=now_ns,
        nic=port.nic,
        up=port.up,
        speed_mbps=port.speed_mbps,
        **columns,
        retrans=_retrans(port.counters),
        extra=port.counters,
    )


def _column(port: RdmaPort, column: str) -> int | None:
    """Return the first counter that the driver has for a column; None when it has none or it does not fit."""
    values = (port.counters[name] * unit for name, unit in _COLUMNS[column] if name in port.counters)
    return _fitting(next(values, None))


def _retrans(counters: Mapping[str, int]) -> int | None:
    if "retrans_pkts" in counters:  # EFA counts the packets themselves
        return counters["retrans_pkts"]
    return _fitting(sum(counters[name] for name in _RETRANS)) if counters.keys() >= set(_RETRANS) else None


def _fitting(value: int | None) -> int | None:
    return value if value is not None and value < 1 << 64 else None
