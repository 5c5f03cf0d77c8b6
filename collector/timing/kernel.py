"""What the kernel knows of its own clock (adjtimex), and whether a PTP or an NTP daemon steers it."""

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from collector.timing.estimate import Estimate
from lockstep.errors import NotPresent

_UNSYNCHRONISED, _IN_NANOSECONDS = 0x0040, 0x2000  # STA_UNSYNC and STA_NANO of <linux/timex.h>
_PTP_DAEMONS = frozenset({"phc2sys", "ptp4l", "timemaster"})  # of linuxptp
_MOST_PROCESSES = 100_000

Steered = Literal["ptp", "ntp"]


class _Timex(ctypes.Structure):
    """struct timex of <linux/timex.h> on 64-bit machines."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 192),  # time, tick and pulse per second, which nobody asks for here
    )


@dataclass(frozen=True, slots=True)
class KernelClock:
    """The kernel's word on its clock."""

    is_synchronised: bool
    offset_ns: int  # still to be added to the clock by its daemon
    max_error_ns: int

    @property
    def estimate(self) -> Estimate:
        """The clock minus the time of its daemon's source, with the kernel's bound on it."""
        return Estimate(-self.offset_ns, max(0, self.max_error_ns))


def read_kernel_clock() -> KernelClock:
    """Return the state of this host's clock; changes nothing and needs no right."""
    state = _Timex(modes=0)
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "adjtimex"):
        raise NotPresent("this system's C library has no adjtimex")
    if libc.adjtimex(ctypes.byref(state)) < 0:
        raise NotPresent(f"the kernel does not tell the state of its clock: {os.strerror(ctypes.get_errno())}")
    return decode(state.status, state.offset, state.maxerror)


def decode(status: int, offset: int, max_error_us: int) -> KernelClock:
    """Return what three fields of adjtimex mean; `offset` is in nanoseconds only where the status says so."""
    offset_ns = offset if status & _IN_NANOSECONDS else offset * 1_000
    return KernelClock(not status & _UNSYNCHRONISED, offset_ns, max_error_us * 1_000)


def find_steering(root: Path) -> Steered:
    """Return who keeps the clock: PTP where there is a hardware clock and a daemon of linuxptp, otherwise NTP."""
    return "ptp" if has_hardware_clock(root) and _runs_ptp(root) else "ntp"


def has_hardware_clock(root: Path) -> bool:
    """Return whether a NIC of this host has a PTP clock."""
    return any((root / "dev").glob("ptp[0-9]*"))


def _runs_ptp(root: Path) -> bool:
    for number, folder in enumerate((root / "proc").glob("[0-9]*")):
        try:
            name = (folder / "comm").read_text(errors="replace").strip()
        except OSError:  # it has just ended
            continue
        if name in _PTP_DAEMONS:
            return True
        if number >= _MOST_PROCESSES:
            break
    return False
