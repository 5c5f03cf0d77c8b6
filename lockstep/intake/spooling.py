"""Traces taken apart by rank: each rank's callbacks in a file of their own, with who it was and where it ran."""

from dataclasses import dataclass
from pathlib import Path

from pydantic_core import to_json

from lockstep.errors import BadInput
from lockstep.intake.nccl_callbacks import About, Event, RankHeader, Trace, read_events
from lockstep.rings.origin import Origin

_LINES_AT_A_TIME = 1_000


@dataclass(frozen=True)
class Recording:
    """One rank's part of a trace, ready to be played."""

    rank: int
    header: RankHeader
    origin: Origin
    file: Path
    looked_ns: int  # when somebody looks at its progress last, UNIX time


@dataclass(frozen=True)
class Spooled:
    """A whole run, taken apart; start and end are UNIX time."""

    about: About
    recordings: tuple[Recording, ...]
    start_ns: int
    end_ns: int


class _RankFiles:
    """A file per rank, and from when to when anything happened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pending: dict[int, list[bytes]] = {}
        self.start_ns, self.end_ns = 1 << 63, 0

    def add(self, trace: Trace, rank: int, event: Event) -> None:
        """Take a callback; lines are written many at a time, so that no number of ranks needs as many open files."""
        if rank not in self._pending:
            header = trace.ranks[rank].model_dump() | {"live": trace.about.live}
            self._pending[rank] = [to_json(header)]
        self._pending[rank].append(to_json(event))
        at_ns = trace.ranks[rank].unix_ns(event["ts"])
        self.start_ns, self.end_ns = min(self.start_ns, at_ns), max(self.end_ns, at_ns)
        if len(self._pending[rank]) >= _LINES_AT_A_TIME:
            self._write(rank)

    def path_of(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.jsonl"

    def close(self) -> None:
        """Write what is left."""
        for rank in self._pending:
            self._write(rank)

    def _write(self, rank: int) -> None:
        with open(self.path_of(rank), "ab") as file:
            file.writelines(line + b"\n" for line in self._pending[rank])
        self._pending[rank] = []


def spool_traces(paths: list[Path], folder: Path) -> Spooled:
    """Take the traces of one run apart; any fault in one of them is a BadInput and ends it."""
    traces = [Trace(path) for path in paths]
    files = _RankFiles(folder)
    for trace in traces:
        for rank, event in read_events(trace):
            files.add(trace, rank, event)
    files.close()
    if files.end_ns == 0:
        raise BadInput(f"{', '.join(map(str, paths))}: there is no callback in it")
    about, ranks = _of_one_run(traces)
    return _spooled(about, ranks, files)


def _of_one_run(traces: list[Trace]) -> tuple[About, dict[int, RankHeader]]:
    """Return what the traces say together, or complain that they do not belong together."""
    ranks: dict[int, RankHeader] = {}
    for trace in traces:
        if twice := sorted(ranks.keys() & trace.ranks.keys()):
            raise BadInput(f"{trace.path}: rank {twice[0]} is in another of the files too")
        if trace.about.run != traces[0].about.run:
            raise BadInput(
                f"{trace.path}: is of run {trace.about.run!r}, not {traces[0].about.run!r} as the first file"
            )
        ranks |= trace.ranks
    about = traces[0].about
    return about if about.run else about.model_copy(update={"run": _stem(traces[0].path)}), ranks


def _spooled(about: About, ranks: dict[int, RankHeader], files: _RankFiles) -> Spooled:
    hosts = name_hosts(about, ranks)
    recordings = tuple(
        Recording(
            rank=rank,
            header=header,
            origin=_origin_of(rank, header, about, hosts),
            file=files.path_of(rank),
            looked_ns=_looked_ns(about, header, files.end_ns),
        )
        for rank, header in sorted(ranks.items())
        if files.path_of(rank).exists()
    )
    end_ns = max(recording.looked_ns for recording in recordings)
    return Spooled(about, recordings, files.start_ns, end_ns + 1)


def name_hosts(about: About, ranks: dict[int, RankHeader]) -> dict[int, str]:
    """Return the host of each rank: as line 1 says, else as the ranks say.

    Ranks that call themselves by one name although their communicators span several hosts were told apart by
    NCCL_HOSTID on one machine; they are h0, h1 and so on.
    """
    spans = any(comm.nnodes != 1 for header in ranks.values() for comm in header.comms)
    shared = len({header.host for header in ranks.values()}) == 1
    return {
        rank: about.hosts.get(rank, f"h{rank}" if spans and shared else header.host) for rank, header in ranks.items()
    }


def _origin_of(rank: int, header: RankHeader, about: About, hosts: dict[int, str]) -> Origin:
    before = [other for other, host in hosts.items() if host == hosts[rank] and other < rank]
    transport = transport_of(about.nic) if about.nic else None
    pid, gpu = header.pid, len(before)
    return Origin(host=hosts[rank], job=about.run, pid=pid, gpu=gpu, nic=about.nic, transport=transport)


def transport_of(nic: str) -> str:
    """Return what NCCL uses a NIC for: it calls RDMA devices by the names of their drivers.

    >>> transport_of("mlx5_3"), transport_of("eth0")
    ('ib', 'socket')
    """
    return "ib" if nic.startswith(("mlx", "bnxt_re", "irdma", "rdma", "roce")) else "socket"


def _looked_ns(about: About, header: RankHeader, end_ns: int) -> int:
    """Return when a rank was looked at last; all at one time, since a hang shows in who is behind whom."""
    if about.live and about.snapshot_mono_ns is not None:
        return max(header.unix_ns(about.snapshot_mono_ns), end_ns)
    return end_ns


def _stem(path: Path) -> str:
    return path.name.removesuffix(".xz").removesuffix(".jsonl")
