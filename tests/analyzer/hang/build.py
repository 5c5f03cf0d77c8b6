"""A small job as an evaluation finds it: four ranks on two hosts in one communicator, of which a test moves some."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from analyzer.hang.facts import (
    HangMemory,
    HangOptions,
    HostEvent,
    Lines,
    Pair,
    PairKey,
    People,
    ProgressFacts,
    StepCounts,
    find_standstill,
)
from analyzer.hang.hangs import find_hangs
from analyzer.hang.waits import Waits, trace_waits
from analyzer.windows.jobs import Roster, build_roster
from analyzer.windows.silence import HostReport
from analyzer.windows.window import Context, End, Finding, Window
from lockstep.topology import TopologyIndex
from tests.analyzer.looking import MEMBER
from tests.builders import SECOND, T0

WORLD = 7
_TEXTS = ("func", "state", "open_dtype", "open_algo")
Line = dict[str, Any]  # Any: a column of Lines


def line(rank: int, counts: tuple[int, int, int], **told: object) -> Line:
    """One rank of the world: what it has enqueued, begun and ended, unchanged for ten seconds."""
    enqueued, started, done = counts
    usual: Line = {"comm": WORLD, "rank": rank, "func": "AllReduce", "peer": -1, "state": "idle"}
    usual |= {"enqueued": enqueued, "started": started, "done": done}
    usual |= {"since_ns": T0 - 10 * SECOND, "seen_ns": T0, "head_peer": -1, "head_channel": -1}
    return (
        usual
        | {"open_bytes": -1, "open_dtype": "", "open_algo": "", "open_ns": -1, "process": rank, "untimed": False}
        | told
    )


@dataclass
class Job:
    """Ranks two to a host; `comms` are members of further communicators, by world rank."""

    ranks: int = 4
    comms: dict[int, list[int]] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # Any: fields of ProgressFacts
    topology: TopologyIndex | None = None

    @property
    def roster(self) -> Roster:
        groups = {WORLD: list(range(self.ranks)), **self.comms}
        told = [
            {"comm": comm, "rank": index, "nranks": len(members), "host": f"h{rank // 2}", "gpu": rank % 2}
            | {"nnodes": self.ranks // 2, "pid": 1, "world_rank": rank, "init_ns": 0}
            for comm, members in groups.items()
            for index, rank in enumerate(members)
        ]
        return build_roster(pa.Table.from_pylist(told, schema=MEMBER))

    @property
    def context(self) -> Context:
        return Context("j1", 0, Window(T0 - 5 * SECOND, T0), T0, self.roster, self.topology, frozenset(), SECOND)

    @property
    def progress(self) -> ProgressFacts:
        roster = self.roster
        people = People(roster.host_of, roster.gpu_of, roster.world_rank_of)
        usual: dict[str, Any] = {"now_ns": T0, "period_ns": SECOND, "interval_ns": SECOND}
        return ProgressFacts(lines_of(self.lines), people, **(usual | self.facts))

    def trace(self) -> Waits:
        facts = self.progress
        return trace_waits(facts, find_standstill(facts, frozenset(), HangOptions()), self.roster)

    def find(self, memory: HangMemory | None = None) -> list[Finding]:
        return find_hangs(self.progress, memory or HangMemory(), self.context, HangOptions())[0]

    @property
    def blamed(self) -> list[str]:
        return [finding.component for finding in self.find()]


def lines_of(rows: list[Line]) -> Lines:
    columns: Line = {name: np.array([row[name] for row in rows], object) for name in _TEXTS}
    columns["comm"] = np.array([row["comm"] for row in rows], np.uint64)
    columns["untimed"] = np.array([row["untimed"] for row in rows], bool)
    numbers = Lines.__dataclass_fields__.keys() - columns.keys()
    return Lines(**columns, **{name: np.array([row[name] for row in rows], np.int64) for name in numbers})


def world(**ranks: Line) -> list[Line]:
    """All four ranks inside operation 5 of the world, but for those that are told otherwise as r0 to r3."""
    return [line(rank, (5, 5, 4)) | ranks.get(f"r{rank}", {}) for rank in range(4)]


def standing(seconds: float, **told: object) -> list[Line]:
    """All four ranks inside operation 5 of the world for so long."""
    return [line(rank, (5, 5, 4), since_ns=T0 - round(seconds * SECOND), **told) for rank in range(4)]


def steps_of(*rows: tuple[int, int, int, int], seq: int = 4, comm: int = WORLD, channel: int = 0) -> StepCounts:
    """Steps of one operation: from rank, to rank, how many the one has ended sending and the other receiving."""
    sides = [(src, dst, True, sent) for src, dst, sent, _ in rows] + [
        (dst, src, False, got) for src, dst, _, got in rows
    ]
    sides = [side for side in sides if side[3]]
    count = len(sides)
    return StepCounts(
        comm=np.full(count, comm, np.uint64),
        func=np.full(count, "AllReduce", object),
        seq=np.full(count, seq),
        rank=np.array([side[0] for side in sides], np.int64),
        channel=np.full(count, channel),
        peer=np.array([side[1] for side in sides], np.int64),
        sends=np.array([side[2] for side in sides], bool),
        steps=np.array([side[3] for side in sides], np.int64),
        last_ns=np.full(count, T0 - 10 * SECOND),
    )


def event(kind: str, host: str, message: str = "", component: str = "", ago_s: float = 10, **who: Any) -> HostEvent:
    return HostEvent(host, T0 - round(ago_s * SECOND), kind, component or f"host:{host}", message, **who)


def reported(**ago_s: float) -> dict[str, HostReport]:
    """The reports of collectors that have told all up to so many seconds ago."""
    reached = {host: T0 - round(seconds * SECOND) for host, seconds in ago_s.items()}
    return {host: HostReport(ns, ns) for host, ns in reached.items()}


def pair(src: tuple[int, End], dst: tuple[int, End], transport: str = "ib") -> dict[PairKey, Pair]:
    """The connection between two ranks of the world on channel 0, with the NICs at its ends."""
    return {(WORLD, src[0], dst[0], 0): Pair(src[1], dst[1], transport)}
