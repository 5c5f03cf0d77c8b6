"""Children of a process that has imported torch once for all of them: it takes seconds and 200 MB each time."""

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable

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
