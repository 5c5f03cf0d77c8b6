"""Processes beside the test's own: `python -m tests.lockstep.state.child ROLE URL [ARGUMENT]`.

A role says on standard output how far it is and goes on when it is given a line, so that no test has to guess.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lockstep.state.database import open_control
from lockstep.state.documents import list_audit, record, write_over
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import take_lease
from lockstep.state.tables import INCIDENTS
from tests.lockstep.state.build import incident

TTL_NS = 1_000
PATIENT_MS = 60_000  # one who opens an empty database makes all tables, which takes a busy machine a while


@contextmanager
def child(role: str, url: str, argument: str = "") -> Iterator[subprocess.Popen[str]]:
    """Give a running child; it is killed at the end of the block if it still runs then."""
    command = [sys.executable, "-m", "tests.lockstep.state.child", role, url, argument]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        try:
            yield process
        finally:
            process.kill()


def go(process: subprocess.Popen[str]) -> None:
    """Let a child that waits go on."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    """Return the next line that the child says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def stop_half_way(url: str, _: str) -> None:
    with open_control(url, lock_wait_ms=PATIENT_MS) as db, db.begin() as connection:
        row = {"id": "half", "job": "train", "state": "open", "opened_ns": 1, "document": "never complete"}
        write_over(connection, INCIDENTS, [row])
        _say("in mid-transaction")
        _wait()


def save_pairs(url: str, _: str) -> None:
    with open_control(url, lock_wait_ms=PATIENT_MS) as db:
        for number in range(1_000_000):
            pair = [incident(f"{side}{number}", opened_ns=number) for side in ("left", "right")]
            save_incidents(db, pair, None)
            _say(str(number))


def race_for_leases(url: str, holder: str) -> None:
    with open_control(url, lock_wait_ms=PATIENT_MS) as db:
        _say("ready")
        _wait()
        won = [name for name in map(str, range(20)) if take_lease(db, name, holder, TTL_NS, now_ns=0)]
        _say(" ".join(won))


def open_and_sign(url: str, name: str) -> None:
    _say("ready")
    _wait()
    with open_control(url, lock_wait_ms=PATIENT_MS) as db:
        record(db, who=name, what="open", subject="db", why="", now_ns=0)
        _say(str(len(list_audit(db, 100))))


ROLES: dict[str, Callable[[str, str], None]] = {
    role.__name__: role for role in (stop_half_way, save_pairs, race_for_leases, open_and_sign)
}


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _wait() -> None:
    sys.stdin.readline()


if __name__ == "__main__":
    ROLES[sys.argv[1]](sys.argv[2], sys.argv[3])
