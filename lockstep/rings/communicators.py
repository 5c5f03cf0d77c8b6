"""Which communicator a record speaks of, and the rows that introduce communicators.

A record names its communicator by a place in a table, and a place may serve several communicators one after another.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lockstep import wire
from lockstep.arrow import fill_rows
from lockstep.rings.clock import TickClock
from lockstep.rings.grouping import pick, stack
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
        self._seen: Array | None = None  # the same, if nobody copied it

    def update(self, members: Array) -> Array:
        """Take in the table as it is now; return which of its elements are new or have changed."""
        if members is self._seen:
            return np.zeros(len(members), bool)
        self._seen, content = members, members.tobytes()
        if content == self._last:
            return np.zeros(len(members), bool)
        self._last = content
        changed = ~np.isin(_bytes_of(members), _bytes_of(self._members))
        outdated = np.isin(_numbers_of(self._members), _numbers_of(members))
        both = np.concatenate([self._members[~outdated], members])
        self._members = both[np.lexsort((both["init_ticks"], both["place"]))]
        return changed

    @property
    def members(self) -> Array:
        """All of them, by place, then by when they were made; the same array for as long as nothing changes."""
        return self._members


class HostCommunicators:
    """The communicators of several processes in one table; a process goes by its number in the list."""

    def __init__(self, histories: Sequence[CommunicatorHistory]) -> None:
        self.parts = [history.members for history in histories]
        self._members = stack(PLACED_COMM, [np.zeros(1, PLACED_COMM), *self.parts])  # a first one that is nobody's
        whose = np.repeat(np.arange(len(self.parts) + 1), [1, *map(len, self.parts)])
        self._keys, self._since = _key(whose, self._members["place"]), self._members["init_ticks"].copy()

    def is_of(self, histories: Sequence[CommunicatorHistory]) -> bool:
        """Return whether a table of these would be the same one."""
        same = len(histories) == len(self.parts)
        return same and all(one.members is part for one, part in zip(histories, self.parts, strict=True))

    def members_at(self, whose: Array, places: Array, ticks: Array) -> tuple[Array, Array]:
        """Return for each place of a process the communicator that it held at that time, and whether there was one.

        Cost: one round for a place that had one communicator ever, one more whenever there are twice as many.
        """
        wanted = _key(whose + 1, places)
        begin, end = np.searchsorted(self._keys, wanted, "left"), np.searchsorted(self._keys, wanted, "right")
        low = begin.copy()
        while (low < end).any():  # halve what is left of each place until all that is older is below
            middle = (low + end) // 2
            is_made = (low < end) & (self._since[np.minimum(middle, len(self._since) - 1)] <= ticks)
            end = np.where(is_made | (low >= end), end, middle)
            low = np.where(is_made, middle + 1, low)
        found = low > begin
        return pick(self._members, np.where(found, low - 1, 0)), found

    def latest(self, whose: Array, places: Array) -> tuple[Array, Array]:
        """Return for each place the communicator that it held last, and whether there was one."""
        return self.members_at(whose, places, np.full(len(places), np.iinfo(np.uint64).max, np.uint64))


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


def _key(whose: Array, places: Array) -> Array:
    keys: Array = whose.astype(np.uint64) << np.uint64(32) | places.astype(np.uint64)
    return keys
