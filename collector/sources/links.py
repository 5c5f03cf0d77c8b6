"""NIC state and counters from /sys/class/net."""

from collections.abc import Sequence
from pathlib import Path

from collector.source import Reading
from lockstep.arrow import rows_of
from lockstep.errors import NotPresent
from lockstep.records import NicCounter
from lockstep.tables import TABLE_BY_NAME
from lockstep.wish import Wish

_TABLE = TABLE_BY_NAME["nic_counters"]
_EXTRA = ("rx_crc_errors", "rx_missed_errors", "rx_over_errors", "tx_carrier_errors", "collisions", "multicast")


class LinksSource:
    """Reads every NIC that has a device behind it; `root` is where the host's / is."""

    name = "links"
    period_s = 1.0

    def __init__(self, host: str, root: Path = Path("/")) -> None:
        self._host = host
        self._net = root / "sys/class/net"

    def read(self, now_ns: int, wishes: Sequence[Wish]) -> Reading:
        nics = sorted(path for path in self._net.glob("*") if (path / "device").exists())
        if not nics:
            raise NotPresent(f"no NIC with a device in {self._net}")
        rows = rows_of(_TABLE, [self._read_nic(nic, now_ns) for nic in nics])
        return Reading({"nic_counters": rows}, watermark_ns=now_ns)

    def _read_nic(self, nic: Path, now_ns: int) -> NicCounter:
        def count(name: str) -> int:
            return int((nic / "statistics" / name).read_text())

        speed = _read_speed(nic)
        return NicCounter(
            host=self._host,
            ts_ns=now_ns,
            nic=nic.name,
            up=_read_word(nic / "operstate") == "up",
            speed_mbps=speed,
            rx_bytes=count("rx_bytes"),
            tx_bytes=count("tx_bytes"),
            rx_errors=count("rx_errors"),
            tx_errors=count("tx_errors"),
            rx_drops=count("rx_dropped"),
            tx_drops=count("tx_dropped"),
            retrans=None,
            extra={name: count(name) for name in _EXTRA if (nic / "statistics" / name).exists()},
        )


def _read_word(file: Path) -> str:
    return file.read_text().strip()


def _read_speed(nic: Path) -> int | None:
    """Return the negotiated rate; drivers answer EINVAL or -1 while there is none."""
    try:
        speed = int(_read_word(nic / "speed"))
    except OSError:
        return None
    return speed if speed > 0 else None
