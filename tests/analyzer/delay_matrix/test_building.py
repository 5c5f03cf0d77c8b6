"""A slow pair stands out of the matrix; what only looks slow does not."""

from collections.abc import Iterable
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
    Scale,
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
TWICE = slow([SLOW], 2.0)


def times(factors: dict[Hop, float], others: float = 1.0) -> Scale:
    """Return usual delays, of which some are so many times as long."""
    return lambda hop: usual(hop) * factors.get(hop, others)


def exactly(
    hops: Iterable[Hop], factors: dict[Hop, float], others: float = 1.0, **fields: Any
) -> list[dict[str, Any]]:
    """Return a wait of each pair without noise, of which some are so many times as long."""
    return [wait(hop, factors.get(hop, others), **fields) for hop in hops]


def test_matrix_tells_the_ends_of_pairs_and_how_slow_they_are() -> None:
    matrix = look_at(facts(waits(ring(), TWICE)))
    assert matrix is not None
    assert (len(matrix.pairs), hot_hosts(matrix)) == (32, {SLOW})
    assert matrix.transports == {"ib"}
    assert matrix.ratio[matrix.slow] == pytest.approx(np.full(4, 2.0), rel=0.05)
    assert np.allclose(matrix.ratio[~matrix.slow], 1.0, atol=0.05)
    pair = next(pair for pair in matrix.pairs if str(pair) == "h2/eth1--h3/eth1")
    assert (pair.src_gpu, pair.dst_gpu, pair.path) == (3, 3, None)
    assert [look_at(facts(rows)) for rows in ([], [wait((0, 1), 9.0)])] == [None, None]
    unnamed = look_at(facts(waits(ring(), TWICE, src_nic=None, dst_nic=None)))
    assert unnamed is not None
    assert [str(unnamed.pairs[index]) for index in np.flatnonzero(unnamed.slow)] == ["h2--h3"]


def unequal(hop: Hop) -> float:
    return usual(hop) * (1.0, 1.3, 1.6, 2.0)[hop[0] % 4]


PASTS: dict[str, tuple[PairFacts, int, PairFacts, set[Hop]]] = {  # what was seen how often, and is seen now
    "few pairs": (
        facts([wait(hop, usual(hop)) for hop in ring(4)]),
        *(5, facts([wait(hop, usual(hop) * (1.7 if hop == (1, 2) else 1.0)) for hop in ring(4)]), {(1, 2)}),
    ),
    "few pairs without a past": (
        facts(),
        *(0, facts([wait(hop, usual(hop) * (1.7 if hop == (1, 2) else 1.0)) for hop in ring(4)]), set()),
    ),
    "always unequal": (facts(waits(ring(), unequal)), 5, facts(waits(ring(), unequal)), set()),
    "one of unequal ones changes": (
        facts(waits(ring(), unequal)),
        *(5, facts(waits(ring(), lambda hop: unequal(hop) * (2.0 if hop == SLOW else 1.0))), {SLOW}),
    ),
    "all change": (facts(waits(ring())), 5, facts(waits(ring(), lambda hop: 3 * usual(hop))), set()),
    "always slow": (facts(waits(ring(), TWICE)), 20, facts(waits(ring(), TWICE)), {SLOW}),
    "healed": (facts(waits(ring(), slow([SLOW], 3.0))), 1, facts(waits(ring())), set()),
}


@pytest.mark.parametrize("case", PASTS)
def test_what_is_slow_is_judged_by_the_past_where_there_is_one(case: str) -> None:
    before, looks, now, expected = PASTS[case]
    assert hot_hosts(look_at(now, remember(before, looks))) == expected


def test_slow_wire_is_not_learnt_as_usual() -> None:
    memory = remember(facts(waits(ring())))
    for look in range(30):
        matrix, memory = build_matrix(facts(waits(ring(), TWICE)), memory, context(look=look), PairOptions())
    assert hot_hosts(matrix) == {SLOW}


def test_wire_that_becomes_slow_while_its_past_is_learnt_does_not_become_its_past() -> None:
    memory = PairMemory()
    for look, times in enumerate((1.0, 1.09, 1.18, 1.34, 1.43)):  # windows that hold more and more of the fault
        bad = facts(waits(ring(), slow([SLOW], times)))
        matrix, memory = build_matrix(bad, memory, context(look=look), PairOptions())
    assert hot_hosts(matrix) == {SLOW}


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
EVEN = exactly(ring(), {}, transport="socket")
FIVEFOLD = exactly(ring(), {SLOW: 5.0}, transport="socket")
THREEFOLD = waits(ring(), slow([SLOW], 3.0), transport="socket")
HELD_NS = 2 * 80 * MS
TURNS = [(sender, receiver) for receiver in range(4) for sender in range(4) if sender != receiver]
LATE_ENDS = [step(hop, 100 * MS if hop[1] == 2 else 5 * MS, func="Send") for hop in TURNS]
SENDS = exactly(TURNS, {}, transport="socket", func="Send")


