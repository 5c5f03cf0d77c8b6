"""The share of operations with complete rows follows the budget, and the plugin draws the same lots as we do."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collector.nccl.budget import WHOLE_SHARE, Allowance, Budget, grant, largest_share, lot_of, spend
from collector.nccl.communicators import CommunicatorHistory, HostCommunicators, Origin
from collector.nccl.draining import Cursor
from collector.nccl.operations import KNOWN, learn_operations
from collector.nccl.ringfile import open_ring
from collector.nccl.snapshot import (
    AggregatorState,
    Checkpoint,
    FileMemory,
    decode_checkpoint,
    encode_checkpoint,
    take_reading,
)
from lockstep import wire
from lockstep.clock import NS_PER_S
from tests.collector.sources.imitated_rings import do_more, recording

BUDGET = Budget(rows=1_000, bytes=1 << 30)


def run(seconds: int, rows_per_s: int, allowance: Allowance, begin: int = 0) -> Allowance:
    for second in range(begin, begin + seconds):
        allowance = grant(allowance, second * NS_PER_S, rows_per_s)
        allowance = spend(allowance, rows_per_s * allowance.share // WHOLE_SHARE)
    return allowance


def test_share_fits_the_budget_grows_back_by_steps_after_a_while_and_what_was_sent_too_much_is_saved_later() -> None:
    assert run(60, 900, Allowance(BUDGET)).share == WHOLE_SHARE
    busy = run(20, 7_000, Allowance(BUDGET))
    assert busy.share == WHOLE_SHARE // 8
    assert run(8, 100, busy, 20).share == busy.share
    assert run(15, 100, busy, 20).share == 2 * busy.share
    assert run(120, 100, busy, 20).share == WHOLE_SHARE
    assert Budget(rows=1_000, bytes=2_500).rows_per_s == 100
    overdrawn = spend(grant(Allowance(BUDGET), 0, 0), 6_000)
    assert grant(overdrawn, NS_PER_S, 100).share == 1
    assert grant(overdrawn, 5 * NS_PER_S, 100).share == WHOLE_SHARE
    before = grant(Allowance(BUDGET), 100 * NS_PER_S, 0)
    assert grant(before, 0, 0).rows == before.rows, "a clock that was set back gives nothing"


@given(st.integers(0, 1 << 40), st.floats(0, 1e9))
def test_share_is_a_power_of_two_that_fits_unless_it_is_the_smallest(rows: int, affordable: float) -> None:
    share = largest_share(rows, affordable)
    assert share & (share - 1) == 0
    assert share == 1 or rows * share / WHOLE_SHARE <= affordable


def operations(**columns: object) -> "np.ndarray":
    made = np.zeros(4_096, KNOWN)
    made["seq"] = np.arange(4_096)
    for name, value in columns.items():
        made[name] = value
    return made


def test_all_ranks_draw_the_same_lot_and_both_ends_of_a_send_too_and_lots_are_spread_evenly() -> None:
    one, other = (lot_of(operations(comm=7, func=wire.ALL_REDUCE, peer=-1, rank=rank)) for rank in (0, 5))
    assert np.array_equal(one, other)
    sent = lot_of(operations(comm=7, func=wire.SEND, rank=2, peer=6))
    received = lot_of(operations(comm=7, func=wire.RECV, rank=6, peer=2))
    assert np.array_equal(sent, received)
    assert not np.array_equal(sent, lot_of(operations(comm=7, func=wire.SEND, rank=6, peer=2)))
    lots = lot_of(operations(comm=0xA72E744E3E8DDA49, func=1, peer=-1))
    for share in (WHOLE_SHARE // 2, WHOLE_SHARE // 4, WHOLE_SHARE // 16):
        assert abs(np.count_nonzero(lots < share) / 4_096 - share / WHOLE_SHARE) < 0.04


HANDLES = np.array([1, (1 << 64) - 1], np.uint64)
ORIGIN = Origin("h0", "job 7", attempt=2, pid=5, gpu=None)
MEMORY = FileMemory(1000, ORIGIN, [Cursor(), Cursor(9, 12)], AggregatorState(3, 4096, HANDLES, HANDLES[:0]))


def test_checkpoint_comes_back_as_it_was_and_that_of_another_version_is_nothing() -> None:
    given_back = decode_checkpoint(encode_checkpoint(Checkpoint(7, 4096, {(1, 2, 3): MEMORY})))
    assert (given_back.since_ns, given_back.share) == (7, 4096)
    memory = given_back.files[1, 2, 3]
    assert (memory.uid, memory.origin, memory.position) == (MEMORY.uid, MEMORY.origin, MEMORY.position)
    assert (memory.aggregator.now_ns, memory.aggregator.share) == (3, 4096)
    assert np.array_equal(memory.aggregator.pending, HANDLES)
    assert len(memory.aggregator.written) == 0
    assert decode_checkpoint(encode_checkpoint(Checkpoint(7)).replace(b'"version":1', b'"version":2')) == Checkpoint()


@given(st.binary(max_size=200), st.integers(0, 400))
def test_broken_checkpoint_is_nothing(noise: bytes, index: int) -> None:
    whole = encode_checkpoint(Checkpoint(7, 4096, {(1, 2, 3): MEMORY}))
    assert decode_checkpoint(noise) == Checkpoint()
    assert isinstance(decode_checkpoint(whole[:index] + noise + whole[index + len(noise) :]), Checkpoint)


def test_operations_that_the_plugin_sampled_are_those_with_the_lowest_lots(
    tmp_path: Path, plugin_library: Path
) -> None:
    about = {"LOCKSTEP_DETAIL": "steps", "LOCKSTEP_SAMPLE": "0.25", "LOCKSTEP_BUDGET": "0"}
    with recording(plugin_library, tmp_path, count="301", **about) as job:
        do_more(job)
        (path,) = tmp_path.glob("*.ring")
        with open_ring(path) as ring:
            reading = take_reading(ring)
    history = CommunicatorHistory()
    history.update(reading.communicators)
    records = reading.records.sorted.enqueued
    whose = np.zeros(len(records), np.int64)
    members, found = HostCommunicators([history]).members_at(whose, records["comm"], records["ticks"])
    assert found.all()
    known = learn_operations(records, members, reading.clock.to_unix_ns(records["ticks"]), 0)
    sampled = (known["flags"] & wire.FLAG_SAMPLED) != 0
    assert len(known) > 300
    assert 0.1 < sampled.mean() < 0.4
    assert (sampled == (lot_of(known) < WHOLE_SHARE // 4)).all()
