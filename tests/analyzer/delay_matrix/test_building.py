"""A slow pair stands out of the matrix; what only looks slow does not."""

from typing import Any

import numpy as np
import pytest

from analyzer.delay_matrix.building import build_matrix, find_starved
from analyzer.delay_matrix.judging import PairOptions
from analyzer.delay_matrix.matrix import PairMemory
from tests.analyzer.delay_matrix.build import (
    MS,
    STEP_BYTES,
    Hop,
    context,
    fabric,
    facts,
    hot_hosts,
    look_at,
    mesh,
    remember,
    ring,
    slow,
    step,
    usual,
    wait,
    waits,
)
from tests.builders import T0

SLOW: Hop = (2, 3)
ALL = 1_000_000_000 // STEP_BYTES  # steps that carry what a pair carries in an evaluation


def test_healthy_wires_are_compared_and_none_is_slow() -> None:
    matrix = look_at(facts(waits(ring())))
    assert matrix is not None
    assert len(matrix.pairs) == 32
    assert not matrix.slow.any()
    assert np.allclose(matrix.ratio, 1.0, atol=0.05)


def test_wire_that_takes_twice_as_long_is_slow_and_by_how_much() -> None:
    matrix = look_at(facts(waits(ring(), slow([SLOW], 2.0))))
    assert matrix is not None
    assert hot_hosts(matrix) == {SLOW}
    assert matrix.ratio[matrix.slow] == pytest.approx(np.full(4, 2.0), rel=0.05)
    assert matrix.transports == {"ib"}


def test_wire_knows_its_nics_and_gpus() -> None:
    matrix = look_at(facts(waits(ring())))
    assert matrix is not None
    pair = next(pair for pair in matrix.pairs if str(pair) == "h2/eth1--h3/eth1")
    assert (pair.src_gpu, pair.dst_gpu, pair.path) == (3, 3, None)


def test_receiver_that_told_nothing_is_placed_by_its_communicator() -> None:
    rows = waits(ring(), slow([SLOW], 2.0), dst_host="", dst_nic=None)
    assert hot_hosts(look_at(facts(rows))) == {SLOW}


def test_wires_inside_one_host_never_enter() -> None:
    inside = [wait((0, 1), 50.0, dst_host="h0")]
    assert hot_hosts(look_at(facts(waits(ring()) + inside))) == set()


@pytest.mark.parametrize("hosts", [2, 4])
def test_few_wires_are_judged_when_nobody_can_miss_it(hosts: int) -> None:
    plain = [wait(hop, usual(hop)) for hop in ring(hosts)]
    bad = [wait(hop, 5.0 if hop == (1, 0) or hop == (1, 2) else 1.0) for hop in ring(hosts)]
    assert hot_hosts(look_at(facts(plain))) == set()
    assert len(hot_hosts(look_at(facts(bad)))) == 1


def test_few_wires_that_differ_by_half_are_left_alone() -> None:
    assert hot_hosts(look_at(facts([wait(hop, 1.5 if hop == (0, 1) else 1.0) for hop in ring(4)]))) == set()


def test_single_wire_has_nobody_to_be_held_against() -> None:
    assert look_at(facts([wait((0, 1), 9.0)])) is None


def test_wires_that_were_always_unequal_are_not_slow() -> None:
    unequal = facts(waits(ring(), lambda hop: usual(hop) * (1.0, 1.3, 1.6, 2.0)[hop[0] % 4]))
    matrix, _ = build_matrix(unequal, remember(unequal), context(), PairOptions())
    assert hot_hosts(matrix) == set()


def test_change_of_one_of_unequal_wires_counts() -> None:
    def unequal(hop: Hop) -> float:
        return usual(hop) * (1.0, 1.3, 1.6, 2.0)[hop[0] % 4]

    before = facts(waits(ring(), unequal))
    after = facts(waits(ring(), lambda hop: unequal(hop) * (2.0 if hop == SLOW else 1.0)))
    assert hot_hosts(look_at(after, remember(before))) == {SLOW}


def test_everybody_at_once_is_no_slow_wire() -> None:
    after = facts(waits(ring(), lambda hop: 3 * usual(hop)))
    assert hot_hosts(look_at(after, remember(facts(waits(ring()))))) == set()


def test_slow_wire_is_not_learnt_as_usual() -> None:
    bad = facts(waits(ring(), slow([SLOW], 2.0)))
    memory = remember(facts(waits(ring())))
    for look in range(30):
        matrix, memory = build_matrix(bad, memory, context(look=look), PairOptions())
    assert hot_hosts(matrix) == {SLOW}


