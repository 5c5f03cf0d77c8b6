"""How well this host's clock is known: compared with a reference host's, and by the kernel's own word.

Rows of source `probe` are the host's clock minus that of the reference, one host of the topology that all compare
themselves with; the reference itself writes zeros. Rows of source `ntp` or `ptp` are the kernel's offset and greatest
error against whatever its daemon follows, and are written only while the kernel calls its clock synchronised.
"""

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import structlog

from collector.probes.paths import AddressBook
from collector.sources.clock_exchange import (
    CLOCK_PORT,
    EXACT,
    ClockAsker,
    ClockResponder,
    ClockWire,
    Estimate,
    choose_elders,
)
from collector.sources.source import ChangeLog, EventReporter, PlainSource, Reading, filled_tables_of
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S, SystemClock
from lockstep.errors import NotPresent
from lockstep.records import ClockQuality, Event
from lockstep.topology import Topology, host_name

_log = structlog.get_logger("clocks")

_MOST_ADDRESSES = 4  # of one host, tried one after the other
_KNOWN_NS = 300 * NS_PER_S  # older knowledge is not passed on: its bound would be useless
_UNSYNCHRONISED, _IN_NANOSECONDS = 0x0040, 0x2000  # STA_UNSYNC and STA_NANO of <linux/timex.h>
_PTP_DAEMONS = frozenset({"phc2sys", "ptp4l", "timemaster"})  # of linuxptp
_MOST_PROCESSES = 100_000

Steered = Literal["ptp", "ntp"]


@dataclass(frozen=True, slots=True)
class ClockOptions:
    """Whether and how hosts compare their clocks."""

    is_on: bool = False
    reference: str = ""  # host that all compare themselves with; empty: the topology's first
    key: bytes = b""  # shared by all collectors; empty: addresses alone decide who is believed
    port: int = CLOCK_PORT
    timeout_s: float = 0.2  # for one question; thousands of times a healthy round trip


OFF = ClockOptions()


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


class ClocksSource(PlainSource):
    """Compares clocks and answers those who compare theirs; without topology or address only asks the kernel."""

    name = "clocks"
    period_s = 10.0

    def __init__(
        self,
        host: str,
        topology: Topology | None,
        addresses: Mapping[str, str | Sequence[str]],
        options: ClockOptions = OFF,
        root: Path = Path("/"),
        read_kernel: Callable[[], KernelClock] = read_kernel_clock,
    ) -> None:
        self._host, self._root, self._read_kernel = host, root, read_kernel
        self._comparing: _Comparing | None = None
        self._absence = _why_not(host, topology, addresses, options)
        if topology is not None and not self._absence:
            self._comparing = _Comparing(host, topology, addresses, options)
        self._was_synchronised: bool | None = None
        self._problems = ChangeLog(_log, "info")
        self._reporter = EventReporter(host, self.name, host_name(host))

    def read(self, now_ns: int, requests: Sequence[DetailRequest]) -> Reading:
        """Return one row per way to know the clock; none is no row. Takes eight time-outs at worst."""
        rows, events = list[ClockQuality](), list[Event]()
        try:
            kernel = self._read_kernel()
        except NotPresent as absence:
            if not self._comparing:
                raise NotPresent(f"{absence}; {self._absence}") from absence
            self._problems.note("the kernel says nothing of its clock", str(absence), "reason")
        else:
            rows += self._kernel_row(kernel, now_ns)
            events += self._watch(kernel, now_ns)
        rows += self._compare(now_ns)
        return Reading(filled_tables_of(clocks=rows, events=events), watermark_ns=now_ns)

    def close(self) -> None:
        if self._comparing:
            self._comparing.close()

    def _kernel_row(self, kernel: KernelClock, now_ns: int) -> list[ClockQuality]:
        if not kernel.is_synchronised:
            return []
        if not has_hardware_clock(self._root):
            self._problems.note("no NIC of this host has a PTP clock", "there is no /dev/ptp*", "reason")
        return [self._row(now_ns, kernel.estimate, find_steering(self._root))]

    def _compare(self, now_ns: int) -> list[ClockQuality]:
        if not self._comparing:
            self._problems.note("clocks of other hosts are not compared", self._absence, "reason")
            return []
        known = self._comparing.ask()
        self._problems.note("clocks cannot be compared in full", self._comparing.fault, "reason")
        return [self._row(now_ns, known, "probe")] if known else []

    def _watch(self, kernel: KernelClock, now_ns: int) -> list[Event]:
        """Return an event when the kernel's clock loses its source, or has it again."""
        before, self._was_synchronised = self._was_synchronised, kernel.is_synchronised
        if kernel.is_synchronised == before or (before is None and kernel.is_synchronised):
            return []
        kind, severity, message = (
            ("clock_synchronised", "info", "the kernel calls its clock synchronised again")
            if kernel.is_synchronised
            else ("clock_unsynchronised", "warning", "no time daemon keeps the clock of this host")
        )
        return [self._reporter.report(now_ns, kind, severity, message)]

    def _row(self, now_ns: int, known: Estimate, source: Literal["ptp", "ntp", "probe"]) -> ClockQuality:
        return ClockQuality(host=self._host, ts_ns=now_ns, source=source, **asdict(known))


