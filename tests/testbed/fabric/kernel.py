"""System calls about namespaces and mounts that Python 3.11 does not have."""

import ctypes
import os

CLONE_NEWNS, CLONE_NEWNET = 0x0002_0000, 0x4000_0000  # linux/sched.h
MS_BIND, MS_REC, MS_SLAVE, MS_SHARED = 0x1000, 0x4000, 0x8_0000, 0x10_0000  # linux/mount.h
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(what: int) -> None:
    """Give this thread a namespace of its own."""
    _check(_libc.unshare(what), "no namespace of our own")


def enter_network(namespace_fd: int) -> None:
    """Move this thread into a network namespace."""
    _check(_libc.setns(namespace_fd, CLONE_NEWNET), "the network namespace cannot be entered")


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    told = kind.encode() if kind else None
    _check(
        _libc.mount(source.encode(), target.encode(), told, ctypes.c_ulong(flags), None), f"{target} is not mounted"
    )


def unmount(target: str) -> None:
    """Take the mount away, also while somebody uses it."""
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"{target} is not unmounted")


def _check(result: int, problem: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{problem}: {os.strerror(number)}")
