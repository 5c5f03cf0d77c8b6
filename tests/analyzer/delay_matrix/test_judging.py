"""Medians and spreads hold against what a third of all pairs may do."""

from typing import Any

import numpy as np
import pytest

from analyzer.delay_matrix.delays import Delays, PairOptions, median_of
from analyzer.delay_matrix.inner import judge_inner
from analyzer.delay_matrix.judging import Score, judge_delays
from analyzer.delay_matrix.matrix import InnerMatrix, PairMemory, Past
from tests.analyzer.delay_matrix.build import (
    HOSTS,
    MS,
    Hop,
    context,
    facts,
    hot_hosts,
    inner,
    look_at,
    ring,
    wait,
    waits,
)

SLOW: Hop = (2, 3)


def judged(
    ns_per_byte: np.ndarray,
    past: np.ndarray | None = None,
    swing: float = 0.0,
    operations: float | np.ndarray = 100.0,
    kind: int | np.ndarray = 0,
    crowd: float | np.ndarray = 1.0,
    flows: float | np.ndarray = 1.0,
    least: float | np.ndarray = 0.0,
    error: np.ndarray | None = None,
    follows: bool = False,
    sharers: float | np.ndarray = 1.0,
    taken_off: float | np.ndarray = 0.0,
) -> Score:
    """Return the judgement of one row per wire, all of one kind on InfiniBand, or else on sockets."""
    count = len(ns_per_byte)
    alike = {"kind": kind, "operations": operations, "bytes": 1e9, "least": least, "sharers": sharers, "crowd": crowd}
    alike |= {
        "flows": flows,
        "ring": 0,
        "rivals": 0,
        "follows": follows,
        "is_net": False,
        "decides": False,
        "is_new": True,
    }
    delays = Delays(
        **{name: np.full(count, value) for name, value in alike.items()},
        **{name: np.arange(count) for name in ("index", "operation")},
        kind_key=np.zeros(count, np.uint64),
        key=np.arange(count).astype(np.uint64),
        error=0.1 / np.sqrt(operations) * ns_per_byte if error is None else error,
        ns_per_byte=ns_per_byte,
        raw_ns_per_byte=ns_per_byte + taken_off,
    )
    known = Past(np.full(count, np.nan) if past is None else np.log(past), np.full(count, swing))
    return judge_delays(delays, known, count, 5_000_000_000, PairOptions())


def noisy(count: int, spread: float) -> np.ndarray:
    result: np.ndarray = np.exp(np.random.default_rng(5).normal(0, spread, count))
    return result


def test_of_a_few_operations_that_happen_to_agree_nothing_follows() -> None:
    delay = np.ones(16)
    delay[3] = 3.0
    named = [bool(judged(delay, operations=times).slow.any()) for times in (1, 2, 6, 100)]
    assert named == [False, True, True, True]
    differ = 0.7 / np.sqrt(2) * delay
    differ[3] = 0.01
    assert not judged(delay, operations=2, error=differ).slow.any(), "those of all others do not agree"
    assert not judged(delay[2:4], operations=2).slow.any(), "nobody knows how much single ones differ"


def test_in_the_middle_of_a_tree_a_byte_takes_longer_until_the_past_says_otherwise() -> None:
    delay, crowd = np.ones(16), np.ones(16)
    delay[3], crowd[3] = 1.5, 1.5
    found = [judged(delay, past, crowd=of).slow[3] for past in (None, np.ones(16)) for of in (1.0, crowd)]
    assert [bool(slow) for slow in found] == [True, False, True, True]


def test_what_is_held_against_its_link_alone_shares_it_with_all_that_its_end_carries() -> None:
    """A tree over sockets: most of what is sent waits for nothing, and in the middle five flows leave one NIC."""
    delay, flows = np.full(16, 0.1), np.ones(16)
    delay[3], flows[3] = 5.2, 5.0
    assert judged(delay, least=1.0, follows=True).slow[3]
    assert not judged(delay, least=1.0, follows=True, flows=flows).slow.any()
    delay[3] = 20.0
    assert judged(delay, least=1.0, follows=True, flows=flows).slow.nonzero()[0].tolist() == [3]


def test_where_pairs_are_unequal_by_nature_none_is_slow_for_being_the_slowest() -> None:
    shares = np.repeat([0.5, 1.0, 1.5], [9, 17, 6])
    assert not judged(shares).slow.any()
    assert judged(np.maximum(shares, 1.0)).slow.any(), "a slow NIC among equals"


