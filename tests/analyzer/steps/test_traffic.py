"""What is read of the traffic: a few ranks, what they did up to the end of the evaluation, each operation once."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from analyzer.steps.traffic import (
    WITNESSES,
    choose_witnesses,
    find_period_in_samples,
    find_period_in_seconds,
    read_operations,
    sort_witnesses,
)
from analyzer.windows.jobs import build_roster
from lockstep.clock import NS_PER_S
from lockstep.records import Collective, Comm, OpStat, Step
from lockstep.store.store import Store
from tests.analyzer.build import insert
from tests.analyzer.steps.jobs import look_at, members, roster
from tests.analyzer.steps.traffic import DDP, MEGATRON, MS, T0, Op, Rank
from tests.builders import SECOND, make, rows


def operation(rank: int, seq: int, at_s: float, **fields: object) -> Collective:
    begin = int(T0 + at_s * SECOND)
    usual = {"comm": 1, "enqueue_ns": begin, "start_ns": begin + 10, "end_ns": begin + 1000}
    return make(Collective, host=f"h{rank}", rank=rank, seq=seq, **{**usual, **fields})


def join(store: Store) -> None:
    insert(store, *(make(Comm, host=f"h{rank}", comm=1, rank=rank, nranks=2, world_rank=rank) for rank in (0, 1)))


def test_each_operation_up_to_the_end_is_read_once(store: Store) -> None:
    join(store)
    kept = [operation(rank, seq, 50 + seq) for rank in (0, 1) for seq in range(8)]
    later = operation(0, 8, 59.9, end_ns=T0 + 61 * SECOND)
    insert(store, *kept, kept[3], later, operation(0, 0, 55, attempt=1))
    witnesses = read_operations(store, look_at()).witnesses
    assert [(witness.process, witness.seq.tolist()) for witness in witnesses] == [(0, [*range(8)]), (1, [*range(8)])]


def test_operations_are_in_the_order_and_times_in_which_the_host_asked_where_the_gpu_tells_none(store: Store) -> None:
    join(store)
    unknown = operation(0, 3, 53.0, start_ns=None, end_ns=None, clock="none")
    later = operation(0, 1, 51.0, start_ns=T0 + 53 * SECOND)
    insert(store, unknown, later, operation(0, 2, 52.0), operation(0, 0, 50.0))
    (witness,) = read_operations(store, look_at()).witnesses
    assert witness.seq.tolist() == [0, 1, 2, 3]
    assert witness.start_ns[3] == witness.end_ns[3] == T0 + 53 * SECOND


def test_counts_are_read_where_there_are_no_operations(store: Store) -> None:
    join(store)
    insert(store, *(make(OpStat, host="h0", comm=1, ts_ns=T0 + second * SECOND, n=4) for second in range(50, 60)))
    facts = read_operations(store, look_at())
    assert facts.witnesses == ()
    assert facts.seconds is not None
    assert facts.seconds["n"].to_pylist() == [40]


def test_told_steps_are_read_and_found_ones_are_not(store: Store) -> None:
    join(store)
    reported = [
        make(Step, world_rank=rank, step=step, source=source, start_ns=begin_ns, end_ns=begin_ns + SECOND - rank)
        for source, steps in (("told", 3), ("period", 6))
        for step in range(steps)
        for begin_ns in [T0 + (50 + step) * SECOND]
        for rank in range(3)
    ]
    insert(store, *reported)
    facts = read_operations(store, look_at())
    assert facts.reported is not None
    assert facts.reported.to_pylist() == [
        {"step": step, "begin_ns": T0 + (50 + step) * SECOND, "length_ns": SECOND - 1} for step in range(3)
    ]


def test_nothing_known_is_read_as_nothing(store: Store) -> None:
    facts = read_operations(store, look_at())
    assert facts.witnesses == ()
    assert facts.reported is not None
    assert facts.reported.num_rows == 0
    nobody = replace(look_at(), roster=build_roster(members(1).slice(0, 0)))
    assert read_operations(store, nobody).witnesses == ()


@pytest.mark.parametrize("ranks", [1, 3, 8, 300])
def test_witnesses_are_few_and_spread(ranks: int) -> None:
    chosen = choose_witnesses(roster(ranks), frozenset())
    assert len(chosen) == len(set(chosen)) == min(ranks, WITNESSES)
    assert (chosen[0], chosen[-1]) == (0, ranks - 1)


def test_silent_hosts_are_no_witnesses() -> None:
    assert choose_witnesses(roster(4), frozenset({"h0", "h2"})) == [1, 3]
    assert choose_witnesses(roster(2), frozenset({"h0", "h1"})) == []


def test_witnesses_have_the_same_words_and_order_in_every_evaluation() -> None:
    whole = Rank().steps(DDP, 10).look()
    assert whole.since(17).words.tolist() == whole.words[17:].tolist()
    step = [Op(func=func, peer=peer, mb=mb) for func, peer in (("Send", 3), ("AllReduce", -1)) for mb in (1, 64)]
    words = Rank().steps(step).look().words.tolist()
    assert words[0] == words[1]
    assert len(set(words)) == 3
    sends = [operation(0, 0, 50.0, func="Send", peer=peer) for peer in range(6)]
    mixed = [sends[index] for index in (4, 0, 5, 2, 1, 3)]
    (one,), (other,) = (sort_witnesses(rows(*some), roster(2)) for some in (sends, mixed))
    assert one.peer.tolist() == other.peer.tolist()


@pytest.mark.parametrize(("step", "length_ms"), [(MEGATRON, 400), (DDP, 520), ((Op(300),), 330)])
@pytest.mark.parametrize("keep", [0.3, 0.6])
def test_sampled_operations_give_the_period(step: tuple[Op, ...], length_ms: int, keep: float) -> None:
    witness = Rank().steps(step, 150).look(keep)
    assert witness.is_sampled
    assert find_period_in_samples([witness]) == pytest.approx(length_ms * MS, rel=0.05)


def test_few_operations_give_the_period_where_kinds_differ_in_how_often_they_come() -> None:
    assert find_period_in_samples([Rank().steps(MEGATRON, 150).look(0.08)]) == pytest.approx(400 * MS, rel=0.1)
    assert find_period_in_samples([Rank().steps(DDP, 60).look(0.08)]) is None
    assert not Rank().steps(MEGATRON, 20).look().is_sampled
    assert find_period_in_samples([]) is None
    assert find_period_in_samples([Rank().steps(MEGATRON, 3).look()]) is None


def test_ranks_have_to_agree() -> None:
    one, other = (Rank().steps(step, 150).look(0.5) for step in (MEGATRON, DDP))
    assert find_period_in_samples([one, other]) is None
    assert find_period_in_samples([one, one, other]) == pytest.approx(400 * MS, rel=0.05)


def seconds(*kinds: tuple[int, int]) -> pa.Table:
    """Return counts of some kinds of operations, each with the seconds over which it was seen."""
    counts, spans = zip(*kinds, strict=True) if kinds else ((), ())
    last = [(span - 1) * NS_PER_S for span in spans]
    return pa.table(
        {
            "n": pa.array(counts, pa.uint64()),
            "first_ns": pa.array(np.zeros(len(last), np.int64)),
            "last_ns": pa.array(last, pa.int64()),
        }
    )


def test_counts_per_second_give_the_period_of_the_rarest_operation() -> None:
    assert find_period_in_seconds(seconds((480, 60), (120, 60), (9, 3))) == NS_PER_S // 2
    assert find_period_in_seconds(seconds()) is None
    assert find_period_in_seconds(seconds((3, 60))) is None


def test_young_job_with_long_steps_has_a_period_once_its_rarest_operation_came_round() -> None:
    """Of what came three times a minute apart nobody knows whether it is in each step; evaluations are far rarer."""
    assert find_period_in_seconds(seconds((4, 61))) == 20 * NS_PER_S
    assert find_period_in_seconds(seconds((4, 61), (1, 1))) is None
    assert find_period_in_seconds(seconds((6, 61), (3, 51))) is None
    assert find_period_in_seconds(seconds((8, 81), (4, 61))) == 20 * NS_PER_S
    assert find_period_in_seconds(seconds((600, 60), (3, 50), (5, 55))) == NS_PER_S // 10
