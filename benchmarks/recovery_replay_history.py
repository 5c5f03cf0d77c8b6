"""Real fault histories, read into who was up when: InfiniteHBD's GPU servers, and Bamboo's spot instances."""

import csv
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from lockstep.errors import BadInput

DATA = "LOCKSTEP_PUBLIC_DATA"
_SERVERS = Path("faults_infinitehbd/fault_trace_first174d.json")
_SPOT = Path("spot_bamboo/p3-trace.csv")
_ALL_SERVERS = 400  # the trace names only those that had a fault
_DAYS = 174.0
_H_PER_DAY, _MS_PER_H = 24.0, 3_600_000


class Change(NamedTuple):
    """A node goes or comes."""

    hour: float
    node: str
    is_up: bool


@dataclass(frozen=True)
class History:
    """Which nodes there were, and when each was up. Everybody in `up` is up at hour 0."""

    name: str
    hours: float
    up: tuple[str, ...]
    changes: tuple[Change, ...]

    def among(self, nodes: Iterable[str]) -> "History":
        """Return the history of some of the nodes."""
        kept = set(nodes)
        up = tuple(node for node in self.up if node in kept)
        return History(self.name, self.hours, up, tuple(one for one in self.changes if one.node in kept))

    def moments(self) -> Iterator[tuple[float, tuple[Change, ...]]]:
        """Yield what changes at once. A node that goes and comes at the same time makes two moments of it."""
        for hour, group in groupby(self.changes, key=lambda one: one.hour):
            at_once: dict[str, Change] = {}
            for change in group:
                if change.node in at_once:
                    yield hour, tuple(at_once.values())
                    at_once = {}
                at_once[change.node] = change
            yield hour, tuple(at_once.values())


def has_histories() -> bool:
    """Return whether the folder of third-party data is named."""
    return DATA in os.environ


def read_servers() -> History:
    """Return 174 days of 400 servers that trained language models (InfiniteHBD-Trace, SIGCOMM 2025)."""
    rows = json.loads((_folder() / _SERVERS).read_text())
    events = [(row["event_time"] * _H_PER_DAY, row["node_id"], row["event_type"] == "fault_end") for row in rows]
    named = sorted({node for _, node, _ in events})
    quiet = [f"quiet-{number}" for number in range(_ALL_SERVERS - len(named))]
    return History("InfiniteHBD", _DAYS * _H_PER_DAY, (*named, *quiet), tuple(merge_faults(events)))


def read_spot() -> History:
    """Return 11 hours of EC2 p3 spot instances that came and were taken away (Bamboo, NSDI 2023)."""
    with (_folder() / _SPOT).open() as file:
        rows = [(int(row[0]) / _MS_PER_H, row[2], row[1] == "add") for row in csv.reader(file)]
    there = tuple(node for hour, node, is_up in rows if hour == 0 and is_up)
    later = tuple(Change(*row) for row in rows if row[0] > 0)
    return History("spot instances", rows[-1][0], there, later)


def merge_faults(events: Iterable[tuple[float, str, bool]]) -> Iterator[Change]:
    """Yield when nodes go and come: one with several faults at a time is up again when the last has ended."""
    open_faults: dict[str, int] = {}
    for hour, node, is_end in events:
        before = open_faults.get(node, 0)
        open_faults[node] = after = before + (-1 if is_end else 1)
        if after < 0:
            raise BadInput(f"a fault of {node} ends at hour {hour:g} that never began")
        if min(before, after) == 0:
            yield Change(hour, node, after == 0)


def _folder() -> Path:
    if not has_histories():
        raise BadInput(f"set {DATA} to the folder of third-party data")
    return Path(os.environ[DATA])
