"""Processes beside the test's own. A role says how far it is and goes on when it is told to, so no test has to guess.

They come from a server that has imported what they need once, and share nothing with the test but a pipe.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lockstep.sealing import Keyring
from lockstep.state import targets
from lockstep.state.database import open_control
from lockstep.state.documents import list_audit, record, write_over
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import take_lease
from lockstep.state.tables import INCIDENTS
from tests.lockstep.state.build import incident

TTL_NS = 1_000
PATIENT_MS = 60_000  # one who opens an empty database makes all tables, which takes a busy machine a while

Pipe = Connection  # to the test
Role = Callable[[Pipe, str, str], None]


class Child:
    """A running process in one of the roles below."""

    def __init__(self, role: Role, url: str, argument: str) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=role, args=(theirs, url, argument), daemon=True)
        self._process.start()
        theirs.close()

    def go(self) -> None:
        self._pipe.send("go")

    def heard(self) -> str:
        return str(self._pipe.recv())

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode


@contextmanager
def child(role: Role, url: str, argument: str = "") -> Iterator[Child]:
    started = Child(role, url, argument)
    try:
        yield started
    finally:
        started.kill()


def stop_half_way(pipe: Pipe, url: str, _: str) -> None:
    with open_control(url, lock_wait_ms=PATIENT_MS) as db, db.begin() as connection:
        row = {"id": "half", "job": "train", "state": "open", "opened_ns": 1, "document": "never complete"}
        write_over(connection, INCIDENTS, [row])
        pipe.send("in mid-transaction")
        pipe.recv()


def save_pairs(pipe: Pipe, url: str, _: str) -> None:
    with open_control(url, lock_wait_ms=PATIENT_MS) as db:
        for number in range(1_000_000):
            pair = [incident(f"{side}{number}", opened_ns=number) for side in ("left", "right")]
            save_incidents(db, pair, None)
            pipe.send(number)


def race_for_leases(pipe: Pipe, url: str, holder: str) -> None:
    with open_control(url, lock_wait_ms=PATIENT_MS) as db:
        pipe.send("ready")
        pipe.recv()
        pipe.send(" ".join(name for name in map(str, range(20)) if take_lease(db, name, holder, TTL_NS, now_ns=0)))


def open_and_sign(pipe: Pipe, url: str, name: str) -> None:
    pipe.send("ready")
    pipe.recv()
    with open_control(url, lock_wait_ms=PATIENT_MS) as db:
        record(db, who=name, what="open", subject="db", why="", now_ns=0)
        pipe.send(len(list_audit(db, 100)))


def die_in_mid_sealing(_: Pipe, url: str, keys: str) -> None:
    seal, sealed = targets._seal, count(1)

    def seal_and_die(*arguments: Any) -> None:  # Any: passed on
        seal(*arguments)
        if next(sealed) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    targets._seal = seal_and_die  # type: ignore[assignment]  # passes all arguments on
    with open_control(url, keys=Keyring(Path(keys), is_made=True)) as db:
        targets.seal_targets(db)
