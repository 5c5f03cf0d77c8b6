"""Rows in, rows out, each insert once: the same statements over the embedded engine and a real server."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from lockstep.arrow import conform
from lockstep.errors import StoreError, StoreRefused
from lockstep.records import Collective, Comm, NicCounter, OpStat, TransferStat
from lockstep.store.engine import QUERY_TIMEOUT_S
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME
from tests.builders import SECOND, T0, make, rows

COLLECTIVES = TABLE_BY_NAME["collectives"]


def count(store: Store, table: str) -> int:
    return int(store.query(f"SELECT count() AS n FROM {table}")["n"][0].as_py())


def some_collectives(ranks: int, seq: int = 0) -> pa.Table:
    return rows(*(make(Collective, rank=rank, seq=seq, start_ns=T0 + rank, end_ns=T0 + 500) for rank in range(ranks)))


def test_rows_come_back_as_they_went_in(store: Store) -> None:
    for given in (some_collectives(3), rows(make(NicCounter, speed_mbps=None, extra={"crc": 3, "pause": 2**63}))):
        table = COLLECTIVES if "rank" in given.column_names else TABLE_BY_NAME["nic_counters"]
        store.insert(table, given.slice(0, 0), token="a")
        assert count(store, table.name) == 0, "no rows are no insert"
        store.insert(table, given, token="a")
        assert conform(table, store.query(f"SELECT * FROM {table.name} ORDER BY ALL")).equals(given)


def test_the_same_token_is_stored_once_in_raw_and_rollup(store: Store) -> None:
    midnight = T0 // (86_400 * SECOND) * 86_400 * SECOND + 86_400 * SECOND
    two_days = rows(make(Collective, enqueue_ns=midnight - 1, seq=8), make(Collective, enqueue_ns=midnight, seq=9))
    for _ in range(3):
        store.insert(COLLECTIVES, some_collectives(4), token="a")
        store.insert(COLLECTIVES, two_days, token="two days")
        store.insert(TABLE_BY_NAME["op_stats"], rows(make(OpStat)), token="a")  # a token belongs to its table
    assert (count(store, "collectives"), count(store, "op_stats")) == (6, 1)
    assert store.query("SELECT sum(n) AS n FROM operations")["n"].to_pylist() == [6]
    store.insert(COLLECTIVES, some_collectives(4), token="b")
    assert count(store, "collectives") == 10, "equal rows under another token are other rows"


def test_an_operation_is_rolled_up_over_hosts_and_batches(store: Store) -> None:
    for host in range(3):
        mine = rows(make(Collective, host=f"h{host}", rank=host, start_ns=T0 + 100 * host, end_ns=T0 + 900))
        store.insert(COLLECTIVES, mine, token=f"{host}")
    store.insert(COLLECTIVES, rows(make(Collective, func="Send", peer=1)), token="a")  # which is not rolled up
    rolled = store.query(
        "SELECT sum(n) AS n, min(first_ns) AS first, max(last_ns) AS last, argMaxMerge(last_rank) AS who, "
        "max(end_ns) AS end FROM operations GROUP BY job, comm, func, seq"
    ).to_pylist()
    assert rolled == [{"n": 3, "first": T0, "last": T0 + 200, "who": 2, "end": T0 + 900}]


def test_ranks_and_wires_are_rolled_up_by_minute_and_the_newest_communicator_wins(store: Store) -> None:
    seconds = [T0 // (60 * SECOND) * 60 * SECOND + second * SECOND for second in (0, 1, 59, 60)]
    ranks = rows(*(make(OpStat, ts_ns=ts) for ts in seconds))
    wires = [make(TransferStat, ts_ns=ts, wire_max_ns=n) for n, ts in enumerate(seconds)]
    received = make(TransferStat, ts_ns=seconds[0], direction="recv", wire_ns=None, wire_max_ns=None)
    for _ in range(2):
        store.insert(TABLE_BY_NAME["op_stats"], ranks, token="a")
        store.insert(TABLE_BY_NAME["transfer_stats"], rows(*wires, received), token="a")
    minutes = "GROUP BY minute ORDER BY minute"
    assert store.query(f"SELECT sum(n) AS n FROM rank_minutes {minutes}")["n"].to_pylist() == [3, 1]
    longest = store.query(
        f"SELECT max(wire_max_ns) AS longest, sum(n) AS n, count() AS lines FROM wire_minutes {minutes}"
    )
    n = wires[0].n
    assert longest.to_pylist() == [{"longest": 2, "n": 3 * n, "lines": 1}, {"longest": 3, "n": n, "lines": 1}], (
        "the sending side alone, folded as it is written"
    )
    comms = TABLE_BY_NAME["comms"]
    store.insert(comms, rows(make(Comm, init_ns=T0)), token="made")
    store.insert(comms, rows(make(Comm, init_ns=T0, destroy_ns=T0 + 5)), token="destroyed")
    assert store.query("SELECT destroy_ns FROM comms FINAL")["destroy_ns"].to_pylist() == [T0 + 5]


def test_an_attempt_is_known_by_its_communicators_and_statistics(store: Store) -> None:
    told = {
        "comms": rows(make(Comm, nranks=4, world_rank=5, init_ns=T0 + 9), make(Comm, host="h1", rank=1)),
        "op_stats": rows(make(OpStat, ts_ns=T0 - 3), make(OpStat, ts_ns=T0 + 30)),
    }
    for name in 2 * list(told):
        store.insert(TABLE_BY_NAME[name], told[name], token="the same")
    known = store.query(
        "SELECT max(ranks) AS ranks, uniqExactMerge(hosts) AS hosts, min(first_ns) AS first, max(last_ns) AS last "
        "FROM attempts GROUP BY job, attempt"
    ).to_pylist()
    assert known == [{"ranks": 6, "hosts": 2, "first": T0 - 3, "last": T0 + 30}]


def test_parameters_are_values_and_a_refused_statement_says_why_with_its_code(store: Store) -> None:
    store.insert(COLLECTIVES, some_collectives(1), token="a")
    hostile = "j1' OR '1'='1"
    found = store.query("SELECT count() AS n FROM collectives WHERE job = {job:String}", {"job": hostile})
    assert found["n"].to_pylist() == [0]
    with pytest.raises(StoreRefused, match="UNKNOWN_TABLE") as caught:
        store.query("SELECT * FROM nowhere")
    assert caught.value.code == 60


def test_threads_share_a_store_and_its_clients_and_every_insert_counts(store: Store) -> None:
    def work(number: int) -> int:
        store.insert(COLLECTIVES, some_collectives(10, seq=number), token=f"{number}")
        return count(store, "collectives")

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(work, range(8)))
    assert min(seen) >= 10
    assert count(store, "collectives") == 80
    before = len(store._idle)
    for _ in range(2 * before):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(count, store, "collectives").result()
    assert len(store._idle) == before, "clients are kept for later, and not for each thread that ever was"


def test_a_read_has_a_limit_in_time_and_a_statement_has_none_also_after_memory_was_given_back(store: Store) -> None:
    store.give_memory_back()
    limit = "SELECT toFloat64(getSetting('max_execution_time')) AS s"
    assert store.query(limit)["s"].to_pylist() == [QUERY_TIMEOUT_S]
    assert store.query_system(limit)["s"].to_pylist() == [QUERY_TIMEOUT_S]
    # A backup may take longer.
    store.command(f"SELECT throwIf(toFloat64(getSetting('max_execution_time')) = {QUERY_TIMEOUT_S})")


def test_a_query_on_a_server_may_use_no_more_memory_than_was_said(database_url: str) -> None:
    with open_store(database_url, memory_bytes=256 << 20) as small:
        cap = small.query_system("SELECT value FROM system.settings WHERE name = 'max_memory_usage'")
    assert cap["value"].to_pylist() == [str(256 << 20)]
    with pytest.raises(StoreError, match="has been closed"):
        small.query_system("SELECT 1")
