"""Retention follows the settings, and old rows really go."""

import pytest

from lockstep.errors import BadInput
from lockstep.records import Collective, Connection, Event
from lockstep.store.maintenance import DEFAULT_RETENTION_DAYS, apply_retention, past_retention
from lockstep.store.migrations import Layout
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from tests.builders import T0, make, rows

FRESH = 4_000_000_000_000_000_000  # far in the future, so no TTL reaches it


def test_every_table_has_a_default() -> None:
    assert set(TABLE_BY_NAME) | {"operations", "rank_minutes", "wire_minutes", "attempts", "sightings"} == set(
        DEFAULT_RETENTION_DAYS
    )


def test_only_what_differs_is_changed(store: Store) -> None:
    layout = Layout(store.database)
    first = apply_retention(store, layout, {})
    assert set(first) == {table for table, days in DEFAULT_RETENTION_DAYS.items() if days}
    assert apply_retention(store, layout, {}) == []
    assert apply_retention(store, layout, {"events": 7}) == ["events"]
    assert apply_retention(store, layout, {"events": 0}) == ["events"]
    assert apply_retention(store, layout, {"events": 0}) == []


def test_rows_older_than_their_days_are_deleted_and_others_kept(store: Store) -> None:
    layout = Layout(store.database)
    apply_retention(store, layout, {})
    collectives, events = TABLE_BY_NAME["collectives"], TABLE_BY_NAME["events"]
    store.insert(collectives, rows(make(Collective), make(Collective, enqueue_ns=FRESH, seq=1)), token="a")
    store.insert(events, rows(make(Event, ts_ns=FRESH)), token="a")
    for table in ("collectives", "events"):
        store.command(f"OPTIMIZE TABLE {store.database}.{table} FINAL")
    assert store.query("SELECT enqueue_ns FROM collectives")["enqueue_ns"].to_pylist() == [FRESH]
    assert store.query("SELECT count() AS n FROM events")["n"].to_pylist() == [1]


def test_rows_that_do_not_say_when_are_kept(store: Store) -> None:
    apply_retention(store, Layout(store.database), {})
    connection = Connection(
        host="h0",
        job="j1",
        attempt=0,
        comm=None,
        rank=None,
        peer=None,
        channel=None,
        direction="send",
        transport="ib",
        proxy_rank=None,
        nic=None,
        local="a",
        remote="b",
        sport=None,
        lqpn=None,
        rqpn=None,
        source="nccl_log",
        confidence=1.0,
        seen_ns=None,
    )
    store.insert(TABLE_BY_NAME["connections"], rows(connection), token="a")
    store.command(f"OPTIMIZE TABLE {store.database}.connections FINAL")
    assert store.query("SELECT count() AS n FROM connections")["n"].to_pylist() == [1]


def test_an_unknown_table_is_named(embedded_store: Store) -> None:
    with pytest.raises(BadInput, match="do not exist: nonsense"):
        apply_retention(embedded_store, Layout(embedded_store.database), {"nonsense": 3})


def test_rows_without_a_time_cannot_be_kept_by_days(embedded_store: Store) -> None:
    with pytest.raises(BadInput, match="transits carry no time"):
        apply_retention(embedded_store, Layout(embedded_store.database), {"transits": 3})


def test_times_of_tests_are_in_the_past() -> None:
    assert T0 < FRESH


def test_rows_too_old_for_a_table_are_known_before_they_are_gone() -> None:
    four_days_later = T0 + 4 * 86_400 * 1_000_000_000
    gone = past_retention(T0, four_days_later, {"events": 2})
    assert {"collectives", "transfers", "events"} <= gone
    assert not {"op_stats", "transits"} & gone
