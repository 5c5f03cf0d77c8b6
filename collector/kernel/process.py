"""What /proc says of a process: its state, when it began, who it is, and whether it holds a ring file."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import NotPresent
from lockstep.supervision import REPORT_DIRECTORIES, Membership, clean, membership

Environment = Mapping[str, str]

_ENVIRONMENT_BYTES = 1 << 20  # launchers put their variables far in front of that
_BELIEVED_CALLS = 5  # a rank has usually locked nothing else before its ring
_NAME_LETTERS = 64


@dataclass(frozen=True)
class ProcessStat:
    """One look at a process; `start_ticks` tells it from a later process with the same number."""

    pid: int
    name: str
    state: str  # one letter, as proc(5) explains it: R, S, D, T, t, Z, X, I
    start_ticks: int


def read_stat(proc: Path, pid: int) -> ProcessStat:
    """Return the state of a process; OSError when it is gone, ValueError when the kernel's line is not one.

    The state is that of its first thread, which in a rank is the one that calls NCCL.
    """
    line = (proc / str(pid) / "stat").read_bytes().decode(errors="replace")
    before, _, after = line.rpartition(")")  # the name may hold spaces and brackets of its own
    fields = after.split()
    if len(fields) < 20 or len(fields[0]) != 1:
        raise ValueError(f"the stat of process {pid} is no such line")
    return ProcessStat(pid, clean(before.partition("(")[2], _NAME_LETTERS), fields[0], int(fields[19]))


def read_membership(proc: Path, pid: int) -> Membership:
    """Return which rank of which job a process is; unknown where its environment is not for us to read."""
    return membership(read_environment(proc, pid) or {})


def read_environment(proc: Path, pid: int) -> Environment | None:
    """Return the environment with which a process was started; None where it is not for us to read."""
    try:
        with open(proc / str(pid) / "environ", "rb") as file:
            pairs = file.read(_ENVIRONMENT_BYTES).decode(errors="surrogateescape").split("\0")
    except OSError:
        return None
    return {name: value for name, found, value in (pair.partition("=") for pair in pairs) if found}


def read_wait_channel(proc: Path, pid: int) -> str:
    """Return the function of the kernel in which a process waits; empty where the kernel does not tell."""
    try:
        channel = (proc / str(pid) / "wchan").read_bytes()[:200].decode(errors="replace")
    except OSError:
        return ""
    return "" if channel.strip() == "0" else clean(channel, _NAME_LETTERS)


class RingHolders:
    """Finds the processes that hold a ring file: they have it locked, and open below one of `directories`.

    The list of all locks of the host says who may be one, so that only few processes are looked at; one that was
    found stays one as long as it holds a lock, and one that was not is looked at again after some calls. Cost: one
    file, and the open files of whoever is new.
    """

    def __init__(self, root: Path, directories: Sequence[Path] = REPORT_DIRECTORIES) -> None:
        self._proc = root / "proc"
        self._prefixes = tuple(f"{directory}/" for directory in directories)
        self._found: set[int] = set()
        self._others: dict[int, int] = {}  # who holds locks and no ring, and for how many calls that is believed

    def __call__(self) -> set[int]:
        """Return their process ids; NotPresent where there is no /proc."""
        candidates = self._candidates()
        self._others = {pid: calls - 1 for pid, calls in self._others.items() if pid in candidates and calls > 1}
        self._found = {pid for pid in candidates - self._others.keys() if pid in self._found or self._has_ring(pid)}
        self._others |= dict.fromkeys(candidates - self._found - self._others.keys(), _BELIEVED_CALLS)
        return set(self._found)

    def _candidates(self) -> set[int]:
        try:
            locks = (self._proc / "locks").read_text(errors="replace")
        except OSError:
            return list_pids(self._proc)
        return _find_lockers(locks)

    def _has_ring(self, pid: int) -> bool:
        opened = self._proc / str(pid) / "fd"
        try:
            return any(self._is_ring(read_link(opened / name)) for name in os.listdir(opened))
        except OSError:  # it is gone, or another user's
            return False

    def _is_ring(self, target: str) -> bool:
        return target.startswith(self._prefixes) and target.removesuffix(" (deleted)").endswith(".ring")


def _find_lockers(locks: str) -> set[int]:
    """Return who holds a write lock over a whole file, which is how a ring file is held.

    >>> _find_lockers("1: POSIX  ADVISORY  WRITE 42 00:19:7 0 EOF\\n2: FLOCK  ADVISORY  WRITE 43 00:19:8 0 EOF\\n")
    {42}
    """
    lines = (line.split() for line in locks.splitlines())
    held = (words for words in lines if len(words) == 8 and words[1] == "POSIX" and words[3] == "WRITE")
    return {int(words[4]) for words in held if words[6:] == ["0", "EOF"] and words[4].isdecimal() and words[4] != "0"}


def list_pids(proc: Path) -> set[int]:
    """Return all processes of the host; NotPresent where there is no /proc."""
    try:
        return {int(name) for name in os.listdir(proc) if name.isascii() and name.isdecimal()}
    except OSError as error:
        raise NotPresent(f"no processes in {proc}: {error.strerror}") from None


def read_link(link: Path | str) -> str:
    """Return where a link of /proc leads; empty when it is gone, or not for us to know."""
    try:
        return os.readlink(link)
    except OSError:
        return ""
