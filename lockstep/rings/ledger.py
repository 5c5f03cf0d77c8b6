"""What the processes of a host have finished, made into rows together: a table costs the same for one or for all."""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lockstep.arrow import schema_of
from lockstep.rings.grouping import pick, stack
from lockstep.rings.operations import KNOWN, collective_rows, is_timed, times_of
from lockstep.rings.origin import Origins
from lockstep.rings.seconds import ENDED, Seconds
from lockstep.rings.transfers import MOVED, STEPPED, settle_bytes, step_rows, transfer_rows
from lockstep.tables import TABLE_BY_NAME

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field


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
        return {"collectives": self._close_operations(), "transfers": self._close_transfers(), **self._close_steps()}

    def _close_operations(self) -> pa.Table:
        pieces, self._operations = self._operations, []
        known = stack(KNOWN, [each for each, _ in pieces])
        if len(known) == 0:
            return no_rows("collectives")
        is_over = np.concatenate([over for _, over in pieces])
        is_counted = is_over & is_timed(known)
        if self._counts:
            self.seconds.add_operations(_ended(pick(known, is_counted)))
        kept = self._keep(known["kept"])
        if not kept.any():
            return no_rows("collectives")
        known = pick(known, kept)
        return collective_rows(known, is_over[kept], self.origins.columns(known["origin"]))

    def _close_transfers(self) -> pa.Table:
        moved, self._transfers = stack(MOVED, self._transfers), []
        if len(moved) == 0:
            return no_rows("transfers")
        sized = settle_bytes(moved)
        self.sizeless += int(np.count_nonzero(~sized))
        moved = pick(moved, sized) if not sized.all() else moved
        if self._counts:
            self.seconds.add_transfers(moved)
        kept = self._keep(moved["kept"])
        return transfer_rows(pick(moved, kept), self.origins) if kept.any() else no_rows("transfers")

    def _close_steps(self) -> dict[str, pa.Table]:
        stepped, self._steps = stack(STEPPED, self._steps), []
        stepped = pick(stepped, self._keep(stepped["kept"]))
        return {"step_samples": step_rows(stepped, self.origins) if len(stepped) else no_rows("step_samples")}

    def _keep(self, kept: Array) -> Array:
        self.left_out += int(np.count_nonzero(~kept))
        return kept


@cache
def no_rows(table: str) -> pa.Table:
    """Return an empty table; making one costs as much as filling it with some rows."""
    return schema_of(TABLE_BY_NAME[table]).empty_table()


def _ended(operations: Array) -> Array:
    ended, span = np.zeros(len(operations), ENDED), times_of(operations)
    for name in ("comm", "bytes", "rank", "func", "origin"):
        ended[name] = operations[name]
    ended["start_ns"], ended["end_ns"] = span.first_ns, span.last_ns
    return ended
