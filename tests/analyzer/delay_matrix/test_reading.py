"""What the store tells of pairs: each number comes from the right rows of both ends."""

from dataclasses import replace
from typing import Any

import pytest

from analyzer.delay_matrix.reading import SLACKS_NS, PairFacts, read_pairs
from analyzer.windows.jobs import read_roster
from analyzer.windows.window import Context, Window
from lockstep.records import ClockQuality, Collective, Comm, Connection, Path, StepSample, Transfer, TransferStat
from lockstep.store.store import Store
from tests.analyzer.build import insert
from tests.builders import SECOND, T0, make

WINDOW = Window(T0, T0 + 5 * SECOND)
US = 1_000


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
    usual = {"host": f"h{host}", "rank": host, "peer": 1 - host, "direction": "send" if host == 0 else "recv"}
    usual |= {"seq": 4, "step": step, "nic": f"eth{host}", "sport": 9, "bytes": 1 << 16}
    return make(StepSample, **usual | {"posted_ns": T0, "wire_ns": at, "done_ns": at + 1} | fields)


def transfer(host: int, last_us: int, **fields: Any) -> Transfer:
    usual = {"host": f"h{host}", "rank": host, "peer": 1 - host, "direction": "send" if host == 0 else "recv"}
    usual |= {"transport": "socket", "bytes": 1 << 20, "steps": 16, "peer_wait_ns": 10_000 * US}
    usual |= {"wire_ns": 5 if host == 0 else None, "flush_ns": None if host == 0 else 32 * US}
    return make(Transfer, **usual | {"first_ns": T0, "last_ns": T0 + last_us * US} | fields)


@pytest.mark.parametrize(("sends", "receives"), [("AllReduce", "AllReduce"), ("Send", "Recv")])
def test_both_ends_of_a_connection_make_one_row(store: Store, sends: str, receives: str) -> None:
    told = [send(func=sends), recv(func=receives), send(func=sends, ts_ns=T0 + SECOND, wire_ns=11)]
    insert(store, *told, *comms())
    (row,) = read(store).waits.to_pylist()
    assert (row["src_host"], row["src_nic"], row["dst_host"], row["dst_nic"]) == ("h0", "eth0", "h1", "eth7")
    assert (row["func"], row["wire_ns"], row["recv_gpu_ns"]) == (sends, 111, 30)


def test_connections_name_nics_and_ports_that_rows_do_not(store: Store) -> None:
    """Of waits, steps and lags alike: else the busy time of a NIC would be told of its host."""
    known = [
        make(Connection, host="h0", comm=send().comm, rank=0, peer=1, nic="eth3", sport=4242),
        make(Connection, host="h1", comm=send().comm, rank=1, peer=0, nic="eth4", direction="recv"),
    ]
    unnamed = {"nic": None, "sport": None}
    steps = [sample(0, 0, 100, **unnamed), sample(1, 0, 150, **unnamed)]
    transfers = [transfer(0, 100, **unnamed), transfer(1, 400, **unnamed)]
    insert(store, send(nic=None, transport=None), recv(nic=None), *steps, *transfers, *known, *comms())
    seen = read(store)
    for table in (seen.waits, seen.steps, seen.lags):
        (row,) = table.to_pylist()
        assert (row["src_nic"], row["dst_nic"], row["sport"]) == ("eth3", "eth4", 4242)
    assert seen.waits["transport"].to_pylist() == ["socket"]


def test_of_several_sightings_the_surest_counts_and_of_those_the_newest(store: Store) -> None:
    told = [("eth1", 0.5, T0 + 9), ("eth2", 0.9, None), ("eth3", 0.9, T0 + 2), ("eth4", 0.9, T0 + 1)]
    known = [
        make(Connection, host="h0", comm=send().comm, rank=0, peer=1, nic=nic, confidence=sure, seen_ns=seen_ns)
        for nic, sure, seen_ns in told
    ]
    insert(store, send(nic=None), recv(), *known, *comms())
    assert read(store).waits["src_nic"].to_pylist() == ["eth3"]


def test_what_is_no_wire_of_the_window_stays_out(store: Store) -> None:
    outside: list[dict[str, Any]] = [{"peer": -1}, {"transport": "shm"}, {"ts_ns": T0 + 5 * SECOND}, {"job": "j2"}]
    insert(store, *(send(**each) for each in outside), recv(), *comms())
    assert read(store).waits.num_rows == 0


