"""How a client of either kind is opened: the embedded engine with its guards, or a server over HTTP."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from clickhouse_connect import get_client
from clickhouse_connect.driver.client import Client

from lockstep.directories import lock_directory
from lockstep.errors import StoreBusy
from lockstep.store.address import Embedded, Server
from lockstep.store.failures import translated
from lockstep.store.orphans import forget_orphans

OpenClient = Callable[[], Client]

# Releases differ in these defaults (26.9 turns asynchronous inserts on), so what we rely on is always sent.
SETTINGS: dict[str, Any] = {
    "async_insert": 0,
    "insert_deduplicate": 1,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "distributed_foreground_insert": 1,
    "max_partitions_per_insert_block": 0,
    "output_format_arrow_string_as_string": 1,
    # Tables that are joined are sharded alike, by job, so each shard joins its own rows.
    "distributed_product_mode": "local",
    "optimize_skip_unused_shards": 1,
}

_CONNECT_TIMEOUT_S = 5
QUERY_TIMEOUT_S = 60
_CONDITION_CACHE_BYTES = 1 << 20  # as the engine counts: an entry takes three times that, and its default is 100 MB
_FORMER_PARTS_S = 60
_WIDE_PART_BYTES = 128 << 20  # not compressed
_IDLE_THREADS = 8  # kept for the next query; each holds three files open, and the default keeps a thousand


class EmbeddedEngine:
    """The engine in this process; it owns the directory until it is closed.

    chdb allows one process per directory, one directory per process, and hangs after a fork; a second
    process gets an empty message from it, so a lock of our own names the one that holds the store.
    """

    def __init__(self, address: Embedded, memory_bytes: int) -> None:
        self._address = address
        self._lock = _lock(address.path)
        forget_orphans(address.path / "data")
        self._config = _write_config(address.path, memory_bytes)
        import_chdb()

    def open_client(self) -> Client:
        with translated(str(self._address)):
            return get_client(
                interface="chdb",
                path=str(self._address.path / "data"),
                chdb_options={"config-file": str(self._config)},
                settings=SETTINGS,
            )

    def close(self) -> None:
        os.close(self._lock)


def server_clients(address: Server, memory_bytes: int) -> OpenClient:
    """Return what opens a client of a server; each thread has its own, so no session is shared."""

    def open_client() -> Client:
        with translated(str(address)):
            return get_client(
                interface="https" if address.secure else "http",
                host=address.host,
                port=address.port,
                username=address.user,
                password=address.password,
                connect_timeout=_CONNECT_TIMEOUT_S,
                send_receive_timeout=QUERY_TIMEOUT_S,
                autogenerate_session_id=False,
                settings=SETTINGS | {"max_memory_usage": memory_bytes},
            )

    return open_client


def import_chdb() -> None:
    """Import chdb with a config.xml of ours: the first import opens an engine that obeys the one in reach.

    What it sets holds for the life of the process, such as how many threads are kept for later.
    """
    here = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="lockstep-chdb-") as ours:
        config = f"<clickhouse><max_thread_pool_free_size>{_IDLE_THREADS}</max_thread_pool_free_size></clickhouse>"
        Path(ours, "config.xml").write_text(config, encoding="ascii")
        os.chdir(ours)
        try:
            import chdb  # noqa: F401  # heavy, and only where the embedded store is used
        finally:
            os.chdir(here)


def _lock(path: Path) -> int:
    path.mkdir(parents=True, exist_ok=True)
    try:
        return lock_directory(path)
    except BlockingIOError:
        holder = _holder(path.stat().st_ino)
        raise StoreBusy(
            f"the embedded store in {path} is in use by {holder}; one process at a time can open it, "
            "others reach its data through that process's HTTP API"
        ) from None


def _holder(inode: int) -> str:
    """Return who holds a lock on the inode, as the kernel's table of locks tells it."""
    for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
        fields = line.split()  # 1: FLOCK ADVISORY WRITE <pid> <major:minor:inode> 0 EOF
        if fields[1] == "FLOCK" and fields[5].rsplit(":", 1)[-1] == str(inode):
            return f"process {fields[4]}"
    return "another process"


def _write_config(path: Path, memory_bytes: int) -> Path:
    """Write the engine's settings; without the file it would take a config.xml from the working directory.

    query_condition_cache_size: every part and every WHERE is an entry, and ours name a new second each time.
    min_compressed_bytes_to_fsync_after_merge: what a merge wrote is on disk before what it read may go.
    old_parts_lifetime: what was merged away is kept this long, on disk and with 15 kB each in memory; the engine
    looks for it that often too.
    min_bytes_for_wide_part: a merge of two parts with a file for each column takes 40 MB, however small they are.
    """
    config = path / "engine.xml"
    config.write_text(
        "<clickhouse>"
        f"<max_server_memory_usage>{memory_bytes}</max_server_memory_usage>"
        f"<query_condition_cache_size>{_CONDITION_CACHE_BYTES}</query_condition_cache_size>"
        "<merge_tree>"
        "<min_compressed_bytes_to_fsync_after_merge>1</min_compressed_bytes_to_fsync_after_merge>"
        f"<old_parts_lifetime>{_FORMER_PARTS_S}</old_parts_lifetime>"
        f"<max_cleanup_delay_period>{_FORMER_PARTS_S}</max_cleanup_delay_period>"
        f"<min_bytes_for_wide_part>{_WIDE_PART_BYTES}</min_bytes_for_wide_part>"
        "</merge_tree>"
        f"<backups><allowed_path>{escape(str(path / 'backups'))}/</allowed_path></backups>"
        "</clickhouse>\n",
        encoding="utf-8",
    )
    return config
