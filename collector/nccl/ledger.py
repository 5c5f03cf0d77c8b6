"""What the processes of a host have finished, made into rows together: a table costs the same for one or for all."""

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from collector.nccl.arrays import Array, Groups, pick, stack
from collector.nccl.communicators import Origins
from collector.nccl.operations import KNOWN, collective_rows, is_timed, names_of, times_of
from collector.nccl.transfers import MOVED, STEPPED, settle_bytes, step_rows, transfer_rows
from lockstep import wire
from lockstep.arrow import fill_rows, schema_of
from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME

# What is counted of an operation.
ENDED = np.dtype(
    [
        *(("comm", "u8"), ("bytes", "u8"), ("start_ns", "i8"), ("end_ns", "i8")),
        *(("rank", "u4"), ("origin", "u2"), ("func", "u1")),
    ],
    align=True,
)
# Transfers of one kind and second, summed up: there are far fewer of these than transfers, so these wait.
SUMMED = np.dtype(
    [
        *(("comm", "u8"), ("who", "u8"), ("edge", "u8"), ("end_ns", "i8"), ("bytes", "u8"), ("waits", ("i8", 3))),
        *(("wire_max_ns", "i8"), ("n", "u4"), ("timed", "u4"), ("rank", "u4"), ("peer", "i4"), ("origin", "u2")),
        *(("func", "u1"), ("size_class", "u1"), ("channel", "u1"), ("sends", "?")),
    ],
    align=True,
)
_MOST_WAITING = 1 << 17  # rows in memory whose second is not over: some 10 MB; only a forged clock makes more of them
_WIRE = 2  # of the waits of a transfer
_DIRECTIONS = ("recv", "send")
_LONGEST_NS = 1 << 46  # 19 hours; sums over a second stay far below 63 bits, whatever a forged file says
_POWERS_OF_TWO = 2 ** np.arange(64, dtype=np.uint64)  # exact, where a logarithm rounds up just below a power


