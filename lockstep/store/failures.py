"""What ClickHouse's errors mean to us: come back later, or never."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

from lockstep.errors import StoreAway, StoreError, StoreRefused

# Numbers from ClickHouse's list of error codes; each of these can be over in a while without anybody changing
# what is sent: time-outs, load, memory, full disks, a server that is starting or a shard that is away.
_PASSING = {
    159: "TIMEOUT_EXCEEDED",
    198: "DNS_ERROR",
    202: "TOO_MANY_SIMULTANEOUS_QUERIES",
    203: "NO_FREE_CONNECTION",
    209: "SOCKET_TIMEOUT",
    210: "NETWORK_ERROR",
    241: "MEMORY_LIMIT_EXCEEDED",
    242: "TABLE_IS_READ_ONLY",
    243: "NOT_ENOUGH_SPACE",
    252: "TOO_MANY_PARTS",
    279: "ALL_CONNECTION_TRIES_FAILED",
    285: "TOO_FEW_LIVE_REPLICAS",
    319: "UNKNOWN_STATUS_OF_INSERT",
    425: "SYSTEM_ERROR",
    594: "CANNOT_FSYNC",
    74: "CANNOT_READ_FROM_FILE_DESCRIPTOR",
    75: "CANNOT_WRITE_TO_FILE_DESCRIPTOR",
    999: "KEEPER_EXCEPTION",
}
# The driver logs what it also raises; the one who catches it decides whether that is worth a line.
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())

_WRONG_PASSWORD = 516
_DISK_FULL_WORDS = ("No space left on device", "not enough space")


@contextmanager
def translated(place: str) -> Iterator[None]:
    """Turn the driver's exceptions into ours; `place` is the store's address without its password."""
    try:
        yield
    except ClickHouseError as error:
        raise _classify(error, place) from error


def _classify(error: ClickHouseError, place: str) -> StoreError:
    code = getattr(error, "code", None)
    text = _first_line(str(error))
    if code == _WRONG_PASSWORD:
        return StoreRefused(f"the store at {place} refuses this user or password", code)
    if code in _PASSING or any(words in str(error) for words in _DISK_FULL_WORDS):
        return StoreAway(f"the store at {place} cannot do it now: {text}")
    if isinstance(error, DatabaseError) and code:
        return StoreRefused(f"the store at {place} refuses: {text}", code)
    return StoreAway(f"the store at {place} does not answer: {_root_cause(error)}")


def _root_cause(error: BaseException) -> str:
    """Return the innermost reason; the driver's own text repeats the whole request."""
    while (inner := getattr(error, "reason", None) or error.__cause__ or error.__context__) and inner is not error:
        if not isinstance(inner, BaseException):
            break
        error = inner
    return _first_line(str(error)) or type(error).__name__


def _first_line(text: str) -> str:
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= 400 else line[:400] + " …"
