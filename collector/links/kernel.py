"""Asks the kernel for all interfaces of this network namespace, and hears what changes between two looks."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from collector.links import messages
from collector.links.changes import LinkChanges
from collector.links.readings import REQUIRED, Link, Look
from collector.links.sysfs import has_device, read_speed
from collector.netlink import NETLINK_GENERIC, NETLINK_ROUTE, NetlinkSocket
from lockstep.clock import Clock

Decoded = TypeVar("Decoded")

_TRIES = 3  # for a list that changes while it is read; then it may lack an interface and says so
_MOST_SPEEDS = 4_096  # remembered; beyond it all are asked again


class KernelLinks:
    """Open sockets to the kernel; raises OSError where it refuses them. `net` is the folder for older kernels."""

    def __init__(self, net: Path, clock: Clock, hear_changes: bool = True) -> None:
        self._net = net
        with contextlib.ExitStack() as opened:
            self._route = opened.enter_context(contextlib.closing(NetlinkSocket(NETLINK_ROUTE)))
            self._generic = opened.enter_context(contextlib.closing(NetlinkSocket(NETLINK_GENERIC)))
            self._changes = opened.enter_context(contextlib.closing(LinkChanges(clock))) if hear_changes else None
            self._closing = opened.pop_all()
        self._ethtool = self._find_ethtool()
        self._speeds: dict[tuple[int, int | None, int | None], int] = {}

    @property
    def overruns(self) -> int:
        """How often changes were lost because there were too many at once."""
        return self._changes.overruns if self._changes is not None else 0

    def look(self) -> Look:
        """Return what there is now and what has changed since the last time; raise OSError where that fails."""
        # Changes first: one that comes in between is in the list too, and its carrier counts tell that it is known.
        changes = self._changes.take() if self._changes is not None else []
        links, is_whole = self._list_links()
        speechless = [link for link in links if not link.statistics.keys() >= set(REQUIRED)]
        return Look(
            links=[link for link in links if link not in speechless],
            changes=changes,
            queues=dict(self._dump(messages.GET_QUEUE, messages.ASK_ALL_QUEUES, messages.decode_root_queue)),
            addresses=dict(self._dump(messages.GET_ADDRESS, messages.ASK_ALL_ADDRESSES, messages.decode_address)),
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
            links = list(self._dump(messages.GET_LINK, messages.ASK_ALL_LINKS, messages.decode_link))
            if not self._route.was_interrupted:
                break
        return self._with_devices(links), not self._route.was_interrupted

    def _with_devices(self, links: list[Link]) -> list[Link]:
        """Ask the files which interfaces are cards where the kernel does not say (before Linux 5.14)."""
        if any(link.has_device for link in links):
            return links
        return [replace(link, has_device=has_device(self._net, link.name)) for link in links]

    def _dump(self, kind: int, body: bytes, decode: Callable[[bytes], Decoded | None]) -> Iterator[Decoded]:
        for datagram in self._route.dump(kind, body):
            for _, payload in datagram.payloads():
                if (decoded := decode(payload)) is not None:
                    yield decoded

    def _find_ethtool(self) -> int | None:
        """Return the number of ethtool's family; None before Linux 5.6."""
        with contextlib.suppress(OSError):
            answer = self._generic.ask(messages.CONTROL_FAMILY, messages.ask_family("ethtool"))
            return next((messages.decode_family(payload) for _, payload in answer.payloads()), None)
        return None

    def _ask_speed(self, link: Link) -> int | None:
        if self._ethtool is None:
            return read_speed(self._net, link.name)
        with contextlib.suppress(OSError):  # the driver does not know, or the interface has just gone
            answer = self._generic.ask(self._ethtool, messages.ask_speed(link.index))
            return next((messages.decode_speed(payload) for _, payload in answer.payloads()), None)
        return None
