"""The truth lies within the bound, whatever way packets take; and everybody knows whom to ask."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collector.probes.paths import AddressBook
from collector.sources.clock_estimate import (
    EXACT,
    Estimate,
    Exchange,
    KernelClock,
    choose_elders,
    decode,
    estimate_offset,
    find_steering,
    has_hardware_clock,
    read_kernel_clock,
)
from collector.sources.clock_exchange import MESSAGE_BYTES, ClockGuard, ClockWire, Reply
from lockstep.fabrics import leaf_spine
from lockstep.topology import Node, Topology
from tests.builders import SECOND, T0
from tests.collector.sources.probe_fabric import ADDRESSES, TOPOLOGY

DELAY = st.integers(0, 10**9)


def exchange(offset_ns: int, there_ns: int, thinking_ns: int, back_ns: int, asked_ns: int = T0) -> Exchange:
    """Return what is seen when our clock is ahead by `offset_ns`."""
    received_ns = asked_ns - offset_ns + there_ns
    answered_ns = received_ns + thinking_ns
    return Exchange(asked_ns, received_ns, answered_ns, answered_ns + offset_ns + back_ns)


@settings(deadline=None)
@given(st.integers(-(10**12), 10**12), st.lists(st.tuples(DELAY, DELAY, DELAY), min_size=1, max_size=8))
@example(0, [(1, 0, 0)])  # the truth at the very end of an odd interval
def test_truth_is_always_within_the_bound_and_the_bound_at_most_half_the_shortest_round_trip(
    offset_ns: int, ways: list[tuple[int, int, int]]
) -> None:
    found = estimate_offset(exchange(offset_ns, *way, asked_ns=T0 + n) for n, way in enumerate(ways))
    assert found is not None
    assert abs(found.offset_ns - offset_ns) <= found.error_ns
    assert found.error_ns <= min(there + back + 1 for there, _, back in ways) // 2


def test_estimate_needs_answers_that_agree_and_tightens_adds_up_and_grows_vague() -> None:
    burst = [exchange(0, there_ns=10, thinking_ns=5, back_ns=90), exchange(0, there_ns=90, thinking_ns=5, back_ns=10)]
    assert estimate_offset(burst) == Estimate(0, 10)  # half of the round trip alone would be 50
    assert estimate_offset([]) is None
    assert estimate_offset([exchange(0, 10, 5, 10), exchange(10**9, 10, 5, 10)]) is None  # the clock was set
    assert Estimate(5, 2).plus(Estimate(-7, 3)) == Estimate(-2, 5)
    assert Estimate(5, 2).plus(EXACT) == Estimate(5, 2)
    assert Estimate(5, 2).aged(SECOND) == Estimate(5, 200_002)
    assert Estimate(5, 2).aged(-SECOND) == Estimate(5, 2)


def test_reference_is_asked_first_and_the_first_of_the_leaf_instead_of_it() -> None:
    topology = leaf_spine(hosts=6, nics_per_host=1, leaves=2, spines=1)
    elders = [choose_elders(topology, host.id, "h0") for host in topology.hosts]
    assert elders == [[], ["h0"], ["h0"], ["h0"], ["h0", "h3"], ["h0", "h3"]]
    apart = Topology(routing="ecmp", nodes=(Node(id="a", kind="host"), Node(id="b", kind="host")), links=())
    assert choose_elders(apart, "b", "a") == ["a"]


def test_kernel_s_word_is_decoded_in_its_own_units() -> None:
    assert decode(0x2001, -1_500, 16) == KernelClock(True, -1_500, 16_000)
    assert decode(0x0001, -1_500, 16) == KernelClock(True, -1_500_000, 16_000)
    assert not decode(0x0041, 0, 16_000_000).is_synchronised
    assert KernelClock(True, -1_500, 16_000).estimate == Estimate(1_500, 16_000)  # what must still be taken off
    assert 0 <= read_kernel_clock().max_error_ns <= 16 * SECOND * 2


@pytest.mark.parametrize(
    ("device", "process", "steered"),
    [(True, "phc2sys", "ptp"), (True, "chronyd", "ntp"), (False, "phc2sys", "ntp"), (False, "", "ntp")],
)
def test_ptp_needs_a_hardware_clock_and_its_daemon(tmp_path: Path, device: bool, process: str, steered: str) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc/12").mkdir(parents=True)
    (tmp_path / "proc/13").mkdir()  # a process that has just ended has no name
    if device:
        (tmp_path / "dev/ptp0").touch()
    if process:
        (tmp_path / "proc/12/comm").write_text(f"{process}\n")
    assert find_steering(tmp_path) == steered
    assert has_hardware_clock(tmp_path) is device


WIRE = ClockWire(b"key", "h0")
TIMESTAMP, SMALL = st.integers(0, 1 << 62), st.integers(-(1 << 61), 1 << 61)


@settings(deadline=None)
@given(st.integers(0, (1 << 64) - 1), TIMESTAMP, TIMESTAMP, SMALL, st.integers(0, 1 << 61))
def test_question_and_answer_are_of_one_length_and_read_as_they_were_written(
    nonce: int, one: int, two: int, offset: int, error: int
) -> None:
    reply = Reply(nonce, min(one, two), max(one, two), offset, error)
    question, answer = WIRE.write_question(nonce), WIRE.write_reply(reply)
    assert (WIRE.read_question(question), WIRE.read_reply(answer)) == (nonce, reply)
    assert len(answer) == len(question) == MESSAGE_BYTES == 72


def test_messages_of_another_key_reference_or_kind_are_not_believed_nor_answers_without_sense() -> None:
    reply = Reply(1, 2, 3, 4, 5)
    for other in (ClockWire(b"stolen", "h0"), ClockWire(b"key", "h1")):
        assert WIRE.read_question(other.write_question(1)) is None
        assert WIRE.read_reply(other.write_reply(reply)) is None
    assert WIRE.read_reply(WIRE.write_question(1)) is None
    assert WIRE.read_question(WIRE.write_reply(reply)) is None
    times = [(3, 2, 0, 0), (2, 3, 0, -1), (2, (1 << 62) + 1, 0, 0), (-1, 3, 0, 0), (2, 3, -(1 << 62), 0)]
    assert [WIRE.read_reply(WIRE.write_reply(Reply(1, *wrong))) for wrong in times] == [None] * 5


@settings(deadline=None)
@given(st.binary(max_size=100), st.integers(0, MESSAGE_BYTES * 8 - 1))
def test_garbage_and_single_turned_bits_are_not_believed(noise: bytes, bit: int) -> None:
    question = bytearray(WIRE.write_question(7))
    question[bit // 8] ^= 1 << bit % 8
    for message in (noise, bytes(question), WIRE.write_question(7) + noise[:1] + b"x", WIRE.write_question(7)[:-1]):
        assert WIRE.read_question(message) is None
        assert WIRE.read_reply(message) is None


def test_hosts_of_the_topology_are_admitted_within_a_rate_and_strangers_and_switches_are_not() -> None:
    guard = ClockGuard(WIRE, AddressBook(TOPOLOGY, ADDRESSES))
    question = WIRE.write_question(7)
    assert [guard.admit(question, address, T0) for address in ("192.0.2.1", "10.10.0.1")] == [None, None]
    assert guard.admit(b"x" * 72, "10.11.0.2", T0) is None
    assert guard.refused == 3
    flood = [guard.admit(WIRE.write_question(n), "10.11.0.2", T0) for n in range(100)]
    assert [nonce for nonce in flood if nonce is not None] == list(range(32))
    assert guard.admit(WIRE.write_question(1), "10.10.0.2", T0) == 1
    assert guard.admit(WIRE.write_question(1), "10.11.0.2", T0 + SECOND) == 1
