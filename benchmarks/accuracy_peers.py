"""Two rules that others use, implemented plainly by us from their published descriptions, on the rows that we have.

C4D's delay matrix: mean transfer latency per source and destination (of a byte: C4D's messages are of one size, our
transfers are not); a hot row is a slow sender, a hot column a slow
receiver, a lone hot cell a link. "Who waits least": in a synchronous job the rank that spends the least time in
communication is the one all others wait for; Meta's published verdicts ask for a margin of ten. Both look at windows
as long as ours and tell what they see in two of them in succession, as we would.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.accuracy_score import Named
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store

WINDOW_S = 5
_HOT = 1.5  # times the median cell; the paper gives no number, and this lets the rule see a NIC at two thirds
_FEWEST_CELLS = 2  # of a row or column: with one cell nobody can tell a row from a column
_SLOWER = 1.1  # a job is slow when its operations come a tenth more rarely than in its first windows
_FIRST_WINDOWS = 2
_MARGIN = 10.0

_Cell = tuple[str, str]
_Waits = Mapping[int, list[dict[str, Any]]]  # rows of each window; Any: names and numbers

_CELLS = f"""
WITH sends AS (
    SELECT comm, rank, peer, channel, host, nic, intDiv(ts_ns, {WINDOW_S * NS_PER_S}) AS window,
           sum(wire_ns) AS wire, sum(bytes) AS size
    FROM transfer_stats WHERE direction = 'send' AND wire_ns IS NOT NULL AND peer >= 0
    GROUP BY comm, rank, peer, channel, host, nic, window
), receives AS (
    SELECT comm, rank, peer, channel, any(host) AS recv_host, any(nic) AS recv_nic
    FROM transfer_stats WHERE direction = 'recv' AND peer >= 0 GROUP BY comm, rank, peer, channel
)
SELECT window, concat(host, if(nic IS NULL, '', concat('/', nic))) AS src,
       concat(recv_host, if(recv_nic IS NULL, '', concat('/', recv_nic))) AS dst,
       sum(wire) / sum(size) AS latency
FROM sends INNER JOIN receives ON receives.comm = sends.comm AND receives.rank = sends.peer
    AND receives.peer = sends.rank AND receives.channel = sends.channel
WHERE host != recv_host
GROUP BY window, src, dst HAVING sum(size) > 0 ORDER BY window, src, dst
"""
_WAITS = f"""
WITH members AS (
    SELECT comm, rank, attempt, any(world_rank) AS world, any(host) AS place, any(gpu) AS device
    FROM comms FINAL GROUP BY comm, rank, attempt
)
SELECT intDiv(ts_ns, {WINDOW_S * NS_PER_S}) AS window, world, any(place) AS host, any(device) AS gpu,
       sum(dur_sum_ns) AS waited, sum(n) AS operations
FROM op_stats INNER JOIN members ON members.comm = op_stats.comm AND members.rank = op_stats.rank
    AND members.attempt = op_stats.attempt
GROUP BY window, world ORDER BY window, world
"""


@dataclass(frozen=True, slots=True)
class Blame:
    """A part that a rule names in one window."""

    component: str
    side: str | None = None
    aliases: tuple[str, ...] = ()


def peer_verdicts(store: Store, start_ns: int) -> dict[str, list[Named]]:
    """Return what each of the peers says about the job in a store."""
    cells, waits = _cells(store), _waits(store)
    return {
        "delay matrix": confirm({window: find_hot(latency) for window, latency in cells.items()}, start_ns),
        "waits least, 10x": confirm(find_least_waiting(waits, _MARGIN), start_ns),
        "waits least": confirm(find_least_waiting(waits, 1.0), start_ns),
    }


def find_hot(latency: Mapping[_Cell, float]) -> set[Blame]:
    """Return the hot rows, columns and cells of a matrix of mean latencies.

    >>> find_hot({("a", "b"): 9.0, ("a", "c"): 9.0, ("b", "c"): 1.0, ("c", "b"): 1.0, ("d", "b"): 1.0})
    {Blame(component='host:a', side='tx', aliases=())}
    """
    if not latency:
        return set()
    limit = _HOT * median(latency.values())
    hot = {cell for cell, value in latency.items() if value > limit}
    rows = _whole(latency, hot, 0)
    columns = _whole(latency, hot, 1)
    lone = {cell for cell in hot if cell[0] not in rows and cell[1] not in columns}
    return {
        *(Blame(_part(source), "tx") for source in rows),
        *(Blame(_part(target), "rx") for target in columns),
        *(Blame(f"link:{source}--{target}") for source, target in lone),
    }


def _whole(latency: Mapping[_Cell, float], hot: set[_Cell], axis: int) -> set[str]:
    every, slow = Counter(cell[axis] for cell in latency), Counter(cell[axis] for cell in hot)
    return {end for end, count in slow.items() if count == every[end] >= _FEWEST_CELLS}


def _part(end: str) -> str:
    return f"nic:{end}" if "/" in end else f"host:{end}"


def find_least_waiting(waits: _Waits, margin: float) -> dict[int, set[Blame]]:
    """Return the rank that waits least in each slow window, when the others wait that many times as long."""
    pace = {window: sum(row["operations"] for row in rows) for window, rows in waits.items()}
    usual = median([pace[window] for window in sorted(pace)[1 : 1 + _FIRST_WINDOWS]] or [0.0])
    return {
        window: {_blame(min(rows, key=_waited))}
        if pace[window] * _SLOWER < usual and _is_far(rows, margin)
        else set()
        for window, rows in waits.items()
    }


def _is_far(rows: list[dict[str, Any]], margin: float) -> bool:
    return median(map(_waited, rows)) >= margin * min(map(_waited, rows))


def _waited(row: dict[str, Any]) -> int:
    return int(row["waited"])


def _blame(row: dict[str, Any]) -> Blame:
    """Return the rank of a row; the rule names a rank, so every name of it is right."""
    return Blame(f"gpu:{row['host']}/{row['gpu']}", None, (f"host:{row['host']}", f"rank:{row['world']}"))


def confirm(found: Mapping[int, set[Blame]], start_ns: int) -> list[Named]:
    """Return what was seen in two windows in succession, once, from the end of the second one on."""
    told: dict[Blame, Named] = {}
    for window in sorted(found):
        for blame in found[window] & found.get(window - 1, set()):
            end_s = ((window + 1) * WINDOW_S * NS_PER_S - start_ns) / NS_PER_S
            first = told[blame].opened_s if blame in told else end_s
            told[blame] = _named(blame, first, end_s)
    return list(told.values())


def _named(blame: Blame, opened_s: float, last_s: float) -> Named:
    fault_class = "noncomm_slow" if blame.component.startswith("gpu:") else "comm_slow"
    return Named(blame.component, fault_class, opened_s, last_s, blame.side, aliases=blame.aliases)


def _cells(store: Store) -> dict[int, dict[_Cell, float]]:
    cells: dict[int, dict[_Cell, float]] = defaultdict(dict)
    for row in store.query(_CELLS).to_pylist():
        cells[row["window"]][row["src"], row["dst"]] = row["latency"]
    return cells


def _waits(store: Store) -> dict[int, list[dict[str, Any]]]:
    waits: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in store.query(_WAITS).to_pylist():
        waits[row["window"]].append(row)
    return waits
