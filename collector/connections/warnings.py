"""What NCCL's warnings and network names mean: collector/data/nccl_log.toml, and the sentence for a person."""

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.resources import files

from collector.connections.log_files import NewTroubles
from collector.connections.log_lines import FailedCompletion, Warned
from collector.connections.nics import HostNics
from collector.connections.processes import NcclProcess
from lockstep.clock import NS_PER_S
from lockstep.records import Event, Transport
from lockstep.topology import host_name, nic_name

_FLUSHED = 5  # IBV_WC_WR_FLUSH_ERR: follows from another error on the same queue pair
_PORT = re.compile(r"NET/IB ?: ([\w.-]{1,64}:\d{1,3}) ", re.ASCII)


@dataclass(frozen=True)
class WarningKind:
    """Words in a warning, and what an event says of it."""

    contains: str
    kind: str
    severity: str


@dataclass(frozen=True)
class Trouble:
    """A warning as an event will tell it; `port` is an RDMA port as NCCL names it, where it does."""

    kind: str
    severity: str
    port: str | None
    message: str


@dataclass(frozen=True)
class LogWords:
    """The words of NCCL's log that the package knows."""

    networks: Mapping[str, Transport]
    completions: Mapping[int, str]
    warnings: tuple[WarningKind, ...]

    def describe(self, reported: Warned) -> Trouble | None:
        """Return the trouble that a warning tells; None where it concerns no connection."""
        if isinstance(reported, FailedCompletion):
            severity = "warning" if reported.status == _FLUSHED else "error"
            meaning = self.completions.get(reported.status)
            message = reported.sentence + (f" (status {reported.status}: {meaning})" if meaning else "")
            return Trouble("ib_completion_error", severity, reported.hca, message)
        kind = next((kind for kind in self.warnings if kind.contains in reported.sentence), None)
        port = _PORT.match(reported.sentence)
        return Trouble(kind.kind, kind.severity, port[1] if port else None, reported.sentence) if kind else None


def load_words() -> LogWords:
    tables = tomllib.loads((files("collector") / "data/nccl_log.toml").read_text())
    return LogWords(
        networks=tables["networks"],
        completions={int(status): meaning for status, meaning in tables["completions"].items()},
        warnings=tuple(WarningKind(**each) for each in tables["warnings"]),
    )


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
        found = (self._words.describe(reported) for reported in new.reported)
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
            rank=process.member.rank,
            pid=process.pid,
        )
