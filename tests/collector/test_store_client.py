"""Without a gateway an agent's batches are in the store once as well."""

import pytest

from collector.shipping import Batch
from collector.store_client import StoreClient, open_client
from lockstep.batches import encode_batch
from lockstep.errors import DestinationAway
from lockstep.records import Event, NicCounter
from lockstep.store.store import Store
from tests.builders import make, rows


def test_batch_sent_twice_is_there_once_in_every_table(embedded_store: Store) -> None:
    tables = {"events": rows(make(Event, message="a")), "nic_counters": rows(make(NicCounter, nic="eth0"))}
    client = StoreClient(embedded_store, "h0")
    for number in (1, 1, 2, 1):
        assert client.send(Batch("b1", number, encode_batch(tables), rows=2)).watermark == number
    for table in tables:
        assert embedded_store.query(f"SELECT count() AS n FROM {table}")["n"].to_pylist() == [2], table


def test_store_that_is_away_leaves_the_batch_where_it_is() -> None:
    client = open_client("http://user@127.0.0.1:1/lockstep", "", "h0")
    with pytest.raises(DestinationAway, match="the store does not take rows"):
        client.send(Batch("b1", 1, encode_batch({"events": rows(make(Event))}), rows=1))
    client.close()
