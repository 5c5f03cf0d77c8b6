"""The newest delay matrix of each job, built once per closed window however many ask for it."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from api.reading.matrix import Matrix, read_matrix
from api.reading.ranks import newest_attempt
from api.reading.windows import Closed, find_closed
from lockstep.clock import NS_PER_S, Clock
from lockstep.store.store import Store

_KEPT = 64  # matrices; one of 1,024 ranks takes some hundred kilobytes
_BELIEVED_NS = NS_PER_S  # windows end with a whole second, so a newer one is not there before
_BEARABLE_NS = 10 * NS_PER_S  # how old a matrix may be that is shown while the next one is being built

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
_Asked = tuple[str, int | None, int | None]  # job, attempt, communicator


@dataclass(frozen=True)
class Shown:
    """A matrix and how it travels."""

    matrix: Matrix
    body: bytes  # JSON
    etag: str  # another one for another window


@dataclass(frozen=True)
class _Newest:
    built_ns: int  # monotonic
    shown: Shown


class _Shelf(Generic[Key, Value]):
    """The last few values that were put there."""

    def __init__(self) -> None:
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, key: Key) -> Value | None:
        return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        with self._guard:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > _KEPT:
                self._values.popitem(last=False)


class MatrixShelf:
    """What was built of late; safe to share between threads.

    One builds, and meanwhile others get the matrix before it; only who has none yet waits.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._building = threading.Lock()
        self._newest: _Shelf[_Asked, _Newest] = _Shelf()
        self._matrices: _Shelf[tuple[_Asked, int], Shown] = _Shelf()

    def show(self, job: str, attempt: int | None = None, comm: int | None = None) -> Shown:
        """Return the matrix of the job's last closed window; NotPresent where nothing is known of it."""
        asked = (job, attempt, comm)
        if found := self._find(asked, _BELIEVED_NS):
            return found
        if not self._building.acquire(blocking=False):
            if found := self._find(asked, _BEARABLE_NS):
                return found
            self._building.acquire()
        try:
            return self._find(asked, _BELIEVED_NS) or self._build(asked)
        finally:
            self._building.release()

    def find_young(self, job: str, attempt: int | None = None, comm: int | None = None) -> Shown | None:
        """Return the matrix where it is so young that there can be no newer one; asks nobody."""
        return self._find((job, attempt, comm), _BELIEVED_NS)

    def _find(self, asked: _Asked, oldest_ns: int) -> Shown | None:
        known = self._newest.get(asked)
        is_young = known is not None and self._clock.monotonic_ns() - known.built_ns <= oldest_ns
        return known.shown if known is not None and is_young else None

    def _build(self, asked: _Asked) -> Shown:
        job, attempt, comm = asked
        number = newest_attempt(self._store, job, attempt)
        closed = find_closed(self._store, job, number, self._clock.now_ns())
        key = ((job, number, comm), closed.window.end_ns)
        shown = self._matrices.get(key) or self._read(closed, comm)
        self._matrices.put(key, shown)
        self._newest.put(asked, _Newest(self._clock.monotonic_ns(), shown))
        return shown

    def _read(self, closed: Closed, comm: int | None) -> Shown:
        matrix = read_matrix(
            self._store, closed.job, closed.attempt, closed.roster, closed.window, comm, closed.silent
        )
        etag = f'"{closed.attempt}-{closed.window.start_ns}-{closed.window.end_ns}-{comm or 0}"'
        return Shown(matrix, matrix.model_dump_json().encode(), etag)
