"""A slow pair stands out of the matrix; what only looks slow does not."""

from typing import Any

import numpy as np
import pytest

from analyzer.delay_matrix.building import build_matrix
from analyzer.delay_matrix.delays import PairOptions
from analyzer.delay_matrix.matrix import PairMemory, SlowPair
from analyzer.delay_matrix.reading import PairFacts
from lockstep.fabrics import FabricOptions, leaf_spine
from lockstep.topology import TopologyIndex
from tests.analyzer.delay_matrix.build import (
    HOSTS,
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
from tests.builders import SECOND, T0

SLOW: Hop = (2, 3)
ALL = 1_000_000_000 // STEP_BYTES  # steps that carry what a pair carries in an evaluation


def test_healthy_wires_are_compared_know_their_ends_and_none_is_slow() -> None:
    matrix = look_at(facts(waits(ring())))
    assert matrix is not None
    assert len(matrix.pairs) == 32
    assert not matrix.slow.any()
    assert np.allclose(matrix.ratio, 1.0, atol=0.05)
    matrix = look_at(facts(waits(ring())))
    assert matrix is not None
    pair = next(pair for pair in matrix.pairs if str(pair) == "h2/eth1--h3/eth1")
    assert (pair.src_gpu, pair.dst_gpu, pair.path) == (3, 3, None)
    inside = [wait((0, 1), 50.0, dst_host="h0")]
    assert hot_hosts(look_at(facts(waits(ring()) + inside))) == set()
    assert look_at(facts([wait((0, 1), 9.0)])) is None


def test_wire_that_takes_twice_as_long_is_slow_and_by_how_much() -> None:
    matrix = look_at(facts(waits(ring(), slow([SLOW], 2.0))))
    assert matrix is not None
    assert hot_hosts(matrix) == {SLOW}
    assert matrix.ratio[matrix.slow] == pytest.approx(np.full(4, 2.0), rel=0.05)
    assert matrix.transports == {"ib"}
    rows = waits(ring(), slow([SLOW], 2.0), dst_host="", dst_nic=None)
    assert hot_hosts(look_at(facts(rows))) == {SLOW}


@pytest.mark.parametrize("hosts", [2, 4])
def test_few_wires_are_judged_when_nobody_can_miss_it(hosts: int) -> None:
    plain = [wait(hop, usual(hop)) for hop in ring(hosts)]
    bad = [wait(hop, 5.0 if hop == (1, 0) or hop == (1, 2) else 1.0) for hop in ring(hosts)]
    assert hot_hosts(look_at(facts(plain))) == set()
    assert len(hot_hosts(look_at(facts(bad)))) == 1


def test_few_wires_with_a_quiet_past_are_judged_sooner() -> None:
    bad = facts([wait(hop, usual(hop) * (1.7 if hop == (1, 2) else 1.0)) for hop in ring(4)])
    before = remember(facts([wait(hop, usual(hop)) for hop in ring(4)]))
    assert (hot_hosts(look_at(bad)), hot_hosts(look_at(bad, before))) == (set(), {(1, 2)})


def test_pair_at_the_edge_counts_beside_a_slow_one_and_nowhere_else() -> None:
    times = {(2, 3): 1.4, (3, 4): 1.22, (5, 6): 1.22}
    found = look_at(facts(waits(ring(), lambda hop: usual(hop) * times.get(hop, 1.0))))
    assert hot_hosts(found) == {(2, 3), (3, 4)}
    times[2, 3] = 4.0
    assert hot_hosts(look_at(facts(waits(ring(), lambda hop: usual(hop) * times.get(hop, 1.0))))) == {(2, 3)}


def test_wires_that_were_always_unequal_are_not_slow_unless_one_changes() -> None:
    def unequal(hop: Hop) -> float:
        return usual(hop) * (1.0, 1.3, 1.6, 2.0)[hop[0] % 4]

    before = remember(facts(waits(ring(), unequal)))
    assert hot_hosts(look_at(facts(waits(ring(), unequal)), before)) == set()
    after = facts(waits(ring(), lambda hop: unequal(hop) * (2.0 if hop == SLOW else 1.0)))
    assert hot_hosts(look_at(after, before)) == {SLOW}
    everybody = facts(waits(ring(), lambda hop: 3 * usual(hop)))
    assert hot_hosts(look_at(everybody, remember(facts(waits(ring()))))) == set()


def test_slow_wire_is_not_learnt_as_usual() -> None:
    bad = facts(waits(ring(), slow([SLOW], 2.0)))
    memory = remember(facts(waits(ring())))
    for look in range(30):
        matrix, memory = build_matrix(bad, memory, context(look=look), PairOptions())
    assert hot_hosts(matrix) == {SLOW}
    bad = facts(waits(ring(), slow([SLOW], 2.0)))
    assert hot_hosts(look_at(bad, remember(bad, evaluations=20))) == {SLOW}


def test_wire_that_becomes_slow_while_its_past_is_learnt_does_not_become_its_past() -> None:
    memory = PairMemory()
    for look, times in enumerate((1.0, 1.09, 1.18, 1.34, 1.43)):  # windows that hold more and more of the fault
        bad = facts(waits(ring(), slow([SLOW], times)))
        matrix, memory = build_matrix(bad, memory, context(look=look), PairOptions())
    assert hot_hosts(matrix) == {SLOW}


def test_operations_are_compared_by_size_and_by_what_they_cost() -> None:
    small = waits(ring(), size_class=10, bytes=1_000_000, wire_ns=80_000)
    large = waits(ring(), slow([SLOW], 3.0))
    assert hot_hosts(look_at(facts(small + large))) == {SLOW}
    small = [wait(hop, 8.0, size_class=10) for hop in ring()[:4]]
    assert hot_hosts(look_at(facts(waits(ring()) + small))) == set()
    rows = [wait(hop, 1.0, bytes=1_000_000, wire_ns=800_000 if hop == SLOW else 80_000) for hop in mesh()]
    assert hot_hosts(look_at(facts(rows))) == set()
    assert hot_hosts(look_at(facts([wait(hop, 1.5 if hop == (0, 1) else 1.0) for hop in ring(4)]))) == set()


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
    portless = look_at(facts([{**row, "sport": None} for row in rows], paths=[*paths, {**paths[0], "sport": 7}]))
    assert portless is not None
    assert portless.pairs == with_paths.pairs, "all ports between two ends go one way"


def test_host_that_receives_from_more_others_than_usual_may_take_longer() -> None:
    """As in the middle of a tree; what a pipeline sends, it sends one after the other."""
    into = [(5, 1), (7, 1), (9, 1)]
    rows = [wait(hop, 3.0 if hop[1] == 1 else 1.0) for hop in (*ring(16), *into)]
    assert hot_hosts(look_at(facts(rows))) == set()
    assert hot_hosts(look_at(facts([{**row, "func": "Send"} for row in rows]))) == {(0, 1), *into}


def test_no_wire_is_slow_that_its_link_allows() -> None:
    rows = waits(ring(), lambda hop: 0.5 if hop == SLOW else 0.1, transport="socket")
    fast, _ = build_matrix(facts(rows), PairMemory(), context(fabric()), PairOptions())
    assert hot_hosts(look_at(facts(rows))) == {SLOW}
    assert hot_hosts(fast) == set()
    by_uplinks = {}
    for gbps in (400.0, 100.0):
        fabric_of = TopologyIndex(leaf_spine(HOSTS, 4, HOSTS, 2, FabricOptions(gbps=400.0, uplink_gbps=gbps)))
        rows = waits(ring(), lambda hop: 1.0 if hop == SLOW else 0.1, transport="socket")  # 100 Gb/s
        matrix, _ = build_matrix(facts(rows), PairMemory(), context(fabric_of), PairOptions())
        by_uplinks[gbps] = hot_hosts(matrix)
    assert by_uplinks == {400.0: {SLOW}, 100.0: set()}


# A wire time of a socket ends when the kernel took the bytes.
EVEN = [wait(hop, 1.0, transport="socket") for hop in ring()]
FIVEFOLD = [wait(hop, 5.0 if hop == SLOW else 1.0, transport="socket") for hop in ring()]
THREEFOLD = waits(ring(), slow([SLOW], 3.0), transport="socket")
HELD_NS = 2 * 80 * MS
TURNS = [(sender, receiver) for receiver in range(4) for sender in range(4) if sender != receiver]
LATE_ENDS = [step(hop, 100 * MS if hop[1] == 2 else 5 * MS, func="Send") for hop in TURNS]
SENDS = [wait(hop, 1.0, transport="socket", func="Send") for hop in TURNS]


def took(ms: float, usual_ms: float = 0.08, **fields: Any) -> list[dict[str, Any]]:
    """Return the steps of a ring, of which those of the slow wire take so long."""
    return [step(hop, (ms if hop == SLOW else usual_ms) * MS, **fields) for hop in ring()]


SEEN: dict[str, tuple[PairFacts, set[Hop]]] = {
    "three times as long": (facts(THREEFOLD), {SLOW}),
    "receiver does not consume": (
        facts(
            {**row, "recv_gpu_ns": HELD_NS, "wire_ns": row["wire_ns"] + HELD_NS} if row["dst_rank"] == 5 else row
            for row in waits(ring(), transport="socket")
        ),
        set(),
    ),
    "receiver that says nothing may be what bytes wait for": (
        facts({**row, "recv_gpu_ns": None} if row["dst_rank"] == SLOW[1] else row for row in THREEFOLD),
        set(),
    ),
    "receiver began later than its sender": (
        facts(THREEFOLD, lags=[step(SLOW, 0.0, channel=channel, absent_ns=1.6 * MS) for channel in range(4)]),
        set(),
    ),
    "ends of transfers show what the buffer hides": (
        facts(EVEN, lags=took(100, 5, steps=8, bytes=8 * STEP_BYTES)),
        {SLOW},
    ),
    "ends of transfers that a waking thread makes late": (
        facts(EVEN, lags=took(0.35, 0.1, steps=8, bytes=8 * STEP_BYTES)),
        set(),
    ),
    "a thread wakes once for all steps under way": (
        facts(EVEN, lags=took(1.5, 0.1, steps=8, bytes=8 * STEP_BYTES)),
        {SLOW},
    ),
    "receives that end together tell by their steps alone": (
        facts(
            SENDS, [step(hop, 100 * MS if hop == (1, 2) else 0.2 * MS, func="Send") for hop in TURNS], lags=LATE_ENDS
        ),
        {(1, 2)},
    ),
    "receives that end together, and nothing better is known": (
        facts(SENDS, lags=LATE_ENDS),
        {(0, 2), (1, 2), (3, 2)},
    ),
    "wires that only follow a slow one of their ring": (
        facts(
            wait(hop, {SLOW: 12.0}.get(hop, 2.0) if channel == 0 else usual(hop), channel=channel, transport="socket")
            for hop in ring()
            for channel in range(4)
        ),
        {SLOW},
    ),
    "transit shows what the buffer hides": (facts(EVEN, took(20)), {SLOW}),
    "small delay beside a large one is acknowledgements": (
        facts(EVEN[:4], [step(hop, {SLOW: 20 * MS, (1, 2): 2 * MS}.get(hop, 0.08 * MS)) for hop in ring(4)]),
        {SLOW},
    ),
    "a waking thread explains it": (facts(EVEN, took(0.25, 0.02)), set()),
    "beyond what clocks can be off": (facts(EVEN, took(60), clock_error_ns=10 * MS), {SLOW}),
    "few operations may all have met a sleeping thread": (facts(EVEN, took(1.2, n=2)), set()),
    "many operations did not": (facts(EVEN, took(1.2)), {SLOW}),
    "long waits": (facts(FIVEFOLD), {SLOW}),
    "waits during which nothing is on the wire": (facts(FIVEFOLD, took(0.08, n=ALL)), set()),
    "not watched in this evaluation": (facts(FIVEFOLD, took(0.08, n=ALL, newest_ns=T0 - 1)), {SLOW}),
    "watched by clocks that are a millisecond off": (facts(FIVEFOLD, took(0.08, n=ALL, least_ns=-MS)), {SLOW}),
    "one operation in many watched": (facts(FIVEFOLD, took(0.08, n=ALL // 64)), {SLOW}),
}


@pytest.mark.parametrize("case", SEEN)
def test_socket_is_slow_where_the_wire_is_and_not_where_it_only_looks_so(case: str) -> None:
    seen, expected = SEEN[case]
    assert hot_hosts(look_at(seen)) == expected


@pytest.mark.parametrize(
    ("slowest_ms", "pace", "expected"), [(15, 400.0, {SLOW}), (15, 0.0, set()), (1, 400.0, set())]
)
def test_what_is_nothing_beside_a_whole_transfer_tells_nothing_of_noise(
    slowest_ms: float, pace: float, expected: set[Hop]
) -> None:
    """Of 0.1 s that a transfer takes up to 1 ms passes on a healthy wire, give or take half: in shares, anything."""

    def told(hop: Hop) -> dict[str, Any]:
        late_ms = slowest_ms if hop == SLOW else 0.3 * (hop[0] % 4)
        return step(hop, late_ms * MS, n=9, error_ns=0.5 * MS, pace=pace)

    assert hot_hosts(look_at(facts(EVEN, map(told, ring())))) == expected


@pytest.mark.parametrize("told_ns", [None, 10.0 * MS, 0.05 * MS])
def test_clock_that_is_ahead_makes_no_slow_wire(told_ns: float | None) -> None:
    """Host 3 is 10 ms ahead, told or not: what it gets seems late, what it sends arrives before it left."""
    steps = [step(hop, {(2, 3): 10 * MS, (3, 4): -10 * MS}.get(hop, 0.08 * MS)) for hop in ring()]
    assert hot_hosts(look_at(facts(EVEN, steps, clock_error_ns=told_ns))) == set()


@pytest.mark.parametrize(("swing", "expected"), [(0, {SLOW}), (1, set())])
def test_waits_that_swing_as_they_are_must_be_longer_than_that(swing: int, expected: set[Hop]) -> None:
    def waited(hop: Hop) -> dict[str, Any]:
        net, held = round(80 * MS * usual(hop) * (2.5 if hop == SLOW else 1.0)), 80 * MS * (hop[0] % 4) * swing
        return wait(hop, wire_ns=net + held, recv_gpu_ns=held, transport="socket")

    assert hot_hosts(look_at(facts(map(waited, ring())))) == expected


@pytest.mark.parametrize(("times", "expected"), [(8.0, {SLOW}), (2.5, set())])
def test_wait_of_which_most_is_left_needs_no_long_wait_as_it_is(times: float, expected: set[Hop]) -> None:
    """In a pipeline receivers hold up most of what others wait for, each in its own way."""

    def waited(hop: Hop) -> dict[str, Any]:
        held = round(80 * MS * {SLOW[0]: 1, 6: 0.1, 4: 5}.get(hop[0], 3))
        net = round(80 * MS * (times if hop == SLOW else 0.2))
        return wait(hop, wire_ns=net + held, recv_gpu_ns=held, transport="socket", error_ns=4.0 * MS)

    assert hot_hosts(look_at(facts(map(waited, ring())))) == expected


def test_error_of_a_wait_that_others_hold_up_is_no_error_of_a_wire() -> None:
    """Little is left of those waits, and they differ by more than that from time to time."""

    def waited(hop: Hop) -> dict[str, Any]:
        held = 80 * MS * (20 if hop[0] in (5, 6) else 0)
        net = round(80 * MS * usual(hop) * (4 if hop == SLOW else 1))
        return wait(hop, wire_ns=net + held, recv_gpu_ns=held, transport="socket", error_ns=held / 20 + 2 * MS)

    assert hot_hosts(look_at(facts(map(waited, ring())))) == {SLOW}


def test_bytes_of_one_function_do_not_lead_those_of_another() -> None:
    """A slow receiving NIC is shared unevenly, and what small steps cost per byte is not what large ones do."""
    rows = [wait(hop, 1.0, transport="socket") for hop in mesh()]
    pairs = [step(hop, 8 * MS if hop[1] == SLOW[1] else 0.08 * MS, func="Send") for hop in mesh()]
    into = {hop for hop in mesh() if hop[1] == SLOW[1]}
    assert hot_hosts(look_at(facts(rows, took(40, bytes=STEP_BYTES // 4) + pairs))) == into


def test_what_a_very_slow_wire_holds_up_elsewhere_is_not_slow_by_itself() -> None:
    def waited(hop: Hop) -> float:
        return usual(hop) * {SLOW: 40.0, (6, 7): 1.7}.get(hop, 1.0)

    assert hot_hosts(look_at(facts(waits(ring(), waited)))) == {SLOW}
    assert hot_hosts(look_at(facts(waits(ring(), slow([(6, 7)], 1.7))))) == {(6, 7)}


def test_trifles_neither_hide_a_slow_wire_nor_speak_for_its_host() -> None:
    """A loss that ranks add up takes microseconds a byte, now longer and now shorter, over wires of its own."""
    tree = [(SLOW[0], 6), (6, SLOW[0]), (0, 5), (5, 0), (1, 7), (7, 1)]
    costs: dict[str, Any] = {"error_ns": 90_000.0, "transport": "socket", "size_class": 2}
    trifles = [wait(hop, bytes=400, wire_ns=100_000 * (1 + hop[0] % 4), **costs) for hop in (*tree, *ring())]
    large = [wait(hop, usual(hop) * (3.0 if hop == SLOW else 1), transport="socket") for hop in ring()]
    steps = took(20) + [step(hop, 10_000, bytes=4, size_class=2) for hop in tree]
    matrix = look_at(facts(large + trifles, steps, lags=steps))
    assert hot_hosts(matrix) == {SLOW}
    assert matrix is not None
    assert len(matrix.pairs) == HOSTS


def test_slowest_wire_of_a_ring_is_not_slow_where_others_were_as_slow_before() -> None:
    """A ring at the full rate of its links waits on one of them, now on this and now on that one."""
    memory = PairMemory()
    for look, pair in enumerate([(5, 6), (0, 1), SLOW, (6, 7)]):
        seen = facts(
            EVEN, [step(hop, (20 if hop == pair else 0.08) * MS, newest_ns=T0 + 9 * SECOND) for hop in ring()]
        )
        matrix, learnt = build_matrix(seen, memory, context(look=look), PairOptions())
        # What was named first is not known to be usual; then the ring turns out to be like that.
        assert hot_hosts(matrix) == ({pair} if look == 0 else set())
        memory = learnt if look else memory.learn_slowest(
            {kind: (SlowPair(20 * MS / STEP_BYTES, "h5", "h6"),) for kind in learnt.slowest}
        )  # fmt: skip
    worse = [step(hop, (40 if hop == SLOW else 0.08) * MS, newest_ns=T0 + 19 * SECOND) for hop in ring()]
    matrix, _ = build_matrix(facts(EVEN, worse), memory, context(look=5), PairOptions())
    assert hot_hosts(matrix) == {SLOW}


@pytest.mark.parametrize(
    ("first", "then", "named"),
    [({(0, 1), (4, 5)}, {(0, 1), (4, 5)}, {(0, 1), (4, 5)}), ({(0, 1)}, {(4, 5)}, set())],
    ids=["at once", "in turn"],
)
def test_wires_that_are_slow_at_once_from_the_first_look_on_do_not_take_turns(
    first: set[Hop], then: set[Hop], named: set[Hop]
) -> None:
    """As those over one link between switches; who waits for an acknowledgement waits for no other."""
    seen = [facts(waits(ring(), slow(hops, 5.0))) for hops in (first, then)]
    _, memory = build_matrix(seen[0], PairMemory(), context(), PairOptions())
    assert hot_hosts(look_at(seen[1], memory)) == named


@pytest.mark.parametrize(
    ("fields", "some", "hidden"),
    [({}, 0.2, 56), ({}, 1.5, 0), ({"transport": "ib"}, 0.2, 0), ({"steps": True}, 0.2, 0)],
    ids=["buffers take all", "one takes as long as its link needs", "acknowledged", "steps are watched"],
)
def test_where_no_wait_is_as_long_as_bytes_are_on_the_wire_nothing_is_known(
    fields: dict[str, Any], some: float, hidden: int
) -> None:
    transport = fields.get("transport", "socket")
    short = [wait(hop, some if hop == SLOW else 0.2, transport=transport) for hop in mesh()]
    steps = [step(hop, 0.08 * MS) for hop in mesh()] if "steps" in fields else []
    matrix, _ = build_matrix(facts(short, steps), PairMemory(), context(fabric()), PairOptions())
    assert matrix is not None
    assert int(matrix.hidden.sum()) == hidden


def test_odd_rows_are_left_out_and_repeated_ones_change_nothing() -> None:
    assert look_at(facts()) is None
    odd = [wait((0, 1), bytes=0), wait((1, 2), wire_ns=0), wait((2, 3), wire_ns=None, recv_gpu_ns=None)]
    stray = [wait((0, 1), 9.0, comm=5, dst_host="")]
    assert hot_hosts(look_at(facts(waits(ring()) + odd + stray))) == set()
    rows = waits(ring(), slow([SLOW], 2.0))
    assert hot_hosts(look_at(facts(rows[::-1] + rows))) == {SLOW}
    matrix = look_at(facts(waits(ring(), slow([SLOW], 2.0), src_nic=None, dst_nic=None)))
    assert matrix is not None
    assert {str(matrix.pairs[index]) for index in np.flatnonzero(matrix.slow)} == {"h2--h3"}, "unknown NICs"


def test_what_must_not_matter_does_not() -> None:
    for times in (0.5, 3.0, 20.0):
        seen = facts(waits(ring(), lambda hop: times * slow([SLOW], 2.0)(hop)))  # noqa: B023 - called at once
        assert hot_hosts(look_at(seen)) == {SLOW}
    assert hot_hosts(look_at(facts(waits(mesh())))) == set()
    assert hot_hosts(look_at(facts(waits(ring(), slow([SLOW], 2.0)) + waits(mesh(), channel=9)))) <= {SLOW}
    both = facts(waits(ring(), lambda hop: usual(hop) * {SLOW: 4.0, (5, 6): 1.6}.get(hop, 1.0)))
    assert hot_hosts(look_at(both)) == {SLOW, (5, 6)}
    memory = remember(facts(waits(ring())))
    _, memory = build_matrix(facts(waits(ring(), slow([SLOW], 3.0))), memory, context(), PairOptions())
    assert hot_hosts(look_at(facts(waits(ring())), memory)) == set(), "healing the culprit clears it at once"
