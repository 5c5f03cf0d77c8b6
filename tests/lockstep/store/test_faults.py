"""What happens to acknowledged rows when the engine is killed, cut off, or out of disk: nothing.

Every test ends with the same question: is each batch that was acknowledged there exactly once, in the raw table and
in the roll-up, and is no other there twice?
"""

import os
import platform
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from lockstep.errors import StoreAway, StoreError
from lockstep.store.migrations import DEDUPLICATION_BLOCKS, Layout, migrate
from lockstep.store.store import Store, open_store
from tests.conftest import REPO
from tests.lockstep.store.writer_child import insert_numbered
from tests.testbed.clickhouse import ClickHouseServer
from tests.testbed.tcp_proxy import TcpProxy
from tests.tiers import long_except
from tests.waiting import eventually

pytestmark = pytest.mark.slow

ROWS = 5_000
SIZES = {"collectives": "count()", "operations": "sum(n)"}  # what was inserted, raw and rolled up


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseServer]:
    with ClickHouseServer(tmp_path_factory.mktemp("server")) as running:
        with open_store(running.url) as store:
            migrate(store, Layout(store.database), now_ns=1)
        yield running


@pytest.fixture
def server(migrated: ClickHouseServer) -> ClickHouseServer:
    """A server to kill, which runs and is empty."""
    with open_store(migrated.url) as store:
        for table in SIZES:
            store.command(f"TRUNCATE TABLE {store.database}.{table} SYNC")
    return migrated


def insert_until_taken(store: Store, number: int) -> None:
    """Insert a batch again and again, as the gateway does, until the store has said yes."""
    while True:
        try:
            insert_numbered(store, number, ROWS)
            return
        except StoreError:
            time.sleep(0.05)


def check_batches(store: Store, count: int) -> None:
    """See that so many batches are there, each once, in the raw table and in the roll-up."""
    for table, size in SIZES.items():
        found = store.query(f"SELECT seq, {size} AS n FROM {table} GROUP BY seq ORDER BY seq").to_pylist()
        assert found == [{"seq": seq, "n": ROWS} for seq in range(count)], table


def test_a_server_killed_in_mid_insert_loses_and_doubles_nothing(server: ClickHouseServer) -> None:
    seed = 20261115
    print(f"seed {seed}")
    dice, taken, is_over = random.Random(seed), list[int](), threading.Event()

    def write() -> None:
        with open_store(server.url) as store:
            while not is_over.is_set():
                with suppress(StoreError):
                    insert_numbered(store, len(taken), ROWS)
                    taken.append(len(taken))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(12):
            goal = len(taken) + dice.randint(1, 6)
            eventually(partial(lambda goal: len(taken) >= goal, goal))
            time.sleep(dice.uniform(0, 0.1))  # anywhere in the insert that comes next
            server.kill()
            server.start()
    finally:
        is_over.set()
        writer.join()
    with open_store(server.url) as store:
        insert_until_taken(store, len(taken))  # perhaps it is in already, and nobody heard so
        check_batches(store, len(taken) + 1)


@pytest.mark.needs_root
@pytest.mark.parametrize("rename", [1, 2], ids=["raw", "roll_up"])
def test_a_server_killed_between_token_and_part_takes_the_retry(server: ClickHouseServer, rename: int) -> None:
    """A moment that random kills rarely meet; the renames of an insert are its parts, in order."""
    with open_store(server.url) as store:
        insert_numbered(store, 0, ROWS)
        with killed_at_rename(server.pid, rename), pytest.raises(StoreAway):
            insert_numbered(store, 1, ROWS)
    server.kill()
    server.start()
    with open_store(server.url) as store:
        for number in (0, 1, 1):
            insert_numbered(store, number, ROWS)
        check_batches(store, 2)


@contextmanager
def killed_at_rename(pid: int, number: int) -> Iterator[None]:
    """Have a process killed on its way into the so-manieth rename from now."""
    call = "rename" if platform.machine() == "x86_64" else "renameat"  # what the C library has on other machines
    inject = f"inject={call}:signal=KILL:when={number}"
    command = ["strace", "-f", "-p", str(pid), "-o", "/dev/null", "-e", f"trace={call}", "-e", inject]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        assert "attached" in tracer.stderr.readline()
        try:
            yield
        finally:
            tracer.kill()  # asked to end, it may wait forever for the dead process that nobody has looked at yet


@pytest.mark.parametrize("table", ["collectives", "operations"])
def test_a_token_without_its_part_is_forgotten_at_the_next_start(server: ClickHouseServer, table: str) -> None:
    with open_store(server.url) as store:
        for number in (0, 1):
            insert_numbered(store, number, ROWS)
        part = store.query_system(
            "SELECT path FROM system.parts WHERE database = 'lockstep' AND table = {table:String} AND active "
            "ORDER BY max_block_number",
            {"table": table},
        )["path"].to_pylist()[-1]
    server.kill()
    shutil.rmtree(part)
    server.start()
    with open_store(server.url) as store:
        for number in (0, 1):
            insert_numbered(store, number, ROWS)
        check_batches(store, 2)


