"""XIDs, NIC and PCIe trouble and out-of-memory kills from the kernel's log, /dev/kmsg.

The log is read from boot on, not from now on: whoever installs the collector on a host whose GPU fell off the bus
yesterday wants to be told, and so does whoever restarts it after an outage. What was there before the first read has
its true time and is marked in its message. The position (the kernel's sequence number, which begins anew with every
boot) goes into the checkpoint: neither a device that had to be opened again nor a new agent repeats anything.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from collector.sources.kernel_lines import Finding, Part, Record, load_xids, parse_records, read_line
from collector.sources.source import ChangeLog, EventReporter, Reading, filled_tables_of
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S
from lockstep.errors import NotPresent
from lockstep.records import Event
from lockstep.topology import host_name, nic_name

# A host may send 2,000 rows a second in all; what repeats more often than this says nothing new.
MAX_ALIKE = 5  # events of one kind, code and part in a second
MAX_EVENTS = 100  # events in a second, counts not included

_SEVERITIES = ("info", "warning", "error", "critical")


class FloodGate:
    """Lets events through, second by second; `second` never goes back.

    Kinds alone would be too coarse: a program that page-faults in a loop (XID 31) must not hide that the same GPU, or
    another one, fell off the bus (XID 79) in that second.
    """

    def __init__(self) -> None:
        self._second = -1
        self._passed: Counter[tuple[str, str, str]] = Counter()
        self._folded: dict[str, Event] = {}  # by kind: the event that will tell of them
        self._counts: Counter[str] = Counter()

    @property
    def oldest_held_ns(self) -> int | None:
        """Return the time of the oldest count that has not been told yet."""
        return min((event.ts_ns for event in self._folded.values()), default=None)

    def admit(self, event: Event, code: str, second: int) -> list[Event]:
        """Return what is to be sent now: counts of an earlier second, and the event unless it is folded."""
        counts = self.close() if second > self._second else []
        self._second = max(second, self._second)
        key = (event.kind, code, event.component)
        if self._passed[key] < MAX_ALIKE and self._passed.total() < MAX_EVENTS:
            self._passed[key] += 1
            return [*counts, event]
        self._fold(event)
        return counts

    def close(self) -> list[Event]:
        """Return one count for each kind that was folded, and begin anew."""
        counts = [_reported(event, self._counts[kind]) for kind, event in self._folded.items()]
        self._passed, self._folded, self._counts = Counter(), {}, Counter()
        return counts

    def _fold(self, event: Event) -> None:
        """Count the event; of all that are folded the earliest time, the worst severity and the last line stay."""
        before = self._folded.get(event.kind, event)
        worst = max(before.severity, event.severity, key=_SEVERITIES.index)
        self._folded[event.kind] = replace(event, ts_ns=min(before.ts_ns, event.ts_ns), severity=worst)
        self._counts[event.kind] += 1


def _reported(event: Event, count: int) -> Event:
    message = f"{count} more {event.kind} lines in one second, the last of them: {event.message}"
    return replace(event, kind="folded", component=host_name(event.host), message=message)


_log = structlog.get_logger("kernel_log")

_READ_BYTES = 8192  # the kernel gives one record a read, refuses a buffer that is too small, and documents this size
_MAX_READS = 5_000  # at once; more wait in the kernel, and what it overwrites meanwhile is counted as lost
_STEP_NS = NS_PER_S // 10  # ntpd steps a clock that is further off than 128 ms; below that we were only held up
_BEFORE = "(before the collector began) "


class KernelLogSource:
    """Follows the kernel's log; `root` is where the host's / is, `monotonic_ns` the clock that printk stamps with."""

    name = "kernel_log"
    period_s = 1.0
    delay_s = 0.0

    def __init__(
        self, host: str, root: Path = Path("/"), monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._host = host
        self._root = root
        self._device = _Device(root / "dev/kmsg")
        self._timeline = Timeline(monotonic_ns)
        self._gate = FloodGate()
        self._last_seq: int | None = None
        self._caught_up = False  # whether the log of before the first read has been read
        self._problems, self._is_readable = ChangeLog(_log), True
        self.read_errors = 0

    def read(self, now_ns: int, requests: Sequence[DetailRequest]) -> Reading:
        self._timeline.begin(now_ns)
        records = self._try_read()
        events = [event for record in records for event in self._take(record)]
        if not records:  # nothing more belongs to the second that is open
            events += self._gate.close()
        if self._device.drained:
            self._timeline.catch_up()
            self._caught_up = True
        # A log that cannot be read is not waited for: when it can, its lines come late and with their true time.
        done_ns, held_ns = self._timeline.done_ns, self._gate.oldest_held_ns  # the time of folded lines is to come
        watermark_ns = min(done_ns, done_ns if held_ns is None else held_ns) if self._is_readable else now_ns
        checkpoint = json.dumps([self._boot_id(), self._last_seq]).encode()
        return Reading(filled_tables_of(events=events), watermark_ns, checkpoint=checkpoint)

    def resume(self, checkpoint: bytes) -> None:
        """Go on behind the last record that was kept, if the kernel still is the one that numbered it."""
        boot_id, last_seq = json.loads(checkpoint)
        if boot_id == self._boot_id():
            self._last_seq = last_seq

    def close(self) -> None:
        self._device.close()

    def _boot_id(self) -> str:
        try:
            return (self._root / "proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def _try_read(self) -> list[Record]:
        """Return new records; a read that fails is told and tried again next time."""
        records, problem = list[Record](), ""
        try:
            for chunk in self._device.chunks():
                records += parse_records(chunk)
        except FileNotFoundError as error:
            raise NotPresent(f"no kernel log at {error.filename}") from error
        except OSError as error:
            self._device.close()
            self.read_errors += 1
            problem = str(error)
        self._problems.note("kernel log cannot be read", problem, "error")
        self._is_readable = not problem
        return records

    def _take(self, record: Record) -> Iterator[Event]:
        """Give the events of one record, unless it was seen before; a gap in front of it is one of them."""
        expected_seq = record.seq if self._last_seq is None else self._last_seq + 1
        if record.seq < expected_seq:
            return
        self._last_seq = record.seq
        since_boot_ns = self._timeline.place(record.since_boot_ns)
        for finding in _find(record, lost=record.seq - expected_seq):
            event = self._event_of(finding, self._timeline.unix_ns(since_boot_ns))
            yield from self._gate.admit(event, finding.code, since_boot_ns // NS_PER_S)

    def _event_of(self, finding: Finding, ts_ns: int) -> Event:
        reporter = EventReporter(self._host, self.name, self._component_of(finding.part))
        message = finding.message if self._caught_up else _BEFORE + finding.message
        return reporter.report(ts_ns, finding.kind, finding.severity, message, detail=finding.detail)

    def _component_of(self, part: Part) -> str:
        """Return the name of a part in verdicts; a GPU keeps its PCI address, its index is NVML's to know."""
        if part.whose == "host":
            return host_name(self._host)
        if part.whose == "gpu":
            return f"gpu:{self._host}/{part.id}"
        return nic_name(self._host, self._find_nic(part.id))

    def _find_nic(self, nic: str) -> str:
        """Return the name of the NIC at a PCI address: its interface, else its RDMA device, else what was given."""
        device = self._root / "sys/bus/pci/devices" / nic
        names = (path.name for folder in ("net", "infiniband") for path in sorted((device / folder).glob("*")))
        return next(names, nic)


