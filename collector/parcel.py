"""What waits for its receipt, and where it goes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lockstep.wish import Receipt

Checkpoints = Mapping[str, bytes]  # by source


@dataclass(frozen=True)
class Parcel:
    """An encoded batch; boot and number name it for good, so that sending it twice is noticed."""

    boot: str
    number: int
    body: bytes
    rows: int
    checkpoints: Checkpoints = field(default_factory=dict)  # how far the sources were when it was packed


class Outbox(Protocol):
    """A bounded queue between packing and sending: in order, the oldest dropped first and counted."""

    @property
    def bytes(self) -> int: ...

    @property
    def dropped_rows(self) -> int: ...

    def put(self, parcel: Parcel) -> None:
        """Add a parcel at the end, making room at the front if need be; the newest always stays."""
        ...

    def first(self) -> Parcel | None:
        """Return the oldest parcel and leave it in its place."""
        ...

    def remove(self, parcel: Parcel) -> None:
        """Take out a parcel that has its receipt, unless it was dropped meanwhile."""
        ...

    def refuse(self, parcel: Parcel) -> None:
        """Drop a parcel that will never be taken, and count its rows as lost."""
        ...

    def close(self) -> None: ...


class Destination(Protocol):
    """Where parcels go. DestinationAway: try again later. ServerRefused: the status says whether that would help."""

    def send(self, parcel: Parcel) -> Receipt: ...

    def close(self) -> None: ...
