"""What the store tells of pairs: each number comes from the right rows of both ends."""

import itertools
from typing import Any

import pytest

from analyzer.delay_matrix.reading import SLACKS_NS, PairFacts, read_pairs
from analyzer.windows.jobs import read_roster
from analyzer.windows.window import Context, Window
from lockstep.records import (
    ClockQuality,
    Collective,
    Comm,
    Connection,
    HostRecord,
    Path,
    StepSample,
    Transfer,
    TransferStat,
)
from lockstep.store.store import Store
from lockstep.tables import TABLES
from tests.builders import SECOND, T0, make, rows

WINDOW = Window(T0, T0 + 5 * SECOND)
US = 1_000
_tokens = itertools.count()


def insert(store: Store, *records: HostRecord) -> None:
    for table in TABLES:
        mine = [record for record in records if type(record) is table.record]
        if mine:
            store.insert(table, rows(*mine), token=f"wires/{next(_tokens)}")


def read(store: Store) -> PairFacts:
    job = Context("j1", 0, WINDOW, T0, read_roster(store, "j1", 0), None)
    return read_pairs(store, job)


def comms() -> list[Comm]:
    return [make(Comm, host=f"h{rank}", rank=rank, nranks=2, gpu=rank) for rank in (0, 1)]


def send(**fields: Any) -> TransferStat:
    return make(TransferStat, **{"host": "h0", "rank": 0, "peer": 1, "nic": "eth0", "wire_ns": 100, **fields})


def recv(**fields: Any) -> TransferStat:
    usual = {"host": "h1", "rank": 1, "peer": 0, "nic": "eth7", "direction": "recv", "wire_ns": None}
    return make(TransferStat, **{**usual, "gpu_wait_ns": 30, **fields})


def sample(host: int, step: int, wire_us: int, **fields: Any) -> StepSample:
    """Return a step from h0 to h1 as one of them saw it: handed over, or come in, so long after T0."""
    at = T0 + wire_us * US
    usual = {
        "host": f"h{host}",
        "job": "j1",
        "attempt": 0,
        "comm": 7,
        "func": "AllReduce",
        "seq": 4,
        "replay": 0,
        "epoch": 0,
        "rank": host,
        "channel": 0,
        "peer": 1 - host,
        "direction": "send" if host == 0 else "recv",
        "step": step,
        "nic": f"eth{host}",
        "sport": 9,
        "bytes": 1 << 16,
        "posted_ns": T0,
        "wire_ns": at,
        "done_ns": at + 1,
    }
    return StepSample(**{**usual, **fields})


def transfer(host: int, last_us: int, **fields: Any) -> Transfer:
    usual = {
        "host": f"h{host}",
        "rank": host,
        "peer": 1 - host,
        "direction": "send" if host == 0 else "recv",
        "transport": "socket",
        "bytes": 1 << 20,
        "steps": 16,
        "gpu_wait_ns": 0,
        "peer_wait_ns": 10_000 * US,
        "wire_ns": 5 if host == 0 else None,
        "flush_ns": None if host == 0 else 32 * US,
        "first_ns": T0,
        "last_ns": T0 + last_us * US,
    }
    return make(Transfer, **{**usual, **fields})


def test_both_ends_of_a_connection_make_one_row(store: Store) -> None:
    insert(store, send(), recv(), send(ts_ns=T0 + SECOND, wire_ns=11), *comms())
    (row,) = read(store).waits.to_pylist()
    assert (row["src_host"], row["src_nic"], row["dst_host"], row["dst_nic"]) == ("h0", "eth0", "h1", "eth7")
    assert (row["wire_ns"], row["recv_gpu_ns"]) == (111, 30)


def test_send_meets_its_receive(store: Store) -> None:
    insert(store, send(func="Send"), recv(func="Recv", gpu_wait_ns=8), *comms())
    (row,) = read(store).waits.to_pylist()
    assert (row["func"], row["dst_host"], row["recv_gpu_ns"]) == ("Send", "h1", 8)


def test_connections_name_nics_and_ports_that_rows_do_not(store: Store) -> None:
    known = [
        make(Connection, host="h0", comm=send().comm, rank=0, peer=1, nic="eth3", sport=4242),
        make(Connection, host="h1", comm=send().comm, rank=1, peer=0, nic="eth4", direction="recv"),
    ]
    insert(store, send(nic=None, transport=None), recv(nic=None), *known, *comms())
    (row,) = read(store).waits.to_pylist()
    assert (row["src_nic"], row["dst_nic"], row["sport"], row["transport"]) == ("eth3", "eth4", 4242, "socket")