def took(ms: float, usual_ms: float = 0.08, **fields: Any) -> list[dict[str, Any]]:
    """Return the steps of a ring, of which those of the slow wire take so long."""
    return [step(hop, (ms if hop == SLOW else usual_ms) * MS, **fields) for hop in ring()]


def held(hop: Hop, held_ns: float, net_times: float, **fields: Any) -> dict[str, Any]:
    """Return a wait on a socket of which the receiver held up a part."""
    held = round(held_ns)
    return wait(hop, wire_ns=round(80 * MS * net_times) + held, recv_gpu_ns=held, transport="socket", **fields)


def swinging(swing: int) -> PairFacts:
    return facts(held(hop, 80 * MS * (hop[0] % 4) * swing, times({SLOW: 2.5})(hop)) for hop in ring())


def held_in_turn(slow_times: float) -> PairFacts:
    """In a pipeline receivers hold up most of what others wait for, each in its own way."""
    shares = {SLOW[0]: 1, 6: 0.1, 4: 5}
    return facts(
        held(hop, 80 * MS * shares.get(hop[0], 3), slow_times if hop == SLOW else 0.2, error_ns=4.0 * MS)
        for hop in ring()
    )


def trifling(slowest_ms: float, pace: float) -> PairFacts:
    """Of 0.1 s that a transfer takes up to 1 ms passes on a healthy wire, give or take half: in shares, anything."""
    late_ms = {hop: slowest_ms if hop == SLOW else 0.3 * (hop[0] % 4) for hop in ring()}
    return facts(EVEN, [step(hop, ms * MS, n=9, error_ns=0.5 * MS, pace=pace) for hop, ms in late_ms.items()])


def ahead(told_ns: float | None) -> PairFacts:
    """Host 3 is 10 ms ahead, told or not: what it gets seems late, what it sends arrives before it left."""
    steps = [step(hop, {(2, 3): 10 * MS, (3, 4): -10 * MS}.get(hop, 0.08 * MS)) for hop in ring()]
    return facts(EVEN, steps, clock_error_ns=told_ns)


ODD = [wait((0, 1), bytes=0), wait((1, 2), wire_ns=0), wait((2, 3), wire_ns=None, recv_gpu_ns=None)]
INTO_1 = {(5, 1): 3.0, (7, 1): 3.0, (9, 1): 3.0, (0, 1): 3.0}
INTO_SLOW = {hop for hop in mesh() if hop[1] == SLOW[1]}

