"""Schema by numbered files: forward only, checksummed, remembered, and repeated without harm."""

from dataclasses import replace

import pytest

from lockstep.errors import StoreRefused, StoreVersionMismatch
from lockstep.records import Comm, Event, OpStat, Step
from lockstep.store import migrations
from lockstep.store.migrations import (
    Layout,
    Migration,
    applied_migrations,
    check_migrated,
    known_migrations,
    migrate,
    pending_migrations,
)
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME, TABLES
from tests.builders import SECOND, T0, make, rows

LAYOUT_NAMES = ["job_tables", "host_tables", "rollups", "attempts", "sightings"]
LAYOUT_NAMES += ["event_columns", "untimed", "agent_words", "plugins", "cheaper_inserts"]


def test_an_empty_store_gets_everything_once_and_one_that_is_newer_is_left_alone(store_url: str) -> None:
    with open_store(store_url) as store:
        layout = Layout(store.database)
        assert applied_migrations(store, layout) == ()
        with pytest.raises(StoreVersionMismatch, match="run `lockstep store migrate`"):
            check_migrated(store, layout)
        done = migrate(store, layout, now_ns=5)
        assert [migration.name for migration in done][: len(LAYOUT_NAMES)] == LAYOUT_NAMES
        assert [migration.number for migration in done] == list(range(1, len(known_migrations()) + 1))
        assert migrate(store, layout, now_ns=6) == ()
        assert {applied.applied_ns for applied in applied_migrations(store, layout)} == {5}
        check_migrated(store, layout)
        edited = [replace(migration, sql=migration.sql + " ") for migration in known_migrations()]
        with pytest.raises(StoreVersionMismatch, match="0001_job_tables in the store was made from another text"):
            pending_migrations(edited, applied_migrations(store, layout))
        store.command(f"INSERT INTO {store.database}.migrations VALUES (99, 'tomorrow', 'x', 1, '9.9.9')")
        with pytest.raises(StoreVersionMismatch, match=r"0099_tomorrow, applied by Lockstep 9\.9\.9"):
            migrate(store, layout, now_ns=1)
        with pytest.raises(StoreVersionMismatch, match="upgrade the code"):
            check_migrated(store, layout)


def test_a_migration_cut_short_is_finished_by_the_next_run(
    embedded_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(embedded_store.database)
    extra = Migration(
        90, "extra", "CREATE TABLE IF NOT EXISTS ${local}.x (a Int8) ENGINE = ${engine MergeTree} ORDER BY a; BROKEN"
    )
    monkeypatch.setattr(migrations, "known_migrations", lambda: (*known_migrations(), extra))
    with pytest.raises(StoreRefused, match="UNKNOWN_IDENTIFIER"):
        migrate(embedded_store, layout, now_ns=2)
    mended = replace(extra, sql=extra.sql.replace("BROKEN", ""))
    monkeypatch.setattr(migrations, "known_migrations", lambda: (*known_migrations(), mended))
    assert migrate(embedded_store, layout, now_ns=3) == (mended,)


def test_rows_from_before_a_migration_are_kept_and_listed(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(store_url) as store:
        layout = Layout(store.database)
        with monkeypatch.context() as before:
            before.setattr(migrations, "known_migrations", lambda: known_migrations()[:3])
            migrate(store, layout, now_ns=1)
        step = Step(host="h0", job="b", attempt=0, world_rank=0, step=1, start_ns=T0, end_ns=T0 + 20, source="told")
        comm = make(Comm, job="a", nranks=8, gpu=1, gpu_uuid="GPU-1")
        for record in (comm, step, make(OpStat, job="c")):
            store.insert(next(table for table in TABLES if table.record is type(record)), rows(record), token="x")
        store.command(f"TRUNCATE TABLE {store.database}.op_stats")  # past its days
        columns = "host, ts_ns, source, kind, component, severity, message"
        row = f"'h0', {T0}, 'processes', 'process_exit', 'host:h0', 'error', 'rank 3 was killed'"
        store.command(f"INSERT INTO {store.database}.events ({columns}) VALUES ({row})")
        operation = f"(host, job, attempt, peer, enqueue_ns) VALUES ('h0', 'd', 0, -1, {T0})"
        store.command(f"INSERT INTO {store.database}.collectives {operation}")
        migrate(store, layout, now_ns=2)
        assert store.query("SELECT job, untimed FROM collectives").to_pylist() == [{"job": "d", "untimed": None}]
        known = store.query(
            "SELECT job, max(ranks) AS ranks, min(first_ns) AS at FROM attempts GROUP BY job ORDER BY job"
        )
        assert known["job"].to_pylist() == ["a", "b", "c", "d"]
        assert known["ranks"].to_pylist() == [8, 1, 0, 0]
        assert {abs(at - T0) < 60 * SECOND for at in known["at"].to_pylist()} == {True}
        seen = store.query("SELECT gpu_uuid, host, gpu, first_ns FROM sightings").to_pylist()
        assert seen == [{"gpu_uuid": "GPU-1", "host": "h0", "gpu": 1, "first_ns": T0}]
        store.insert(TABLE_BY_NAME["events"], rows(make(Event, ts_ns=T0 + 1, rank=3, signal=9)), token="new")
        kept = store.query("SELECT message, rank, signal, detail FROM events ORDER BY ts_ns").to_pylist()
        assert kept[0] == {"message": "rank 3 was killed", "rank": None, "signal": None, "detail": None}
        assert (kept[1]["rank"], kept[1]["signal"]) == (3, 9)


def test_two_that_migrate_at_once_both_succeed(database_url: str) -> None:
    with open_store(database_url) as one, open_store(database_url) as other:
        layout = Layout(one.database)
        migrate(one, layout, now_ns=1)
        # What a second process writes that began before the first had finished.
        again = f"SELECT * REPLACE (2 AS applied_ns) FROM {other.database}.migrations"
        other.command(f"INSERT INTO {other.database}.migrations {again}")
        check_migrated(other, layout)
        assert [applied.number for applied in applied_migrations(one, layout)] == [
            m.number for m in known_migrations()
        ]