def test_fault_from_the_first_second_is_held_against_peers_for_good() -> None:
    bad = facts(waits(ring(), slow([SLOW], 2.0)))
    assert hot_hosts(look_at(bad, remember(bad, evaluations=20))) == {SLOW}


def test_large_operations_alone_are_enough() -> None:
    small = waits(ring(), size_class=10, bytes=1_000_000, wire_ns=80_000)
    large = waits(ring(), slow([SLOW], 3.0))
    assert hot_hosts(look_at(facts(small + large))) == {SLOW}


def test_sizes_of_operation_are_not_compared_with_each_other() -> None:
    small = [wait(hop, 8.0, size_class=10) for hop in ring()[:4]]
    assert hot_hosts(look_at(facts(waits(ring()) + small))) == set()


def test_what_costs_nothing_is_not_worth_a_word() -> None:
    rows = [wait(hop, 1.0, bytes=1_000_000, wire_ns=800_000 if hop == SLOW else 80_000) for hop in mesh()]
    assert hot_hosts(look_at(facts(rows))) == set()


def test_wire_that_shares_its_link_with_others_may_take_longer() -> None:
    def way(hop: Hop) -> list[str]:
        spine = "spine0" if hop in ((0, 2), (0, 4)) else f"spine{hop[0]}{hop[1]}"
        return [f"h{hop[0]}/eth0--leaf", f"leaf--{spine}", f"h{hop[1]}/eth0--leaf{hop[1]}"]

    hops = [(src, (src + by) % 8) for src in range(8) for by in (2, 4)]
    rows = [wait(hop, 2.0 if hop in ((0, 2), (0, 4)) else 1.0, sport=hop[0] * 10 + hop[1]) for hop in hops]
    paths = [
        {
            "src_host": f"h{hop[0]}",
            "src_nic": "eth0",
            "dst_host": f"h{hop[1]}",
            "far_nic": "eth0",
            "sport": hop[0] * 10 + hop[1],
            "route": [f"{link}-{hop[0]}-{hop[1]}" if "spine0" not in link else link for link in way(hop)],
        }
        for hop in hops
    ]
    assert hot_hosts(look_at(facts(rows))) == {(0, 2), (0, 4)}
    with_paths = look_at(facts(rows, paths=paths))
    assert hot_hosts(with_paths) == set()
    assert with_paths is not None
    assert all(pair.path for pair in with_paths.pairs)


def test_no_wire_is_slow_that_its_link_allows() -> None:
    rows = waits(ring(), lambda hop: 0.5 if hop == SLOW else 0.1, transport="socket")
    fast, _ = build_matrix(facts(rows), PairMemory(), context(fabric()), PairOptions())
    assert hot_hosts(look_at(facts(rows))) == {SLOW}
    assert hot_hosts(fast) == set()


