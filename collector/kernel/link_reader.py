"""Asks the kernel for all interfaces of this network namespace, and hears what changes between two looks."""

import contextlib
from dataclasses import replace
from pathlib import Path

from collector.kernel.links import (
    ASK_ALL_ADDRESSES,
    ASK_ALL_LINKS,
    ASK_ALL_QUEUES,
    CONTROL_FAMILY,
    GET_ADDRESS,
    GET_LINK,
    GET_QUEUE,
    REQUIRED,
    STATISTICS,
    Link,
    LinkChanges,
    LinkSnapshot,
    ask_family,
    ask_speed,
    decode_address,
    decode_family,
    decode_link,
    decode_root_queue,
    decode_speed,
    dump,
)
from collector.kernel.netlink import NETLINK_GENERIC, NETLINK_ROUTE, NetlinkSocket
from lockstep.clock import Clock


def read_files(net: Path) -> LinkSnapshot:
    """Return every interface with a card behind it in a folder such as /sys/class/net, and which cannot be read."""
    links, broken = [], {}
    for folder in sorted(path for path in net.glob("*") if has_device(net, path.name)):
        try:
            links.append(_read_link(folder))
        except (OSError, ValueError) as error:
            broken[folder.name] = str(error)
    return LinkSnapshot(links=links, broken=broken)


def has_device(net: Path, name: str) -> bool:
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
    is_enabled = True
    with contextlib.suppress(OSError, ValueError):
        is_enabled = bool(int(_read_word(folder / "flags"), 16) & 1)
    return Link(
        name=folder.name,
        index=_count_of(folder / "ifindex") or 0,
        # Not every driver keeps operstate; the kernel wants "unknown" to be taken for usable, so the carrier decides.
        is_up=operstate == "up" or (operstate == "unknown" and _read_word(folder / "carrier") == "1"),
        is_enabled=is_enabled,
        operstate=operstate,
        has_device=True,
        statistics={name: _read_count(folder / "statistics" / name) for name in counters},
        carrier_downs=_count_of(folder / "carrier_down_count"),
        carrier_ups=_count_of(folder / "carrier_up_count"),
    )


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


_TRIES = 3  # for a list that changes while it is read; then it may lack an interface and says so
_MOST_SPEEDS = 4_096  # remembered; beyond it all are asked again


class KernelLinks:
    """Open sockets to the kernel; raises OSError where it refuses them. `net` is the folder for older kernels."""

    def __init__(self, net: Path, clock: Clock, with_changes: bool = True) -> None:
        self._net = net
        with contextlib.ExitStack() as opened:
            self._route = opened.enter_context(contextlib.closing(NetlinkSocket(NETLINK_ROUTE)))
            self._generic = opened.enter_context(contextlib.closing(NetlinkSocket(NETLINK_GENERIC)))
            self._changes = opened.enter_context(contextlib.closing(LinkChanges(clock))) if with_changes else None
            self._closing = opened.pop_all()
        self._ethtool = self._find_ethtool()
        self._speeds: dict[tuple[int, int | None, int | None], int] = {}

    @property
    def overruns(self) -> int:
        """How often changes were lost because there were too many at once."""
        return self._changes.overruns if self._changes is not None else 0

    def read(self) -> LinkSnapshot:
        """Return what there is now and what has changed since the last time; raise OSError where that fails."""
        # Changes first: one that comes in between is in the list too, and its carrier counts tell that it is known.
        changes = self._changes.take() if self._changes is not None else []
        links, is_whole = self._list_links()
        speechless = [link for link in links if not link.statistics.keys() >= set(REQUIRED)]
        return LinkSnapshot(
            links=[link for link in links if link not in speechless],
            changes=changes,
            queues=dict(dump(self._route, GET_QUEUE, ASK_ALL_QUEUES, decode_root_queue)),
            addresses=dict(dump(self._route, GET_ADDRESS, ASK_ALL_ADDRESSES, decode_address)),
            broken={link.name: "the kernel gives no counters" for link in speechless if link.has_device},
            is_whole=is_whole,
        )

    def read_speed(self, link: Link) -> int | None:
        """Return the negotiated rate in Mbit/s; a card is asked once for each time that it got its carrier.

        Asking may mean a command to the card's firmware, and a rate changes only with the carrier.
        """
        if not link.is_up:
            return None
        key = (link.index, link.carrier_ups, link.carrier_downs)
        if key not in self._speeds and (speed := self._ask_speed(link)):
            if len(self._speeds) >= _MOST_SPEEDS:
                self._speeds.clear()
            self._speeds[key] = speed
        return self._speeds.get(key)

    def close(self) -> None:
        self._closing.close()

    def _list_links(self) -> tuple[list[Link], bool]:
        for _ in range(_TRIES):
            links = list(dump(self._route, GET_LINK, ASK_ALL_LINKS, decode_link))
            if not self._route.was_interrupted:
                break
        if not any(link.has_device for link in links):  # before Linux 5.14 only the files say which are cards
            links = [replace(link, has_device=has_device(self._net, link.name)) for link in links]
        return links, not self._route.was_interrupted

    def _find_ethtool(self) -> int | None:
        """Return the number of ethtool's family; None before Linux 5.6."""
        with contextlib.suppress(OSError):
            answer = self._generic.ask(CONTROL_FAMILY, ask_family("ethtool"))
            return next((decode_family(payload) for _, payload in answer.payloads()), None)
        return None

    def _ask_speed(self, link: Link) -> int | None:
        if self._ethtool is None:
            return read_speed(self._net, link.name)
        with contextlib.suppress(OSError):  # the driver does not know, or the interface has just gone
            answer = self._generic.ask(self._ethtool, ask_speed(link.index))
            return next((decode_speed(payload) for _, payload in answer.payloads()), None)
        return None
