"""Whose rows these are: what the one who reads a ring knows and the process does not."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field

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

    def columns(self) -> dict[str, object]:
        """Return the columns with which every row of a job begins."""
        return {"host": self.host, "job": self.job, "attempt": self.attempt}


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
        place = pa.array(np.searchsorted(distinct, numbers))
        told = {name: [getattr(one, name) for one in origins] for name in _COLUMNS}
        # Nearly always it is one job, and one value will do for all rows.
        return {
            name: values[0] if len(set(values)) == 1 else pa.array(values).take(place)
            for name, values in told.items()
        }
