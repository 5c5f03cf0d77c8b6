"""Commands that are run to their end, or the end of their time, and such as run beside the planner's rounds."""

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from lockstep.clock import NS_PER_S, Clock, SystemClock
from lockstep.errors import BadInput, ControllerDown

_MOST_OUTPUT_BYTES = 64 * 1024 * 1024  # `scontrol show node` of 12,500 nodes is some 15 MB
_POLL_S = 0.1
_MESSAGE_LETTERS = 300
_DEATH_S = 1.0  # a killed process that is not gone by then hangs in the kernel; nobody waits for it
# Settings of ours may hold passwords, and those of a job around us would be taken for options of the next one.
_NOT_HANDED_ON = ("LOCKSTEP_", "SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "TORCHELASTIC_")


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended and what it said."""

    command: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """Return why it failed, in its own words, as one line."""
        message = self.err.strip() or self.out.strip() or "it said nothing"
        return f"{os.path.basename(self.command[0])} ended with {self.code}: {' '.join(message.split())[:500]}"


class Deadline:
    """The end of the time that one call may take, however many commands it needs."""

    def __init__(self, timeout_s: float, clock: Clock | None = None) -> None:
        self.timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._begin_ns = self._clock.monotonic_ns()

    @property
    def left_s(self) -> float:
        passed_s = (self._clock.monotonic_ns() - self._begin_ns) / NS_PER_S
        return max(0.0, self.timeout_s - passed_s)

    def wait_until(self, is_so: Callable[[], bool], reserve_s: float) -> bool:
        """Ask again and again until it is so; False when it is not while `reserve_s` of the time are left."""
        never = threading.Event()
        while not is_so():
            if self.left_s <= reserve_s:
                return False
            self._clock.wait(never, _POLL_S)
        return True


def make_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without settings of ours or of a job around us, with `extra` in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_HANDED_ON)}
    return kept | dict(extra)


def run_within(
    command: Sequence[str], deadline: Deadline, environment: Mapping[str, str], stdin: str = ""
) -> Finished:
    """Run a command to its end; ControllerDown when it cannot be started or does not end in time.

    A command that does not end in time is killed with all its children. Output goes to files, not to pipes: a child
    that left the process group and still holds a pipe would keep us waiting.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        try:
            child = subprocess.Popen(
                command, stdin=given, stdout=out, stderr=err, env=environment, start_new_session=True
            )
        except OSError as failure:
            raise ControllerDown(f"{command[0]} cannot be started: {failure.strerror}") from None
        code = _wait(child, command, deadline)
        return Finished(tuple(command), code, _read(out), _read(err))


def _wait(child: "subprocess.Popen[bytes]", command: Sequence[str], deadline: Deadline) -> int:
    try:
        return child.wait(deadline.left_s)
    except subprocess.TimeoutExpired:
        _kill_group(child)
        what = " ".join(command[:3])
        raise ControllerDown(f"{what} did not end within {deadline.timeout_s:g} s and was killed") from None
    except BaseException:  # such as KeyboardInterrupt: nothing that we started stays behind
        _kill_group(child)
        raise


def _kill_group(child: "subprocess.Popen[bytes]", wait_s: float = _DEATH_S) -> None:
    with suppress(ProcessLookupError):  # it and all that it started may have ended
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(wait_s)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_MOST_OUTPUT_BYTES).decode(errors="replace")


def read_within(response: httpx.Response, deadline: Deadline, most_bytes: int) -> str:
    """Return the text of an answer that is being streamed; ControllerDown when it is too late or too much."""
    body = bytearray()
    for piece in response.iter_bytes():
        body += piece
        if len(body) > most_bytes:
            raise ControllerDown(f"{response.url} answered with more than {most_bytes} bytes")
        if not deadline.left_s:
            raise ControllerDown(f"{response.url} did not end its answer within {deadline.timeout_s:g} s")
    return body.decode(errors="replace")


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
        _kill_group(self.process, self.kill_s)  # also what it has started
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


class Notes:
    """Small JSON objects by name in a directory, each written whole or not at all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str) -> dict[str, str] | None:
        try:
            text = self._path(name).read_text()
        except FileNotFoundError:
            return None
        except OSError as failure:
            raise ControllerDown(f"{self._path(name)} cannot be read: {failure.strerror}") from None
        try:
            return {str(key): str(value) for key, value in json.loads(text).items()}
        except (ValueError, AttributeError):
            raise ControllerDown(f"{self._path(name)} is damaged: look at it, then remove it") from None

    def write(self, name: str, note: Mapping[str, str]) -> None:
        """Write a note so that it is on the disk, whole, before this returns."""
        path = self._path(name)
        draft = path.with_suffix(".draft")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # batch scripts may hold secrets
            with open(draft, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                json.dump(dict(note), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
            _sync_directory(self._directory)
        except OSError as failure:
            raise ControllerDown(f"{path} cannot be written: {failure.strerror}") from None

    def remove(self, name: str) -> None:
        """Remove a note if it is there."""
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as failure:
            raise ControllerDown(f"{self._path(name)} cannot be removed: {failure.strerror}") from None

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.json"


def _sync_directory(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
