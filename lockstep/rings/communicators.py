"""Which communicator a record speaks of, and the rows that introduce communicators.

A record names its communicator by a place in a table, and a place may serve several communicators one after another.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lockstep import wire
from lockstep.arrow import fill_rows
from lockstep.rings.clock import TickClock
from lockstep.rings.grouping import pick
from lockstep.rings.identity import Identity
from lockstep.rings.live import PLACED_COMM
from lockstep.rings.origin import Origin
from lockstep.tables import TABLE_BY_NAME

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field


class CommunicatorHistory:
    """All communicators that were ever seen in a ring file."""

    def __init__(self) -> None:
        self._members = np.empty(0, PLACED_COMM)  # by place, then by when they were made
        self._last = b""  # the table as it was

    def update(self, members: Array) -> Array:
        """Take in the table as it is now; return which of its elements are new or have changed."""
        content = members.tobytes()
        if content == self._last:
            return np.zeros(len(members), bool)
        self._last = content
        changed = ~np.isin(_bytes_of(members), _bytes_of(self._members))
        outdated = np.isin(_numbers_of(self._members), _numbers_of(members))
        both = np.concatenate([self._members[~outdated], members])
        self._members = both[np.lexsort((both["init_ticks"], both["place"]))]
        return changed

    def members_at(self, places: Array, ticks: Array) -> tuple[Array, Array]:
        """Return for each place the communicator that it held at that time, and whether there was one.

        Cost: a loop over the distinct places, not over the records.
        """
        numbers = np.full(len(places), -1)
        for place in np.unique(places).tolist():
            first, end = np.searchsorted(self._members["place"], [place, place + 1]).tolist()
            here = np.flatnonzero(places == place)
            behind = np.searchsorted(self._members["init_ticks"][first:end], ticks[here], side="right")
            numbers[here] = np.where(behind > 0, first + behind - 1, -1)
        if len(self._members) == 0:
            return np.zeros(len(places), PLACED_COMM), np.zeros(len(places), bool)
        return pick(self._members, numbers), numbers >= 0

    def latest(self, places: Array) -> tuple[Array, Array]:
        """Return for each place the communicator that it held last, and whether there was one."""
        return self.members_at(places, np.full(len(places), np.iinfo(np.uint64).max, np.uint64))


def comm_rows(members: Array, identity: Identity, clock: TickClock, detail: str, origin: Origin) -> pa.Table:
    """Return a row per communicator; one whose size the API did not tell (before v4) has none: unknown is not 0."""
    members = members[members["nranks"] > 0]
    destroyed = members["destroy_ticks"]
    columns: dict[str, object] = {name: members[name] for name in ("rank", "nranks", "nnodes")}
    columns |= {
        "comm": members["id"],
        "name": pa.array([wire.text_of(name) for name in members["name"].tolist()], pa.string()),
        "world_rank": identity.world_rank,
        "pid": identity.pid if origin.pid is None else origin.pid,
        "gpu": origin.gpu,
        "nccl_version": identity.nccl_version,
        "plugin_version": identity.plugin_version,
        "detail": detail,
        "init_ns": clock.to_unix_ns(members["init_ticks"]),
        "destroy_ns": pa.array(clock.to_unix_ns(destroyed), pa.int64(), mask=destroyed == 0),
    }
    return fill_rows(TABLE_BY_NAME["comms"], len(members), columns | origin.columns())


def _numbers_of(members: Array) -> Array:
    """Return a number per communicator; a process makes far fewer than 2^48 of them."""
    numbers: Array = members["place"].astype(np.uint64) << np.uint64(48) | members["incarnation"]
    return numbers


def _bytes_of(members: Array) -> Array:
    """Return all that is known of each communicator as one value."""
    return np.ascontiguousarray(members).view(f"V{members.dtype.itemsize}")
