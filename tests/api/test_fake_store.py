"""The fake store keeps the one promise of the real one that the gateway relies on."""

import pytest

from lockstep.errors import StoreAway
from lockstep.records import Event
from lockstep.tables import TABLE_BY_NAME
from tests.api.fake_store import FakeStore, away
from tests.builders import make, rows

EVENTS = TABLE_BY_NAME["events"]


def test_rows_are_kept_once_per_token() -> None:
    store = FakeStore()
    for token in ("t1", "t1", "t2"):
        store.insert(EVENTS, rows(make(Event, message=token)), token)
    assert store.column("events", "message") == ["t1", "t2"]
    assert (store.tokens, store.attempts) == (["t1", "t2"], ["t1", "t1", "t2"])


def test_store_that_is_away_takes_nothing_until_it_is_back() -> None:
    store = FakeStore(fault=away())
    with pytest.raises(StoreAway):
        store.insert(EVENTS, rows(make(Event)), "t1")
    store.fault = None
    store.insert(EVENTS, rows(make(Event, message="late")), "t1")
    assert store.column("events", "message") == ["late"]
