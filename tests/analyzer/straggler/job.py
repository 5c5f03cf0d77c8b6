"""A small job played by hand: ranks that compute and meet, so that who waits for whom comes out by itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from analyzer.straggler.memory import StragglerMemory
from analyzer.straggler.operations import Operations
from analyzer.straggler.reading import Flushes, StragglerFacts
from analyzer.straggler.stragglers import StragglerOptions, find_stragglers
from analyzer.windows.jobs import Roster, build_roster
from analyzer.windows.window import Context, Finding, Window
from tests.analyzer.looking import MEMBER
from tests.builders import T0

MS = 1_000_000
WIRE_MS = 20.0
LAUNCH_MS = 0.02

Extra = Callable[[int, int, int], float]  # of step, act and rank: milliseconds on top


def nothing(step: int, act: int, rank: int) -> float:
    return 0.0


@dataclass(frozen=True)
class Act:
    """Compute, then meet in groups: all of a group together, or each sender with its receiver."""

    compute_ms: float
    groups: Sequence[Sequence[int]]
    pairs: Sequence[tuple[int, int]] = ()  # places inside the group that send and receive; none: a collective


@dataclass
class Job:
    """Ranks with some GPUs a host; `gpu` and `host` say by how much a rank's GPU or process is late."""

    ranks: int
    acts: Sequence[Act]
    gpus_per_host: int = 8
    steps: int = 6
    gpu: Extra = nothing
    host: Extra = nothing
    noise: float = 0.01  # of the compute time
    seed: int = 1
    clock_ns: Callable[[int], int] = lambda rank: 0
    begin_ns: int = 0  # after T0
    _rows: list[tuple[object, ...]] = field(default_factory=list)

    def roster(self) -> Roster:
        rows = [
            {"comm": self._comm(group), "rank": index, "nranks": len(group), "nnodes": 1, "host": self.host_of(rank)}
            | {"pid": 1, "gpu": self.gpu_of(rank), "world_rank": rank, "init_ns": 5}
            for act in self.acts
            for group in act.groups
            for index, rank in enumerate(group)
        ]
        return build_roster(pa.Table.from_pylist(rows, schema=MEMBER))

    def host_of(self, rank: int) -> str:
        return f"h{rank // self.gpus_per_host}"

    def gpu_of(self, rank: int) -> int:
        return rank % self.gpus_per_host

    @staticmethod
    def _comm(group: Sequence[int]) -> int:
        """Return the communicator of some ranks: the same ranks have the same one."""
        return 1 + sum(2**rank if rank < 63 else rank for rank in group) % (2**63 - 1)

    def play(self) -> Operations:
        """Return what the ranks did, with the gaps before their operations."""
        random = np.random.default_rng(self.seed)
        free = np.zeros(self.ranks)
        counts: dict[tuple[int, int, int, bool], int] = {}
        self._rows.clear()
        for step in range(self.steps):
            enqueue = free.copy()
            for number, act in enumerate(self.acts):
                enqueue += [LAUNCH_MS + self.host(step, number, rank) for rank in range(self.ranks)]
                spent = act.compute_ms * random.normal(1.0, self.noise, self.ranks)
                spent += [self.gpu(step, number, rank) for rank in range(self.ranks)]
                start = np.maximum(free, enqueue) + spent
                for group in act.groups:
                    self._meet(act, group, (free, enqueue, start), counts)
        return self._as_operations()

    def _meet(
        self,
        act: Act,
        group: Sequence[int],
        times: tuple[np.ndarray, np.ndarray, np.ndarray],
        counts: dict[tuple[int, int, int, bool], int],
    ) -> None:
        """Note the operations of one group, and when each of its ranks is free again."""
        free, enqueue, start = times
        comm, end = self._comm(group), dict.fromkeys(group, 0.0)
        meetings = act.pairs or [(-1, -1)]
        for src, dst in meetings:
            those = [group[src], group[dst]] if act.pairs else list(group)
            done = float(start[those].max()) + WIRE_MS
            for rank in those:
                sends = bool(act.pairs) and rank == group[src]
                peer = -1 if not act.pairs else dst if sends else src
                key = (comm, rank, peer, sends)
                counts[key] = counts.get(key, -1) + 1
                lead = start[rank] - enqueue[rank]
                self._rows.append(
                    (comm, group.index(rank), rank, sends, peer, counts[key], start[rank], done, free[rank], lead)
                )
                end[rank] = max(end[rank], done)
        for rank, timestamp in end.items():
            free[rank] = max(free[rank], timestamp)

    def _as_operations(self) -> Operations:
        columns = [np.array(column) for column in zip(*self._rows, strict=True)]
        comm, index, rank, sends, peer, seq, start, end, before, lead = columns
        gap = np.maximum(start - before, 0.0) * MS
        clock_ns = np.array([self.clock_ns(int(number)) for number in rank])
        numbers = {"process": rank, "rank": index, "peer": peer, "seq": seq, "replay": 0 * rank}
        return Operations(
            **{name: column.astype(np.int64) for name, column in numbers.items()},
            comm=comm.astype(np.uint64),
            func=np.where(peer >= 0, 1 + sends, 3).astype(np.uint64),
            sends=sends.astype(np.bool_),
            size=np.full(len(rank), 1 << 20),
            start_ns=(T0 + start * MS).astype(np.int64) + clock_ns + self.begin_ns,
            dur_ns=(end - start) * MS,
            gap_ns=gap,
            gpu_ns=np.minimum(gap, lead * MS),
        )


