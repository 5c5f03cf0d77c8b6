"""Named network namespaces, each the home of a thread of ours: what is done there is done by that thread.

A process that such a thread starts begins its life in the namespace, and sees the namespace's own /sys. That needs
neither `ip netns exec` nor code between fork and exec, and works while other threads run.
"""

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pyroute2 import IPRoute

FOLDER = Path("/run/netns")  # where iproute2 keeps the names of namespaces
_SYSFS, _CGROUPS = "/sys", "/sys/fs/cgroup"
_LIMIT_S = 600.0  # for anything done in a namespace; the longest takes milliseconds

_Result = TypeVar("_Result")
CLONE_NEWNS, CLONE_NEWNET = 0x0002_0000, 0x4000_0000  # linux/sched.h
MS_BIND, MS_REC, MS_SLAVE, MS_SHARED = 0x1000, 0x4000, 0x8_0000, 0x10_0000  # linux/mount.h
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(what: int) -> None:
    _check(_libc.unshare(what), "no namespace of our own")


def enter_network(namespace_fd: int) -> None:
    _check(_libc.setns(namespace_fd, CLONE_NEWNET), "the network namespace cannot be entered")


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    filesystem = kind.encode() if kind else None
    _check(
        _libc.mount(source.encode(), target.encode(), filesystem, ctypes.c_ulong(flags), None),
        f"{target} is not mounted",
    )


def unmount(target: str) -> None:
    """Take the mount away, also while somebody uses it."""
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"{target} is not unmounted")


def _check(result: int, problem: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{problem}: {os.strerror(number)}")


class Home:
    """A thread that lives in a network namespace, or in ours where `name` is None."""

    def __init__(self, name: str | None, is_new: bool = False, has_own_sysfs: bool = False) -> None:
        self.name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name or "root")
        self._netlink: Any = None  # Any: pyroute2 gives no types
        try:
            self.fd: int = self.run(lambda: _move_in(name, is_new, has_own_sysfs))
        except OSError:
            self._thread.shutdown()
            raise

    def run(self, work: Callable[[], _Result]) -> _Result:
        """Return what `work` gives inside the namespace; sockets made there stay there."""
        return self._thread.submit(work).result(_LIMIT_S)

    def change(self, command: Callable[[Any], _Result]) -> _Result:
        """Ask or change something over netlink: the command gets pyroute2's IPRoute of this namespace."""
        return self.run(lambda: command(self._route()))

    def start(self, command: Sequence[str], env: Mapping[str, str] | None, **files: Any) -> "subprocess.Popen[bytes]":
        """Start a process here; `files` are Popen's stdin, stdout, stderr and cwd."""
        return self.run(lambda: subprocess.Popen(list(command), env=env, **files))

    def write_settings(self, settings: Mapping[str, int], optional: tuple[str, ...] = ()) -> None:
        """Write below /proc/sys/net, which shows each thread its own namespace; what is optional may not be there."""

        def write() -> None:
            for name, value in settings.items():
                setting = Path("/proc/sys/net", name)
                if setting.exists() or not name.startswith(optional):
                    setting.write_text(str(value))

        self.run(write)

    def close(self) -> None:
        """Leave; the namespace stays as long as it has a name or processes."""
        self.run(self._shut)
        self._thread.shutdown()

    def _route(self) -> Any:
        if self._netlink is None:
            self._netlink = IPRoute()
        return self._netlink

    def _shut(self) -> None:
        os.close(self.fd)
        if self._netlink is not None:
            self._netlink.close()


def list_names() -> list[str]:
    return sorted(os.listdir(FOLDER)) if FOLDER.is_dir() else []


def identify(name: str) -> int | None:
    """Return the number by which /proc tells a namespace; None when it is gone."""
    with suppress(OSError):
        return os.stat(FOLDER / name).st_ino
    return None


def forget(name: str) -> None:
    """Take a namespace's name away; with its last process it is gone, and its interfaces with it."""
    with suppress(OSError):  # somebody else sweeps too, or its builder died before the mount
        unmount(str(FOLDER / name))
    (FOLDER / name).unlink(missing_ok=True)


def _move_in(name: str | None, is_new: bool, has_own_sysfs: bool) -> int:
    """Bring this thread into the namespace and return a descriptor of it."""
    if name and is_new:
        _make(name)
    elif name:
        with open(FOLDER / name) as namespace:
            enter_network(namespace.fileno())
    if has_own_sysfs:
        _mount_own_sysfs()
    return os.open(_own_network(), os.O_RDONLY)


def _make(name: str) -> None:
    _share_folder()
    os.close(os.open(FOLDER / name, os.O_CREAT | os.O_EXCL | os.O_RDONLY, 0))
    unshare(CLONE_NEWNET)
    mount(_own_network(), str(FOLDER / name), None, MS_BIND)


def _share_folder() -> None:
    """Make the folder a shared mount, as iproute2 does: else copies in other processes keep namespaces alive."""
    FOLDER.mkdir(mode=0o755, exist_ok=True)
    flags = MS_SHARED | MS_REC
    try:
        mount("", str(FOLDER), None, flags)
    except OSError:  # not a mount yet
        mount(str(FOLDER), str(FOLDER), None, MS_BIND | MS_REC)
        mount("", str(FOLDER), None, flags)


def _mount_own_sysfs() -> None:
    """Show this thread and its children the interfaces of their namespace below /sys, and cgroups as before."""
    unshare(CLONE_NEWNS)
    mount("", "/", None, MS_SLAVE | MS_REC)  # what is unmounted outside goes here, too
    cgroups = os.open(_CGROUPS, os.O_PATH) if os.path.isdir(_CGROUPS) else None
    mount("sysfs", _SYSFS, "sysfs", 0)
    if cgroups is not None:
        mount(f"/proc/thread-self/fd/{cgroups}", _CGROUPS, None, MS_BIND | MS_REC)
        os.close(cgroups)


def _own_network() -> str:
    return f"/proc/self/task/{threading.get_native_id()}/ns/net"
