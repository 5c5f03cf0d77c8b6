"""Runs a command in our place: its output, its signals and its exit code pass through; how it ended is known after.

The command stays in our process group, so that a terminal and a scheduler reach it as if we were not there. What a
terminal sends (Ctrl-C) the command has already got; only what a process sent to us alone is passed on. A process that
signals the whole group reaches the command twice, directly and through us, which no sender can be told apart from.
"""

import ctypes
import os
import select
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.clock import Clock

_TAIL_BYTES = 65_536  # of standard error kept: the longest traceback that Python prints whole fits many times
_DRAIN_S = 1.0  # how long the end waits for standard error that a grandchild still holds open
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

# Faults of our own and what only the kernel may mean; everything else that can be caught is passed on.
_OURS = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGURG),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS),
}


@dataclass(frozen=True)
class Ending:
    """How a command ended; exactly one of `exit_code` and `signal` is known."""

    pid: int
    started_ns: int
    ended_ns: int
    exit_code: int | None
    signal: int | None
    stderr: bytes  # the last of it

    @property
    def code(self) -> int:
        """Return the exit code as a shell gives it."""
        return 128 + self.signal if self.signal is not None else self.exit_code or 0


def supervise(command: Sequence[str], clock: Clock) -> Ending:
    """Run a command to its end; call it from the main thread of a process that does nothing else.

    Raises OSError when the command cannot be started. When we are killed, so is the command: a scheduler that ended
    us takes its GPUs for free.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started us may have ignored it, and then nothing is told
    watched = signal.valid_signals() - _OURS
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        started_ns = clock.now_ns()
        child = _start(command, before)
        tail = _Relay(child)
        status = _follow(child.pid, watched)
        return _ending(child, started_ns, clock.now_ns(), status, tail.finish())
    finally:
        while signal.sigtimedwait(watched, 0):  # meant for the command, which is gone; they must not end us now
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(command: Sequence[str], mask: set[int | signal.Signals]) -> "subprocess.Popen[bytes]":
    # Loaded here: between fork and exec nothing may be looked up.
    prctl, us = ctypes.CDLL(None).prctl, os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != us:  # we died before the kernel knew that it should tell
            os._exit(128 + signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return subprocess.Popen(command, stderr=subprocess.PIPE, bufsize=0, preexec_fn=prepare)  # no threads yet


def _follow(pid: int, watched: set[signal.Signals]) -> int:
    """Pass signals on until the command has ended; return its wait status."""
    while True:
        reported = signal.sigwaitinfo(watched)
        if reported.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if ended and not os.WIFSTOPPED(status):
                return status
            if ended and os.WSTOPSIG(status) == signal.SIGTSTP:
                # A shell that stops its job waits until we have stopped too. Where nobody could continue us (a group
                # without a parent in its session) the kernel does not stop the command, and so not us.
                os.kill(os.getpid(), signal.SIGSTOP)
        elif reported.si_code <= 0 and reported.si_pid != pid:  # above 0: the kernel has told the command too
            os.kill(pid, reported.si_signo)


def _ending(child: "subprocess.Popen[bytes]", started_ns: int, ended_ns: int, status: int, stderr: bytes) -> Ending:
    code = os.waitstatus_to_exitcode(status)
    child.returncode = code  # we have waited ourselves; Popen would look for the process in vain
    return Ending(
        pid=child.pid,
        started_ns=started_ns,
        ended_ns=ended_ns,
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        stderr=stderr,
    )


class _Relay:
    """Hands standard error on, byte by byte as it comes, and keeps the last of it."""

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        assert child.stderr is not None
        self._pipe = child.stderr
        self._tail = bytearray()
        self._thread = threading.Thread(target=self._pump, name="stderr", daemon=True)
        self._thread.start()

    def finish(self) -> bytes:
        """Return the last of what came, when all has been handed on or a grandchild keeps it open."""
        self._thread.join(_DRAIN_S)
        return bytes(self._tail)

    def _pump(self) -> None:
        with self._pipe:
            while piece := os.read(self._pipe.fileno(), _TAIL_BYTES):
                self._tail = (self._tail + piece)[-_TAIL_BYTES:]
                _hand_on(piece)


def _hand_on(piece: bytes) -> None:
    """Write to our standard error; when nobody reads it any more the command must still not stand still."""
    rest = memoryview(piece)
    while rest:
        try:
            rest = rest[os.write(2, rest) :]
        except BlockingIOError:  # somebody else shares this file and wants it so
            select.select([], [2], [])
        except OSError:
            return
