"""Matrices made by hand: which pairs there are, and how slow each of them is."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from analyzer.delay_matrix.matrix import DelayMatrix, Pair
from analyzer.evidence.observations import NO_EVIDENCE, Evidence
from analyzer.localize.faults import find_faults
from analyzer.windows.jobs import Roster, build_roster
from analyzer.windows.window import Context, Finding, Window
from lockstep.arrow import schema_of
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import TopologyIndex
from tests.analyzer.build import NS_PER_BYTE, WINDOW_NS, Names, end_of
from tests.builders import T0

Slowness = Callable[[Pair], float]  # times the usual wire time

SLOW = 4.0
_LEAST_HOT = 1.25


def pairs(names: Iterable[Names]) -> list[Pair]:
    """Return a pair of unknown path for each two ends."""
    return [Pair(end_of(src), end_of(dst)) for src, dst in names]


def matrix(
    of: Sequence[Pair], slowness: Slowness, *, starved: Iterable[str] = (), shared: Slowness = lambda pair: 1.0
) -> DelayMatrix:
    """Return a matrix in which each pair is as slow as told, and as crowded."""
    ratio = np.array([slowness(pair) for pair in of])
    return DelayMatrix(
        pairs=tuple(of),
        transports=frozenset({"ib"}),
        ratio=ratio,
        sigmas=np.log(ratio) / 0.01,
        slow=ratio >= _LEAST_HOT,
        ns_per_byte=ratio * NS_PER_BYTE,
        error=np.full(len(ratio), 0.01),
        operations=np.full(len(ratio), 100.0),
        shared=np.array([shared(pair) for pair in of]),
        hidden=np.zeros(len(ratio), bool),
        has_past=np.ones(len(ratio), bool),
        starved=frozenset(starved),
    )


def context(topology: TopologyIndex | None = None) -> Context:
    return Context("train", 1, Window(T0, T0 + WINDOW_NS), T0, nobody(), topology)


def nobody() -> Roster:
    return build_roster(schema_of(TABLE_BY_NAME["comms"]).empty_table())


def find(
    of: Sequence[Pair], slowness: Slowness, topology: TopologyIndex | None = None, evidence: Evidence = NO_EVIDENCE
) -> list[Finding]:
    """Return the findings on pairs that are as slow as told."""
    return find_faults(matrix(of, slowness), evidence, context(topology))


def times(factor: float, is_slow: Callable[[Pair], bool]) -> Slowness:
    """Return a slowness by that factor for some pairs, and 1 for all others."""
    return lambda pair: factor if is_slow(pair) else 1.0


def sent_by(*ends: str) -> Slowness:
    return times(SLOW, lambda pair: str(pair.src) in ends)


def received_by(*ends: str) -> Slowness:
    return times(SLOW, lambda pair: str(pair.dst) in ends)


def at(*ends: str) -> Slowness:
    return times(SLOW, lambda pair: str(pair.src) in ends or str(pair.dst) in ends)


def of_hosts(*hosts: str) -> Slowness:
    return times(SLOW, lambda pair: pair.src.host in hosts or pair.dst.host in hosts)


def between(src: str, dst: str) -> Slowness:
    return times(SLOW, lambda pair: (str(pair.src), str(pair.dst)) == (src, dst))


def worst(*each: Slowness) -> Slowness:
    """Return the slowness under several faults: the slowest part on its way slows a pair."""
    return lambda pair: max(slowness(pair) for slowness in each)


def named(found: Iterable[Finding]) -> list[tuple[str, str | None]]:
    return [(finding.component, finding.side) for finding in found]


def routed(src: str, dst: str, *path: str) -> Pair:
    """Return a pair whose path is known."""
    return Pair(end_of(src), end_of(dst), path=path)
