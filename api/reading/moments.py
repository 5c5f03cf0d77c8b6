"""How a stretch of time is asked for and shown: integer nanoseconds for programs, RFC 3339 where a person reads."""

from lockstep.clock import rfc3339
from lockstep.errors import BadInput

_LATEST_NS = 253_402_300_799 * 10**9  # the last second of the year 9999, beyond which no date is written


def show_moment(moment_ns: int | None) -> str | None:
    """Return a moment as a person reads it; None stays None, and so does what is no date."""
    return None if moment_ns is None or not 0 <= moment_ns <= _LATEST_NS else rfc3339(moment_ns)


def check_stretch(start_ns: int, end_ns: int, longest_ns: int) -> None:
    """Raise BadInput unless the stretch goes forward and is not too long to answer about."""
    if not 0 <= start_ns < end_ns:
        raise BadInput(f"from_ns {start_ns} has to be before to_ns {end_ns}")
    if end_ns - start_ns > longest_ns:
        raise BadInput(f"from {start_ns} to {end_ns} is more than {longest_ns // 10**9} s, the most that is answered")
