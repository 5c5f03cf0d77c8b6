"""Which NIC, transport, source port and queue pairs each NCCL connection of this host uses, and what failed on it.

NCCL's own log is the best source, then its graph, the sockets and queue pairs of the process, the topology, and that
a host has only one NIC. Connections are made when they are first used, so that the source keeps looking, and a row is
sent again only when something better became known.
"""

import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path

import structlog

from collector.connections.flows import (
    Kernel,
    KernelView,
    OpenSockets,
    flows_of_queue_pairs,
    flows_of_sockets,
    may_use_sockets,
)
from collector.connections.log_files import Inode, NewTroubles, ProcessFiles
from collector.connections.log_lines import FailedCompletion, Warned
from collector.connections.processes import NcclProcess, NcclProcesses, find_job
from collector.connections.rows import (
    Flow,
    HostNics,
    Key,
    Owner,
    SentRows,
    join_flows,
    network_transport,
    read_nics,
    rows_of_graph,
    rows_of_log,
    rows_of_nic,
)
from collector.sources.source import Reading, tables_of
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S
from lockstep.records import Connection, Event, Transport
from lockstep.topology import Topology, host_name, nic_name

_log = structlog.get_logger("connections")

_MOST_FILES_AT_ONCE = 16  # logs in which something is new, read in one turn: 16 MiB; the others come in the next
_MOST_FACTS = 65_536  # remembered of all logs, about 30 MB; beyond it logs are not read on
_MOST_ROWS = 2_000  # sent in one read; those of a big job take some
_MOST_EVENTS = 64  # sent in one read; a link that breaks gives one for each of its connections
_PATIENCE = 3  # looks without a better source, after which a guess is told
_NETWORKS = ("ib", "socket", "ofi")  # transports that use a NIC of one connection

ProcessKey = tuple[int, int]  # pid and start


@dataclass
class _Known:
    """What is known of one process."""

    files: ProcessFiles
    polls: int = 0
    complaints: dict[str, str] = field(default_factory=dict)  # by topic
    settled: object = None  # of what all rows were sent, until something changes


