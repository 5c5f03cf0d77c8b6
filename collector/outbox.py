"""What is still to be sent: bounded, in order, the oldest dropped first and counted."""

import threading
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Parcel:
    """An encoded batch that waits for its receipt."""

    number: int
    body: bytes
    rows: int


class Outbox:
    """A queue between the one who packs and the one who sends."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parcels: deque[Parcel] = deque()
        self._guard = threading.Lock()
        self.bytes = 0
        self.dropped_rows = 0

    def put(self, parcel: Parcel) -> None:
        """Add a parcel at the end, making room at the front if need be; the newest always stays."""
        with self._guard:
            self._parcels.append(parcel)
            self.bytes += len(parcel.body)
            while self.bytes > self._max_bytes and len(self._parcels) > 1:
                self._drop_first()

    def first(self) -> Parcel | None:
        """Return the oldest parcel and leave it in its place."""
        with self._guard:
            return self._parcels[0] if self._parcels else None

    def remove(self, parcel: Parcel) -> None:
        """Take out a parcel that has its receipt, unless it was dropped meanwhile."""
        with self._guard:
            if self._parcels and self._parcels[0] is parcel:
                self._parcels.popleft()
                self.bytes -= len(parcel.body)

    def refuse(self, parcel: Parcel) -> None:
        """Drop a parcel that the server will never take, and count its rows as lost."""
        with self._guard:
            if self._parcels and self._parcels[0] is parcel:
                self._drop_first()

    def _drop_first(self) -> None:
        lost = self._parcels.popleft()
        self.bytes -= len(lost.body)
        self.dropped_rows += lost.rows
