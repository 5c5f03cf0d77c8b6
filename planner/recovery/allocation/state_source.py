"""Where a node that joins a job gets its state from: the nearest copy, and how long each copy takes.

A live replica has the state of this very step; a copy in the memory of a host is as old as the last one taken, and
one on remote storage older still. The best is the one that costs the least time, loading and work done again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from lockstep.errors import NotPresent

SourceKind = Literal["peer", "host_memory", "remote"]  # nearest first
_NEARNESS: tuple[SourceKind, ...] = get_args(SourceKind)


@dataclass(frozen=True, slots=True)
class Source:
    """A copy of a job's state."""

    kind: SourceKind
    name: str  # a host, or a path
    bytes_per_s: float  # to one node that loads, with all of them loading
    setup_s: float = 0.0  # before the first byte: rebuild communicators, open files
    age_s: float = 0.0  # work since then is done again
    is_complete: bool = True  # all shards are there, and were verified


@dataclass(frozen=True, slots=True)
class Estimate:
    """What loading from a source costs."""

    source: Source
    load_s: float
    lost_work_s: float
    reason: str

    @property
    def total_s(self) -> float:
        """Return the time the job is set back."""
        return self.load_s + self.lost_work_s


def rank_sources(sources: Sequence[Source], bytes_per_node: float) -> list[Estimate]:
    """Return what each usable source costs, the best first; of equal ones the nearest.

    >>> rank_sources([Source("remote", "s3", 1e9), Source("peer", "h2", 25e9)], 50e9)[0].load_s
    2.0
    """
    usable = [
        _estimate(source, bytes_per_node) for source in sources if source.is_complete and source.bytes_per_s > 0
    ]
    return sorted(usable, key=lambda one: (one.total_s, _NEARNESS.index(one.source.kind), one.source.name))


def find_nearest(sources: Sequence[Source], bytes_per_node: float) -> Estimate:
    """Return the best source; NotPresent where there is none that is complete."""
    ranked = rank_sources(sources, bytes_per_node)
    if not ranked:
        raise NotPresent(f"none of {len(sources)} copies of the state is complete and can be read")
    return ranked[0]


def _estimate(source: Source, bytes_per_node: float) -> Estimate:
    load_s = source.setup_s + bytes_per_node / source.bytes_per_s
    said = f"{source.kind} {source.name}: {load_s:.3g} s to load, {source.age_s:.3g} s of work done again"
    return Estimate(source, load_s, source.age_s, said)