class ConnectionsSource:
    """Looks at the processes of NCCL below `root`; `topology` says which NICs count, and which belong to a GPU."""

    name = "connections"
    period_s = 5.0
    delay_s = 0.0

    def __init__(
        self, host: str, root: Path = Path("/"), topology: Topology | None = None, kernel: Kernel | None = None
    ) -> None:
        self._host, self._root, self._topology = host, root, topology
        self._processes = NcclProcesses(root, host=host)
        self._kernel = KernelView(root, kernel or Kernel())
        self._words = load_words()
        self._events = EventMaker(host, self._words)
        self._known: dict[ProcessKey, _Known] = {}
        self._sent = SentRows()
        self._reported: dict[Inode, int] = {}  # up to where the warnings of a log were told before we were started
        self._round = 0

    def read(self, now_ns: int, requests: Sequence[DetailRequest]) -> Reading:
        processes = self._processes.scan()
        self._round += 1
        troubles = [*self._meet(processes), *self._read_logs(processes)]
        nics = read_nics(self._root, self._host, self._topology)
        events = [
            event
            for files, new in troubles
            for event in self._events.make(now_ns, files.process, new, nics, self._used_nics(files, nics))
        ]
        self._events.finish(now_ns)
        chosen = self._gather(now_ns, processes, nics)
        lost = self._sent.pop_lost() + sum(known.files.report.pop_lost() for known in self._known.values())
        positions = [known.files.position for known in self._known.values()]
        return Reading(
            tables_of(connections=chosen, events=events[:_MOST_EVENTS]),
            watermark_ns=now_ns,
            dropped=lost + max(len(events) - _MOST_EVENTS, 0),
            checkpoint=json.dumps({"logs": [[*at[0], at[1]] for at in positions if at]}).encode(),
        )

    def resume(self, checkpoint: bytes) -> None:
        """Take up to where warnings were told: logs are read again for their connections, but told only once."""
        self._reported = {(device, inode): offset for device, inode, offset in json.loads(checkpoint)["logs"]}

    def close(self) -> None:
        for known in self._known.values():
            known.files.close()

    def _meet(self, processes: Sequence[NcclProcess]) -> list[tuple[ProcessFiles, NewTroubles]]:
        """Get to know those that are new, and return what those wrote last that have ended since the last look."""
        for process in processes:
            if (key := _key(process)) not in self._known:
                self._known[key] = _Known(ProcessFiles(self._root / "proc", process, self._reported))
            self._known[key].polls += 1
        alive = {_key(process) for process in processes}
        gone = [self._known.pop(key).files for key in self._known.keys() - alive]
        self._sent.forget_all_but(alive)
        return [(files, files.read_last()) for files in gone]

    def _read_logs(self, processes: Sequence[NcclProcess]) -> list[tuple[ProcessFiles, NewTroubles]]:
        troubles: list[tuple[ProcessFiles, NewTroubles]] = []
        busy, size = 0, sum(known.files.report.size for known in self._known.values())
        for process in self._rotated(processes):
            files = self._known[_key(process)].files
            if size >= _MOST_FACTS:
                self._complain(process, "size", f"the logs of this host say more than {_MOST_FACTS} things")
                continue
            before, size = files.position, size - files.report.size
            troubles.append((files, files.read_log()))
            busy, size = busy + (files.position != before), size + files.report.size
            self._complain(process, "file", files.problem)
            if busy >= _MOST_FILES_AT_ONCE:
                break
        return troubles

    def _gather(self, now_ns: int, processes: Sequence[NcclProcess], nics: HostNics) -> list[Connection]:
        """Return the rows to send; a process of which nothing is new is not looked through again."""
        flows = self._find_flows(processes, nics)
        chosen: list[Connection] = []
        for process in self._rotated(processes):
            key = _key(process)
            state = (self._known[key].files.report.revision, flows[key], nics)
            if self._known[key].settled == state:
                continue
            job = find_job(self._root / "proc", process)
            owner = Owner(key, self._host, job, process.attempt, now_ns)
            rows, is_settled = self._rows_of(owner, process, flows[key], nics)
            chosen += self._sent.choose(rows, _MOST_ROWS - len(chosen))
            if is_settled and not self._sent.has_more:
                self._known[key].settled = state
            if len(chosen) >= _MOST_ROWS:
                break
        return chosen

    def _find_flows(self, processes: Sequence[NcclProcess], nics: HostNics) -> dict[ProcessKey, list[Flow]]:
        """Return the sockets and queue pairs of each process."""
        reports = {_key(process): self._known[_key(process)].files.report for process in processes}
        networks = self._words.networks
        using = [process for process in processes if may_use_sockets(reports[_key(process)], networks)]
        sockets = self._kernel.sockets_of(using)
        pairs = self._kernel.pairs_by_pid() if nics.ports else {}
        flows: dict[ProcessKey, list[Flow]] = {}
        for key, report in reports.items():
            mine = sockets.get(key[0], OpenSockets())
            flows[key] = [
                *flows_of_sockets(key, mine.bulk, mine.addresses, report, nics, networks),
                *flows_of_queue_pairs(key, pairs.get(key[0], ()), report, nics),
            ]
        # Where a process drives a NIC for others (PXN), its flows are not all of its own connections.
        if not any(report.uses_proxies for report in reports.values()):
            return flows
        return {key: [replace(flow, may_join=False) for flow in each] for key, each in flows.items()}

    def _rows_of(
        self, owner: Owner, process: NcclProcess, flows: list[Flow], nics: HostNics
    ) -> tuple[dict[Key, Connection], bool]:
        """Return all rows of a process, and whether only its log and its flows can change them."""
        report = self._known[owner.key].files.report
        log = rows_of_log(owner, report.connections.values(), nics, self._words.networks)
        unknown = ", ".join(sorted(log.unknown_networks))
        self._complain(process, "network", f"networks that are not known: {unknown}" if unknown else "")
        rows = join_flows(owner, log, flows)
        if any(row.nic and row.source == "nccl_log" for row in rows.values()):
            return rows, True
        needs_nic = not rows or any(row.transport in _NETWORKS for row in rows.values())
        has_nic = any(row.nic for row in rows.values())
        return rows | self._find_elsewhere(owner, process, nics, needs_nic and not has_nic), False

    def _find_elsewhere(
        self, owner: Owner, process: NcclProcess, nics: HostNics, may_guess: bool
    ) -> dict[Key, Connection]:
        """Return what the graph says; else, for a process that surely uses NCCL, what the host itself suggests."""
        known = self._known[owner.key]
        files, uses = known.files, known.files.read_graph()
        carriers = {network_transport(network, self._words.networks) for network, _ in files.report.used}
        transport = carriers.pop() if len(carriers) == 1 else None
        rows = rows_of_graph(owner, uses, files.read_device_names(), nics, transport) if uses else {}
        comms = files.report.comms.comms
        is_sure = process.holds_ring or bool(comms)
        if rows or not may_guess or not is_sure or known.polls < _PATIENCE:
            return rows
        return rows_of_nic(owner, {comm.gpu for comm in comms}, nics, transport)

    def _rotated(self, processes: Sequence[NcclProcess]) -> list[NcclProcess]:
        """Return the processes, another one first each time, so that a busy one does not keep others back."""
        first = self._round % max(len(processes), 1)
        return [*processes[first:], *processes[:first]]

    def _used_nics(self, files: ProcessFiles, nics: HostNics) -> set[str]:
        """Return the NICs through which a process sends or receives by RDMA, as its log says."""
        networks = self._words.networks
        used = [names for network, names in files.report.used if network_transport(network, networks) == "ib"]
        return {name for names in used if (name := nics.name_devices(names, "ib"))}

    def _complain(self, process: NcclProcess, topic: str, problem: str) -> None:
        """Say it when it changes, not each time round."""
        complaints = self._known[_key(process)].complaints
        if problem and problem != complaints.get(topic):
            _log.warning("NCCL's own words on its connections cannot be used", pid=process.pid, problem=problem)
        complaints[topic] = problem


def _key(process: NcclProcess) -> ProcessKey:
    return process.pid, process.start_ticks


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
