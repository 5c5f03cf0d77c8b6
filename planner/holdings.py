"""Which jobs hold which GPUs, and which nodes have become free.

A job holds the GPUs on which it has communicators, until these are gone or another job's are there.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from planner.controllers.protocol import Node

# Of a job that stands still its progress is told, and nothing else.
_HELD = """
WITH told AS (
    SELECT job, attempt, host, max(ts_ns) AS told_ns FROM (
        SELECT job, attempt, host, ts_ns FROM op_stats WHERE ts_ns >= {start:Int64}
        UNION ALL SELECT job, attempt, host, ts_ns FROM progress WHERE ts_ns >= {start:Int64}
    ) GROUP BY job, attempt, host
)
SELECT job, attempt, host, groupUniqArray(gpu) AS gpus, min(init_ns) AS began_ns, max(told_ns) AS last_ns,
       countIf(destroy_ns IS NULL) AS living
FROM comms FINAL LEFT JOIN told USING (job, attempt, host)
WHERE (job, attempt) IN (SELECT job, attempt FROM told) OR (job = {job:String} AND attempt = {attempt:UInt16})
GROUP BY job, attempt, host ORDER BY job, attempt, host
"""
_QUIET_NS = 10 * NS_PER_S  # several reports of a host: nothing of one job, while another one on it tells


@dataclass(frozen=True, slots=True)
class Holding:
    """What one attempt of a job has, or had, on one host."""

    job: str
    attempt: int
    host: str
    gpus: frozenset[int]  # none: nobody told which
    began_ns: int  # its first communicator
    last_ns: int  # when it was last heard of, of late; 0: not of late
    living: int  # communicators that were not destroyed

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:  # Any: a row of a query
        return cls(**{**row, "gpus": frozenset(row["gpus"])})

    def has_gone_before(self, other: "Holding") -> bool:
        """Return whether another job has the same GPUs since; both are told of by one agent, and on one clock."""
        is_same_place = self.host == other.host and (not self.gpus or not other.gpus or bool(self.gpus & other.gpus))
        is_newer = other.job != self.job and other.began_ns > self.began_ns
        return is_same_place and is_newer and self.last_ns < max(other.began_ns, other.last_ns - _QUIET_NS)


def find_ended(held: Sequence[Holding]) -> set[tuple[str, int]]:
    """Return who has ended: their communicators are gone, or others have taken a place of theirs.

    Nobody says goodbye for a job that is killed, and without a scheduler nobody else knows.
    """
    living = Counter[tuple[str, int]]()
    on_host: dict[str, list[Holding]] = {}
    for each in held:
        living[each.job, each.attempt] += each.living
        on_host.setdefault(each.host, []).append(each)
    left = (each for each in held if any(map(each.has_gone_before, on_host[each.host])))
    return {who for who, count in living.items() if not count} | {(each.job, each.attempt) for each in left}


def list_running(held: Sequence[Holding]) -> dict[tuple[str, int], dict[str, int]]:
    """Return the GPUs by host of each job that was heard of and has not ended, in its newest attempt."""
    active, ended = {each.job for each in held if each.last_ns}, find_ended(held)
    newest = {each.job: each.attempt for each in sorted(held, key=lambda each: each.attempt)}
    gpus: dict[tuple[str, int], dict[str, int]] = {}
    for each in held:
        who = each.job, each.attempt
        if each.job in active and who not in ended and each.attempt == newest[each.job]:
            gpus.setdefault(who, {})[each.host] = len(each.gpus)
    return gpus


def read_holdings(store: Store, job: str, attempt: int, since_ns: int) -> list[Holding]:
    """Return what all jobs have that were heard of since then, and what this one has or had."""
    asked = {"job": job, "attempt": attempt, "start": since_ns}
    return [Holding.of(row) for row in store.query(_HELD, asked).to_pylist()]


_SEATS = """
SELECT host, gpu FROM comms FINAL WHERE job IN {jobs:Array(String)} AND coalesce(world_rank, rank) = {rank:UInt32}
ORDER BY init_ns DESC, nranks DESC LIMIT 1 BY job, attempt
"""
Seat = tuple[str, int | None]  # host and GPU


def read_seats(store: Store, jobs: Sequence[str], rank: int) -> list[Seat]:
    """Return where a rank ran in each attempt of a job, under whichever name, the newest first."""
    rows = store.query(_SEATS, {"jobs": list(jobs), "rank": rank}).to_pylist()
    return [(row["host"], row["gpu"]) for row in rows]


def find_seat(seats: Sequence[Seat]) -> str | None:
    """Return the part that a rank runs on and ran on before; None where it moved: then the fault moved with it.

    >>> find_seat([("h3", 5), ("h3", 5)]), find_seat([("h3", 5), ("h3", 1)]), find_seat([("h3", 5), ("h7", 5)])
    ('gpu:h3/5', 'host:h3', None)
    """
    hosts, gpus = ({seat[side] for seat in seats[:2]} for side in (0, 1))
    if len(hosts) != 1:
        return None
    (host,), gpu = hosts, gpus.pop() if len(gpus) == 1 else None
    return f"host:{host}" if gpu is None else f"gpu:{host}/{gpu}"


_FREE_S = 3600.0


class FreeNodes:
    """The nodes that were seen to become free.

    A controller lists nodes, not who is on them; a job without telemetry may run on any. So a node is free only when
    it was seen to become so, and not for long: whoever else waits for nodes may have taken it by then. Kept in
    memory, since a planner that begins anew does better to know of no free node than of one that is not.
    """

    def __init__(self) -> None:
        self._since_ns: dict[str, int] = {}
        self._held: dict[str, str] = {}  # by whom, at the last look
        self._names: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return them as they were at the last look."""
        return self._names

    def update(
        self,
        jobs: Mapping[str, Sequence[str]],
        silent: Collection[str],
        returned: Mapping[str, int],
        nodes: Sequence[Node] | None,
        now_ns: int,
        blamed: Collection[str] = (),
    ) -> tuple[str, ...]:
        """Return the free nodes after a look.

        `silent` jobs have sent nothing, and still have what they had; `returned` nodes came back at that moment;
        `blamed` ones have an open incident.
        """
        if nodes is None:
            return self._names  # nobody could be asked, or there is nobody to ask
        held = {node: job for job, mine in jobs.items() for node in mine}
        held |= {node: job for node, job in self._held.items() if job in silent and node not in held}
        left = dict.fromkeys(set(self._held) - set(held), now_ns)
        known = {*returned, *self._since_ns}
        since = {node: max(returned.get(node, 0), self._since_ns.get(node, 0)) for node in known}
        self._since_ns, self._held = {**since, **left}, held
        taken = {node.name for node in nodes if node.is_idle is False}  # by whoever sends us nothing
        listed, usable = {node.name for node in nodes}, {node.name for node in nodes if node.is_usable}
        gone = set(self._since_ns) - listed if usable else set()  # NVRx tells of excluded nodes only
        barred = {*held, *blamed, *gone, *taken, *(listed - usable)}
        floor_ns = now_ns - int(_FREE_S * NS_PER_S)
        self._since_ns = {node: since for node, since in self._since_ns.items() if node not in held}
        self._names = tuple(
            sorted(node for node, since in self._since_ns.items() if node not in barred and since >= floor_ns)
        )
        return self._names
