"""The one way to telemetry: Arrow in, Arrow out, every insert with a token that makes its repetition harmless."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from clickhouse_connect.driver.client import Client

from lockstep.errors import StoreAway, StoreError
from lockstep.store.engine import (
    QUERY_TIMEOUT_S,
    Address,
    Embedded,
    EmbeddedEngine,
    OpenClient,
    Server,
    parse_address,
    server_clients,
    translated,
)
from lockstep.tables import Table

Parameters = Mapping[str, Any]  # Any: whatever a {name:Type} placeholder takes; ClickHouse checks it

# The limit: else the store works on for a reader who has given up. As part of the statement, because for a setting
# beside it the driver of the embedded engine sends three more, which take as long as a small query.
_AS_ARROW = f"\nFORMAT Arrow SETTINGS max_execution_time = {QUERY_TIMEOUT_S}"


class Store:
    """Telemetry in one ClickHouse database; safe to share between threads, each call of which has its own client."""

    def __init__(self, address: Address, open_client: OpenClient, engine: EmbeddedEngine | None = None) -> None:
        self.address = address
        self.database = address.database
        self._open_client = open_client
        self._engine = engine
        self._idle: list[Client] = []
        self._guard = threading.Lock()  # over the idle clients
        self._closed = False

    def insert(self, table: Table, rows: pa.Table, token: str) -> None:
        """Store rows once; the same token with the same rows again changes nothing, in roll-ups neither.

        The rows go as one block, because only a block is written whole or not at all.
        """
        if rows.num_rows == 0:
            return
        block = rows.combine_chunks()
        with self._client() as client:
            client.insert_arrow(
                table.name, block, database=self.database, settings={"insert_deduplication_token": token}
            )

    def query(self, sql: str, parameters: Parameters | None = None) -> pa.Table:
        """Return the rows of a SELECT; table names without a database are those of this store."""
        return self._select(sql, parameters)

    def query_system(self, sql: str, parameters: Parameters | None = None) -> pa.Table:
        """Return the rows of a SELECT that names its databases itself, also before this store's exists."""
        return self._select(sql, parameters, use_database=False)

    def command(
        self, sql: str, settings: Mapping[str, Any] | None = None, parameters: Parameters | None = None
    ) -> None:
        """Run a statement that returns no rows and names its database itself, which may not exist yet."""
        with self._client() as client:
            client.command(sql, dict(parameters or {}), settings=dict(settings or {}), use_database=False)

    def give_memory_back(self) -> None:
        """Let the embedded engine return what it has freed to the system; a server looks after itself."""
        if self._engine:
            self.command("SYSTEM JEMALLOC PURGE")

    def close(self) -> None:
        """Close every client that is not at work, then let go of the directory; the store cannot be used again."""
        with self._guard:
            self._closed = True
        self._close_idle()
        if self._engine:
            self._engine.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _select(self, sql: str, parameters: Parameters | None, use_database: bool = True) -> pa.Table:
        with self._client() as client:
            content = client.raw_query(sql + _AS_ARROW, dict(parameters or {}), use_database=use_database)
        return pa.ipc.open_file(content).read_all()

    @contextmanager
    def _client(self) -> Iterator[Client]:
        """Lend a client to one call: an idle one, or a new one when all are at work; faults become ours.

        After a fault that passes, a server's clients are opened anew: perhaps another node answers now.
        """
        try:
            with translated(str(self.address)):
                client = self._take()
                try:
                    yield client
                finally:
                    self._give_back(client)
        except StoreAway:
            if isinstance(self.address, Server):
                self._close_idle()
            raise

    def _close_idle(self) -> None:
        with self._guard:
            clients, self._idle = self._idle, []
        for client in clients:
            client.close()

    def _take(self) -> Client:
        with self._guard:
            if self._closed:
                raise StoreError(f"the store at {self.address} has been closed")
            if self._idle:
                return self._idle.pop()
        client = self._open_client()
        client.database = self.database
        return client

    def _give_back(self, client: Client) -> None:
        with self._guard:
            if not self._closed:
                self._idle.append(client)
                return
        client.close()


def open_store(url: str, *, password: str = "", memory_bytes: int = 2 << 30) -> Store:
    """Open the store at an address; `memory_bytes` caps the embedded engine and each query on a server."""
    address = parse_address(url, password)
    if isinstance(address, Embedded):
        engine = EmbeddedEngine(address, memory_bytes)
        return Store(address, engine.open_client, engine)
    return Store(address, server_clients(address, memory_bytes))
