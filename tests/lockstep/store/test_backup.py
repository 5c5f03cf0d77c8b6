"""A backup holds everything, and comes back into an empty store only."""

import pytest

from lockstep.errors import BadInput, StoreError, StoreVersionMismatch
from lockstep.records import Collective
from lockstep.store.maintenance import backup, restore, take_inventory
from lockstep.store.migrations import Layout, check_migrated
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME
from tests.builders import make, rows


def test_what_was_backed_up_comes_back(store: Store) -> None:
    layout, name = Layout(store.database), f"b-{store.database}"
    store.insert(TABLE_BY_NAME["collectives"], rows(make(Collective)), token="a")
    backup(store, layout, name)
    store.command(f"DROP DATABASE {store.database} SYNC")
    restore(store, layout, name)
    check_migrated(store, layout)
    assert store.query("SELECT count() AS n FROM collectives")["n"].to_pylist() == [1]
    assert store.query("SELECT sum(n) AS n FROM operations")["n"].to_pylist() == [1]


def test_a_restored_store_takes_rows_into_its_rollups(store: Store) -> None:
    layout, name = Layout(store.database), f"c-{store.database}"
    backup(store, layout, name)
    store.command(f"DROP DATABASE {store.database} SYNC")
    restore(store, layout, name)
    store.insert(TABLE_BY_NAME["collectives"], rows(make(Collective)), token="a")
    assert store.query("SELECT sum(n) AS n FROM operations")["n"].to_pylist() == [1]


def test_a_store_that_holds_anything_is_not_overwritten(store: Store) -> None:
    layout, name = Layout(store.database), f"d-{store.database}"
    store.insert(TABLE_BY_NAME["collectives"], rows(make(Collective)), token="a")
    backup(store, layout, name)
    with pytest.raises(BadInput, match="is not empty"):
        restore(store, layout, name)
    assert store.query("SELECT count() AS n FROM collectives")["n"].to_pylist() == [1]


def test_a_name_is_used_once(store: Store) -> None:
    layout, name = Layout(store.database), f"e-{store.database}"
    backup(store, layout, name)
    with pytest.raises(BadInput, match="exists already"):
        backup(store, layout, name)


def test_a_missing_backup_is_said_to_be_missing(store_url: str) -> None:
    with open_store(store_url) as store, pytest.raises(StoreError, match="BACKUP_NOT_FOUND"):
        restore(store, Layout(store.database), "nothing-there")


@pytest.mark.parametrize("name", ["../escape", "/etc/x", "", "a'b", "x" * 200])
def test_a_name_that_is_a_path_is_refused(embedded_store: Store, name: str) -> None:
    with pytest.raises(BadInput, match="cannot name a backup"):
        backup(embedded_store, Layout(embedded_store.database), name)


def test_an_unmigrated_store_is_not_backed_up(store_url: str) -> None:
    with open_store(store_url) as store, pytest.raises(StoreVersionMismatch, match="store migrate"):
        backup(store, Layout(store.database), "early")


def test_an_inventory_counts_rows_and_names_what_is_pending(store: Store) -> None:
    layout = Layout(store.database)
    store.insert(TABLE_BY_NAME["collectives"], rows(make(Collective), make(Collective, rank=1)), token="a")
    inventory = take_inventory(store, layout)
    sizes = {size.table: size for size in inventory.tables}
    assert sizes["collectives"].rows == 2
    assert sizes["collectives"].bytes_on_disk > 0
    assert (sizes["events"].rows, sizes["events"].parts) == (0, 0)
    assert inventory.pending == ()
    store.command(f"TRUNCATE TABLE {store.database}.migrations")
    assert take_inventory(store, layout).pending[0] == "0001_job_tables"
