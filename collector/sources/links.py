"""NIC state and counters from /sys/class/net."""

from collections.abc import Sequence
from pathlib import Path

import structlog

from collector.source import Reading
from lockstep.arrow import rows_of
from lockstep.errors import NotPresent
from lockstep.records import NicCounter
from lockstep.tables import TABLE_BY_NAME
from lockstep.wish import Wish

_log = structlog.get_logger("links")

_TABLE = TABLE_BY_NAME["nic_counters"]
_EXTRA = ("rx_crc_errors", "rx_missed_errors", "rx_over_errors", "tx_carrier_errors", "collisions", "multicast")


class LinksSource:
    """Reads every NIC that has a device behind it; `root` is where the host's / is."""

    name = "links"
    period_s = 1.0

    def __init__(self, host: str, root: Path = Path("/")) -> None:
        self._host = host
        self._net = root / "sys/class/net"
        self._unreadable: set[str] = set()

    def read(self, now_ns: int, wishes: Sequence[Wish]) -> Reading:
        nics = sorted(path for path in self._net.glob("*") if (path / "device").exists())
        if not nics:
            raise NotPresent(f"no NIC with a device in {self._net}")
        rows = rows_of(_TABLE, [row for nic in nics if (row := self._try_nic(nic, now_ns))])
        return Reading({"nic_counters": rows}, watermark_ns=now_ns)

    def _try_nic(self, nic: Path, now_ns: int) -> NicCounter | None:
        """Return the row of a NIC, or None when its driver answers nonsense or it has just gone."""
        try:
            row = self._read_nic(nic, now_ns)
        except (OSError, ValueError) as error:
            if nic.name not in self._unreadable:
                _log.warning("NIC cannot be read and is left out", nic=nic.name, error=str(error))
            self._unreadable.add(nic.name)
            return None
        self._unreadable.discard(nic.name)
        return row

    def _read_nic(self, nic: Path, now_ns: int) -> NicCounter:
        def count(name: str) -> int:
            return _read_count(nic / "statistics" / name)

        return NicCounter(
            host=self._host,
            ts_ns=now_ns,
            nic=nic.name,
            up=_has_carrier(nic),
            speed_mbps=_read_speed(nic),
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


def _read_count(file: Path) -> int:
    value = int(_read_word(file))
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{file} counts {value}")
    return value


def _has_carrier(nic: Path) -> bool:
    state = _read_word(nic / "operstate")
    # Not every driver keeps operstate; the kernel wants "unknown" to be taken for usable, so the carrier decides.
    return state == "up" or (state == "unknown" and _read_word(nic / "carrier") == "1")


def _read_speed(nic: Path) -> int | None:
    """Return the negotiated rate; while there is none drivers answer EINVAL, -1, 2**32 - 1 or no number at all."""
    try:
        speed = int(_read_word(nic / "speed"))
    except (OSError, ValueError):
        return None
    return speed if 0 < speed < 0xFFFF_FFFF else None
