"""A store in memory for the gateway's tests: it can be away, and it knows tokens as the real one does."""

from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from lockstep.errors import StoreAway
from lockstep.store.engine import Embedded
from lockstep.store.store import Store
from lockstep.tables import Table


class FakeStore(Store):
    """Keeps what is inserted; the same token again changes nothing. While `fault` is set, every insert raises it."""

    def __init__(self, fault: Exception | None = None) -> None:
        super().__init__(Embedded(Path("/nowhere")), open_client=_no_client)
        self.fault = fault
        self.attempts: list[str] = []  # tokens in the order they came, repeated ones too
        self._blocks: dict[str, tuple[str, pa.Table]] = {}

    def insert(self, table: Table, rows: pa.Table, token: str) -> None:
        self.attempts.append(token)
        if self.fault:
            raise self.fault
        self._blocks.setdefault(token, (table.name, rows))

    @property
    def tokens(self) -> list[str]:
        return list(self._blocks)

    def column(self, table: str, name: str) -> list[object]:
        kept = [rows for kind, rows in self._blocks.values() if kind == table]
        return [value for rows in kept for value in rows[name].to_pylist()]


class AwayStore(FakeStore):
    """A store that answers no question; what is inserted it keeps, unless `fault` is set."""

    def query(self, *_: object, **__: object) -> NoReturn:
        raise away()

    query_system = query


def away() -> StoreAway:
    return StoreAway("the store at nowhere does not answer")


def _no_client() -> NoReturn:
    raise AssertionError("the fake has no engine to ask")
