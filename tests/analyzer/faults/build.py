"""Matrices made by hand: which wires there are, and how slow each of them is."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from analyzer.context import Context
from analyzer.faults.faults import find_faults
from analyzer.finding import Finding
from analyzer.roster import Roster, build_roster
from analyzer.signs.signs import NO_SIGNS, Signs
from analyzer.windows import Window
from analyzer.wires.matrix import DelayMatrix, Wire
from lockstep.arrow import schema_of
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import TopologyIndex
from tests.analyzer.build import NS_PER_BYTE, WINDOW_NS, Names, end_of
from tests.builders import T0

Slowness = Callable[[Wire], float]  # times the usual wire time

SLOW = 4.0
_LEAST_HOT = 1.25


def wires(pairs: Iterable[Names]) -> list[Wire]:
    """Return a wire of unknown path for each two ends."""
    return [Wire(end_of(src), end_of(dst)) for src, dst in pairs]


def matrix(of: Sequence[Wire], slowness: Slowness, *, starved: Iterable[str] = ()) -> DelayMatrix:
    """Return a matrix in which each wire is as slow as told."""
    ratio = np.array([slowness(wire) for wire in of])
    return DelayMatrix(
        wires=tuple(of),
        transports=frozenset({"ib"}),
        ratio=ratio,
        sigmas=np.log(ratio) / 0.01,
        hot=ratio >= _LEAST_HOT,
        ns_per_byte=ratio * NS_PER_BYTE,
        starved=frozenset(starved),
    )


def context(topology: TopologyIndex | None = None) -> Context:
    return Context("train", 1, Window(T0, T0 + WINDOW_NS), T0, nobody(), topology)


def nobody() -> Roster:
    return build_roster(schema_of(TABLE_BY_NAME["comms"]).empty_table())


def find(
    of: Sequence[Wire], slowness: Slowness, topology: TopologyIndex | None = None, signs: Signs = NO_SIGNS
) -> list[Finding]:
    """Return the findings on wires that are as slow as told."""
    return find_faults(matrix(of, slowness), signs, context(topology))


def times(factor: float, is_slow: Callable[[Wire], bool]) -> Slowness:
    """Return a slowness by that factor for some wires, and 1 for all others."""
    return lambda wire: factor if is_slow(wire) else 1.0


def sent_by(*ends: str) -> Slowness:
    return times(SLOW, lambda wire: str(wire.src) in ends)


def received_by(*ends: str) -> Slowness:
    return times(SLOW, lambda wire: str(wire.dst) in ends)


def at(*ends: str) -> Slowness:
    return times(SLOW, lambda wire: str(wire.src) in ends or str(wire.dst) in ends)


def of_hosts(*hosts: str) -> Slowness:
    return times(SLOW, lambda wire: wire.src.host in hosts or wire.dst.host in hosts)


def between(src: str, dst: str) -> Slowness:
    return times(SLOW, lambda wire: (str(wire.src), str(wire.dst)) == (src, dst))


def worst(*each: Slowness) -> Slowness:
    """Return the slowness under several faults: the slowest part on its way slows a wire."""
    return lambda wire: max(slowness(wire) for slowness in each)


def named(found: Iterable[Finding]) -> list[tuple[str, str | None]]:
    return [(finding.component, finding.side) for finding in found]


def routed(src: str, dst: str, *path: str) -> Wire:
    """Return a wire whose path is known."""
    return Wire(end_of(src), end_of(dst), path=path)
