"""Packets are byte for byte those of scapy, each with its own port, TTL and token; answers find their packet."""

import os
import resource
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.contrib.roce import BTH
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPerror, UDPerror
from scapy.packet import Raw

from collector.probes.packets import (
    Answer,
    Arrival,
    Batch,
    Flow,
    Shot,
    build_packets,
    fit_token,
    read_icmp,
    read_reset,
)
from collector.probes.sockets import RawExchange
from lockstep.clock import SystemClock

SOURCE, TARGET, SWITCH = "10.1.0.1", "10.2.0.9", "10.9.9.9"


def shot(proto: str = "tcp", *, sport: int = 50_000, dport: int = 4791, ttl: int = 2, token: int = 7) -> Shot:
    return Shot(Flow("eth0", "h1", "eth0", proto, sport, dport), SOURCE, TARGET, ttl, token)


def by_scapy(each: Shot) -> bytes:
    """Return the same packet built by scapy alone."""
    flow = each.flow
    ip = IP(src=SOURCE, dst=TARGET, ttl=each.ttl, id=each.token & 0xFFFF, chksum=0)
    udp = UDP(sport=flow.sport, dport=flow.dport, chksum=0)
    behind = {
        "tcp": TCP(sport=flow.sport, dport=flow.dport, flags="A", seq=each.token, ack=each.token, window=0),
        "udp": udp / Raw(b"lockstep"),
        "roce": udp / BTH(opcode=4, dqpn=0xFFFFFF),
    }
    return bytes(ip / behind[flow.proto])


def without_ip_checksum(packet: bytes) -> bytes:
    return packet[:10] + b"\0\0" + packet[12:]  # the kernel writes it


PORT = st.integers(1, 65_535)
SHOT = st.tuples(st.sampled_from(["tcp", "udp", "roce"]), PORT, PORT, st.integers(1, 255), st.integers(0, 1 << 33))


@settings(deadline=None)
@given(st.lists(SHOT, max_size=8))
def test_every_packet_is_the_one_that_scapy_builds(drawn: list[tuple[str, int, int, int, int]]) -> None:
    shots = [
        shot(proto, sport=sport, dport=dport, ttl=ttl, token=fit_token(proto, number))
        for proto, sport, dport, ttl, number in drawn
    ]
    made = [without_ip_checksum(packet) for packet in build_packets(shots)]
    assert made == [by_scapy(each) for each in shots]


def test_tokens_that_follow_each_other_differ_and_never_leave_the_identification_empty() -> None:
    for proto, wrap in (("udp", 0xFFFF), ("tcp", 0xFFFF), ("tcp", 1 << 32)):
        tokens = [fit_token(proto, number) for number in range(wrap - 500, wrap + 500)]
        assert len(set(tokens)) == len(tokens)
        assert all(token & 0xFFFF for token in tokens)


def test_time_exceeded_of_a_switch_names_switch_and_packet_and_only_the_destination_s_closed_port_is_reached() -> (
    None
):
    for proto, token, quoted in (
        ("tcp", 0xDEADBEEF, 28),
        ("tcp", 0xDEADBEEF, 1500),
        ("udp", 77, 28),
        ("roce", 77, 28),
    ):
        each = shot(proto, token=token)
        error = bytes(IP(src=SWITCH, dst=SOURCE) / ICMP(type=11, code=0)) + build_packets([each])[0][:quoted]
        assert read_icmp(error) == Answer(each.key, SWITCH, "expired")
    each = shot("udp")
    for responder, code, kind in ((TARGET, 3, "reached"), (SWITCH, 3, "refused"), (TARGET, 13, "refused")):
        error = bytes(IP(src=responder, dst=SOURCE) / ICMP(type=3, code=code)) + build_packets([each])[0]
        answer = read_icmp(error)
        assert answer
        assert (answer.key, answer.responder, answer.kind) == (each.key, responder, kind)


def test_reset_repeats_the_token_and_other_segments_and_messages_are_no_answers() -> None:
    each = shot(token=0xCAFEF00D)
    reset = bytes(IP(src=TARGET, dst=SOURCE) / TCP(sport=4791, dport=50_000, flags="R", seq=0xCAFEF00D))
    assert read_reset(reset) == Answer(each.key, TARGET, "reached")
    assert read_reset(bytes(IP(src=TARGET, dst=SOURCE) / TCP(sport=4791, dport=50_000, flags="A"))) is None
    assert read_icmp(bytes(IP(src=SWITCH, dst=SOURCE) / ICMP(type=8) / IPerror(dst=TARGET) / UDPerror())) is None
    assert read_icmp(bytes(IP(src=SWITCH, dst=SOURCE) / ICMP(type=11) / IPerror(dst=TARGET, proto=1))) is None


@settings(deadline=None)
@given(st.binary(max_size=120))
def test_garbage_is_never_an_error(noise: bytes) -> None:
    read_icmp(noise)
    read_reset(noise)
    whole = bytes(IP(src=SWITCH, dst=SOURCE) / ICMP(type=11)) + build_packets([shot()])[0]
    cut = whole[: len(noise)]
    assert read_icmp(cut) is None or len(cut) >= 56
    read_icmp(whole[:28] + noise)


def answer(each: Shot, responder: str = SWITCH) -> Answer:
    return Answer(each.key, responder, "expired")


def test_answer_is_matched_once_and_timed_and_one_to_what_we_never_sent_changes_nothing() -> None:
    shots = [shot(token=1), shot(token=2), shot(token=3)]
    batch = Batch(shots, timeout_ns=1_000)
    batch.take([(answer(shots[0]), 5)])  # it came before we sent anything
    for number, sent_ns in enumerate((100, 200, 300)):
        batch.note_sent(number, sent_ns)
    batch.note_unsent(2)
    batch.take([(answer(shots[1]), 250), (answer(shots[1], "10.6.6.6"), 260)])
    strangers = (shot(token=4), shot(sport=3, token=1), shot("udp", token=1))
    batch.take([(answer(stranger), 110) for stranger in strangers])
    assert batch.arrivals == [Arrival(100), Arrival(200, 50, SWITCH, "expired"), None]
    assert not batch.is_complete
    batch.note_unsent(0)
    assert batch.is_complete, "what could not be sent is not waited for"
    for at_ns, rtt_ns in ((50, 0), (10**18, 1_000)):  # the clock is set meanwhile
        batch = Batch([shot()], timeout_ns=1_000)
        batch.note_sent(0, 100)
        batch.take([(answer(shot()), at_ns)])
        assert batch.arrivals == [Arrival(100, rtt_ns, SWITCH, "expired")]


_MANY = 1_100  # select() takes descriptors below 1,024


@pytest.fixture
def many_open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * _MANY), hard))
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(_MANY)]
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.needs_root
@pytest.mark.usefixtures("many_open_files")
def test_a_probe_is_answered_on_a_descriptor_above_those_of_select() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = taken.getsockname()[1]
    exchange = RawExchange(SystemClock(), timeout_s=2.0)
    shot = Shot(Flow("lo", "h0", "lo", "tcp", 40_001, closed), "127.0.0.1", "127.0.0.1", 1, fit_token("tcp", 7))
    try:
        (arrival,) = exchange.run([shot])
    finally:
        exchange.close()
    assert arrival is not None
    assert (arrival.kind, arrival.responder) == ("reached", "127.0.0.1")
