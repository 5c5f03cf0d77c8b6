"""A command that runs beside the planner's rounds: started, looked at, and ended with all that it started."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput

_MESSAGE_LETTERS = 300


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a command."""

    code: int | None  # None: it did not end in time
    message: str  # its last line

    @property
    def is_good(self) -> bool:
        return self.code == 0


@dataclass(frozen=True)
class Background:
    """A command at work."""

    process: "subprocess.Popen[bytes]"
    output: IO[bytes]
    began_ns: int
    timeout_s: float
    kill_s: float = 5.0  # a process that waits for a dead file server dies only when that answers

    def is_over(self, now_ns: int) -> bool:
        """Tell whether it has ended or has run for too long."""
        return self.process.poll() is not None or self.is_late(now_ns)

    def is_late(self, now_ns: int) -> bool:
        return now_ns - self.began_ns > self.timeout_s * NS_PER_S

    def finish(self) -> Ended:
        """Return what it came to; one that still runs is ended, and what the kernel does not let go of is said."""
        was_over = self.process.poll() is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # also what it has started
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(self.kill_s)
        with self.output as output:
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
        message = lines[-1][:_MESSAGE_LETTERS] if lines else "no output"
        if self.process.returncode is None:
            message += f"; process {self.process.pid} is still there {self.kill_s:g} s after SIGKILL"
        return Ended(self.process.returncode if was_over else None, message)


def start_command(
    command: Sequence[str], now_ns: int, timeout_s: float, environment: Mapping[str, str] | None = None
) -> Background:
    """Start a command in a session of its own, or raise BadInput where it cannot be started."""
    output = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the command
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=None if environment is None else os.environ | environment,
        )
    except OSError as error:
        output.close()
        raise BadInput(f"the command `{command[0]}` cannot be started: {error.strerror}") from error
    return Background(process, output, now_ns, timeout_s)