def test_pairs_that_share_links_with_fewer_others_hide_no_slow_one() -> None:
    delay = np.repeat([0.5, 1.0, 3.0], [8, 20, 4])
    sharers = np.repeat([1.0, 2.0, 2.0], [8, 20, 4])
    assert not judged(delay).slow.any(), "nobody knows why a quarter is twice as fast"
    score = judged(delay, sharers=sharers)
    assert score.slow.nonzero()[0].tolist() == [28, 29, 30, 31]
    crowded = judged(np.repeat([1.0, 2.0], [20, 4]), sharers=np.repeat([1.0, 2.0], [20, 4]))
    assert not crowded.slow.any()
    assert crowded.shared[-1] == 2.0


def test_pair_of_whose_wait_little_was_left_is_not_fast_by_nature() -> None:
    """Before a sender that is slow everything waits for its receiver, which is taken off."""
    now, taken_off = np.array([1.0, 1.0, 0.4, 2.3]), np.array([0.0, 0.0, 0.6, 0.0])
    assert np.flatnonzero(judged(now, follows=True, taken_off=taken_off).slow).tolist() == [3]
    assert not judged(now, follows=True).slow.any()


def test_pair_that_is_slower_by_nature_is_learnt_and_one_that_stands_out_is_not() -> None:
    unequal = judged(np.repeat([0.5, 1.0, 2.0], [6, 10, 8]))
    assert not unequal.slow.any()
    assert not unequal.wary.any()
    assert judged(np.repeat([1.0, 2.0], [16, 1])).wary.nonzero()[0].tolist() == [16]


def test_wires_that_are_as_fast_as_their_links_show_that_the_ring_is_as_before() -> None:
    """On sockets they are never learnt; alone with a past, a slow wire would be a change of all."""
    now, past = np.array([4.0] + [1.0] * 15), np.array([2.0] + [np.nan] * 15)
    score = judged(now, past, least=1.0, follows=True)
    assert np.flatnonzero(score.slow).tolist() == [0]
    assert score.has_past[0]


def test_wires_of_a_kind_of_which_nothing_was_learnt_show_no_ring_that_is_as_before() -> None:
    """What is learnt has become four times as fast but for one, as when samples begin to come in larger pieces."""
    now, past = np.array([2.0, *[0.5] * 7, *[1.0] * 12]), np.array([*[2.0] * 8, *[np.nan] * 12])
    least, kind = np.repeat([0.1, 1.0], [8, 12]), np.repeat([0, 1], [8, 12])
    assert np.flatnonzero(judged(now, past, least=least, kind=kind, follows=True).slow).tolist() == [0]


@pytest.mark.parametrize(("follows", "expected"), [(False, [0]), (True, [])])
def test_of_few_acknowledged_pairs_a_quiet_past_is_enough(follows: bool, expected: list[int]) -> None:
    """Over sockets a slow pair moves the few others, so that less follows from what it does itself."""
    delay = np.array([1.42, 1.0, 1.01, 0.99])
    assert judged(delay, past=np.ones(4), follows=follows).slow.nonzero()[0].tolist() == expected
    assert not judged(delay, follows=follows).slow.any(), "without a past they may be unequal by nature"


@pytest.mark.parametrize(("untouched", "expected"), [(2, 6), (0, 0)])
def test_most_pairs_may_be_slow_where_some_show_that_the_traffic_is_as_before(untouched: int, expected: int) -> None:
    delay = np.repeat([3.0, 1.0], [8 - untouched, untouched])
    assert judged(delay, past=np.ones(8)).slow.nonzero()[0].tolist() == list(range(expected))
    assert not judged(delay, past=np.ones(8), follows=True).slow.any(), "a ring of sockets waits as a whole"


def test_traffic_of_another_kind_of_which_little_is_known_hides_no_slow_wire() -> None:
    """As in a job that sums its gradients over a ring, and now and then four bytes over a tree."""
    delay = np.ones(12)
    delay[3] = 8.0
    kind, operations = np.repeat([0, 1], 6), np.repeat([40.0, 2.0], 6)
    assert judged(delay, operations=operations, kind=kind).slow.nonzero()[0].tolist() == [3]


def test_noise_of_wires_that_are_hardly_busy_hides_no_slow_one() -> None:
    """They are busy for microseconds, twice as long at times, where threads need three times that to wake up."""
    delay, error = np.full(16, 0.2), np.full(16, 0.2)
    delay[3], error[3] = 18.0, 2.0
    assert judged(delay, operations=4, least=3.0, error=error).slow.nonzero()[0].tolist() == [3]
    assert not judged(delay, operations=4, least=3.0, error=np.where(delay > 1, 12.0, error)).slow.any()


@pytest.mark.parametrize("spread", [0.01, 0.05, 0.2, 0.5])
def test_noise_alone_is_never_slow(spread: float) -> None:
    assert not judged(noisy(4096, spread)).slow.any()


