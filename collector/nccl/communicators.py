"""Which communicator a record speaks of, and the rows that introduce communicators.

A record names its communicator by a place in a table, and a place may serve several communicators one after another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from collector.nccl.arrays import Array, pick, stack
from collector.nccl.clock import TickClock
from collector.nccl.header import Identity
from collector.nccl.ringfile import INDEXED_COMM
from lockstep import wire
from lockstep.arrow import fill_rows
from lockstep.tables import TABLE_BY_NAME

_MOST_ORIGINS = 1 << 16
_COLUMNS = ("host", "job", "attempt", "nic", "transport")


@dataclass(frozen=True)
class Origin:
    """Host and job as the reader vouches for them, and what it knows of the rank's GPU and NIC."""

    host: str
    job: str
    attempt: int = 0
    pid: int | None = None  # on the host, where that is known; a process knows only the number in its container
    gpu: int | None = 0
    nic: str | None = None  # where the host has only one
    transport: str | None = None


class Origins:
    """Origins by number, so that rows of several processes can be made together."""

    def __init__(self, *origins: Origin) -> None:
        self._by_number = dict(enumerate(origins))

    def enter(self, origin: Origin) -> int:
        """Return the number by which rows name this origin."""
        number = next(free for free in range(_MOST_ORIGINS) if free not in self._by_number)
        self._by_number[number] = origin
        return number

    def forget(self, number: int) -> None:
        """Let the number be used again."""
        self._by_number.pop(number, None)

    def columns(self, numbers: Array) -> dict[str, object]:
        """Return what the origins of rows say, column by column; a table takes those that it has."""
        if len(numbers) == 0:
            return {}
        distinct = np.unique(numbers)
        origins = [self._by_number[number] for number in distinct.tolist()]
        index = pa.array(np.searchsorted(distinct, numbers))
        reported = {name: [getattr(one, name) for one in origins] for name in _COLUMNS}
        # Nearly always it is one job, and one value will do for all rows.
        return {
            name: values[0] if len(set(values)) == 1 else pa.array(values).take(index)
            for name, values in reported.items()
        }


class CommunicatorHistory:
    """All communicators that were ever seen in a ring file."""

    def __init__(self) -> None:
        # By place, then by when they were made; the same array for as long as nothing changes.
        self.members: Array = np.empty(0, INDEXED_COMM)
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
        changed = ~np.isin(_bytes_of(members), _bytes_of(self.members))
        outdated = np.isin(_numbers_of(self.members), _numbers_of(members))
        both = np.concatenate([self.members[~outdated], members])
        self.members = both[np.lexsort((both["init_ticks"], both["index"]))]
        return changed


class HostCommunicators:
    """The communicators of several processes in one table; a process goes by its number in the list."""

    def __init__(self, histories: Sequence[CommunicatorHistory]) -> None:
        self.parts = [history.members for history in histories]
        self._members = stack(INDEXED_COMM, [np.zeros(1, INDEXED_COMM), *self.parts])  # a first one that is nobody's
        whose = np.repeat(np.arange(len(self.parts) + 1), [1, *map(len, self.parts)])
        self._keys, self._since = _key(whose, self._members["index"]), self._members["init_ticks"].copy()

    def is_of(self, histories: Sequence[CommunicatorHistory]) -> bool:
        """Return whether a table of these would be the same one."""
        same = len(histories) == len(self.parts)
        return same and all(one.members is part for one, part in zip(histories, self.parts, strict=True))

    def members_at(self, whose: Array, indices: Array, ticks: Array) -> tuple[Array, Array]:
        """Return for each place of a process the communicator that it held at that time, and whether there was one.

        Cost: one round for a place that had one communicator ever, one more whenever there are twice as many.
        """
        wanted = _key(whose + 1, indices)
        begin, end = np.searchsorted(self._keys, wanted, "left"), np.searchsorted(self._keys, wanted, "right")
        low = begin.copy()
        while (low < end).any():  # halve what is left of each place until all that is older is below
            middle = (low + end) // 2
            is_made = (low < end) & (self._since[np.minimum(middle, len(self._since) - 1)] <= ticks)
            end = np.where(is_made | (low >= end), end, middle)
            low = np.where(is_made, middle + 1, low)
        found = low > begin
        return pick(self._members, np.where(found, low - 1, 0)), found

    def latest(self, whose: Array, indices: Array) -> tuple[Array, Array]:
        """Return for each place the communicator that it held last, and whether there was one."""
        return self.members_at(whose, indices, np.full(len(indices), np.iinfo(np.uint64).max, np.uint64))


def comm_rows(members: Array, identity: Identity, clock: TickClock, detail: str, origin: Origin) -> pa.Table:
    """Return a row per communicator; one whose size the API did not tell (before v4) has none: unknown is not 0."""
    members = members[members["nranks"] > 0]
    destroyed = members["destroy_ticks"]
    columns: dict[str, object] = {name: members[name] for name in ("rank", "nranks", "nnodes")}
    columns |= {name: getattr(origin, name) for name in ("host", "job", "attempt", "gpu")}
    columns |= {
        "comm": members["id"],
        "name": pa.array([wire.text_of(name) for name in members["name"].tolist()], pa.string()),
        "world_rank": identity.world_rank,
        "pid": identity.pid if origin.pid is None else origin.pid,
        "nccl_version": identity.nccl_version,
        "plugin_version": identity.plugin_version,
        "detail": detail,
        "init_ns": clock.to_unix_ns(members["init_ticks"]),
        "destroy_ns": pa.array(clock.to_unix_ns(destroyed), pa.int64(), mask=destroyed == 0),
    }
    return fill_rows(TABLE_BY_NAME["comms"], len(members), columns)


def _numbers_of(members: Array) -> Array:
    """Return a number per communicator; a process makes far fewer than 2^48 of them."""
    numbers: Array = members["index"].astype(np.uint64) << np.uint64(48) | members["incarnation"]
    return numbers


def _bytes_of(members: Array) -> Array:
    """Return all that is known of each communicator as one value."""
    return np.ascontiguousarray(members).view(f"V{members.dtype.itemsize}")


def _key(whose: Array, indices: Array) -> Array:
    keys: Array = whose.astype(np.uint64) << np.uint64(32) | indices.astype(np.uint64)
    return keys