def test_transfers_count_where_there_are_no_statistics(store: Store) -> None:
    seen = read(store)
    assert [table.num_rows for table in (seen.waits, seen.steps, seen.lags, seen.inner)] == [0] * 4
    insert(store, transfer(0, 100), transfer(1, 400, peer_wait_ns=7 * US), *comms())
    (row,) = read(store).waits.to_pylist()
    assert (row["wire_ns"], row["bytes"], row["size_class"]) == (5, 1 << 20, 20)
    assert read(store).lags["transit_ns"].to_pylist() == [7 * US], "never more than the receiver waited for data"


def test_without_transfers_sends_count_by_the_side_that_waited_for_nobody(store: Store) -> None:
    """Numbers of such operations are not comparable, and clocks of the two hosts neither."""
    took_us = {"Send": (10, 12, 11), "Recv": (500, 600, 40)}  # the receiver was there first
    told = [
        make(Collective, host=f"h{rank}", rank=rank, peer=1 - rank, func=func, seq=7 * rank + number, **times)
        for rank, (func, took) in enumerate(took_us.items())
        for number, us in enumerate(took)
        for times in [{"start_ns": T0, "end_ns": T0 + us * US, "bytes": 1 << 20, "seq_valid": False}]
    ]
    insert(store, *told, *comms())
    (row,) = read(store).waits.to_pylist()
    assert (row["src_host"], row["dst_host"], row["func"], row["transport"]) == ("h0", "h1", "Send", None)
    assert (row["wire_ns"], row["bytes"], row["operations"]) == (3 * 11 * US, 3 << 20, 3)
    assert row["error_ns"] < 4 * US, "of 33"
    insert(store, transfer(0, 100), transfer(1, 400))
    assert read(store).waits["wire_ns"].to_pylist() == [5], "transfers tell more"


def test_how_unevenly_wire_times_fall_is_what_chance_may_have_done(store: Store) -> None:
    sends = [send(ts_ns=T0 + second * SECOND, n=1, bytes=1000, wire_ns=100) for second in range(4)]
    insert(store, *sends, *comms())
    (row,) = read(store).waits.to_pylist()
    assert (row["operations"], row["error_ns"]) == (4, pytest.approx(0.0, abs=1.0))
    insert(store, send(ts_ns=T0 + 4 * SECOND, n=1, bytes=1000, wire_ns=10_100), comms()[0])
    (row,) = read(store).waits.to_pylist()
    assert row["error_ns"] == pytest.approx(10_000, rel=0.01), "one outlier of five may be all of it"


def test_wire_is_busy_from_when_both_sides_were_ready(store: Store) -> None:
    insert(store, sample(0, 0, 100), sample(1, 0, 150), *comms())
    (row,) = read(store).steps.to_pylist()
    assert (row["busy_ns"][0], row["least_ns"], row["n"], row["bytes"]) == (50 * US, 50 * US, 1, 1 << 16)


def steps_of(sent_us: list[int], came_us: list[int], **fields: Any) -> list[StepSample]:
    sent = [sample(0, step, us) for step, us in enumerate(sent_us)]
    return sent + [sample(1, step, us, **fields) for step, us in enumerate(came_us)]


BUSY: list[tuple[list[StepSample], int, int]] = [  # steps, how much later they may have left, and how long it is busy
    (steps_of([100], [150], posted_ns=T0 + 140 * US), 0, 10 * US),  # the receiver posted late
    ([*steps_of([100, 100], [110], done_ns=T0 + 180 * US), sample(1, 1, 181)], 0, 11 * US),  # and read late
    (steps_of([100] * 4, [150, 170, 190, 210]), 0, 110 * US - 3),  # one behind the other; read 1 ns later
    (steps_of([100] * 4, [300, 301, 302, 303]), 0, 203 * US - 3),  # in a clump
    (steps_of([0, 100, 200], [60, 160, 260]), 0, 180 * US),
    (steps_of([0, 100, 200], [60, 160, 260]), 20 * US, 120 * US),  # they may have left later than a clock tells
    (steps_of([0, 100, 200], [60, 160, 260]), 100 * US, 0),
    # One operation of three does not decide.
    ([sample(host, 0, 100 + host * us, seq=us) for us in (30, 900, 40) for host in (0, 1)], 0, 40 * US),
]


