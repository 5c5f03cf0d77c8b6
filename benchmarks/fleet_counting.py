"""Whether every batch that was taken is in the store exactly once: rows counted by host and table."""

from collections import Counter
from collections.abc import Iterable, Mapping

from benchmarks.fleet_layout import host_name, plan_host
from benchmarks.fleet_rows import HostRows
from benchmarks.fleet_sender import Sent
from lockstep.store.store import Store


class Ledger:
    """Batches per host: those with a receipt must be in the store, those without one may be."""

    def __init__(self) -> None:
        self._taken: Counter[int] = Counter()
        self._open: Counter[int] = Counter()

    def add(self, sent: Iterable[Sent]) -> None:
        for one in sent:
            (self._taken if one.acked_ns else self._open)[one.host] += 1

    @property
    def taken(self) -> int:
        return self._taken.total()

    def expected(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Return least and most rows by table and host."""
        bounds: dict[str, dict[str, tuple[int, int]]] = {}
        for host in sorted(self._taken | self._open):
            least, most = self._taken[host], self._taken[host] + self._open[host]
            for table, rows in rows_per_batch(host).items():
                bounds.setdefault(table, {})[host_name(host)] = (least * rows, most * rows)
        return bounds


def rows_per_batch(host: int) -> dict[str, int]:
    return {table: rows.num_rows for table, rows in HostRows(plan_host(host)).tables(0, 1).items()}


def count_rows(store: Store, tables: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return rows by table and host; a batch counted twice also shows as two heartbeats of one second."""
    counted = {}
    for table in tables:
        rows = store.query(f"SELECT host, count() AS n FROM {table} GROUP BY host").to_pylist()
        counted[table] = {row["host"]: row["n"] for row in rows}
    return counted


def repeated_heartbeats(store: Store) -> int:
    found = store.query("SELECT count() - uniqExact(host, ts_ns) AS n FROM agents")
    return int(found["n"][0].as_py())


def find_differences(
    expected: Mapping[str, Mapping[str, tuple[int, int]]], counted: Mapping[str, Mapping[str, int]]
) -> tuple[int, int]:
    """Return how many rows are missing and how many are too many.

    >>> find_differences({"agents": {"h1": (3, 4), "h2": (2, 2)}}, {"agents": {"h1": 2, "h2": 5}})
    (1, 3)
    """
    missing = surplus = 0
    for table, hosts in expected.items():
        for host, (least, most) in hosts.items():
            there = counted.get(table, {}).get(host, 0)
            missing += max(0, least - there)
            surplus += max(0, there - most)
    return missing, surplus