def test_steps_and_lags_are_of_the_same_wires_as_waits(store: Store) -> None:
    """Else the busy time of a NIC would be told of its host."""
    known = [
        make(Connection, host="h0", comm=send().comm, rank=0, peer=1, nic="eth3", sport=4242),
        make(Connection, host="h1", comm=send().comm, rank=1, peer=0, nic="eth4", direction="recv"),
    ]
    unnamed = {"nic": None, "sport": None}
    steps = [sample(0, 0, 100, **unnamed), sample(1, 0, 150, **unnamed)]
    transfers = [transfer(0, 100, **unnamed), transfer(1, 400, **unnamed)]
    insert(store, send(nic=None, transport="socket"), recv(nic=None), *steps, *transfers, *known, *comms())
    seen = read(store)
    for table in (seen.waits, seen.steps, seen.lags):
        (row,) = table.to_pylist()
        assert (row["src_nic"], row["dst_nic"], row["sport"]) == ("eth3", "eth4", 4242)


@pytest.mark.parametrize("outside", [{"peer": -1}, {"transport": "shm"}, {"ts_ns": T0 + 5 * SECOND}, {"job": "j2"}])
def test_what_is_no_wire_of_the_window_stays_out(store: Store, outside: dict[str, Any]) -> None:
    insert(store, send(**outside), recv(), *comms())
    assert read(store).waits.num_rows == 0


def test_transfers_count_where_there_are_no_statistics(store: Store) -> None:
    insert(store, transfer(0, 100), transfer(1, 400), *comms())
    (row,) = read(store).waits.to_pylist()
    assert (row["wire_ns"], row["bytes"], row["size_class"]) == (5, 1 << 20, 20)


def busy_ns(store: Store, slack_ns: int = 0) -> list[int]:
    """Return how long each pair was busy with an operation, were its steps to have left that much later."""
    index = SLACKS_NS.index(slack_ns)
    return [sums[index] for sums in read(store).steps["busy_ns"].to_pylist()]


def test_wire_is_busy_from_when_both_sides_were_ready(store: Store) -> None:
    insert(store, sample(0, 0, 100), sample(1, 0, 150), *comms())
    (row,) = read(store).steps.to_pylist()
    assert (row["busy_ns"][0], row["least_ns"], row["n"], row["bytes"]) == (50 * US, 50 * US, 1, 1 << 16)


def test_receiver_that_posts_late_is_not_the_wire(store: Store) -> None:
    insert(store, sample(0, 0, 100), sample(1, 0, 150, posted_ns=T0 + 140 * US), *comms())
    assert busy_ns(store) == [10 * US]


def test_receiver_that_has_not_read_the_step_before_is_not_the_wire(store: Store) -> None:
    arrivals = [sample(1, 0, 110, done_ns=T0 + 180 * US), sample(1, 1, 181)]
    insert(store, sample(0, 0, 100), sample(0, 1, 100), *arrivals, *comms())
    assert busy_ns(store) == [11 * US]


def test_steps_that_queue_behind_each_other_count_once(store: Store) -> None:
    steps = [sample(0, step, 100) for step in range(4)] + [sample(1, step, 150 + 20 * step) for step in range(4)]
    insert(store, *steps, *comms())
    assert busy_ns(store) == [110 * US - 3]  # a step is read a nanosecond after it came in


def test_steps_that_arrive_in_clumps_take_what_all_of_them_took(store: Store) -> None:
    steps = [sample(0, step, 100) for step in range(4)] + [sample(1, step, 300 + step) for step in range(4)]
    insert(store, *steps, *comms())
    assert busy_ns(store) == [203 * US - 3]


def test_steps_may_have_left_later_than_a_clock_tells(store: Store) -> None:
    steps = [sample(0, step, 100 * step) for step in range(3)] + [
        sample(1, step, 100 * step + 60) for step in range(3)
    ]
    insert(store, *steps, *comms())
    assert [busy_ns(store, slack_ns) for slack_ns in (0, 20 * US, 100 * US)] == [[180 * US], [120 * US], [0]]


def test_one_operation_of_three_does_not_decide(store: Store) -> None:
    transits = {4: 30, 5: 900, 6: 40}
    departed = [sample(0, 0, 100, seq=seq) for seq in transits]
    insert(store, *departed, *(sample(1, 0, 100 + us, seq=seq) for seq, us in transits.items()), *comms())
    assert busy_ns(store) == [40 * US]