def test_an_embedded_store_killed_in_mid_insert_loses_and_doubles_nothing(tmp_path: Path) -> None:
    seed = 7
    print(f"seed {seed}")
    dice, acknowledged = random.Random(seed), -1
    for _ in range(4):
        acknowledged = write_until_killed(tmp_path / "store", acknowledged, dice)
    last = acknowledged + 3
    with start_writer(tmp_path / "store", acknowledged + 1, last + 1) as child:
        assert read_acknowledged(child)[-1] == last
    with open_store(f"chdb://{tmp_path / 'store'}") as store:
        check_batches(store, last + 1)


def write_until_killed(path: Path, acknowledged: int, dice: random.Random) -> int:
    """Have a process go on with the next batch, kill it in a later one, and return the last that it acknowledged."""
    with start_writer(path, acknowledged + 1, 1_000_000) as child:
        said = read_acknowledged(child, dice.randint(5, 40))
        time.sleep(dice.uniform(0, 0.1))
        child.kill()
        said += read_acknowledged(child)
    assert child.returncode == -9
    return said[-1]


def start_writer(path: Path, first: int, end: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.lockstep.store.writer_child", str(path), str(first), str(end), str(ROWS)]
    return subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True)


def read_acknowledged(child: "subprocess.Popen[str]", most: int | None = None) -> list[int]:
    """Return the numbers of the next batches that the writer says are in, up to its end if `most` is not given."""
    assert child.stdout is not None
    lines = islice(child.stdout, most)
    return [int(line.split()[1]) for line in lines if line.startswith("in ") and line.endswith("\n")]


def test_a_reply_lost_after_the_commit_leads_to_no_second_copy_and_a_server_that_hangs_is_away_and_comes_back(
    server: ClickHouseServer,
) -> None:
    with TcpProxy(server.http_port) as proxy:
        url = server.url.replace(f":{server.http_port}", f":{proxy.port}")
        with open_store(url) as store, open_store(server.url) as beside:
            insert_numbered(store, 0, ROWS)
            proxy.behaviour = "lose_replies"
            with pytest.raises(StoreAway):
                insert_numbered(store, 1, ROWS)
            assert proxy.lost_replies > 0
            check_batches(beside, 2)  # the rows are in although nobody heard so
            proxy.behaviour = "refuse"
            proxy.drop_connections()
            with pytest.raises(StoreAway, match="does not answer"):
                insert_numbered(store, 1, ROWS)
            proxy.behaviour = "forward"
            insert_numbered(store, 1, ROWS)
            check_batches(beside, 2)


@pytest.mark.parametrize("inserts", long_except((300,), (300, 3_600)))
def test_a_retry_much_later_still_leads_to_no_second_copy(server: ClickHouseServer, inserts: int) -> None:
    """An hour, for the engine, is an insert a second and a restart: its window counts blocks, not time."""
    with open_store(server.url) as store:
        insert_numbered(store, 0, ROWS)
        for number in range(1, inserts + 1):
            insert_numbered(store, number, 1)
    server.kill()
    server.start()
    with open_store(server.url) as store:
        insert_numbered(store, 0, ROWS)
        for table, size in SIZES.items():
            assert store.query(f"SELECT {size} AS n FROM {table} WHERE seq = 0")["n"].to_pylist() == [ROWS]
        full = store.query_system(
            "SELECT engine_full FROM system.tables "
            "WHERE database = 'lockstep' AND name IN ('collectives', 'operations')"
        )["engine_full"].to_pylist()
        assert all(f"non_replicated_deduplication_window = {DEDUPLICATION_BLOCKS}" in text for text in full)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "lockstep-test", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.needs_root
@pytest.mark.parametrize("kind", ["server", "embedded"])
def test_a_store_with_a_full_disk_refuses_and_goes_on_when_there_is_room(kind: str, small_disk: Path) -> None:
    with ExitStack() as stack:
        if kind == "server":
            url = stack.enter_context(ClickHouseServer(small_disk)).url
        else:
            url = f"chdb://{small_disk / 'store'}"
        store = stack.enter_context(open_store(url, memory_bytes=1 << 30))
        migrate(store, Layout(store.database), now_ns=1)
        ballast, free = small_disk / "ballast", os.statvfs(small_disk)
        ballast.write_bytes(b"\0" * (free.f_bavail * free.f_frsize - (1 << 20)))
        taken = insert_until_refused(store)
        ballast.unlink()
        insert_until_taken(store, taken)
        check_batches(store, taken + 1)


def insert_until_refused(store: Store) -> int:
    """Insert batches until one is refused as coming back later may help; return its number."""
    for number in range(10_000):
        try:
            insert_numbered(store, number, ROWS)
        except StoreAway:
            return number
    raise AssertionError("the disk never became full")
