"""What requests ask with: names, moments and attempts, each bounded, so that nothing odd reaches a database."""

from typing import Annotated

from fastapi import Path, Query

from analyzer.windows import Window
from api.reading.moments import check_stretch
from lockstep.errors import BadInput

_LONGEST = 300  # characters of a name
_NO_NUL = r"^[^\x00]*$"
_LAST_NS = 2**63 - 1
_MOST_COMM = 2**64

JobName = Annotated[str, Path(min_length=1, max_length=_LONGEST, pattern=_NO_NUL, description="id of the job")]
HostName = Annotated[str, Path(min_length=1, max_length=_LONGEST, pattern=_NO_NUL)]
Identity = Annotated[str, Path(min_length=1, max_length=_LONGEST, pattern=_NO_NUL)]
Wanted = Annotated[str | None, Query(min_length=1, max_length=_LONGEST, pattern=_NO_NUL)]
Attempt = Annotated[int | None, Query(ge=0, le=65_535, description="of the job; the newest where none is given")]
Moment = Annotated[int | None, Query(ge=0, le=_LAST_NS, description="UNIX time in nanoseconds")]
Comm = Annotated[
    str | None, Query(pattern=r"^[0-9]{1,20}$", description="communicator; all of them where none is given")
]
SinceS = Annotated[int, Query(ge=1, le=30 * 86_400, description="how far to look back, in seconds")]


def read_comm(comm: str | None) -> int | None:
    """Return the number of a communicator, or raise BadInput where none has such a number."""
    if comm is not None and int(comm) >= _MOST_COMM:
        raise BadInput(f"{comm} is no communicator: its number has more than 64 bits")
    return None if comm is None else int(comm)


def read_window(from_ns: int | None, to_ns: int | None, longest_ns: int) -> Window | None:
    """Return the stretch of time that is asked for, None where none is, or raise BadInput."""
    if from_ns is None and to_ns is None:
        return None
    if from_ns is None or to_ns is None:
        raise BadInput("from_ns and to_ns come together: one of them is missing")
    check_stretch(from_ns, to_ns, longest_ns)
    return Window(from_ns, to_ns)
