"""What the store reduces a window to, over both kinds of store: each number is the sum of the right rows."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from analyzer.delay import DelayOptions, build_matrix
from analyzer.facts import WindowFacts
from analyzer.reading import JobSpan, Members, find_jobs, find_members, find_reports, read_facts
from analyzer.windows import HostReport, Window
from lockstep.records import Agent, Comm, Connection, HostRecord, OpStat, Transfer, TransferStat
from lockstep.store.store import Store
from lockstep.tables import TABLES
from tests.builders import SECOND, T0, make, rows

WINDOW = Window(T0, T0 + 5 * SECOND)
JOB = JobSpan("j1", 0, T0, T0 + 4 * SECOND)
_tokens = itertools.count()


def insert(store: Store, *records: HostRecord) -> None:
    """Insert records of any kinds, each kind into its table."""
    for table in TABLES:
        mine = [record for record in records if type(record) is table.record]
        if mine:
            store.insert(table, rows(*mine), token=f"test/{next(_tokens)}")


def read(store: Store) -> WindowFacts:
    return read_facts(store, JOB, WINDOW, Members(frozenset({"h0", "h1"}), 4, 2), frozenset({"h1"}))


def pairs(store: Store) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read(store).pairs.to_pylist()
    return found


def send(**fields: Any) -> TransferStat:
    return make(TransferStat, **{"host": "h0", "rank": 0, "peer": 1, "nic": "eth0", "wire_ns": 100, **fields})


def recv(**fields: Any) -> TransferStat:
    return make(
        TransferStat,
        **{"host": "h1", "rank": 1, "peer": 0, "nic": "eth7", "direction": "recv", "wire_ns": None, **fields},
    )


def connection(**fields: Any) -> Connection:
    return make(Connection, **fields)


def comms() -> Sequence[Comm]:
    return [make(Comm, host=f"h{rank}", rank=rank, nranks=2) for rank in (0, 1)]


def pair(**fields: Any) -> dict[str, Any]:
    """Return the row of one transfer of 1,024 bytes from h0 to h1."""
    usual = {"src_host": "h0", "src_nic": "eth0", "dst_host": "h1", "dst_nic": "eth7", "transport": "ib"}
    return usual | {"size_class": 10, "transfers": 1, "bytes": 1024, "wire_ns": 100} | fields


def test_both_ends_of_a_connection_make_one_pair(store: Store) -> None:
    insert(store, send(), recv(), *comms())
    assert pairs(store) == [pair()]


def test_seconds_channels_functions_and_communicators_of_a_pair_are_summed(store: Store) -> None:
    insert(
        store,
        send(wire_ns=1, bytes=10, n=100),
        send(wire_ns=2, bytes=20, n=200, ts_ns=T0 + 4 * SECOND),
        send(wire_ns=4, bytes=40, n=400, func="AllGather"),
        send(wire_ns=8, bytes=80, n=800, channel=1),
        send(wire_ns=16, bytes=160, n=1600, comm=8),
        recv(),
        recv(channel=1),
        recv(comm=8),
        *comms(),
    )
    assert pairs(store) == [pair(wire_ns=31, bytes=310, transfers=3100)]


def test_what_differs_in_nic_size_or_transport_stays_apart(store: Store) -> None:
    insert(
        store,
        send(),
        send(size_class=20, wire_ns=7),
        send(channel=1, nic="eth1"),
        send(channel=2, transport="socket"),
        recv(),
        recv(channel=1, nic="eth9"),
        recv(channel=2),
        *comms(),
    )
    assert pairs(store) == [
        pair(),
        pair(size_class=20, wire_ns=7),
        pair(transport="socket"),
        pair(src_nic="eth1", dst_nic="eth9"),
    ]


def test_two_directions_of_a_pair_stay_apart(store: Store) -> None:
    insert(store, send(), recv(), send(host="h1", rank=1, peer=0, nic="eth7", wire_ns=5), *comms())
    insert(store, recv(host="h0", rank=0, peer=1, nic="eth0"))
    back = pair(src_host="h1", src_nic="eth7", dst_host="h0", dst_nic="eth0", wire_ns=5)
    assert pairs(store) == [pair(), back]


def test_host_of_a_receiver_that_says_nothing_is_known_from_the_communicator(store: Store) -> None:
    insert(store, send(), *comms())
    assert pairs(store) == [pair(dst_nic=None)]


def test_receiver_that_nobody_knows_is_left_out(store: Store) -> None:
    insert(store, send(), make(Comm, host="h0", rank=0), send(peer=2), recv(rank=2, host="h2"))
    assert [found["dst_host"] for found in pairs(store)] == ["h2"]


def test_unknown_nic_stays_unknown_until_one_row_names_it(store: Store) -> None:
    insert(store, send(nic=None), recv(nic=None), *comms())
    assert pairs(store) == [pair(src_nic=None, dst_nic=None)]
    later = T0 + SECOND
    insert(store, send(ts_ns=later), recv(ts_ns=later))
    assert pairs(store) == [pair(transfers=2, bytes=2048, wire_ns=200)]


def test_nic_that_no_row_names_is_that_of_the_connection(store: Store) -> None:
    insert(store, send(nic=None), recv(nic=None), *comms())
    insert(
        store,
        connection(nic="eth3", confidence=0.5),
        connection(nic="eth2", confidence=0.9),
        connection(host="h1", rank=1, peer=0, direction="recv", nic="eth5"),
        connection(host="h9", nic="eth8", confidence=1.0),  # of another host, which cannot know
        connection(channel=1, nic="eth8"),
        connection(nic=None, confidence=1.0),
    )
    assert pairs(store) == [pair(src_nic="eth2", dst_nic="eth5")]


def test_nic_in_the_row_itself_is_believed_first(store: Store) -> None:
    insert(store, send(), recv(), connection(nic="eth3"), *comms())
    assert pairs(store) == [pair()]


def test_unknown_transport_is_null_and_not_a_name(store: Store) -> None:
    insert(store, send(transport=None), recv(transport=None), *comms())
    assert pairs(store) == [pair(transport=None)]


def test_traffic_without_a_peer_never_enters(store: Store) -> None:
    insert(store, send(), recv(), send(peer=-1, transport="nvls"), recv(peer=-1, transport="collnet"), *comms())
    assert pairs(store) == [pair()]


def test_unknown_wire_time_never_enters_and_is_no_zero(store: Store) -> None:
    insert(store, send(), recv(), send(ts_ns=T0 + SECOND, wire_ns=None), *comms())
    assert pairs(store) == [pair()]


def test_transfers_of_nothing_never_enter(store: Store) -> None:
    insert(store, send(), recv(), send(size_class=0, bytes=0), *comms())
    assert pairs(store) == [pair()]


def test_other_jobs_attempts_and_windows_never_enter(store: Store) -> None:
    others: list[dict[str, Any]] = [
        {"job": "j2"},
        {"attempt": 1},
        {"ts_ns": WINDOW.start_ns - SECOND},
        {"ts_ns": WINDOW.end_ns},
    ]
    strangers = [make(Comm, host="h9", rank=rank, **change) for rank in (0, 1) for change in others[:2]]
    insert(store, send(), *comms(), *strangers)
    insert(store, *(send(**change) for change in others), *(recv(host="h9", **change) for change in others))
    insert(store, *(make(OpStat, **change) for change in ({"n": 3}, {"rank": 1, "n": 4}, *others)))
    assert pairs(store) == [pair(dst_nic=None)]
    assert read(store).operations == 7


def test_complete_transfers_stand_in_where_there_are_no_statistics(store: Store) -> None:
    sent = {"rank": 0, "peer": 1, "bytes": 3000, "wire_ns": 70}
    received = {"host": "h1", "rank": 1, "peer": 0, "nic": "eth7", "direction": "recv", "wire_ns": None}
    insert(
        store,
        make(Transfer, seq=1, first_ns=T0 - SECOND, last_ns=T0, **sent),
        make(Transfer, seq=2, last_ns=WINDOW.end_ns - 1, **sent),
        make(Transfer, seq=3, last_ns=WINDOW.end_ns, **sent),
        make(Transfer, seq=4, first_ns=T0 - SECOND, last_ns=T0 - 1, **sent),
        make(Transfer, seq=5, **sent | {"peer": -1}),
        make(Transfer, seq=6, **sent | {"wire_ns": None}),
        make(Transfer, seq=1, **received),
        *comms(),
    )
    assert pairs(store) == [pair(size_class=11, transfers=2, bytes=6000, wire_ns=140)]


def test_statistics_are_preferred_to_complete_transfers(store: Store) -> None:
    insert(store, send(), recv(), make(Transfer, rank=0, peer=1, wire_ns=7), *comms())
    assert pairs(store) == [pair()]


def test_rank_that_moved_to_another_host_counts_where_its_rows_come_from(store: Store) -> None:
    """Rank 0 sends first from h0, then from h2; rank 1 receives first on h1, then on h3."""
    later = T0 + 2 * SECOND
    insert(
        store,
        send(wire_ns=1),
        recv(),
        send(host="h2", nic="eth2", ts_ns=later, wire_ns=2),
        recv(host="h3", nic=None, ts_ns=later),
        *comms(),
    )
    assert pairs(store) == [
        pair(dst_host="h3", dst_nic=None, wire_ns=1),
        pair(src_host="h2", src_nic="eth2", dst_host="h3", dst_nic=None, wire_ns=2),
    ]


def test_newest_version_of_a_communicator_says_where_a_silent_receiver_is(store: Store) -> None:
    for host, init_ns in (("h1", T0), ("h3", T0 + 2), ("h2", T0 + 1)):
        insert(store, make(Comm, host=host, rank=1, nranks=2, init_ns=init_ns))
    insert(store, send(), make(Comm, host="h0", rank=0, nranks=2))
    assert pairs(store) == [pair(dst_host="h3", dst_nic=None)]
    assert find_members(store, JOB) == Members(frozenset({"h0", "h3"}), nodes=4, ranks=2)


def test_window_without_rows_has_no_pairs_and_no_operations_but_what_was_known_before(store: Store) -> None:
    facts = read(store)
    assert (facts.pairs.num_rows, facts.operations, facts.pace) == (0, 0, None)
    assert build_matrix(facts.pairs, None, DelayOptions()) is None
    assert (facts.window, facts.job, facts.attempt, facts.ranks) == (WINDOW, "j1", 0, 2)
    assert (sorted(facts.hosts), sorted(facts.silent), facts.coverage) == (["h0", "h1"], ["h1"], 0.25)


def test_numbers_as_large_as_columns_hold_reach_the_matrix(store: Store) -> None:
    sends = [send(rank=rank, peer=rank + 1, bytes=2**64 - 1, wire_ns=2**63 - 1) for rank in range(8)]
    insert(store, *sends, *(make(Comm, host=f"h{rank}", rank=rank) for rank in range(9)))
    matrix = build_matrix(read(store).pairs, None, DelayOptions())
    assert matrix is not None
    assert matrix.ratio == pytest.approx([1.0] * 8)


def test_jobs_are_found_by_anything_they_finished(store: Store) -> None:
    insert(
        store,
        make(OpStat, job="ops", ts_ns=T0 + 7),
        make(OpStat, job="ops", ts_ns=T0 + 9),
        make(TransferStat, job="ops", ts_ns=T0 + 8, attempt=1),
        make(TransferStat, job="stats", ts_ns=T0 + 3),
        make(Transfer, job="whole", first_ns=T0, last_ns=T0 + 2),
        make(OpStat, job="old", ts_ns=T0 - 1),
        make(TransferStat, job="old", ts_ns=T0 - 1),
        make(Transfer, job="old", first_ns=T0 - 2, last_ns=T0 - 1),
    )
    assert find_jobs(store, T0) == [
        JobSpan("ops", 0, T0 + 7, T0 + 9),
        JobSpan("ops", 1, T0 + 8, T0 + 8),
        JobSpan("stats", 0, T0 + 3, T0 + 3),
        JobSpan("whole", 0, T0 + 2, T0 + 2),
    ]
    assert {span.job for span in find_jobs(store, 0)} == {"ops", "stats", "whole", "old"}


def test_members_are_all_hosts_and_the_largest_communicator(store: Store) -> None:
    insert(
        store,
        make(Comm, host="h0", rank=0, nranks=16, nnodes=2),
        make(Comm, host="h1", rank=1, nranks=16, nnodes=2),
        make(Comm, host="h1", comm=8, rank=0, nranks=2, nnodes=1),
        make(Comm, host="h2", rank=0, nranks=99, attempt=1),
        make(Comm, host="h3", rank=0, nranks=99, job="j2"),
    )
    assert find_members(store, JOB) == Members(frozenset({"h0", "h1"}), nodes=2, ranks=16)


def test_job_without_communicators_has_no_members(store: Store) -> None:
    assert find_members(store, JOB) == Members(frozenset(), nodes=0, ranks=0)


def test_newest_heartbeat_of_each_host_is_its_report(store: Store) -> None:
    insert(
        store,
        make(Agent, host="h0", ts_ns=T0 + 1, watermark_ns=T0 - 5),
        make(Agent, host="h0", ts_ns=T0 + 3, watermark_ns=T0 + 2),
        make(Agent, host="h0", ts_ns=T0 + 2, watermark_ns=T0 + 1),
        make(Agent, host="h1", ts_ns=T0 - 1, watermark_ns=T0 - 1),
        make(Agent, host="h2", ts_ns=T0, watermark_ns=T0 - 2),
        make(Agent, host="h9", ts_ns=T0 + 1, watermark_ns=T0),
    )
    assert find_reports(store, frozenset({"h0", "h1", "h2"}), T0) == {
        "h0": HostReport(watermark_ns=T0 + 2, heard_ns=T0 + 3),
        "h2": HostReport(watermark_ns=T0 - 2, heard_ns=T0),
    }
    assert find_reports(store, frozenset(), T0) == {}
