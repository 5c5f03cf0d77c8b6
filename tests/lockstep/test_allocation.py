"""A service's threads share few heaps, and what was freed is given back: by the C library and by the engine."""

import subprocess
import sys
import textwrap
from pathlib import Path
from unittest.mock import create_autospec

import pytest
from structlog.testing import capture_logs

from lockstep.errors import StoreAway
from lockstep.store.maintenance import memory_given_back
from lockstep.store.store import Store
from tests.conftest import REPO
from tests.waiting import LIMIT_S, HastyClock, eventually

LIBC = """
    import ctypes, threading
    from lockstep.allocation import share_memory
    share_memory()
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
    libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    libc.malloc_info.argtypes, libc.fclose.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
"""


def run_child(code: str) -> str:
    whole = textwrap.dedent(LIBC) + textwrap.dedent(code)
    child = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, cwd=REPO)
    assert child.returncode == 0, child.stderr
    return child.stdout


def test_threads_share_piles(tmp_path: Path) -> None:
    told = tmp_path / "piles.xml"
    run_child(
        f"""
        all_live = threading.Barrier(32)
        def work():
            libc.malloc(1000)
            all_live.wait()
        threads = [threading.Thread(target=work) for _ in range(32)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        file = libc.fopen(b"{told}", b"w")
        libc.malloc_info(0, file)
        libc.fclose(file)
        """
    )
    assert 1 <= told.read_text().count("<heap nr=") <= 4


def test_large_block_is_taken_from_no_pile_after_a_larger_one_was_freed() -> None:
    freed_at_once = run_child(
        """
        class Info(ctypes.Structure):
            _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks mapped".split()]
            _fields_ += [(f"rest{number}", ctypes.c_size_t) for number in range(5)]
        libc.mallinfo2.restype = Info
        libc.free(libc.malloc(20 << 20))
        libc.malloc(10 << 20)
        print(libc.mallinfo2().mapped)
        """
    )
    assert int(freed_at_once) >= 10 << 20


@pytest.mark.slow
def test_freed_memory_leaves_the_process_and_its_engine(tmp_path: Path) -> None:
    printed = run_child(
        f"""
        from tests.testbed.services import resident_bytes
        import os
        from lockstep.store.maintenance import give_memory_back
        from lockstep.store.store import open_store

        with open_store("chdb://{tmp_path}/store") as store:
            print(store.query_system("SELECT stats FROM system.jemalloc_stats")["stats"][0])
            kept = [bytearray(1000) for _ in range(100_000)]
            kept = kept[-1:]  # the newest stands behind all that were freed
            before = resident_bytes(os.getpid())
            give_memory_back(store)
            print(before - resident_bytes(os.getpid()))
        """
    )
    assert "opt.dirty_decay_ms: 500 " in printed, "the engine keeps freed pages for half a second"
    assert int(printed.split()[-1]) > 50_000_000


def test_store_that_is_away_is_asked_again_and_harms_nobody() -> None:
    store = create_autospec(Store, instance=True)  # a fake: one that never answers
    store.give_memory_back.side_effect = StoreAway("nobody there")
    with capture_logs() as logs, memory_given_back(store, HastyClock()):
        eventually(lambda: store.give_memory_back.call_count >= 2)
    assert logs[0]["reason"] == "nobody there"


# --- an agent does not load what it has no use for, whoever has installed it ---

PROGRAM = """
from lockstep.allocation import leave_out_pandas
leave_out_pandas()
import sys, pyarrow as pa
assert pa.array([1, None]).null_count == 1
assert pa.table({"a": ["x"]}).num_rows == 1
import collector.registry
from collector.probes.packets import Flow, Shot, build_packets
assert not [name for name in sys.modules if name.partition(".")[0] in ("pandas", "scapy")]
build_packets([Shot(Flow("eth0", "h1", "eth0", "tcp", 1, 2), "10.0.0.1", "10.0.0.2", 1, 1)])
assert "scapy" in sys.modules
assert "pandas" not in sys.modules
"""


def test_arrow_works_without_pandas_and_scapy_is_loaded_by_the_first_packet_and_not_before() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=REPO, check=True, timeout=LIMIT_S)
