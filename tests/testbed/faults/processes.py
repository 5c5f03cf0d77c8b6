"""Faults of processes: stopped, killed, and a host whose processes are starved of CPU by another one beside them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from tests.testbed.fabric.cgroups import make_group, move_into, remove_group
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.namespaces import identify
from tests.testbed.fabric.sweeping import kill_all_in, processes_in

Undo = Callable[[], None]

_HOG = "while True: pass"
_LOWEST = 19  # niceness: whoever has work to do comes first, and the hog takes all that is left


def stop(pids: Sequence[int]) -> Undo:
    """Stop processes where they are; undone, they go on as if nothing had been."""
    _signal(pids, signal.SIGSTOP)
    return lambda: _signal(pids, signal.SIGCONT)


def kill(pids: Sequence[int]) -> Undo:
    """Kill processes; nobody brings them back."""
    _signal(pids, signal.SIGKILL)
    return lambda: None


def kill_host(fabric: Fabric, host: str) -> Undo:
    """Kill every process on a host."""
    inode = identify(fabric.namespace_of(host))
    kill_all_in({inode} if inode else set())
    return lambda: None


def list_processes(fabric: Fabric, host: str) -> list[int]:
    """Return the processes on a host."""
    inode = identify(fabric.namespace_of(host))
    return sorted(processes_in({inode})) if inode else []


def starve(fabric: Fabric, host: str, pids: Sequence[int], share: float) -> Undo:
    """Leave processes of a host only a share of the time: they and a busy process get a share of one core together.

    In every tenth of a second the busy process uses up what the group may have, and then all of them stand still.
    Other hosts keep their cores, which a busy process without a limit would take from them all.
    """
    group = f"{fabric.prefix}-{host}"
    make_group(group, share)
    hog = fabric.run_in(host, [sys.executable, "-S", "-c", _HOG], stdout=subprocess.DEVNULL)
    os.setpriority(os.PRIO_PROCESS, hog.pid, _LOWEST)
    move_into(group, [*pids, hog.pid])

    def feed() -> None:
        hog.kill()
        hog.wait()
        remove_group(group)

    return feed


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it ended before
            os.kill(pid, number)