class TestSockets:
    """A wire time that ends when the kernel took the bytes."""

    def test_receiver_that_does_not_consume_is_no_slow_wire(self) -> None:
        held = 2 * 80_000_000
        rows = [
            {**row, "recv_gpu_ns": held, "wire_ns": row["wire_ns"] + held} if row["dst_rank"] == 5 else row
            for row in waits(ring(), transport="socket")
        ]
        assert hot_hosts(look_at(facts(rows))) == set()

    def test_receiver_that_says_nothing_may_be_what_bytes_wait_for(self) -> None:
        rows = waits(ring(), slow([SLOW], 3.0), transport="socket")
        assert hot_hosts(look_at(facts(rows))) == {SLOW}
        missing = [{**row, "recv_gpu_ns": None} if row["dst_rank"] == SLOW[1] else row for row in rows]
        assert hot_hosts(look_at(facts(missing))) == set()

    def test_receiver_that_began_later_than_its_sender_is_no_slow_wire(self) -> None:
        rows = waits(ring(), slow([SLOW], 3.0), transport="socket")
        late = [step(SLOW, 0.0, channel=channel, absent_ns=0.02 * 80 * MS) for channel in range(4)]
        assert hot_hosts(look_at(facts(rows, lags=late))) == set()

    def test_end_of_transfers_shows_what_the_buffer_hides(self) -> None:
        rows = [wait(hop, 1.0, transport="socket") for hop in ring()]
        lags = [step(hop, 100 * MS if hop == SLOW else 5 * MS, steps=8, bytes=8 * STEP_BYTES) for hop in ring()]
        assert hot_hosts(look_at(facts(rows, lags=lags))) == {SLOW}

    def test_receives_that_end_together_tell_by_their_steps_alone(self) -> None:
        """Two senders of one channel: the ends of both come late, the steps of one."""
        hops = [(sender, receiver) for receiver in range(4) for sender in range(4) if sender != receiver]
        rows = [wait(hop, 1.0, transport="socket", func="Send") for hop in hops]
        late = [step(hop, 100 * MS if hop[1] == 2 else 5 * MS, func="Send") for hop in hops]
        watched = [step(hop, 100 * MS if hop == (1, 2) else 0.2 * MS, func="Send") for hop in hops]
        assert hot_hosts(look_at(facts(rows, steps=watched, lags=late))) == {(1, 2)}
        assert hot_hosts(look_at(facts(rows, lags=late))) == {(0, 2), (1, 2), (3, 2)}, "nothing better is known"

    def test_wires_that_only_follow_a_slow_one_of_their_ring_are_left_out(self) -> None:
        rows = [
            wait(hop, {SLOW: 12.0}.get(hop, 2.0) if channel == 0 else usual(hop), channel=channel, transport="socket")
            for hop in ring()
            for channel in range(4)
        ]
        assert hot_hosts(look_at(facts(rows))) == {SLOW}

    def test_transit_shows_what_the_buffer_hides(self) -> None:
        rows = [wait(hop, 1.0, transport="socket") for hop in ring(4)]
        steps = [step(hop, 20 * MS if hop == SLOW else 0.08 * MS) for hop in ring(4)]
        assert hot_hosts(look_at(facts(rows, steps))) == {SLOW}

    def test_small_delay_beside_a_large_one_is_acknowledgements(self) -> None:
        rows = [wait(hop, 1.0, transport="socket") for hop in ring(4)]
        steps = [step(hop, {SLOW: 20 * MS, (1, 2): 2 * MS}.get(hop, 0.08 * MS)) for hop in ring(4)]
        assert hot_hosts(look_at(facts(rows, steps))) == {SLOW}

    def test_delay_that_a_waking_thread_explains_is_not_the_wire(self) -> None:
        rows = [wait(hop, 1.0, transport="socket") for hop in ring()]
        steps = [step(hop, 0.25 * MS if hop == SLOW else 0.02 * MS) for hop in ring()]
        assert hot_hosts(look_at(facts(rows, steps))) == set()

    @pytest.mark.parametrize("told_ns", [None, 10.0 * MS, 0.05 * MS])
    def test_clock_that_is_ahead_makes_no_slow_wire(self, told_ns: float | None) -> None:
        """Host 3 is 10 ms ahead, told or not: what it gets seems late, what it sends arrives before it left."""
        rows = [wait(hop, 1.0, transport="socket") for hop in ring()]
        steps = [step(hop, {(2, 3): 10 * MS, (3, 4): -10 * MS}.get(hop, 0.08 * MS)) for hop in ring()]
        assert hot_hosts(look_at(facts(rows, steps, clock_error_ns=told_ns))) == set()

    def test_transit_beyond_what_clocks_can_be_off_counts(self) -> None:
        rows = [wait(hop, 1.0, transport="socket") for hop in ring()]
        steps = [step(hop, 60 * MS if hop == SLOW else 0.08 * MS) for hop in ring()]
        assert hot_hosts(look_at(facts(rows, steps, clock_error_ns=10 * MS))) == {SLOW}

    def test_waits_during_which_nothing_is_on_the_wire_are_not_its_own(self) -> None:
        rows = [wait(hop, 5.0 if hop == SLOW else 1.0, transport="socket") for hop in ring()]
        watched = [step(hop, 0.08 * MS, n=ALL) for hop in ring()]
        assert hot_hosts(look_at(facts(rows))) == {SLOW}
        assert hot_hosts(look_at(facts(rows, watched))) == set()

    @pytest.mark.parametrize("blurred", [{"newest_ns": T0 - 1}, {"least_ns": -MS}, {"n": ALL // 64}])
    def test_wires_that_were_not_watched_well_keep_their_waits(self, blurred: dict[str, int]) -> None:
        """Not in this evaluation, by clocks that are a millisecond off, or one operation in many."""
        rows = [wait(hop, 5.0 if hop == SLOW else 1.0, transport="socket") for hop in ring()]
        watched = [step(hop, 0.08 * MS, **{"n": ALL, **blurred}) for hop in ring()]
        assert hot_hosts(look_at(facts(rows, watched))) == {SLOW}

    def test_waits_that_swing_as_they_are_must_be_longer_than_that(self) -> None:
        def held(hop: Hop) -> int:
            return 80 * MS * (hop[0] % 4)

        def waited(hop: Hop, swing: bool) -> dict[str, Any]:
            net = round(80 * MS * usual(hop) * (2.5 if hop == SLOW else 1.0))
            return wait(hop, wire_ns=net + held(hop) * swing, recv_gpu_ns=held(hop) * swing, transport="socket")

        assert hot_hosts(look_at(facts([waited(hop, swing=False) for hop in ring()]))) == {SLOW}
        assert hot_hosts(look_at(facts([waited(hop, swing=True) for hop in ring()]))) == set()

    def test_few_operations_may_all_have_met_a_sleeping_thread(self) -> None:
        rows = [wait(hop, 1.0, transport="socket") for hop in ring()]
        watched = [step(hop, 1.2 * MS if hop == SLOW else 0.08 * MS) for hop in ring()]
        assert hot_hosts(look_at(facts(rows, watched))) == {SLOW}
        assert hot_hosts(look_at(facts(rows, [{**row, "n": 2} for row in watched]))) == set()

    def test_bytes_of_one_function_do_not_lead_those_of_another(self) -> None:
        """A slow receiving NIC is shared unevenly, and what small steps cost per byte is not what large ones do."""
        rows = [wait(hop, 1.0, transport="socket") for hop in mesh()]
        rings = [step(hop, 40 * MS if hop == SLOW else 0.08 * MS, bytes=STEP_BYTES // 4) for hop in ring()]
        pairs = [step(hop, 8 * MS if hop[1] == SLOW[1] else 0.08 * MS, func="Send") for hop in mesh()]
        into = {hop for hop in mesh() if hop[1] == SLOW[1]}
        assert hot_hosts(look_at(facts(rows, rings + pairs))) == into


class TestStarvedHosts:
    """A proxy thread without a core sees late what the network has long done."""

    def test_host_whose_flushes_take_long_is_starved(self) -> None:
        flushes = [
            {"host": f"h{host}", "step_flush_ns": 2e6 if host == 2 else 5e3, "flushed": 100} for host in range(8)
        ]
        matrix = look_at(facts(waits(ring()), flushes=flushes))
        assert matrix is not None
        assert matrix.starved == {"h2"}

    def test_hosts_that_are_all_alike_are_not(self) -> None:
        flushes = [{"host": f"h{host}", "step_flush_ns": 4e5 + host, "flushed": 100} for host in range(8)]
        assert find_starved(facts(flushes=flushes).flushes, PairOptions()) == frozenset()


class TestOddInput:
    """Silence, never a crash or a guess."""

    def test_nothing_at_all(self) -> None:
        assert look_at(facts()) is None

    def test_zeros_and_nulls_are_left_out(self) -> None:
        odd = [wait((0, 1), bytes=0), wait((1, 2), wire_ns=0), wait((2, 3), wire_ns=None, recv_gpu_ns=None)]
        assert hot_hosts(look_at(facts(waits(ring()) + odd))) == set()

    def test_duplicated_and_reordered_rows_change_nothing(self) -> None:
        rows = waits(ring(), slow([SLOW], 2.0))
        assert hot_hosts(look_at(facts(rows[::-1] + rows))) == {SLOW}

    def test_unknown_communicators_without_hosts_are_left_out(self) -> None:
        stray = [wait((0, 1), 9.0, comm=5, dst_host="")]
        assert hot_hosts(look_at(facts(waits(ring()) + stray))) == set()

    def test_unknown_nics_stop_at_the_host(self) -> None:
        matrix = look_at(facts(waits(ring(), slow([SLOW], 2.0), src_nic=None, dst_nic=None)))
        assert hot_hosts(matrix) == {SLOW}
        assert matrix is not None
        assert {str(matrix.pairs[index]) for index in np.flatnonzero(matrix.slow)} == {"h2--h3"}


class TestInvariants:
    """What must not matter does not."""

    def test_scaling_all_times_changes_no_verdict(self) -> None:
        for times in (0.5, 3.0, 20.0):
            seen = facts(waits(ring(), lambda hop: times * slow([SLOW], 2.0)(hop)))  # noqa: B023 - called at once
            assert hot_hosts(look_at(seen)) == {SLOW}

    def test_more_healthy_wires_create_no_slow_one(self) -> None:
        assert hot_hosts(look_at(facts(waits(mesh())))) == set()
        assert hot_hosts(look_at(facts(waits(ring(), slow([SLOW], 2.0)) + waits(mesh(), channel=9)))) <= {SLOW}

    def test_healing_the_culprit_clears_it_at_once(self) -> None:
        memory = remember(facts(waits(ring())))
        _, memory = build_matrix(facts(waits(ring(), slow([SLOW], 3.0))), memory, context(), PairOptions())
        assert hot_hosts(look_at(facts(waits(ring())), memory)) == set()

    def test_two_slow_wires_of_different_strength_are_both_named(self) -> None:
        def both(hop: Hop) -> float:
            return usual(hop) * {SLOW: 4.0, (5, 6): 1.6}.get(hop, 1.0)

        assert hot_hosts(look_at(facts(waits(ring(), both)))) == {SLOW, (5, 6)}
