"""Children of a process that has imported torch once for all of them: it takes seconds and 200 MB each time."""

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence

from lockstep.errors import LockstepError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def fork_child(live: Callable[[], None]) -> int:
    """Start a child that does `live` and ends, at the latest with its parent; return its process number."""
    parent = os.getpid()
    sys.stdout.flush()  # or the child would write it once more
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was faster
            raise LockstepError("the process that forked this one is gone")
        live()
        code = 0
    except BaseException:  # noqa: BLE001  # what follows in the parent must not happen here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_ranks_of(job: str, ranks: Sequence[Callable[[], None]]) -> None:
    """Fork all ranks and wait for them; LockstepError with those that failed."""
    pids = {fork_child(live): rank for rank, live in enumerate(ranks)}
    ended = dict(os.wait() for _ in pids)
    failed = {pids[pid]: os.waitstatus_to_exitcode(status) for pid, status in ended.items() if status}
    if failed:
        names = ", ".join(f"{rank} with {code}" for rank, code in sorted(failed.items()))
        raise LockstepError(f"ranks of the {job} job have failed: {names}")
