"""RDMA ports from /sys/class/infiniband: state, rate, all counters, and the events that follow from them.

A row is named after the RDMA device (`mlx5_0`), and after device and port (`mlx5_0:2`) where a device has several, as
in NCCL_IB_HCA. The network interface of the same card (`ib0`, `eth0`) has rows of its own from the source `links`:
the names never clash, and what they count differs, because RDMA passes the interface by.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from collector.rdma_ports.events import PortWatch
from collector.rdma_ports.rules import load_rules
from collector.rdma_ports.sysfs import RdmaPort, find_ports, read_port
from collector.source import PlainSource, Reading
from lockstep.arrow import rows_of
from lockstep.errors import NotPresent
from lockstep.records import Event, NicCounter
from lockstep.tables import TABLE_BY_NAME
from lockstep.wish import Wish

_log = structlog.get_logger("rdma")

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
        self._complaints: dict[str, str] = {}

    def read(self, now_ns: int, wishes: Sequence[Wish]) -> Reading:
        found = find_ports(self._devices)
        if not found and not self._watches:
            raise NotPresent(f"no RDMA port in {self._devices}")
        ports = [port for nic, folder in found.items() if (port := self._try_port(nic, folder))]
        rows = [row for port in ports if (row := _row_of(self._host, now_ns, port))]
        events = [event for port in ports for event in self._watch(port.nic).observe(now_ns, port)]
        events += self._lost_events(now_ns, found)
        return Reading(
            {
                "nic_counters": rows_of(TABLE_BY_NAME["nic_counters"], list(rows)),
                "events": rows_of(TABLE_BY_NAME["events"], list(events)),
            },
            watermark_ns=now_ns,
        )

    def _try_port(self, nic: str, folder: Path) -> RdmaPort | None:
        """Return a reading, or None when the driver answers nonsense or the port has just gone."""
        self._watch(nic)
        try:
            port = read_port(nic, folder)
        except (OSError, ValueError) as error:
            self._complain(nic, f"its state cannot be read, the port is left out: {error}")
            return None
        self._complain(nic, _complaint_about(port))
        return port

    def _complain(self, nic: str, complaint: str) -> None:
        """Say it when it changes, not each time round; an empty complaint means that all is well."""
        if complaint and complaint != self._complaints.get(nic):
            _log.warning("RDMA port cannot be read in full", nic=nic, problem=complaint)
        self._complaints[nic] = complaint

    def _watch(self, nic: str) -> PortWatch:
        if nic not in self._watches:
            self._watches[nic] = PortWatch(self._host, nic, self._rules)
        return self._watches[nic]

    def _lost_events(self, now_ns: int, found: Mapping[str, Path]) -> list[Event]:
        gone = [nic for nic in self._watches if nic not in found]
        events = [event for nic in gone for event in self._watches[nic].lose(now_ns)]
        for nic in gone[: max(0, len(self._watches) - _MAX_WATCHES)]:
            del self._watches[nic]
            self._complaints.pop(nic, None)
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
