"""What was freed is given back: by the C library, by the embedded engine, and for as long as a head node runs."""

import subprocess
import sys
import textwrap
from pathlib import Path

from structlog.testing import capture_logs

from lockstep.errors import StoreAway
from lockstep.store.opening import memory_given_back
from lockstep.store.store import Store
from tests.conftest import REPO
from tests.waiting import HastyClock, eventually


class Ailing:
    """A store of which nothing is heard."""

    def __init__(self) -> None:
        self.asked = 0

    def give_memory_back(self) -> None:
        self.asked += 1
        raise StoreAway("nobody there")


def test_freed_memory_leaves_the_process(tmp_path: Path) -> None:
    code = f"""
        from tests.testbed.services import resident_bytes
        import os
        from lockstep.store.opening import give_memory_back
        from lockstep.store.store import open_store

        with open_store("chdb://{tmp_path}/store") as store:
            store.query_system("SELECT 1")
            kept = [bytearray(1000) for _ in range(100_000)]
            kept = kept[-1:]  # the newest stands behind all that were freed
            before = resident_bytes(os.getpid())
            give_memory_back(store)
            print(before - resident_bytes(os.getpid()))
    """
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300, cwd=REPO
    )
    assert int(child.stdout) > 50_000_000, child.stderr


def test_store_that_is_away_is_asked_again_and_harms_nobody() -> None:
    store = Ailing()
    with capture_logs() as logs, memory_given_back(store, HastyClock()):  # type: ignore[arg-type]
        eventually(lambda: store.asked >= 2)
    assert logs[0]["reason"] == "nobody there"


def test_store_of_either_kind_answers_after_it_gave_back(store: Store) -> None:
    store.give_memory_back()
    assert store.query_system("SELECT 1 AS one").to_pylist() == [{"one": 1}]
