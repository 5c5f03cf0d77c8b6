"""The store away for a while under load: how much waits, how long it takes to drain, and what agents notice of it."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from benchmarks.figures import Note
from benchmarks.fleet_head import Head, host_name, plan_host, wait_until
from benchmarks.fleet_rows import HostRows
from benchmarks.fleet_run import Quantiles, RunOutcome, RunPlan, quantiles, run_fleet
from benchmarks.fleet_sender import BATCH_SECONDS, Sent
from lockstep.clock import NS_PER_S, SystemClock
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME
from tests.testbed.services import cpu_seconds

_CALM = 1.5  # times the largest backlog before the outage: what counts as drained
_DRAIN_LIMIT_S = 180.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Outage:
    """How long the store is away, and how long agents send before and after it."""

    before_s: int
    away_s: int
    after_s: int

    @property
    def seconds(self) -> int:
        return self.before_s + self.away_s + self.after_s


@dataclass(frozen=True)
class OutageOutcome:
    """What an outage did; `drain_s` is from the store's return until no more waits than before, or infinite."""

    run: RunOutcome
    peak_bytes: int
    drain_s: float
    is_drained_under_load: bool  # while agents still sent
    ack: Quantiles  # of what was sent while the store was away


def play_outage(head: Head, tokens: dict[int, str], plan: RunPlan, outage: Outage, note: Note) -> OutageOutcome:
    """Kill the store in the middle of a run and start it again."""
    strike = _Strike(head, outage, note)
    run = run_fleet(head, tokens, plan, note, during=strike.play)
    away = [one for one in run.sent if strike.killed_ns <= one.sent_ns < strike.back_ns]
    ack = quantiles([(one.acked_ns - one.sent_ns) / NS_PER_S if one.acked_ns else float("inf") for one in away])
    peak = max((sample.backlog_bytes for sample in run.samples), default=0)
    last_ns = max((one.sent_ns for one in run.sent), default=0)
    return OutageOutcome(run, peak, strike.drain_s, strike.back_ns + strike.drain_s * NS_PER_S <= last_ns, ack)


class _Strike:
    """What happens to the store while agents send."""

    def __init__(self, head: Head, outage: Outage, note: Note) -> None:
        self._head, self._outage, self._note = head, outage, note
        self.killed_ns = self.back_ns = 0
        self.drain_s = float("inf")

    def play(self) -> None:
        calm = self._largest_backlog(self._outage.before_s)
        self._note(f"  killing the store for {self._outage.away_s} s")
        self.killed_ns = time.monotonic_ns()
        self._head.kill_store()
        time.sleep(self._outage.away_s)
        self._head.start_store()
        self.back_ns = time.monotonic_ns()
        self._note(f"  the store is back, {self._head.backlog_bytes / 1e6:,.0f} MB wait for it")
        if wait_until(lambda: self._head.backlog_bytes <= _CALM * calm, _DRAIN_LIMIT_S):
            self.drain_s = (time.monotonic_ns() - self.back_ns) / NS_PER_S
            self._note(f"  drained after {self.drain_s:.1f} s")

    def _largest_backlog(self, seconds: float) -> int:
        """Look on and return the most that waited: the backlog is a sawtooth."""
        end, largest = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            largest = max(largest, self._head.backlog_bytes)
            time.sleep(_POLL_S)
        return largest


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
    return {table: rows.num_rows for table, rows in HostRows(plan_host(host)).tables(0, BATCH_SECONDS).items()}


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
