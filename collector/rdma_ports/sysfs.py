"""What the kernel says about an RDMA port below /sys/class/infiniband."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_UP_STATES = ("ACTIVE", "ACTIVE_DEFER")
_SETTINGS = frozenset({"lifespan"})  # stands among the hw_counters, but says for how long the kernel keeps them


@dataclass(frozen=True)
class RdmaPort:
    """One reading of a port; what could not be read is None, or named in `broken`."""

    nic: str  # as rows name it
    netdevs: tuple[str, ...]  # network interfaces of the same device
    state: str  # DOWN, INIT, ARMED, ACTIVE, ACTIVE_DEFER
    phys_state: str | None  # LinkUp, Polling, Disabled and others
    up: bool
    speed_mbps: int | None
    counters: dict[str, int]
    broken: tuple[str, ...]  # counters that the driver lists and does not give


def find_ports(devices: Path) -> dict[str, Path]:
    """Return the port folders by NIC: the device's own name, or `device:port` where it has several ports."""
    found = {}
    for device in sorted(devices.glob("*")):
        ports = sorted(device.glob("ports/*"), key=lambda port: (len(port.name), port.name))
        found.update({device.name if len(ports) == 1 else f"{device.name}:{port.name}": port for port in ports})
    return found


def read_port(nic: str, port: Path) -> RdmaPort:
    """Return a reading; raise OSError or ValueError when the port does not even tell its state."""
    device = port.parent.parent
    netdevs = sorted(device.glob("device/net/*"))
    state = _word_after_number(port / "state")
    up = state in _UP_STATES and not _is_down_below(port, netdevs)
    counters, broken = _read_counters([device / "hw_counters", port / "counters", port / "hw_counters"])
    return RdmaPort(
        nic=nic,
        netdevs=tuple(netdev.name for netdev in netdevs),
        state=state,
        phys_state=_try_word(port / "phys_state"),
        up=up,
        speed_mbps=_read_speed(port / "rate") if up else None,
        counters=counters,
        broken=broken,
    )


def _word_after_number(file: Path) -> str:
    """Return DOWN of `1: DOWN`."""
    number, colon, word = file.read_text().partition(":")
    if not (colon and number.strip().isdecimal() and word.strip()):
        raise ValueError(f"{file} says {number + colon + word!r}")
    return word.strip()


def _try_word(file: Path) -> str | None:
    try:
        return _word_after_number(file)
    except (OSError, ValueError):
        return None


def _is_down_below(port: Path, netdevs: list[Path]) -> bool:
    """Tell whether the interfaces of an Ethernet port have no link; the driver of EFA says ACTIVE all the same."""
    if not netdevs or _read_text(port / "link_layer") == "InfiniBand":  # IPoIB may be down while InfiniBand works
        return False
    return all(_read_text(netdev / "operstate") in ("down", "lowerlayerdown") for netdev in netdevs)


def _read_text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return None


def _read_speed(file: Path) -> int | None:
    """Return the rate of `400 Gb/sec (4X NDR)` in Mb/s."""
    number, _, unit = (_read_text(file) or "").partition(" ")
    try:
        speed_mbps = round(float(number) * 1000)
    except (ValueError, OverflowError):  # no number, or NaN and infinity
        return None
    return speed_mbps if unit.startswith("Gb/sec") and 0 < speed_mbps < 1 << 32 else None


def _read_counters(folders: Iterable[Path]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return all counters of the folders, and the names of those that cannot be read; a later folder wins."""
    counters, broken = {}, set()
    for folder in folders:
        for name in _list_names(folder):
            count = _read_count(f"{folder}/{name}")
            if count is None:
                broken.add(name)
            else:
                counters[name] = count
    return counters, tuple(sorted(broken))


def _list_names(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name not in _SETTINGS)
    except OSError:  # not every driver has each folder
        return []


def _read_count(file: str) -> int | None:
    """Return a counter; a host has hundreds of them a second, and Path and text would double the cost of a read."""
    try:
        with open(file, "rb", buffering=0) as counter:
            value = int(counter.read(64))
    except (OSError, ValueError):
        return None
    return value if 0 <= value < 1 << 64 else None