def test_steps_keep_a_wire_busy_while_nobody_else_holds_them_up(store: Store) -> None:
    """Each case is a communicator between two hosts of its own."""
    for number, (steps, _, _) in enumerate(BUSY):
        told = (replace(each, comm=number, host=f"c{number}{each.host}") for each in steps)
        insert(store, *told, *(replace(each, comm=number, host=f"c{number}{each.host}") for each in comms()))
    busy = {row["src_host"]: row["busy_ns"] for row in read(store).steps.to_pylist()}
    found = [busy[f"c{number}h0"][SLACKS_NS.index(slack_ns)] for number, (_, slack_ns, _) in enumerate(BUSY)]
    assert found == [expected for _, _, expected in BUSY]
    pace = {row["src_host"]: row["pace"] for row in read(store).steps.to_pylist()}
    assert (pace["c0h0"], pace["c4h0"]) == (0.0, pytest.approx(200 * US / (3 << 16))), "from the first to the last"


@pytest.mark.parametrize(("newer_us", "error_ns"), [(90, 20.0 * US), (30, 0.0)])
def test_one_operation_in_a_window_is_held_against_one_before(store: Store, newer_us: int, error_ns: float) -> None:
    pairs = [(1, -9_000_000, 50), (2, -8_000_000, 50), (3, 100, newer_us)]
    steps = [
        sample(host, 0, us + host * took, seq=seq, posted_ns=T0 + us * US)
        for seq, us, took in pairs
        for host in (0, 1)
    ]
    insert(store, *steps, *comms())
    (row,) = read(store).steps.to_pylist()
    assert (row["operations"], row["busy_ns"][0], row["error_ns"]) == (2, newer_us * US, error_ns)
    assert row["oldest_ns"] < T0 <= row["newest_ns"]


def test_offsets_of_clocks_are_taken_off(store: Store) -> None:
    told = [
        ClockQuality(host=f"h{host}", ts_ns=T0, offset_ns=host * 30 * US, error_ns=US, source="ptp")
        for host in (0, 1)
    ]
    insert(store, sample(0, 0, 100), sample(1, 0, 150), *told, *comms())
    seen = read(store)
    assert [sums[0] for sums in seen.steps["busy_ns"].to_pylist()] == [20 * US]
    assert seen.clocks.offset_ns.tolist() == [0, 30 * US]


def test_end_of_a_transfer_tells_what_is_under_way(store: Store) -> None:
    insert(store, transfer(0, 100), transfer(1, 400, gpu_wait_ns=60 * US), *comms())
    (row,) = read(store).lags.to_pylist()
    assert (row["transit_ns"], row["steps"], row["bytes"]) == (240 * US, 8, 1 << 19)


def test_transfer_of_nothing_has_a_pace_that_is_a_number(store: Store) -> None:
    insert(store, *(transfer(host, 100, bytes=0, first_ns=T0 + 100 * US) for host in (0, 1)), *comms())
    assert read(store).lags["pace"].to_pylist() == [0.0]


def test_path_counts_that_a_connection_had_in_the_middle_of_the_window(store: Store) -> None:
    usual: dict[str, Any] = {"host": "h0", "src_nic": "eth0", "proto": "tcp", "dport": 0, "confidence": 1.0}
    moved = {"before": T0 - SECOND, "then": T0 + SECOND, "since": T0 + 4 * SECOND}
    learnt = {"first": T0 + 6 * SECOND, "next": T0 + 7 * SECOND}  # of a port of which nothing was known before
    insert(store, *comms())
    for sport, links, dst, nic in ((5, moved, "h1", "eth7"), (6, learnt, None, "h1/eth7")):  # told in either way
        for link, at_ns in links.items():
            insert(store, Path(**usual, dst=dst, dst_nic=nic, sport=sport, links=[link, "b"], seen_ns=at_ns))
    paths = read(store).paths.to_pylist()
    assert [row["route"] for row in paths] == [["then", "b"], ["first", "b"]]
    assert [(row["dst_host"], row["far_nic"]) for row in paths] == [("h1", "eth7")] * 2


def test_operation_inside_a_host_counts_by_its_fastest_rank_if_all_tell_of_it(store: Store) -> None:
    members = [
        make(Comm, host="h0", comm=comm, rank=rank, nranks=2, gpu=rank) for comm in (98, 99) for rank in (0, 1)
    ]
    told = [(98, 0), (99, 0), (99, 1)]
    operations = [
        make(Collective, host="h0", comm=comm, rank=rank, peer=-1, start_ns=T0 + rank * US, end_ns=T0 + 9 * US)
        for comm, rank in told
    ]
    insert(store, *members, *operations)
    (row,) = read(store).inner.to_pylist()
    assert (row["comm"], row["host"], row["ranks"], row["fastest_ns"]) == (99, "h0", 2, 8 * US)
