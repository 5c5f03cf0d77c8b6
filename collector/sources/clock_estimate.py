"""How far two clocks are apart, from the four times of some questions and answers, and whom to ask.

A packet takes some time, never less than none. So each exchange bounds the difference from both sides, by its two
ways; the bounds of a burst together are at least as tight as those of its shortest round trip alone, half of which is
the usual bound (RFC 5905). Nothing is assumed about both ways taking equally long.
"""

import ctypes
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lockstep.errors import NotPresent
from lockstep.topology import Topology, TopologyIndex

_DRIFT_PPM = 200  # IEEE 802.3 allows the oscillators of a network card 100 parts in a million, each of the two


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer: sent and returned on our clock, received and answered on the other's."""

    asked_ns: int
    received_ns: int
    answered_ns: int
    returned_ns: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """One clock minus another; the truth is within `error_ns` of `offset_ns`."""

    offset_ns: int
    error_ns: int

    def aged(self, age_ns: int) -> "Estimate":
        """Return what is still known after a while in which both clocks ran freely."""
        return Estimate(self.offset_ns, self.error_ns + max(0, age_ns) * _DRIFT_PPM // 1_000_000)

    def plus(self, other: "Estimate") -> "Estimate":
        """Return our clock minus a third one, when the other's difference to that is known."""
        return Estimate(self.offset_ns + other.offset_ns, self.error_ns + other.error_ns)


EXACT = Estimate(0, 0)  # what the reference knows about itself


def estimate_offset(burst: Iterable[Exchange]) -> Estimate | None:
    """Return our clock minus the other's, or None without an answer or when a clock was set during the burst.

    >>> estimate_offset([Exchange(asked_ns=100, received_ns=60, answered_ns=70, returned_ns=130)])
    Estimate(offset_ns=50, error_ns=10)
    """
    answered = list(burst)
    if not answered:
        return None
    # received = asked - offset + way there, and returned = answered + offset + way back, both ways >= 0
    lowest_ns = max(each.asked_ns - each.received_ns for each in answered)
    highest_ns = min(each.returned_ns - each.answered_ns for each in answered)
    if lowest_ns > highest_ns:
        return None
    # Half of the width rounded up, so that the bound holds although the offset is rounded down.
    return Estimate((lowest_ns + highest_ns) // 2, (highest_ns - lowest_ns + 1) // 2)


def choose_elders(topology: Topology, host: str, reference: str) -> list[str]:
    """Return whom a host asks for the time, best first: the reference, then the first host of its leaf.

    The second stands in where the way to the first is broken; what it knows has aged, and its bound says so.
    """
    if host == reference:
        return []
    first = _first_of_leaf(topology, host)
    return [reference] if first in (None, host, reference) else [reference, str(first)]


def _first_of_leaf(topology: Topology, host: str) -> str | None:
    index = TopologyIndex(topology)
    nics: Sequence[str] = [nic.id for nic in index.nics_of(host)]
    leaf = next((leaf for nic in nics if (leaf := index.leaf_of(host, nic))), None)
    if leaf is None:
        return None
    return next(
        node.id for node in topology.hosts if any(index.leaf_of(node.id, nic.id) == leaf for nic in node.nics)
    )


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
        raise NotPresent(f"the kernel does not show the state of its clock: {os.strerror(ctypes.get_errno())}")
    return decode(state.status, state.offset, state.maxerror)


def decode(status: int, offset: int, max_error_us: int) -> KernelClock:
    """Return what three fields of adjtimex mean; `offset` is in nanoseconds only where the status says so."""
    offset_ns = offset if status & _IN_NANOSECONDS else offset * 1_000
    return KernelClock(not status & _UNSYNCHRONISED, offset_ns, max_error_us * 1_000)


def find_steering(root: Path) -> Steered:
    """Return who keeps the clock: PTP where there is a hardware clock and a daemon of linuxptp, otherwise NTP."""
    return "ptp" if has_hardware_clock(root) and _runs_ptp(root) else "ntp"


def has_hardware_clock(root: Path) -> bool:
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
