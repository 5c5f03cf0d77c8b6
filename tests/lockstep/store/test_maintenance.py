"""A backup holds everything and comes back into an empty store only; retention follows the settings, and rows go."""

import pytest

from lockstep.errors import BadInput, StoreError, StoreVersionMismatch
from lockstep.records import Collective, Connection, Event
from lockstep.store import maintenance
from lockstep.store.migrations import Layout, check_migrated
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME
from tests.builders import T0, make, rows

FRESH = 4_000_000_000_000_000_000  # far in the future, so no TTL reaches it
COLLECTIVES = TABLE_BY_NAME["collectives"]


def test_what_was_backed_up_once_comes_back_into_an_empty_store(store: Store) -> None:
    layout, name = Layout(store.database), f"b-{store.database}"
    store.insert(COLLECTIVES, rows(make(Collective)), token="a")
    maintenance.backup(store, layout, name)
    with pytest.raises(BadInput, match="exists already"):
        maintenance.backup(store, layout, name)
    with pytest.raises(BadInput, match="is not empty"):
        maintenance.restore(store, layout, name)
    store.command(f"DROP DATABASE {store.database} SYNC")
    maintenance.restore(store, layout, name)
    check_migrated(store, layout)
    store.insert(COLLECTIVES, rows(make(Collective, seq=1)), token="b")
    assert store.query("SELECT count() AS n FROM collectives")["n"].to_pylist() == [2]
    assert store.query("SELECT sum(n) AS n FROM operations")["n"].to_pylist() == [2], "rows go into the roll-ups"


def test_a_missing_backup_and_an_unmigrated_store_are_refused(store_url: str) -> None:
    with open_store(store_url) as store:
        with pytest.raises(StoreError, match="BACKUP_NOT_FOUND"):
            maintenance.restore(store, Layout(store.database), "nothing-there")
        with pytest.raises(StoreVersionMismatch, match="store migrate"):
            maintenance.backup(store, Layout(store.database), "early")


def test_an_inventory_counts_rows_and_names_what_is_pending(store: Store) -> None:
    layout = Layout(store.database)
    store.insert(COLLECTIVES, rows(make(Collective), make(Collective, rank=1)), token="a")
    inventory = maintenance.take_inventory(store, layout)
    sizes = {size.table: size for size in inventory.tables}
    assert sizes["collectives"].rows == 2
    assert sizes["collectives"].bytes_on_disk > 0
    assert (sizes["events"].rows, sizes["events"].parts) == (0, 0)
    assert inventory.pending == ()
    store.command(f"TRUNCATE TABLE {store.database}.migrations")
    assert maintenance.take_inventory(store, layout).pending[0] == "0001_job_tables"


def test_retention_changes_what_differs_and_rows_older_than_their_days_are_deleted(store: Store) -> None:
    layout = Layout(store.database)
    first = maintenance.apply_retention(store, layout, {})
    assert set(first) == {table for table, days in maintenance.DEFAULT_RETENTION_DAYS.items() if days}
    for days, changed in (({}, []), ({"events": 0}, ["events"]), ({"events": 0}, []), ({}, ["events"])):
        assert maintenance.apply_retention(store, layout, days) == changed
    store.insert(COLLECTIVES, rows(make(Collective), make(Collective, enqueue_ns=FRESH, seq=1)), token="a")
    store.insert(TABLE_BY_NAME["events"], rows(make(Event, ts_ns=FRESH)), token="a")
    store.insert(TABLE_BY_NAME["connections"], rows(make(Connection, seen_ns=None)), token="a")  # says not when
    for table, column, kept in (
        ("collectives", "enqueue_ns", FRESH),
        ("events", "ts_ns", FRESH),
        ("connections", "seen_ns", None),
    ):
        store.command(f"OPTIMIZE TABLE {store.database}.{table} FINAL")
        assert store.query(f"SELECT {column} FROM {table}")[column].to_pylist() == [kept]


def test_a_name_that_is_a_path_and_a_table_that_cannot_be_kept_by_days_are_refused(embedded_store: Store) -> None:
    layout = Layout(embedded_store.database)
    for name in ("../escape", "/etc/x", "", "a'b", "x" * 200):
        for act in (maintenance.backup, maintenance.restore):
            with pytest.raises(BadInput, match="cannot name a backup"):
                act(embedded_store, layout, name)
    with pytest.raises(BadInput, match="do not exist: nonsense"):
        maintenance.apply_retention(embedded_store, layout, {"nonsense": 3})
    with pytest.raises(BadInput, match="transits carry no time"):
        maintenance.apply_retention(embedded_store, layout, {"transits": 3})


def test_rows_too_old_for_a_table_are_known_before_they_are_gone() -> None:
    four_days_later = T0 + 4 * 86_400 * 1_000_000_000
    gone = maintenance.past_retention(T0, four_days_later, {"events": 2})
    assert {"collectives", "transfers", "events"} <= gone
    assert not {"op_stats", "transits"} & gone
