"""How a client of either kind is opened: the embedded engine with its guards, or a server over HTTP."""

import logging
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from xml.sax.saxutils import escape

import structlog
from clickhouse_connect import get_client
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

from lockstep.directories import lock_directory
from lockstep.errors import BadInput, StoreAway, StoreBusy, StoreError, StoreRefused

DEFAULT_DATABASE = "lockstep"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Embedded:
    """A store in a directory, opened by one process at a time."""

    path: Path
    database: str = DEFAULT_DATABASE

    def __str__(self) -> str:
        return f"chdb://{self.path}"


@dataclass(frozen=True, slots=True)
class Server:
    """A ClickHouse server, or one node of a cluster."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str = DEFAULT_DATABASE
    secure: bool = False

    def __str__(self) -> str:
        scheme = "https" if self.secure else "http"
        return f"{scheme}://{self.user}@{self.host}:{self.port}/{self.database}"


Address = Embedded | Server


def parse_address(url: str, password: str = "") -> Address:
    """Return the place a URL names, or raise BadInput with what is wrong about it.

    A password inside the URL wins over the one given beside it; neither ever appears in a message.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadInput(f"the store's address is not a URL: {error}") from None
    if parts.scheme in ("http", "https"):
        return _server(parts, port, password)
    if parts.scheme != "chdb":
        raise BadInput(
            f"a store is chdb:///directory or http(s)://user@host:port/database, not {parts.scheme or url!r}"
        )
    if parts.netloc or not parts.path.strip("/"):
        raise BadInput("an embedded store is chdb:// and an absolute directory: chdb:///var/lib/lockstep/store")
    return Embedded(Path(unquote(parts.path)))


def _server(parts: SplitResult, port: int | None, password: str) -> Server:
    if not parts.hostname:
        raise BadInput("the store's address names no host")
    secure, database = parts.scheme == "https", parts.path.strip("/") or DEFAULT_DATABASE
    if not _NAME.fullmatch(database):
        raise BadInput(f"{database!r} cannot be a database name: letters, digits and _ only")
    return Server(
        host=parts.hostname,
        port=port or (8443 if secure else 8123),
        user=unquote(parts.username or "default"),
        password=unquote(parts.password) if parts.password else password,
        database=database,
        secure=secure,
    )


# Numbers from ClickHouse's list of error codes; each of these can be over in a while without anybody changing
# what is sent: time-outs, load, memory, full disks, a server that is starting or a shard that is away.
_PASSING = {
    159: "TIMEOUT_EXCEEDED",
    198: "DNS_ERROR",
    202: "TOO_MANY_SIMULTANEOUS_QUERIES",
    203: "NO_FREE_CONNECTION",
    209: "SOCKET_TIMEOUT",
    210: "NETWORK_ERROR",
    241: "MEMORY_LIMIT_EXCEEDED",
    242: "TABLE_IS_READ_ONLY",
    243: "NOT_ENOUGH_SPACE",
    252: "TOO_MANY_PARTS",
    279: "ALL_CONNECTION_TRIES_FAILED",
    285: "TOO_FEW_LIVE_REPLICAS",
    319: "UNKNOWN_STATUS_OF_INSERT",
    425: "SYSTEM_ERROR",
    594: "CANNOT_FSYNC",
    74: "CANNOT_READ_FROM_FILE_DESCRIPTOR",
    75: "CANNOT_WRITE_TO_FILE_DESCRIPTOR",
    999: "KEEPER_EXCEPTION",
}
# The driver logs what it also raises; the one who catches it decides whether that is worth a line.
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())

_WRONG_PASSWORD = 516
_DISK_FULL_WORDS = ("No space left on device", "not enough space")


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Turn the driver's exceptions into ours; `address` is the store's address without its password."""
    try:
        yield
    except ClickHouseError as error:
        raise _classify(error, address) from error


def _classify(error: ClickHouseError, address: str) -> StoreError:
    code = getattr(error, "code", None)
    text = _first_line(str(error))
    if code == _WRONG_PASSWORD:
        return StoreRefused(f"the store at {address} refuses this user or password", code)
    if code in _PASSING or any(words in str(error) for words in _DISK_FULL_WORDS):
        return StoreAway(f"the store at {address} cannot do it now: {text}")
    if isinstance(error, DatabaseError) and code:
        return StoreRefused(f"the store at {address} refuses: {text}", code)
    return StoreAway(f"the store at {address} does not answer: {_root_cause(error)}")


def _root_cause(error: BaseException) -> str:
    """Return the innermost reason; the driver's own text repeats the whole request."""
    while (inner := getattr(error, "reason", None) or error.__cause__ or error.__context__) and inner is not error:
        if not isinstance(inner, BaseException):
            break
        error = inner
    return _first_line(str(error)) or type(error).__name__


def _first_line(text: str) -> str:
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= 400 else line[:400] + " …"


_log = structlog.get_logger("store")


def forget_orphans(data: Path) -> None:
    """Make a retry of what a kill cut short count; the engine of this data directory must not be running."""
    with as_file(files("lockstep.store") / "forget_orphans.sh") as script:
        done = subprocess.run(["sh", str(script), str(data)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise StoreError(f"cannot check the store in {data} after its last end: {done.stderr.strip()}")
    for line in done.stderr.splitlines():
        _log.info("the engine had been killed in mid-insert", found=line)


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

# For the embedded engine, whose processes are short and whose answers are small. Compiling expressions takes a second
# after their third use, and wins nothing that can be measured. Groups in 256 parts, so that threads can merge them,
# take four times as long as forty thousand groups in one, and come as 256 pieces.
_EMBEDDED_SETTINGS: dict[str, Any] = {
    "compile_expressions": 0,
    "compile_aggregate_expressions": 0,
    "compile_sort_description": 0,
    "group_by_two_level_threshold": 0,
    "group_by_two_level_threshold_bytes": 0,
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
                settings=SETTINGS | _EMBEDDED_SETTINGS,
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
    memory_worker_use_cgroup: the engine would take all that runs in our control group for its own memory, a browser
    or a training job beside us, and refuse everything once that is over the limit.
    min_bytes_for_wide_part: a merge of two parts with a file for each column takes 40 MB, however small they are.
    """
    config = path / "engine.xml"
    config.write_text(
        "<clickhouse>"
        f"<max_server_memory_usage>{memory_bytes}</max_server_memory_usage>"
        "<memory_worker_use_cgroup>0</memory_worker_use_cgroup>"
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
