"""Whose fabric is it: names that carry the owner's process id, and a note about every fabric in /run.

Everything that a fabric leaves on the machine outside its namespaces is named `lk<pid>-<n>` or begins with that:
namespaces, interfaces, control groups and notes. A fabric is abandoned when its owner is dead, unless it was kept.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from pydantic import ValidationError

from lockstep.errors import LockstepError
from lockstep.topology import Topology
from lockstep.verdict import Frozen
from tests.testbed.fabric.plan import ShapeOptions

FOLDER = Path("/run/lockstep-testbed")
_PREFIX = re.compile(r"(lk(\d{1,7})-\d)(?:-.*|\.json)?")
_MOST_FABRICS = 10  # of one process: the number has one digit, because interfaces have 15 characters


class Note(Frozen):
    owner: int
    owner_start: int  # in clock ticks since boot: process ids are used again
    is_kept: bool
    subnet: str
    topology: Topology  # as built, with its real rates
    options: ShapeOptions


def prefix_of(name: str) -> str | None:
    """Return the fabric to which a name belongs; None for names that are not ours.

    >>> prefix_of("lk4711-0-h3"), prefix_of("eth0")
    ('lk4711-0', None)
    """
    match = _PREFIX.fullmatch(name)
    return match[1] if match else None


def owner_of(prefix: str) -> int:
    match = _PREFIX.fullmatch(prefix)
    assert match, f"{prefix} is not a prefix of ours"
    return int(match[2])


def is_abandoned(prefix: str, note: Note | None) -> bool:
    """Return whether nobody needs the fabric any more."""
    if note and note.is_kept:
        return False
    started = start_of(owner_of(prefix))
    return started is None or (note is not None and note.owner_start != started)


def start_of(pid: int) -> int | None:
    """Return when a process began, in clock ticks since boot; None when there is no such process."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])  # state and starttime, proc(5)
    return None


def choose_prefix() -> str:
    for number in range(_MOST_FABRICS):
        prefix = f"lk{os.getpid()}-{number}"
        if not (FOLDER / f"{prefix}.json").exists():
            return prefix
    raise LockstepError(f"this process has {_MOST_FABRICS} fabrics already")


def write_note(prefix: str, note: Note) -> None:
    """Write what is known about a fabric; done before anything of it is built."""
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    new = FOLDER / f".{prefix}"
    new.write_text(note.model_dump_json())
    new.replace(FOLDER / f"{prefix}.json")


def read_note(prefix: str) -> Note | None:
    """Return what is known about a fabric; None where nothing is, or nothing that this version understands."""
    with suppress(OSError, ValidationError):
        return Note.model_validate_json((FOLDER / f"{prefix}.json").read_bytes())
    return None


def remove_note(prefix: str) -> None:
    (FOLDER / f"{prefix}.json").unlink(missing_ok=True)


def list_notes() -> list[str]:
    found = os.listdir(FOLDER) if FOLDER.is_dir() else []
    return sorted(prefix for name in found if (prefix := prefix_of(name)))


def noted_heads() -> list[IPv4Address]:
    """Return an address of every subnet that is taken, also by fabrics of which nothing is built yet."""
    notes = [note for prefix in list_notes() if (note := read_note(prefix))]
    return [IPv4Network(note.subnet)[1] for note in notes]


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Keep others from choosing names and addresses, or sweeping, at the same time."""
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
