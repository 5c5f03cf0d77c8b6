"""What is known of each process beside its operations, what it brings to a reading, and what was lost of all."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy.typing as npt

from lockstep.rings.communicators import CommunicatorHistory
from lockstep.rings.kernels import KernelTimes
from lockstep.rings.reading import Reading

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field


@dataclass(frozen=True)
class Losses:
    """What has no row, or not all that it could have, and why; counted since the beginning."""

    overwritten: int = 0  # records that were overwritten before they were read
    homeless: int = 0  # operations of a communicator that is not in the table
    orphans: int = 0  # parts of an operation that nobody told of
    late: int = 0  # parts that came after the row of their operation
    stale_kernels: int = 0  # kernel times that cannot be true
    sizeless: int = 0  # transfers of which nobody can say what they moved
    unreached: int = 0  # steps that ended without reaching the network
    forgotten: int = 0  # operations dropped because too many were open

    def plus(self, **more: int) -> "Losses":
        return Losses(**{name: count + more.get(name, 0) for name, count in asdict(self).items()})


@dataclass(frozen=True)
class FolderMemory:
    """What another reader needs to go on where one ended, beside the records that the file still holds."""

    now_ns: int  # of the last reading
    share: int
    pending: Array  # handles of operations that look over and have no row
    written: Array  # handles of operations that look under way and have one


class Member:
    """What is known of one process beside its operations."""

    def __init__(self, origin: int) -> None:
        self.origin = origin  # its number
        self.history = CommunicatorHistory()
        self.kernel_times = KernelTimes()


@dataclass(frozen=True)
class Turn:
    """A reading of one process; the last one when it has ended, and then what is open was cut off if it died."""

    member: Member
    reading: Reading
    is_last: bool = False
    died: bool = False
