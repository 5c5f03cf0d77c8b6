"""Whose word a batch is: rows within bounds, of the sender's own parts, and of so many jobs a minute."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lockstep.batches import Shape
from lockstep.bounds import BOUNDS, find_breach
from lockstep.clock import NS_PER_S
from lockstep.errors import BadBatch
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import lies_on

_MINUTE_NS = 60 * NS_PER_S
OWN_SOURCE = "gateway"  # of events: what we say ourselves, and nobody else
_OF_PEERS = pa.array(["probe_silent", "probe_refused"])  # who was probed; no verdict rests on it


def check_bounds(name: str, rows: pa.Table, now_ns: int, fabric_hosts: Collection[str] = ()) -> None:
    """Raise BadBatch for rows that no honest agent sends; some hosts may tell of the fabric, too."""
    if problem := find_breach(name, rows, now_ns):
        raise BadBatch(problem)
    if name == "events":
        _check_whose(rows, fabric_hosts)
    elif name == "fabric_counters" and (strange := set(pc.unique(rows["host"]).to_pylist()) - set(fabric_hosts)):
        problem = f"fabric_counters: {min(strange)} reports on switches, which needs a token of scope fabric"
        raise BadBatch(problem, slug="wrong-scope", status=403)


def _check_whose(rows: pa.Table, fabric_hosts: Collection[str]) -> None:
    """Refuse what a host says of a part of another, or in our name."""
    if pc.any(pc.equal(rows["source"], OWN_SOURCE)).as_py():
        raise BadBatch(f"events: only the gateway itself is the source {OWN_SOURCE}")
    rows = rows.filter(pc.invert(pc.is_in(rows["kind"], _OF_PEERS)))
    told = rows.group_by(["host", "component"], use_threads=False).aggregate([])
    for host, component in zip(told["host"].to_pylist(), told["component"].to_pylist(), strict=True):
        if host not in fabric_hosts and not lies_on(component, host):
            raise BadBatch(f"events: {host} reports on {component[:80]!r}, which is not its own", slug="wrong-host")


@dataclass
class Tally:
    """Counts what hosts tell of, minute by minute; one thread does so."""

    _minute: int = 0
    _seen: dict[tuple[str, str], set[object]] = field(default_factory=dict)  # by host and what is counted

    def count(self, rows: Mapping[Shape, pa.Table], now_ns: int) -> dict[str, BadBatch]:
        """Return the hosts that tell of too many jobs or communicators, and how to say so."""
        if now_ns // _MINUTE_NS != self._minute:
            self._minute, self._seen = now_ns // _MINUTE_NS, {}
        over, told_before = {}, set(self._seen)
        for host, what, subject in _subjects_of(rows):
            seen, most = self._seen.setdefault((host, what), set()), getattr(BOUNDS, what)
            if len(seen) < most:
                seen.add(subject)
            elif subject not in seen:
                # Taken in another minute, unless it is too much by itself: agents drop what has status 400.
                status = 429 if (host, what) in told_before else 400
                problem = f"{host} reports more than {most} {what} in a minute"
                over[host] = BadBatch(problem, slug="too-many", status=status)
        return over


def _subjects_of(rows: Mapping[Shape, pa.Table]) -> Iterator[tuple[str, str, object]]:
    for shape, table in rows.items():
        wanted = {"comms": ["host", "job", "attempt", "comm"]}.get(shape.table, ["host", "job"])
        if not TABLE_BY_NAME[shape.table].has_job:
            continue
        found = table.select(wanted).group_by(wanted, use_threads=False).aggregate([])
        for host, *subject in zip(*(found[name].to_pylist() for name in wanted), strict=True):
            yield host, "jobs", subject[0]
            if len(subject) > 1:
                yield host, "comms", tuple(subject)
