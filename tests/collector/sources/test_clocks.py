"""Clocks are compared within bounds that hold the truth, on sockets of two namespaces; strangers get no answer."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from collector.probes.paths import AddressBook
from collector.sources import clock_exchange
from collector.sources.clock_exchange import (
    EXACT,
    MESSAGE_BYTES,
    MOST_APART_NS,
    ClockAsker,
    ClockGuard,
    ClockResponder,
    ClockWire,
    Estimate,
    Exchange,
    Reply,
    choose_elders,
    estimate_offset,
    open_stamped,
)
from collector.sources.clocks import (
    ClockOptions,
    ClocksSource,
    KernelClock,
    decode,
    find_steering,
    has_hardware_clock,
    read_kernel_clock,
)
from lockstep.arrow import schema_of
from lockstep.clock import NS_PER_S, SystemClock
from lockstep.errors import NotPresent
from lockstep.fabrics import leaf_spine
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import Node, Topology
from tests.builders import SECOND, T0
from tests.collector.sources.probe_fabric import ADDRESSES, TOPOLOGY, ProbeFabric
from tests.waiting import LIMIT_S, eventually

KEY = b"the cluster's key"
ON = ClockOptions(is_on=True, key=KEY, timeout_s=10)  # a busy machine may let a responder wait
WIRE = ClockWire(KEY, "h0")
SYSTEM_CLOCK = SystemClock()
SYNCHRONISED, FREE = KernelClock(True, -1_500, 16_000), KernelClock(False, 0, 16 * NS_PER_S)


class WrongClock(SystemClock):
    """A clock that is wrong by some seconds."""

    def __init__(self, shift_ns: int) -> None:
        self._shift_ns = shift_ns

    def now_ns(self) -> int:
        return super().now_ns() + self._shift_ns


def source(host: str, options: ClockOptions = ON, kernel: KernelClock = FREE) -> ClocksSource:
    return ClocksSource(host, TOPOLOGY, ADDRESSES, options, read_kernel=lambda: kernel)


def read(fabric: ProbeFabric, host: str, made: ClocksSource) -> list[dict[str, Any]]:
    reading = fabric.run(host, lambda: made.read(time.time_ns(), ()))
    for name, rows in reading.tables.items():
        assert rows.schema == schema_of(TABLE_BY_NAME[name])
    return reading.tables["clocks"].to_pylist() if "clocks" in reading.tables else []


def respond(fabric: ProbeFabric, clock: SystemClock = SYSTEM_CLOCK, known: Estimate | None = EXACT) -> ClockResponder:
    """Start a responder in h0."""
    book = AddressBook(TOPOLOGY, ADDRESSES)
    return fabric.run("h0", lambda: ClockResponder(WIRE, book, clock, lambda: known))


@pytest.mark.needs_root
def test_clock_is_found_equal_or_wrong_by_as_much_as_it_is_within_the_stated_error(
    fabric: ProbeFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(source("h0")) as reference, closing(source("h1")) as other:
        assert [(row["offset_ns"], row["error_ns"]) for row in read(fabric, "h0", reference)] == [(0, 0)]
        for _ in range(3):
            (row,) = read(fabric, "h1", other)
            assert row["source"] == "probe"
            assert abs(row["offset_ns"]) <= row["error_ns"] < NS_PER_S // 2
    with closing(respond(fabric, known=Estimate(7 * NS_PER_S, 2 * NS_PER_S))), closing(source("h1")) as other:
        (row,) = read(fabric, "h1", other)  # what the other knows of itself is added
        assert abs(row["offset_ns"] - 7 * NS_PER_S) <= row["error_ns"]
        assert row["error_ns"] >= 2 * NS_PER_S
    far, hasty = Estimate(MOST_APART_NS, MOST_APART_NS), replace(ON, timeout_s=0.1)
    with closing(respond(fabric, known=far)), closing(source("h1", hasty)) as other:
        assert read(fabric, "h1", other) == [], "nobody could write it down"
    # The kernel's stamps are right: without them the responder's own clock counts.
    monkeypatch.setattr(clock_exchange, "arrival_ns", lambda _: None)
    for shift_ns in (-3_600 * NS_PER_S, 7 * NS_PER_S):
        with closing(respond(fabric, WrongClock(shift_ns))), closing(source("h1")) as other:
            (row,) = read(fabric, "h1", other)
        assert abs(row["offset_ns"] + shift_ns) <= row["error_ns"] < NS_PER_S // 2


@pytest.mark.needs_root
def test_answer_to_another_question_is_not_taken_for_ours(fabric: ProbeFabric) -> None:
    """As when an old answer is played again."""
    with closing(fabric.run("h0", lambda: open_stamped(8641))) as server, ThreadPoolExecutor(1) as worker:
        asker = fabric.run("h1", lambda: ClockAsker(WIRE, SystemClock(), timeout_s=60, burst=1))
        with closing(asker):
            asked = worker.submit(fabric.run, "h1", lambda: asker.ask("10.10.0.2"))
            server.settimeout(60)
            question, sender = server.recvfrom(1_000)
            nonce, now_ns = WIRE.read_question(question), time.time_ns()
            assert nonce is not None
            for old_or_new, offset_ns in ((nonce ^ 1, 7_000 * NS_PER_S), (nonce, 5_000 * NS_PER_S)):
                server.sendto(WIRE.write_reply(Reply(old_or_new, now_ns, now_ns, offset_ns, 0)), sender)
            found = asked.result(timeout=LIMIT_S)
    assert found is not None
    assert abs(found.offset_ns - 5_000 * NS_PER_S) <= found.error_ns < 1_000 * NS_PER_S


@pytest.mark.needs_root
def test_stranger_s_question_gets_no_answer_and_the_next_host_does(fabric: ProbeFabric) -> None:
    asker = fabric.run("h1", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with closing(respond(fabric)) as responder, asker:
        target = ("10.10.0.2", responder.port)
        for question in (ClockWire(b"another key", "h0").write_question(2), WIRE.write_question(3) + b"more"):
            asker.sendto(question, target)
        eventually(lambda: responder.refused == 2)
        asker.sendto(WIRE.write_question(4), target)
        asker.settimeout(20)
        first = WIRE.read_reply(asker.recv(1_000))
    assert first is not None
    assert first.nonce == 4  # so nothing had been said before


@pytest.mark.needs_root
def test_host_that_knows_nothing_says_nothing_and_a_port_that_is_taken_is_used_as_soon_as_it_is_free(
    fabric: ProbeFabric,
) -> None:
    hasty = ClockOptions(is_on=True, key=KEY, timeout_s=0.1)
    with closing(respond(fabric, known=None)), closing(source("h1", hasty)) as other, capture_logs() as lines:
        assert [read(fabric, "h1", other) for _ in range(2)] == [[], []]
    assert [line["reason"] for line in lines if "reason" in line] == ["no answer from h0"]
    with closing(source("h0")) as reference, closing(source("h1")) as other, capture_logs() as lines:
        with closing(respond(fabric)):
            read(fabric, "h0", reference)
        read(fabric, "h0", reference)
        assert len(read(fabric, "h1", other)) == 1
    (reason,) = [line["reason"] for line in lines if "reason" in line]
    assert "UDP port 8641" in reason


def test_kernel_s_word_is_written_while_it_is_synchronised_and_each_change_is_an_event(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    states = iter([SYNCHRONISED, SYNCHRONISED, FREE, FREE, SYNCHRONISED, FREE])
    made = ClocksSource("h0", None, {}, root=tmp_path, read_kernel=lambda: next(states))
    with closing(made), capture_logs() as lines:
        tables = [made.read(T0 + n, ()).tables for n in range(6)]
    row = {"host": "h0", "ts_ns": T0, "offset_ns": 1_500, "error_ns": 16_000, "source": "ntp"}
    assert tables[0]["clocks"].to_pylist() == [row]
    assert [line["reason"] for line in lines] == ["there is no /dev/ptp*", "comparing clocks is off"]
    kinds = [table["events"]["kind"].to_pylist() if "events" in table else [] for table in tables]
    lost, found = ["clock_unsynchronised"], ["clock_synchronised"]
    assert kinds == [[], [], lost, [], found, lost]
    assert ["clocks" in table for table in tables] == [True, True, False, False, True, False]


def test_clocks_that_are_not_compared_say_why_once() -> None:
    for made, reason in (
        (ClocksSource("h0", TOPOLOGY, ADDRESSES), "comparing clocks is off"),
        (ClocksSource("h0", None, ADDRESSES, ON), "needs a topology"),
        (ClocksSource("h1", TOPOLOGY, {"h0/eth0": "10.0.0.1"}, ON), "the settings name no address of h1"),
        (ClocksSource("h1", TOPOLOGY, {"h1/eth0": "10.0.0.1"}, ON), "the settings name no address of h0"),
    ):
        with closing(made), capture_logs() as lines:
            made.read(T0, ())
            made.read(T0 + 1, ())
        (reported,) = [line["reason"] for line in lines if line["event"] == "clocks of other hosts are not compared"]
        assert reason in reported
    without_kernel = Mock(side_effect=NotPresent("no adjtimex"))
    with pytest.raises(NotPresent, match="no adjtimex; comparing clocks is off"):
        ClocksSource("h0", None, {}, read_kernel=without_kernel).read(T0, ())


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


def test_ptp_needs_a_hardware_clock_and_its_daemon(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc/12").mkdir(parents=True)  # a process that has just ended has no name
    assert (find_steering(tmp_path), has_hardware_clock(tmp_path)) == ("ntp", False)
    (tmp_path / "proc/13").mkdir()
    (tmp_path / "proc/13/comm").write_text("phc2sys\n")
    assert find_steering(tmp_path) == "ntp"
    (tmp_path / "dev/ptp0").touch()
    assert (find_steering(tmp_path), has_hardware_clock(tmp_path)) == ("ptp", True)
    (tmp_path / "proc/13/comm").write_text("chronyd\n")
    assert find_steering(tmp_path) == "ntp"


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


@settings(deadline=None)
@given(st.binary(max_size=100), st.integers(0, MESSAGE_BYTES * 8 - 1))
def test_garbage_turned_bits_and_messages_of_another_key_reference_or_kind_are_not_believed_nor_nonsense(
    noise: bytes, bit: int
) -> None:
    question, reply = bytearray(WIRE.write_question(7)), Reply(1, 2, 3, 4, 5)
    question[bit // 8] ^= 1 << bit % 8
    for message in (noise, bytes(question), WIRE.write_question(7) + noise[:1] + b"x", WIRE.write_question(7)[:-1]):
        assert WIRE.read_question(message) is None
        assert WIRE.read_reply(message) is None
    for other in (ClockWire(b"stolen", "h0"), ClockWire(KEY, "h1")):
        assert WIRE.read_question(other.write_question(1)) is None
        assert WIRE.read_reply(other.write_reply(reply)) is None
    assert WIRE.read_reply(WIRE.write_question(1)) is None
    assert WIRE.read_question(WIRE.write_reply(reply)) is None
    times = [(3, 2, 0, 0), (2, 3, 0, -1), (2, (1 << 62) + 1, 0, 0), (-1, 3, 0, 0), (2, 3, -(1 << 62), 0)]
    assert [WIRE.read_reply(WIRE.write_reply(Reply(1, *wrong))) for wrong in times] == [None] * 5


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
