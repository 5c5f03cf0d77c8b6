"""A message is believed only whole, sealed with the cluster's key, of the right kind and about the same reference."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.probes.paths import AddressBook
from collector.sources.clock_exchange import MESSAGE_BYTES, ClockGuard, ClockWire, Reply
from tests.builders import SECOND, T0
from tests.collector.sources.probe_fabric import ADDRESSES, TOPOLOGY

WIRE = ClockWire(b"key", "h0")
MOMENT, SMALL = st.integers(0, 1 << 62), st.integers(-(1 << 61), 1 << 61)


def guard() -> ClockGuard:
    return ClockGuard(WIRE, AddressBook(TOPOLOGY, ADDRESSES))


@settings(deadline=None)
@given(st.integers(0, (1 << 64) - 1))
def test_question_is_read_as_it_was_written(nonce: int) -> None:
    assert WIRE.read_question(WIRE.write_question(nonce)) == nonce


@settings(deadline=None)
@given(st.integers(0, (1 << 64) - 1), MOMENT, MOMENT, SMALL, st.integers(0, 1 << 61))
def test_answer_is_read_as_it_was_written(nonce: int, one: int, two: int, offset: int, error: int) -> None:
    reply = Reply(nonce, min(one, two), max(one, two), offset, error)
    assert WIRE.read_reply(WIRE.write_reply(reply)) == reply


def test_answer_is_as_long_as_its_question() -> None:
    assert len(WIRE.write_reply(Reply(1, 2, 3, 4, 5))) == len(WIRE.write_question(1)) == MESSAGE_BYTES == 72


@pytest.mark.parametrize("other", [ClockWire(b"stolen", "h0"), ClockWire(b"key", "h1")], ids=["key", "reference"])
def test_messages_of_another_key_or_reference_are_not_believed(other: ClockWire) -> None:
    assert WIRE.read_question(other.write_question(1)) is None
    assert WIRE.read_reply(other.write_reply(Reply(1, 2, 3, 4, 5))) is None


def test_question_is_no_answer_and_an_answer_no_question() -> None:
    assert WIRE.read_reply(WIRE.write_question(1)) is None
    assert WIRE.read_question(WIRE.write_reply(Reply(1, 2, 3, 4, 5))) is None


@pytest.mark.parametrize(
    "reply",
    [
        Reply(1, 3, 2, 0, 0),
        Reply(1, 2, 3, 0, -1),
        Reply(1, 2, (1 << 62) + 1, 0, 0),
        Reply(1, -1, 3, 0, 0),
        Reply(1, 2, 3, -(1 << 62), 0),
    ],
)
def test_answer_that_makes_no_sense_is_not_believed(reply: Reply) -> None:
    assert WIRE.read_reply(WIRE.write_reply(reply)) is None


@settings(deadline=None)
@given(st.binary(max_size=100), st.integers(0, MESSAGE_BYTES * 8 - 1))
def test_garbage_and_single_turned_bits_are_not_believed(noise: bytes, bit: int) -> None:
    question = bytearray(WIRE.write_question(7))
    question[bit // 8] ^= 1 << bit % 8
    for message in (noise, bytes(question), WIRE.write_question(7) + noise[:1] + b"x", WIRE.write_question(7)[:-1]):
        assert WIRE.read_question(message) is None
        assert WIRE.read_reply(message) is None


def test_hosts_of_the_topology_are_admitted_and_strangers_and_switches_are_not() -> None:
    admitting = guard()
    question = WIRE.write_question(7)
    assert admitting.admit(question, "10.11.0.2", T0) == 7
    assert [admitting.admit(question, address, T0) for address in ("192.0.2.1", "10.10.0.1")] == [None, None]
    assert admitting.admit(b"x" * 72, "10.11.0.2", T0) is None
    assert admitting.refused == 3


def test_one_host_is_answered_a_bounded_number_of_times_a_second_and_another_all_the_same() -> None:
    admitting = guard()
    flood = [admitting.admit(WIRE.write_question(n), "10.11.0.2", T0) for n in range(100)]
    assert len([nonce for nonce in flood if nonce is not None]) == 32
    assert admitting.admit(WIRE.write_question(1), "10.10.0.2", T0) == 1
    assert admitting.admit(WIRE.write_question(1), "10.11.0.2", T0 + SECOND) == 1