class _Comparing:
    """The sockets of a host that compares its clock, and what it has learnt so far."""

    def __init__(
        self, host: str, topology: Topology, addresses: Mapping[str, str | Sequence[str]], options: ClockOptions
    ) -> None:
        reference = options.reference or topology.hosts[0].id
        self._book = AddressBook(topology, addresses)
        self._wire = ClockWire(options.key, reference)
        self._clock, self._port, self._timeout_s = SystemClock(), options.port, options.timeout_s
        self._is_reference = host == reference
        self._elders = choose_elders(topology, host, reference)
        self._known: tuple[Estimate, int] | None = None  # and when, on the monotonic clock
        self._responder: ClockResponder | None = None
        self._asker: ClockAsker | None = None
        self.fault = ""

    def ask(self) -> Estimate | None:
        """Return our clock minus the reference, or None when nobody who knows it answers."""
        self.fault = ""
        self._open()
        if self._is_reference:
            return EXACT
        for elder in self._elders:
            for address in self._book.addresses_of(elder)[:_MOST_ADDRESSES]:
                if self._asker and (found := self._asker.ask(address)):
                    self._known = found, self._clock.monotonic_ns()
                    return found
        self.fault = self.fault or f"no answer from {' or '.join(self._elders)}"
        return None

    def close(self) -> None:
        for opened in (self._responder, self._asker):
            if opened:
                opened.close()
        self._responder = self._asker = None

    def _open(self) -> None:
        """Open the sockets that are not open yet, in the thread and the network namespace that read."""
        try:
            about = self._wire, self._book, self._clock, self._knowledge, self._port
            self._responder = self._responder or ClockResponder(*about)
            self._asker = self._asker or ClockAsker(self._wire, self._clock, self._port, self._timeout_s)
        except OSError as error:
            self.fault = f"UDP port {self._port}: {error}"

    def _knowledge(self) -> Estimate | None:
        """Return what others may be told of our clock; called from the responder's thread."""
        if self._is_reference:
            return EXACT
        if self._known is None:
            return None
        known, since_ns = self._known
        age_ns = self._clock.monotonic_ns() - since_ns
        return known.aged(age_ns) if age_ns < _KNOWN_NS else None


def _why_not(
    host: str, topology: Topology | None, addresses: Mapping[str, str | Sequence[str]], options: ClockOptions
) -> str:
    """Return why clocks are not compared, or nothing when they are."""
    if not options.is_on:
        return "comparing clocks is off"
    if topology is None or not topology.hosts:
        return "comparing clocks needs a topology with hosts, and none is set"
    reference = options.reference or topology.hosts[0].id
    book = AddressBook(topology, addresses)
    missing = [name for name in (host, reference) if not book.addresses_of(name)]
    return f"the settings name no address of {' and '.join(missing)}" if missing else ""


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