def test_offsets_of_clocks_are_taken_off(store: Store) -> None:
    told = [
        ClockQuality(host=f"h{host}", ts_ns=T0, offset_ns=host * 30 * US, error_ns=US, source="ptp")
        for host in (0, 1)
    ]
    insert(store, sample(0, 0, 100), sample(1, 0, 150), *told, *comms())
    seen = read(store)
    assert [sums[0] for sums in seen.steps["busy_ns"].to_pylist()] == [20 * US]
    assert seen.clocks.offset_ns.tolist() == [0, 30 * US]


def test_end_of_a_transfer_tells_what_is_still_under_way(store: Store) -> None:
    insert(store, transfer(0, 100), transfer(1, 400, gpu_wait_ns=60 * US), *comms())
    (row,) = read(store).lags.to_pylist()
    assert (row["transit_ns"], row["steps"], row["bytes"]) == (240 * US, 8, 1 << 19)


def test_lag_is_never_more_than_the_receiver_waited_for_data(store: Store) -> None:
    insert(store, transfer(0, 100), transfer(1, 400, peer_wait_ns=7 * US), *comms())
    assert read(store).lags["transit_ns"].to_pylist() == [7 * US]


def test_flush_waits_are_told_per_step_and_host(store: Store) -> None:
    insert(store, transfer(0, 100), transfer(1, 400), *comms())
    assert read(store).flushes.to_pylist() == [{"host": "h1", "step_flush_ns": 2 * US, "flushed": 16}]


def test_paths_name_their_far_end_either_way(store: Store) -> None:
    usual: dict[str, Any] = {"host": "h0", "src_nic": "eth0", "proto": "tcp", "dport": 0, "links": ["a", "b"]}
    told = [
        Path(**usual, dst="h1", dst_nic="eth7", sport=5, seen_ns=T0, confidence=1.0),
        Path(**usual, dst=None, dst_nic="h1/eth7", sport=6, seen_ns=T0, confidence=1.0),
    ]
    insert(store, *told, *comms())
    ways = read(store).paths.to_pylist()
    assert [(way["dst_host"], way["far_nic"], way["route"]) for way in ways] == [("h1", "eth7", ["a", "b"])] * 2


def test_path_counts_that_a_connection_had_in_the_middle_of_the_window(store: Store) -> None:
    usual: dict[str, Any] = {"host": "h0", "src_nic": "eth0", "dst": "h1", "dst_nic": "eth7", "proto": "tcp"}
    moved = {"before": T0 - SECOND, "then": T0 + SECOND, "since": T0 + 4 * SECOND}
    learnt = {"first": T0 + 6 * SECOND, "next": T0 + 7 * SECOND}  # of a port of which nothing was known before
    for sport, ways in ((5, moved), (6, learnt)):
        told = [
            Path(**usual, sport=sport, dport=0, links=[way], seen_ns=at_ns, confidence=1.0)
            for way, at_ns in ways.items()
        ]
        insert(store, *told)
    insert(store, *comms())
    assert [row["route"] for row in read(store).paths.to_pylist()] == [["then"], ["first"]]


def test_inside_a_host_the_fastest_rank_of_an_operation_counts(store: Store) -> None:
    members = [make(Comm, host="h0", comm=99, rank=rank, nranks=2, gpu=rank) for rank in (0, 1)]
    operations = [
        make(Collective, host="h0", comm=99, rank=rank, peer=-1, start_ns=T0 + rank * US, end_ns=T0 + 9 * US)
        for rank in (0, 1)
    ]
    insert(store, *members, *operations)
    (row,) = read(store).inner.to_pylist()
    assert (row["host"], row["ranks"], row["fastest_ns"]) == ("h0", 2, 8 * US)


def test_operation_that_one_rank_does_not_tell_of_is_left_out(store: Store) -> None:
    members = [make(Comm, host="h0", comm=99, rank=rank, nranks=2, gpu=rank) for rank in (0, 1)]
    insert(store, *members, make(Collective, host="h0", comm=99, rank=0, peer=-1, start_ns=T0, end_ns=T0 + 9))
    assert read(store).inner.num_rows == 0


def test_nothing_is_read_of_nothing(store: Store) -> None:
    seen = read(store)
    assert [table.num_rows for table in (seen.waits, seen.steps, seen.lags, seen.flushes, seen.inner)] == [0] * 5