class Seconds:
    """Collects finished operations and transfers and hands out the statistics of seconds that are over."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self.since_ns = 0  # seconds before this one have been handed out
        self.forgotten = 0  # operations and transfers that are in no second, because too many waited
        self._left: set[int] = set()  # origins that will bring nothing more
        self._operations: list[Array] = []
        self._transfers: list[Array] = []
        self._previous = np.empty(0, ENDED)  # the last one of each rank and communicator: gaps are measured from it

    def leave(self, origin: int) -> None:
        """Nothing more comes from there; what has come is still handed out."""
        self._left.add(origin)

    def add_operations(self, ended: Array) -> None:
        """Take in finished operations, as ENDED."""
        if len(ended):
            self._operations.append(ended)

    def add_transfers(self, moved: Array) -> None:
        """Take in finished transfers, as transfers.MOVED with their bytes."""
        if len(moved):
            self._transfers.append(_summed(moved))

    def adopt(self, other: "Seconds", origin: int) -> None:
        """Take over what another one collected of this origin; seconds that were handed out are not again."""
        for ours, theirs in ((self._operations, other._operations), (self._transfers, other._transfers)):
            for rows in theirs:
                rows["origin"] = origin
                ours.append(rows[rows["end_ns"] >= self.since_ns])
        earlier = [rows[rows["end_ns"] < self.since_ns] for rows in other._operations]
        self._previous = np.concatenate([self._previous, *earlier])

    def close(self, now_ns: int) -> dict[str, pa.Table]:
        """Return the statistics of all seconds that are over by now; nothing while the same second lasts."""
        until_ns = now_ns // NS_PER_S * NS_PER_S
        if until_ns <= self.since_ns:
            return {}
        ended, self._operations = self._split(self._operations, ENDED, until_ns)
        folded = {"op_stats": self._fold_operations(ended)}
        moved, self._transfers = self._split(self._transfers, SUMMED, until_ns)
        folded["transfer_stats"] = self._fold_transfers(moved)
        self.since_ns = until_ns
        self._forget_origins()
        return folded

    def _split(self, pieces: list[Array], kind: np.dtype[Any], until_ns: int) -> tuple[Array, list[Array]]:
        """Return what has ended before, and what waits on."""
        rows = stack(kind, pieces)
        is_over = rows["end_ns"] < until_ns
        waiting = pick(rows, ~is_over)
        self.forgotten += max(len(waiting) - _MOST_WAITING, 0)
        return pick(rows, is_over), [waiting[:_MOST_WAITING]] if len(waiting) else []

    def _second_of(self, ended: Array) -> Array:
        seconds: Array = np.maximum(ended["end_ns"] // NS_PER_S * NS_PER_S, self.since_ns)
        return seconds

    def _fold_operations(self, ended: Array) -> pa.Table:
        gaps = self._gaps(ended)
        second, is_late = self._second_of(ended), ended["end_ns"] < self.since_ns
        groups = Groups(_who(ended, size_class(ended["bytes"])), ended["comm"], second)
        lasted = np.clip(ended["end_ns"] - ended["start_ns"], 0, _LONGEST_NS)  # a clock that jumped: no time at all
        columns = {
            "n": groups.count(),
            "bytes": groups.sum(ended["bytes"]),
            "dur_sum_ns": groups.sum(lasted),
            "dur_max_ns": groups.max(lasted),
            "gap_sum_ns": groups.sum(gaps),
            "late_n": groups.sum(is_late.astype(np.uint32)),
        }
        one = pick(ended, groups.firsts)
        columns |= {"size_class": size_class(one["bytes"]), "ts_ns": second[groups.firsts]}
        return fill_rows(TABLE_BY_NAME["op_stats"], len(one), columns | self._whose(one))

    def _gaps(self, ended: Array) -> Array:
        """Return the idle time before each operation on its rank; one that overlaps, or came late, has none."""
        both = stack(ENDED, [self._previous, ended])
        order = np.lexsort((both["end_ns"], _rank_of(both), both["comm"]))
        ordered = pick(both, order)
        same = (ordered["comm"][1:] == ordered["comm"][:-1]) & (_rank_of(ordered)[1:] == _rank_of(ordered)[:-1])
        idle = np.clip(ordered["start_ns"][1:] - ordered["end_ns"][:-1], 0, _LONGEST_NS)
        gaps = np.zeros(len(both), np.int64)
        gaps[order[1:]] = np.where(same & (ordered["end_ns"][1:] >= self.since_ns), idle, 0)
        self._previous = pick(ordered, np.append(~same, True)) if len(ordered) else ordered
        return gaps[len(both) - len(ended) :]

    def _fold_transfers(self, summed: Array) -> pa.Table:
        second = self._second_of(summed)
        groups = Groups(summed["edge"], summed["who"], summed["comm"], second)
        one, untimed = pick(summed, groups.firsts), groups.sum(summed["timed"]) == 0
        wireless = untimed | ~one["sends"]
        columns: dict[str, object] = {name: groups.sum(summed[name]) for name in ("n", "bytes")}
        waits = (("gpu_wait_ns", untimed), ("peer_wait_ns", untimed), ("wire_ns", wireless))
        for number, (name, hidden) in enumerate(waits):
            columns[name] = pa.array(groups.sum(summed["waits"][:, number]), pa.int64(), mask=hidden)
        columns["wire_max_ns"] = pa.array(groups.max(summed["wire_max_ns"]), pa.int64(), mask=wireless)
        columns |= {name: one[name] for name in ("channel", "peer", "size_class")} | {"ts_ns": second[groups.firsts]}
        columns["direction"] = names_of(_DIRECTIONS, one["sends"].view(np.uint8))
        return fill_rows(TABLE_BY_NAME["transfer_stats"], len(one), columns | self._whose(one))

    def _whose(self, rows: Array) -> dict[str, object]:
        """Return the columns that origin, communicator, function and rank give."""
        reported = {"comm": rows["comm"], "rank": rows["rank"], "func": names_of(wire.FUNCS, rows["func"])}
        return self._origins.columns(rows["origin"]) | reported

    def _forget_origins(self) -> None:
        """Free the numbers of origins of which nothing waits any more."""
        if not self._left:
            return
        waiting = {int(number) for rows in (*self._operations, *self._transfers) for number in set(rows["origin"])}
        for number in self._left - waiting:
            self._previous = self._previous[self._previous["origin"] != number]
            self._origins.forget(number)
        self._left &= waiting


def size_class(sizes: Array) -> Array:
    """Return the logarithm to base 2, rounded down; of nothing it is 0."""
    return (np.searchsorted(_POWERS_OF_TWO, np.maximum(sizes, 1), side="right") - 1).astype(np.uint8)


def _summed(moved: Array) -> Array:
    """Return transfers summed up by all that their statistics tell apart."""
    classes, second = size_class(moved["of_bytes"]), moved["end_ns"] // NS_PER_S * NS_PER_S
    who, edge = _who(moved, classes), _edge(moved)
    groups = Groups(edge, who, moved["comm"], second)
    one = pick(moved, groups.firsts)
    summed = np.zeros(len(one), SUMMED)
    for name in ("comm", "rank", "peer", "origin", "func", "channel", "sends"):
        summed[name] = one[name]
    for name, values in (("who", who), ("edge", edge), ("end_ns", second), ("size_class", classes)):
        summed[name] = values[groups.firsts]
    summed["n"], summed["bytes"] = groups.count(), groups.sum(moved["bytes"])
    timed = np.flatnonzero(moved["has_steps"])  # few: steps are sampled
    if len(timed):
        of, waits = groups.numbers()[timed], np.minimum(moved["waits"][timed], _LONGEST_NS)
        np.add.at(summed["timed"], of, 1)
        np.maximum.at(summed["wire_max_ns"], of, waits[:, _WIRE])
        np.add.at(summed["waits"], of, waits[:, :3])
    return summed


def _edge(moved: Array) -> Array:
    """Return direction, channel and peer as one number."""
    small = moved["channel"].astype(np.uint64) | moved["sends"].astype(np.uint64) << np.uint64(8)
    edge: Array = moved["peer"].astype(np.uint32) | small << np.uint64(32)
    return edge


def _rank_of(rows: Array) -> Array:
    ranks: Array = rows["origin"].astype(np.uint64) << np.uint64(32) | rows["rank"]
    return ranks


def _who(rows: Array, classes: Array) -> Array:
    """Return origin, size class, function and rank as one number."""
    small = rows["func"].astype(np.uint64) | classes.astype(np.uint64) << np.uint64(8)
    who: Array = rows["rank"] | small << np.uint64(32) | rows["origin"].astype(np.uint64) << np.uint64(48)
    return who


class Ledger:
    """Takes in finished operations, transfers and steps; hands out their rows, and statistics of them all."""

    def __init__(self, counts: bool = True, origins: Origins | None = None) -> None:
        """Without `counts` there are no statistics, for what was counted before."""
        self._counts = counts
        self.origins = origins or Origins()
        self.seconds = Seconds(self.origins)
        self.sizeless = 0  # transfers of which nobody can say what they moved, since the beginning
        self.left_out = 0  # complete rows that were only counted, since the beginning
        self._operations: list[tuple[Array, Array]] = []
        self._transfers: list[Array] = []
        self._steps: list[Array] = []

    def add_operations(self, known: Array, is_over: Array) -> None:
        """Take in operations that get their row now, and whether each has ended."""
        if len(known):
            self._operations.append((known, is_over))

    def add_transfers(self, moved: Array) -> None:
        """Take in closed transfers, as MOVED."""
        if len(moved):
            self._transfers.append(moved)

    def add_steps(self, stepped: Array) -> None:
        """Take in closed steps, as STEPPED."""
        if len(stepped):
            self._steps.append(stepped)

    def rows(self) -> dict[str, pa.Table]:
        """Return the complete rows of what was taken in, and count all of it."""
        stepped, self._steps = stack(STEPPED, self._steps), []
        stepped = pick(stepped, self._keep(stepped["kept"]))
        steps = step_rows(stepped, self.origins) if len(stepped) else no_rows("step_samples")
        return {"collectives": self._close_operations(), "transfers": self._close_transfers(), "step_samples": steps}

    def _close_operations(self) -> pa.Table:
        pieces, self._operations = self._operations, []
        known = stack(KNOWN, [each for each, _ in pieces])
        is_over = np.concatenate([np.empty(0, bool), *(over for _, over in pieces)])
        if self._counts:
            self.seconds.add_operations(_ended(pick(known, is_over & is_timed(known))))
        kept = self._keep(known["kept"])
        if not kept.any():
            return no_rows("collectives")
        known = pick(known, kept)
        return collective_rows(known, is_over[kept], self.origins.columns(known["origin"]))

    def _close_transfers(self) -> pa.Table:
        moved, self._transfers = stack(MOVED, self._transfers), []
        sized = settle_bytes(moved)
        self.sizeless += int(np.count_nonzero(~sized))
        moved = pick(moved, sized) if not sized.all() else moved
        if self._counts:
            self.seconds.add_transfers(moved)
        kept = self._keep(moved["kept"])
        return transfer_rows(pick(moved, kept), self.origins) if kept.any() else no_rows("transfers")

    def _keep(self, kept: Array) -> Array:
        self.left_out += int(np.count_nonzero(~kept))
        return kept


@cache
def no_rows(table: str) -> pa.Table:
    """Return an empty table; making one costs as much as filling it with some rows."""
    return schema_of(TABLE_BY_NAME[table]).empty_table()


def _ended(operations: Array) -> Array:
    ended, interval = np.zeros(len(operations), ENDED), times_of(operations)
    for name in ("comm", "bytes", "rank", "func", "origin"):
        ended[name] = operations[name]
    ended["start_ns"], ended["end_ns"] = interval.first_ns, interval.last_ns
    return ended
