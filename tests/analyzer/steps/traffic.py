"""Traffic of one rank made by hand: what a step does, again and again, and what comes between."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.steps.traffic import Witness

MS = 1_000_000
T0 = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Op:
    """One operation of a step, with the time that the rank computes before it."""

    before_ms: float = 0.0
    func: str = "AllReduce"
    comm: int = 1
    mb: float = 100.0
    peer: int = -1
    takes_ms: float = 30.0


DDP = (Op(400), Op(), Op(), Op())  # four buckets that look alike
MEGATRON = (Op(60, comm=2), Op(60, comm=2), Op(120, func="ReduceScatter"), Op(40, func="AllGather"))


class Rank:
    """Does steps one after the other and remembers what an observer would have seen."""

    def __init__(self, seed: int = 1, noise: float = 0.02, process: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._noise, self._process = noise, process
        self._rows: list[tuple[int, str, int, int, int, int, int, int]] = []
        self._seq: dict[tuple[int, str, int], int] = {}
        self._now = 0.0  # since T0: a float has no room for nanoseconds since 1970

    @property
    def now_ns(self) -> int:
        return T0 + int(self._now)

    def steps(self, step: Sequence[Op], times: int = 1, slower: float = 1.0) -> "Rank":
        """Do a step some times; `slower` stretches its operations."""
        for _ in range(times):
            asked = T0 + int(self._now)
            for op in step:
                begin = self._now + self._noisy(op.before_ms)
                self._now = begin + self._noisy(op.takes_ms * slower)
                self._note(op, asked, T0 + int(begin), T0 + int(self._now))
                asked += 50_000
        return self

    def pause(self, seconds: float) -> "Rank":
        self._now += seconds * 1e9
        return self

    def look(self, keep: float = 1.0) -> Witness:
        """Return what was seen, or a share of it that is chosen by number."""
        kept = [row for row in self._rows if (row[3] * 2654435761 % 997) / 997 < keep]
        comm, func, peer, seq, size, asked, begin, end = zip(*kept, strict=True)
        times = [np.array(column, np.int64) for column in (size, asked, begin, end)]
        numbers = (np.array(peer, np.int64), np.array(seq, np.int64), np.ones(len(kept), bool))
        columns = [*numbers, *times, np.zeros(len(kept), bool)]
        return Witness(self._process, np.array(comm, np.uint64), np.array(func), *columns)

    def _note(self, op: Op, asked: int, begin: int, end: int) -> None:
        stream = (op.comm, op.func, op.peer)
        number = self._seq[stream] = self._seq.get(stream, -1) + 1
        self._rows.append((op.comm, op.func, op.peer, number, int(op.mb * 1e6), asked, begin, end))

    def _noisy(self, ms: float) -> float:
        return ms * MS * max(1 + self._noise * float(self._random.standard_normal()), 0.1)
