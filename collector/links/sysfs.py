"""Interfaces as files below /sys/class/net show them: for imitated roots, and where the kernel refuses netlink.

Files know neither queues nor addresses, and a change between two readings only where the driver counts its carriers.
"""

from pathlib import Path

from collector.links.readings import REQUIRED, STATISTICS, Link, Look


def look_at_files(net: Path) -> Look:
    """Return every interface with a card behind it in a folder such as /sys/class/net, and which cannot be read."""
    links, broken = [], {}
    for folder in sorted(path for path in net.glob("*") if has_device(net, path.name)):
        try:
            links.append(_read_link(folder))
        except (OSError, ValueError) as error:
            broken[folder.name] = str(error)
    return Look(links=links, broken=broken)


def has_device(net: Path, name: str) -> bool:
    """Return whether a card is behind an interface."""
    return (net / name / "device").exists()


def read_speed(net: Path, name: str) -> int | None:
    """Return the negotiated rate; while there is none drivers answer EINVAL, -1, 2**32 - 1 or no number at all."""
    try:
        speed = int(_read_word(net / name / "speed"))
    except (OSError, ValueError):
        return None
    return speed if 0 < speed < 0xFFFF_FFFF else None


def _read_link(folder: Path) -> Link:
    operstate = _read_word(folder / "operstate")
    counters = (name for name in STATISTICS if name in REQUIRED or (folder / "statistics" / name).exists())
    return Link(
        name=folder.name,
        index=_count_of(folder / "ifindex") or 0,
        # Not every driver keeps operstate; the kernel wants "unknown" to be taken for usable, so the carrier decides.
        is_up=operstate == "up" or (operstate == "unknown" and _read_word(folder / "carrier") == "1"),
        is_enabled=_is_enabled(folder),
        operstate=operstate,
        has_device=True,
        statistics={name: _read_count(folder / "statistics" / name) for name in counters},
        carrier_downs=_count_of(folder / "carrier_down_count"),
        carrier_ups=_count_of(folder / "carrier_up_count"),
    )


def _is_enabled(folder: Path) -> bool:
    try:
        return bool(int(_read_word(folder / "flags"), 16) & 1)
    except (OSError, ValueError):
        return True


def _read_word(file: Path) -> str:
    return file.read_text().strip()


def _read_count(file: Path) -> int:
    value = int(_read_word(file))
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{file} counts {value}")
    return value


def _count_of(file: Path) -> int | None:
    """Return a count that not every kernel has."""
    try:
        return _read_count(file)
    except (OSError, ValueError):
        return None
