"""A gateway that dies at a chosen point: right before its n-th write, sync, rename, deletion or insert.

Run as a process that has imported everything and forks for each point, so that a point takes a tenth of a second.
For each it lets one life die there and a second one finish the work, and prints the point.
"""

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from api.ingest.gateway import Gateway, GatewayOptions
from api.ingest.log import Entry
from lockstep.batches import encode_batch
from lockstep.clock import SystemClock
from lockstep.records import Agent, Collective
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import Store, open_store
from tests.builders import T0, make, rows

BATCHES = 4
ROWS = 3
_plain_write = os.write


def body(number: int) -> bytes:
    collectives = [make(Collective, seq=number, rank=rank, enqueue_ns=T0 + number) for rank in range(ROWS)]
    return encode_batch({"collectives": rows(*collectives), "agents": rows(make(Agent, ts_ns=T0 + number))})


def live(directory: Path, url: str, die_at: int | None) -> None:
    """Send what has no receipt yet, close, and leave; die before the given step on the way."""
    receipts = directory / "receipts"
    acknowledged = len(receipts.read_bytes()) if receipts.exists() else 0
    with open_store(url) as store, open(receipts, "ab", buffering=0) as note:
        if die_at:
            _die_before(die_at)
        gateway = Gateway(directory / "log", store, SystemClock(), GatewayOptions(segment_s=0.01, leave_s=600.0))
        gateway.start()
        for number in range(acknowledged + 1, BATCHES + 1):
            gateway.submit(Entry("h0", "boot", number, T0, body(number))).result(30)
            _plain_write(note.fileno(), b".")
        gateway.close()


def _die_before(step: int) -> None:
    """Make the process kill itself before the step of that number; a write then puts half of its bytes first."""
    steps = count(1)

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(steps) == step:
                if name == "write":
                    _plain_write(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    os.write = watched("write", os.write)
    os.fsync = watched("sync", os.fsync)
    Path.rename = watched("rename", Path.rename)  # type: ignore[method-assign]
    Path.replace = watched("replace", Path.replace)  # type: ignore[method-assign]
    Path.unlink = watched("delete", Path.unlink)  # type: ignore[method-assign]
    Store.insert = watched("insert", Store.insert)  # type: ignore[method-assign]


def in_fork(work: Callable[[], None]) -> int:
    """Return how a forked process ended that did the work: 0, or minus the signal that killed it."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(url: str, base: Path) -> None:
    for point in count(1):
        directory, database = base / str(point), f"{url}_{point}"
        directory.mkdir()
        prepared = in_fork(lambda: prepare(database))  # noqa: B023  # the fork is over before the next point
        died = in_fork(lambda: live(directory, database, point))  # noqa: B023
        finished = in_fork(lambda: live(directory, database, None))  # noqa: B023
        print(point, prepared, died, finished, flush=True)
        if died == 0:
            return


def prepare(url: str) -> None:
    with open_store(url) as store:
        migrate(store, Layout(store.database), now_ns=1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
