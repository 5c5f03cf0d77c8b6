"""Removes fabrics: all that is left of one, also when its builder was killed in the middle of building."""

import errno
import os
import select
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError

from tests.testbed.fabric import ownership
from tests.testbed.fabric.cgroups import list_groups, remove_group
from tests.testbed.fabric.namespaces import Home, forget, identify, list_names

_MOST_ROUNDS = 50  # a process may start another while it is killed, but not for ever
_DEATH_S = 5.0  # a killed process is gone at once, unless a disk holds it


def sweep() -> list[str]:
    """Remove every fabric whose owner is dead and that was not kept; return their prefixes."""
    if os.geteuid() != 0:
        return []
    with ownership.one_at_a_time(), closing(Home(None)) as root:
        left = [
            prefix for prefix in list_fabrics(root) if ownership.is_abandoned(prefix, ownership.read_note(prefix))
        ]
        for prefix in left:
            remove_fabric(prefix, root)
            ownership.remove_note(prefix)
        return left


def list_fabrics(root: Home) -> list[str]:
    """Return the prefixes of all fabrics of which there is anything left on this machine."""
    interfaces = root.change(lambda route: [link.get_attr("IFLA_IFNAME") for link in route.get_links()])
    names = [*list_names(), *interfaces, *list_groups(), *ownership.list_notes()]
    return sorted({prefix for name in names if (prefix := ownership.prefix_of(name))})


def remove_fabric(prefix: str, root: Home) -> None:
    """Kill what runs in a fabric and remove its namespaces, interfaces and control groups; its note stays."""
    names = [name for name in list_names() if ownership.prefix_of(name) == prefix]
    kill_all_in({inode for name in names if (inode := identify(name))})
    for name in names:
        forget(name)
    root.change(lambda route: _remove_interfaces(route, prefix))
    for group in list_groups():
        if ownership.prefix_of(group) == prefix:
            remove_group(group)


def processes_in(namespaces: set[int]) -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and _namespace_of(int(entry)) in namespaces:
            yield int(entry)


def kill_all_in(namespaces: set[int]) -> None:
    """Kill the processes in network namespaces, and those that they start meanwhile."""
    for _ in range(_MOST_ROUNDS):
        found = [pid for pid in processes_in(namespaces) if pid != os.getpid()]
        if not found:
            return
        for pid in found:
            _kill(pid, namespaces)


def _kill(pid: int, namespaces: set[int]) -> None:
    """Kill a process after another look through a handle that cannot become another process meanwhile."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if _namespace_of(pid) in namespaces:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                death = select.poll()  # select() knows the first 1,024 descriptors only
                death.register(handle, select.POLLIN)
                death.poll(_DEATH_S * 1000)
        finally:
            os.close(handle)


def _namespace_of(pid: int) -> int | None:
    with suppress(OSError):  # it ended, or its parent has not looked at its end yet
        return os.stat(Path("/proc", str(pid), "ns", "net")).st_ino
    return None


def _remove_interfaces(route: Any, prefix: str) -> None:
    for link in list(route.get_links()):
        if ownership.prefix_of(link.get_attr("IFLA_IFNAME")) == prefix:
            try:
                route.link("del", index=link["index"])
            except NetlinkError as refusal:
                if refusal.code != errno.ENODEV:  # it went with the namespace of its other end
                    raise