class Timeline:
    """Turns printk's time since boot into UNIX time, in order and without trust in either clock.

    UNIX time and the monotonic clock are disciplined alike, so their difference changes only when UNIX time is
    stepped; then it is taken anew, and only a step back can put an event before an earlier one. printk's clock is not
    disciplined and may be seconds off after weeks, but a record that was not there at the last read is younger than
    that read and older than this one: it is put between them.
    """

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._now_ns = 0
        self._offset_ns: int | None = None
        self._done_ns = 0  # since boot; nothing before it will come any more

    @property
    def done_ns(self) -> int:
        """Return the UNIX time before which nothing will come any more."""
        return self.unix_ns(self._done_ns)

    def begin(self, now_ns: int) -> None:
        self._now_ns = max(self._now_ns, self._monotonic_ns())
        offset_ns = now_ns - self._now_ns
        kept_ns = self._offset_ns
        # Whatever holds us up between the two clocks makes the offset too small, never too large.
        if kept_ns is None or offset_ns > kept_ns or kept_ns - offset_ns > _STEP_NS:
            self._offset_ns = offset_ns

    def place(self, since_boot_ns: int) -> int:
        """Return when a record was made, in nanoseconds since boot, not before any earlier one."""
        self._done_ns = max(self._done_ns, min(since_boot_ns, self._now_ns))
        return self._done_ns

    def catch_up(self) -> None:
        """Say that everything made before the read began has been seen."""
        self._done_ns = self._now_ns

    def unix_ns(self, since_boot_ns: int) -> int:
        return max(0, since_boot_ns + (self._offset_ns or 0))  # a host without a battery boots in 1970


class _Device:
    """/dev/kmsg, or a plain file or pipe with the same lines; opened when first read."""

    def __init__(self, path: Path) -> None:
        self.drained = False  # whether the last reads came to the end
        self._path = path
        self._fd: int | None = None
        self._rest = b""  # of a line that a read cut off; the kernel itself gives whole records

    def chunks(self) -> Iterator[bytes]:
        """Give whole lines until there are no more, or enough for now."""
        self.drained = False
        for _ in range(_MAX_READS):
            try:
                chunk = self._read()
            except BlockingIOError:
                chunk = b""
            except BrokenPipeError:  # records were overwritten; the next read gives the oldest one that is left
                continue
            if not chunk:
                self.drained = True
                return
            yield self._whole_lines(chunk)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._rest = None, b""

    def _read(self) -> bytes:
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return os.read(self._fd, _READ_BYTES)

    def _whole_lines(self, chunk: bytes) -> bytes:
        lines, end, rest = (self._rest + chunk).rpartition(b"\n")
        self._rest = rest[-_READ_BYTES:]
        return lines + end


def _find(record: Record, lost: int) -> Iterator[Finding]:
    if lost:
        message = f"{lost} records of the kernel's log were overwritten before they were read"
        yield Finding("log_lost", Part("host"), "warning", message)
    if finding := read_line(record, load_xids()):
        yield finding