SEEN: dict[str, tuple[PairFacts, set[Hop]]] = {
    "healthy ring": (facts(waits(ring())), set()),
    "healthy mesh": (facts(waits(mesh())), set()),
    "far ends are unknown": (facts(waits(ring(), TWICE, dst_host="", dst_nic=None)), {SLOW}),
    "a long wait inside a host": (facts(waits(ring()) + [wait((0, 1), 50.0, dst_host="h0")]), set()),
    "two pairs": (facts([wait(hop, usual(hop)) for hop in ring(2)]), set()),
    "four pairs": (facts([wait(hop, usual(hop)) for hop in ring(4)]), set()),
    "one of two pairs that nobody can miss": (facts(exactly(ring(2), {(1, 0): 5.0})), {(1, 0)}),
    "one of four pairs that nobody can miss": (facts(exactly(ring(4), {(1, 2): 5.0})), {(1, 2)}),
    "one of four pairs by a little": (facts(exactly(ring(4), {(0, 1): 1.5})), set()),
    "pairs at the edge count beside one": (
        facts(waits(ring(), times({(2, 3): 1.4, (3, 4): 1.22, (5, 6): 1.22}))),
        {(2, 3), (3, 4)},
    ),
    "and not beside a much slower one": (
        facts(waits(ring(), times({(2, 3): 4.0, (3, 4): 1.22, (5, 6): 1.22}))),
        {(2, 3)},
    ),
    "a slow one and a slower one": (facts(waits(ring(), times({SLOW: 4.0, (5, 6): 1.6}))), {SLOW, (5, 6)}),
    "held up by a very slow one": (facts(waits(ring(), times({SLOW: 40.0, (6, 7): 1.7}))), {SLOW}),
    "as slow, and nothing holds it up": (facts(waits(ring(), slow([(6, 7)], 1.7))), {(6, 7)}),
    "half as fast as before, all of it": (facts(waits(ring(), lambda hop: 0.5 * TWICE(hop))), {SLOW}),
    "twenty times as slow, all of it": (facts(waits(ring(), lambda hop: 20 * TWICE(hop))), {SLOW}),
    "small operations beside": (
        facts(waits(ring(), size_class=10, bytes=1_000_000, wire_ns=80_000) + waits(ring(), slow([SLOW], 3.0))),
        {SLOW},
    ),
    "small operations that cost more": (
        facts(waits(ring()) + exactly(ring()[:4], {}, others=8.0, size_class=10)),
        set(),
    ),
    "small operations alone": (
        facts(wait(hop, bytes=1_000_000, wire_ns=800_000 if hop == SLOW else 80_000) for hop in mesh()),
        set(),
    ),
    # As in the middle of a tree; what a pipeline sends, it sends one after the other.
    "a host that receives from more others": (facts(exactly((*ring(16), *list(INTO_1)[:3]), INTO_1)), set()),
    "a host that is sent to by more others": (
        facts(exactly((*ring(16), *list(INTO_1)[:3]), INTO_1, func="Send")),
        {*INTO_1},
    ),
    "odd rows": (facts(waits(ring()) + ODD + [wait((0, 1), 9.0, comm=5, dst_host="")]), set()),
    "repeated rows": (facts(waits(ring(), TWICE)[::-1] + waits(ring(), TWICE)), {SLOW}),
    "another channel as well": (facts(waits(ring(), TWICE) + waits(mesh(), channel=9)), {SLOW}),
    "waits that swing as they are": (swinging(1), set()),
    "the same waits without the swing": (swinging(0), {SLOW}),
    "most of a wait is left": (held_in_turn(8.0), {SLOW}),
    "little of a wait is left": (held_in_turn(2.5), set()),
    "the error of waits that others hold up is none of a wire": (
        facts(
            held(hop, held_ns, times({SLOW: 4.0})(hop), error_ns=held_ns / 20 + 2 * MS)
            for hop in ring()
            for held_ns in [80 * MS * (20 if hop[0] in (5, 6) else 0)]
        ),
        {SLOW},
    ),
    # A slow receiving NIC is shared unevenly, and what small steps cost per byte is not what large ones do.
    "bytes of one function do not lead those of another": (
        facts(
            exactly(mesh(), {}, transport="socket"),
            took(40, bytes=STEP_BYTES // 4)
            + [step(hop, 8 * MS if hop in INTO_SLOW else 0.08 * MS, func="Send") for hop in mesh()],
        ),
        INTO_SLOW,
    ),
    "much beside a whole transfer": (trifling(15, 400.0), {SLOW}),
    "nothing is known of a whole transfer": (trifling(15, 0.0), set()),
    "nothing beside a whole transfer": (trifling(1, 400.0), set()),
    "a clock that is ahead": (ahead(None), set()),
    "a clock that is ahead and may be": (ahead(10.0 * MS), set()),
    "a clock that is ahead and says it is not": (ahead(0.05 * MS), set()),
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
def test_pair_is_slow_where_the_wire_is_and_not_where_it_only_looks_so(case: str) -> None:
    seen, expected = SEEN[case]
    assert hot_hosts(look_at(seen)) == expected


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
def test_wires_slow_at_once_from_the_first_take_no_turns(first: set[Hop], then: set[Hop], named: set[Hop]) -> None:
    """As those over one link between switches; who waits for an acknowledgement waits for no other."""
    seen = [facts(waits(ring(), slow(hops, 5.0))) for hops in (first, then)]
    _, memory = build_matrix(seen[0], PairMemory(), context(), PairOptions())
    assert hot_hosts(look_at(seen[1], memory)) == named


@pytest.mark.parametrize(
    ("fields", "some", "hidden"),
    [({}, 0.2, 56), ({}, 1.5, 0), ({"transport": "ib"}, 0.2, 0), ({"steps": True}, 0.2, 0)],
    ids=["buffers take all", "one takes as long as its link needs", "acknowledged", "steps are watched"],
)
def test_where_waits_are_shorter_than_the_wire_all_is_hidden(
    fields: dict[str, Any], some: float, hidden: int
) -> None:
    transport = fields.get("transport", "socket")
    short = [wait(hop, some if hop == SLOW else 0.2, transport=transport) for hop in mesh()]
    steps = [step(hop, 0.08 * MS) for hop in mesh()] if "steps" in fields else []
    matrix, _ = build_matrix(facts(short, steps), PairMemory(), context(fabric()), PairOptions())
    assert matrix is not None
    assert int(matrix.hidden.sum()) == hidden
