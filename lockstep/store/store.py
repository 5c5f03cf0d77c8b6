"""The one way to telemetry: Arrow in, Arrow out, every insert with a token that makes its repetition harmless."""

import threading
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from clickhouse_connect.driver.client import Client

from lockstep.store.address import Address, Embedded, parse_address
from lockstep.store.engine import EmbeddedEngine, OpenClient, server_clients
from lockstep.store.failures import translated
from lockstep.tables import Table

# Engine releases differ in these defaults (26.9 turns async inserts on), so what we rely on is sent each time.
_INSERT_SETTINGS = {
    "async_insert": 0,
    "insert_deduplicate": 1,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "distributed_foreground_insert": 1,
    "max_partitions_per_insert_block": 0,
}

_SELECT_SETTINGS = {
    "output_format_arrow_string_as_string": 1,
    # Tables that are joined are sharded alike, by job, so each shard joins its own rows.
    "distributed_product_mode": "local",
    "optimize_skip_unused_shards": 1,
}

Parameters = Mapping[str, Any]  # Any: whatever a {name:Type} placeholder takes; ClickHouse checks it


class Store:
    """Telemetry in one ClickHouse database; safe to share between threads, each of which gets its own client."""

    def __init__(self, address: Address, open_client: OpenClient, engine: EmbeddedEngine | None = None) -> None:
        self.address = address
        self.database = address.database
        self._open_client = open_client
        self._engine = engine
        self._local = threading.local()
        self._clients: list[Client] = []
        self._guard = threading.Lock()

    def insert(self, table: Table, rows: pa.Table, token: str) -> None:
        """Store rows once; the same token with the same rows again changes nothing, in roll-ups neither.

        The rows go as one block, because only a block is written whole or not at all.
        """
        if rows.num_rows == 0:
            return
        settings = _INSERT_SETTINGS | {"insert_deduplication_token": token}
        with translated(str(self.address)):
            self._client().insert_arrow(table.name, rows.combine_chunks(), database=self.database, settings=settings)

    def query(self, sql: str, parameters: Parameters | None = None) -> pa.Table:
        """Return the rows of a SELECT; table names without a database are those of this store."""
        return self._select(sql, parameters, use_database=True)

    def query_system(self, sql: str, parameters: Parameters | None = None) -> pa.Table:
        """Return the rows of a SELECT that names its databases itself, also before this store's exists."""
        return self._select(sql, parameters, use_database=False)

    def command(self, sql: str, settings: Mapping[str, Any] | None = None) -> None:
        """Run a statement that returns no rows and names its database itself, which may not exist yet."""
        with translated(str(self.address)):
            self._client().command(sql, settings=dict(settings or {}), use_database=False)

    def close(self) -> None:
        """Close every client of every thread, then let go of the directory; the store cannot be used again."""
        with self._guard:
            clients, self._clients = self._clients, []
        for client in clients:
            client.close()
        if self._engine:
            self._engine.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _select(self, sql: str, parameters: Parameters | None, use_database: bool) -> pa.Table:
        with translated(str(self.address)):
            content = self._client().raw_query(
                sql, dict(parameters or {}), _SELECT_SETTINGS, fmt="Arrow", use_database=use_database
            )
        return pa.ipc.open_file(content).read_all()

    def _client(self) -> Client:
        client: Client | None = getattr(self._local, "client", None)
        if client is None:
            client = self._open_client()
            client.database = self.database
            self._local.client = client
            with self._guard:
                self._clients.append(client)
        return client


def open_store(url: str, *, password: str = "", memory_bytes: int = 2 << 30) -> Store:
    """Open the store at an address; `memory_bytes` caps the embedded engine and each query on a server."""
    address = parse_address(url, password)
    if isinstance(address, Embedded):
        engine = EmbeddedEngine(address, memory_bytes)
        return Store(address, engine.open_client, engine)
    return Store(address, server_clients(address))