def test_wires_must_exceed_the_noise_and_their_own_swing() -> None:
    delay = np.ones(64)
    delay[7] = 1.6
    assert judged(delay, past=np.ones(64)).slow.nonzero()[0].tolist() == [7]
    assert not judged(delay, past=np.ones(64), swing=0.1).slow.any()
    delay = noisy(300, 0.03)
    delay[:40] *= 2
    delay[200:] *= np.linspace(0.1, 0.9, 100)
    assert set(range(40)) <= set(judged(delay, past=np.ones(300)).slow.nonzero()[0].tolist())
    past = np.ones(64)
    past[7] = 0.4
    assert not judged(noisy(64, 0.02), past=past).slow.any()
    delay = noisy(300, 0.03)
    delay[:100] *= 2
    assert judged(delay).slow.nonzero()[0].tolist() == list(range(100))
    assert not judged(noisy(4096, 0.1), past=np.ones(4096)).slow.any()


def test_wires_without_rows_are_unknown_and_medians_are_the_lower_ones_of_each_group() -> None:
    score = judged(np.ones(8))
    assert np.isfinite(score.ratio).all()
    assert not judged(np.zeros(0)).slow.any()
    assert median_of(np.array([1.0, 9.0, 5.0, 7.0]), np.array([4, 4, 2, 2])).tolist() == [1.0, 1.0, 5.0, 5.0]


def judge(*slow: int, times: float = 5.0, hosts: int = HOSTS) -> InnerMatrix | None:
    rows = [inner(host, (2 + 0.01 * (host % 3)) * MS * (times if host in slow else 1.0)) for host in range(hosts)]
    return judge_inner(facts(inner=rows).inner, PairMemory(), context(), PairOptions())[0]


def test_group_that_takes_longer_than_others_of_its_size_is_slow() -> None:
    matrix, healthy = judge(5), judge()
    assert matrix is not None
    assert healthy is not None
    assert ([matrix.groups[index].host for index in np.flatnonzero(matrix.slow)], matrix.ratio[5] > 4.5) == (
        ["h5"],
        True,
    )
    assert not healthy.slow.any()
    assert judge(hosts=1) is None
    rows = [inner(host, 2 * MS) for host in range(HOSTS)] + [inner(20, 9 * MS, ranks=4)]
    smaller, _ = judge_inner(facts(inner=rows).inner, PairMemory(), context(), PairOptions())
    assert smaller is not None
    assert not smaller.slow.any()


@pytest.mark.parametrize("wires", [waits(ring()), []])
def test_matrix_carries_what_is_inside_hosts_also_without_wires(wires: list[dict[str, Any]]) -> None:
    matrix = look_at(facts(wires, inner=[inner(host, (10 if host == 3 else 2) * MS) for host in range(HOSTS)]))
    assert matrix is not None
    assert matrix.inner is not None
    assert (len(matrix.pairs), matrix.inner.slow.tolist()) == (len(wires), [host == 3 for host in range(HOSTS)])


def test_one_operation_accuses_nobody_and_channels_of_it_are_no_second_one() -> None:
    """A single transfer of 32 bytes that met a sleeping thread once made three wires of a healthy pipeline slow."""
    usual = [wait(hop, 1.0, func="Send", size_class=5, n=40, operations=40) for hop in ring()]
    for channels in (1, 2):
        hiccup = {"func": "Send", "size_class": 5, "n": 1, "operations": 1, "error_ns": None, "bytes": 32}
        odd = [wait(SLOW, 1.0, wire_ns=50 * MS, channel=9 + channel, **hiccup) for channel in range(channels)]
        rest = [row for row in usual if (row["src_rank"], row["dst_rank"]) != SLOW]
        matrix = look_at(facts(rest + odd))
        assert matrix is not None
        assert not matrix.slow.any()
        assert matrix.operations[[str(pair) for pair in matrix.pairs].index("h2/eth0--h3/eth0")] == 1


@pytest.mark.parametrize(("error", "is_slow"), [(0.02, True), (0.9, False)])
def test_wire_whose_delay_rests_on_one_outlier_is_not_slow(error: float, is_slow: bool) -> None:
    """Five seconds of traffic: three times the usual in each, or all of it in one of them."""
    rows = [wait(hop, 3.0 if hop == SLOW else 1.0) for hop in ring()]
    rows = [row | {"error_ns": error * row["wire_ns"]} if row["src_rank"] == SLOW[0] else row for row in rows]
    assert hot_hosts(look_at(facts(rows))) == ({SLOW} if is_slow else set())
