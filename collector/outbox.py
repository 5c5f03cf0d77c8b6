"""Parcels in memory, for agents that have no disk of their own."""

import threading
from collections import deque

from collector.parcel import Parcel


class MemoryOutbox:
    """An outbox that is gone with its process."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parcels: deque[Parcel] = deque()
        self._guard = threading.Lock()
        self.bytes = 0
        self.dropped_rows = 0

    def put(self, parcel: Parcel) -> None:
        with self._guard:
            self._parcels.append(parcel)
            self.bytes += len(parcel.body)
            while self.bytes > self._max_bytes and len(self._parcels) > 1:
                self._drop_first()

    def first(self) -> Parcel | None:
        with self._guard:
            return self._parcels[0] if self._parcels else None

    def remove(self, parcel: Parcel) -> None:
        with self._guard:
            if self._parcels and self._parcels[0] is parcel:
                self._parcels.popleft()
                self.bytes -= len(parcel.body)

    def refuse(self, parcel: Parcel) -> None:
        with self._guard:
            if self._parcels and self._parcels[0] is parcel:
                self._drop_first()

    def close(self) -> None:
        """Nothing is held."""

    def _drop_first(self) -> None:
        lost = self._parcels.popleft()
        self.bytes -= len(lost.body)
        self.dropped_rows += lost.rows