def context(roster: Roster, begin_ns: int = 0, period_ns: int | None = None) -> Context:
    """Return an evaluation of five seconds that begins so long after T0."""
    window = Window(T0 + begin_ns, T0 + begin_ns + 5_000 * MS)
    return Context("j1", 0, window, window.start_ns, roster, None, frozenset(), period_ns)


def look(
    job: Job, memory: StragglerMemory | None = None, flushes: Flushes | None = None
) -> tuple[list[Finding], StragglerMemory]:
    """Return what one evaluation at all that a job did says."""
    facts = StragglerFacts(job.play(), False, flushes or Flushes())
    return find_stragglers(facts, memory or StragglerMemory(), context(job.roster()), StragglerOptions())


def named(job: Job) -> list[tuple[str, str]]:
    """Return class and component of all that one evaluation names."""
    return [(finding.fault_class, finding.component) for finding in look(job)[0]]


def world(ranks: int, compute_ms: float = 100.0, times: int = 3) -> list[Act]:
    """Return a step of data-parallel training: compute, then some all-reduces of everybody."""
    everyone = [list(range(ranks))]
    return [Act(compute_ms, everyone)] + [Act(0.5, everyone) for _ in range(times - 1)]


def tensor_and_data(ranks: int, tp: int) -> list[Act]:
    """Return a step in which tensor-parallel groups meet twice, then data-parallel ones."""
    inner = [list(range(first, first + tp)) for first in range(0, ranks, tp)]
    outer = [list(range(first, ranks, tp)) for first in range(tp)]
    return [Act(50.0, inner), Act(50.0, inner), Act(5.0, outer)]


def ring(ranks: int) -> list[Act]:
    """Return a step in which everybody sends to the next one and receives from the one before, at once."""
    return [Act(100.0, [list(range(ranks))], [(index, (index + 1) % ranks) for index in range(ranks)])] * 2


def exchange(ranks: int) -> list[Act]:
    """Return a step in which everybody sends to everybody else at once, twice."""
    ways = [(src, dst) for src in range(ranks) for dst in range(ranks) if src != dst]
    return [Act(100.0, [list(range(ranks))], ways)] * 2


def pipeline(ranks: int, stages: int, *, by_two: bool = False) -> list[Act]:
    """Return a step in which batches go down chains of stages and come back, then stages meet their like.

    A chain is one communicator, or one of two ranks between any two of its stages.
    """
    width = ranks // stages
    chains = [list(range(first, ranks, width)) for first in range(width)]
    alike = [list(range(first, first + width)) for first in range(0, ranks, width)]

    def meet(src: int, dst: int) -> Act:
        low = min(src, dst)
        if by_two:
            return Act(30.0, [chain[low : low + 2] for chain in chains], [(src - low, dst - low)])
        return Act(30.0, chains, [(src, dst)])

    down = [meet(stage, stage + 1) for stage in range(stages - 1)]
    back = [meet(stage + 1, stage) for stage in reversed(range(stages - 1))]
    return [*down, *back, Act(30.0, alike)]
