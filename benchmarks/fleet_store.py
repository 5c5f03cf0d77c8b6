"""The store under the fleet: what it can do by itself with the same rows, and what they take on disk."""

import time

import pyarrow as pa

from benchmarks.fleet_head import Head, wait_until
from benchmarks.fleet_layout import plan_host
from benchmarks.fleet_rows import HostRows
from lockstep.clock import SystemClock
from lockstep.store.layout import Layout
from lockstep.store.migrations import migrate
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME
from testbed.services import cpu_seconds

_LIMIT_DATABASE = "limit"
_QUIET_S = 1.0  # without a merge, before they count as settled


def rows_per_core_s(head: Head, hosts: range, first_second: int, seconds: int) -> float:
    """Return rows per CPU second of the store when one writer inserts a second of all hosts at a time, as we do.

    This is what the gateway could reach at best; merges are waited for and counted.
    """
    batches = _joined(hosts, first_second, seconds)
    with open_store(head.clickhouse.url_for(_LIMIT_DATABASE)) as store:
        migrate(store, Layout(store.database), SystemClock().now_ns())
        assert head.store_pid is not None
        before = cpu_seconds(head.store_pid)
        for second, tables in enumerate(batches):
            for name, rows in tables.items():
                store.insert(TABLE_BY_NAME[name], rows, token=f"{name}/{second}")
        settle(store, limit_s=30.0)
        used_s = cpu_seconds(head.store_pid) - before
        store.command(f"DROP DATABASE {store.database} SYNC")
    inserted = sum(int(rows.num_rows) for tables in batches for rows in tables.values())
    return inserted / used_s


def settle(store: Store, limit_s: float) -> bool:
    """Wait until nothing has been merged for a while and return whether that came."""
    last_merge = time.monotonic()

    def is_quiet() -> bool:
        nonlocal last_merge
        if store.query_system("SELECT count() AS n FROM system.merges")["n"][0].as_py():
            last_merge = time.monotonic()
        return time.monotonic() - last_merge > _QUIET_S

    return wait_until(is_quiet, limit_s)


def disk_use(store: Store) -> tuple[int, int]:
    """Return bytes on disk and rows of all tables, roll-ups' bytes counted with the rows they were made of."""
    parts = store.query_system(
        "SELECT table, sum(bytes_on_disk) AS bytes, sum(rows) AS rows FROM system.parts "
        "WHERE active AND database = {db:String} GROUP BY table",
        {"db": store.database},
    ).to_pylist()
    return sum(part["bytes"] for part in parts), sum(part["rows"] for part in parts if part["table"] in TABLE_BY_NAME)


def _joined(hosts: range, first_second: int, seconds: int) -> list[dict[str, pa.Table]]:
    by_host = [HostRows(plan_host(host)).tables(first_second, seconds) for host in hosts]

    def second_of(name: str, second: int) -> pa.Table:
        pieces = [tables[name] for tables in by_host]
        each = [rows.num_rows // seconds for rows in pieces]
        return pa.concat_tables([rows.slice(second * n, n) for rows, n in zip(pieces, each, strict=True)])

    return [{name: second_of(name, second) for name in by_host[0]} for second in range(seconds)]
