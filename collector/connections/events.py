"""Events out of NCCL's warnings: which NIC they concern, and since when they can be true."""

from collections.abc import Collection

from collector.connections.logs import NewTroubles
from collector.connections.nics import HostNics
from collector.connections.processes import NcclProcess
from collector.nccl_log.warnings import LogWords, Trouble
from lockstep.clock import NS_PER_S
from lockstep.records import Event
from lockstep.topology import host_name, nic_name

_OLDEST_NS = 3_600 * NS_PER_S  # of a warning found at the start: it is history


class EventMaker:
    """Makes the events of one host; a line has no time that can be trusted, so it gets that of its file or of now."""

    def __init__(self, host: str, words: LogWords) -> None:
        self._host, self._words = host, words
        self._last_ns: int | None = None

    def make(
        self, now_ns: int, process: NcclProcess, new: NewTroubles, nics: HostNics, used: Collection[str]
    ) -> list[Event]:
        """Return an event for each warning about a connection; `used` are the NICs that the process sends through."""
        if self._last_ns is None and new.written_ns < now_ns - _OLDEST_NS:
            return []
        # Not before the last read, because the watermark of that has promised it.
        ts_ns = min(max(new.written_ns, self._last_ns or 0), now_ns)
        found = (self._words.describe(told) for told in new.told)
        return [self._event(ts_ns, process, trouble, nics, used) for trouble in found if trouble]

    def finish(self, now_ns: int) -> None:
        """Remember when a read was over."""
        self._last_ns = now_ns

    def _event(
        self, ts_ns: int, process: NcclProcess, trouble: Trouble, nics: HostNics, used: Collection[str]
    ) -> Event:
        nic = nics.name_port(trouble.port) if trouble.port else None
        if nic is None and trouble.kind.startswith("ib_") and len(used) == 1:
            nic = next(iter(used))  # releases before 2.23 do not name it
        who = f"{process.member} (pid {process.pid})".lstrip()
        return Event(
            host=self._host,
            ts_ns=ts_ns,
            source="connections",
            kind=trouble.kind,
            component=nic_name(self._host, nic) if nic else host_name(self._host),
            severity=trouble.severity,
            message=f"{who}: {trouble.message}",
        )
