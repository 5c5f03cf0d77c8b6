"""Queue pairs are decoded from messages built by the kernel's own definitions; no RDMA hardware was at hand."""

import errno
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.kernel import rdma as rdma_netlink
from collector.kernel.netlink import Datagram, pack_attribute
from collector.kernel.rdma import QueuePair, decode_device, decode_queue_pairs, list_queue_pairs
from lockstep.errors import NotPresent

# rdma/rdma_netlink.h
GET = (5 << 10) + 1
DEV_INDEX, DEV_NAME, PORT_INDEX = 1, 2, 3
RES_QP, RES_QP_ENTRY, LQPN, RQPN, RQ_PSN = range(19, 24)
TYPE, STATE, PID, KERN_NAME, SUBTYPE = 26, 27, 28, 29, 98
NESTED = 0x8000
RC, RTS = 2, 3


def u32(kind: int, value: int) -> bytes:
    return pack_attribute(kind, struct.pack("=I", value))


def u8(kind: int, value: int) -> bytes:
    return pack_attribute(kind, struct.pack("=B", value))


def text(kind: int, value: str) -> bytes:
    return pack_attribute(kind, value.encode() + b"\0")


def device(index: int = 0, name: str = "mlx5_0") -> bytes:
    return u32(DEV_INDEX, index) + text(DEV_NAME, name)


def entry(lqpn: int = 300, more: bytes = b"", *, kind: int = RC, state: int = RTS) -> bytes:
    """Return a queue pair as fill_res_qp_entry of the kernel writes it."""
    fields = u32(PORT_INDEX, 1) + u32(LQPN, lqpn) + more + u8(TYPE, kind) + u8(STATE, state)
    return pack_attribute(RES_QP_ENTRY | NESTED, fields)


def message(*entries: bytes, head: bytes | None = None) -> bytes:
    return (device() if head is None else head) + pack_attribute(RES_QP | NESTED, b"".join(entries))


class FakeKernel:
    """Answers as the kernel's RDMA netlink would; the real one needs hardware or modules that few hosts have."""

    def __init__(self, answers: dict[int, list[bytes]]) -> None:
        self._answers = answers
        self.refusing: set[int] = set()
        self.is_closed = False

    def dump(self, kind: int, body: bytes) -> Iterator[Datagram]:
        if kind == GET:
            payloads = [device(index, f"mlx5_{index}") for index in self._answers]
        else:
            (index,) = struct.unpack("=I", body[4:8])
            if index in self.refusing:
                raise OSError(errno.ENODEV, "No such device")
            payloads = self._answers[index]
        for payload in payloads:
            yield Datagram(b"head" + payload, [(kind, 4, 4 + len(payload)), (kind + 1, 4, 4 + len(payload))])

    def close(self) -> None:
        self.is_closed = True


LATER = u32(LQPN, 9) + u8(TYPE, 77) + u8(STATE, 88) + u32(4000, 1)


@pytest.mark.parametrize(
    ("written", "pair"),
    [
        (entry(300, u32(RQPN, 511) + u32(RQ_PSN, 7) + u32(PID, 4242)), ("RTS", "RC", 1, 300, 511, 4242)),
        (entry(1, text(KERN_NAME, "ib_core"), kind=1), ("RTS", "GSI", 1, 1, None, None)),
        (entry(2, text(SUBTYPE, "DCI"), kind=255), ("RTS", "DRIVER/DCI", 1, 2, None, None)),
        (pack_attribute(RES_QP_ENTRY, LATER), ("state 88", "type 77", 0, 9, None, None)),
    ],
    ids=["process", "kernel", "driver", "later kernel, no port"],
)
def test_queue_pair_is_decoded(written: bytes, pair: tuple[object, ...]) -> None:
    (found,) = decode_queue_pairs(message(written))
    assert (found.state, found.type, found.port, found.lqpn, found.rqpn, found.pid) == pair
    assert found.device == "mlx5_0"


@given(st.binary(max_size=300), st.integers(0, 200))
def test_garbage_never_raises_and_a_message_without_a_whole_queue_pair_gives_none(
    garbage: bytes, length: int
) -> None:
    assert all(isinstance(pair, QueuePair) for pair in decode_queue_pairs(message(entry())[:20] + garbage))
    assert decode_device(garbage) is None or decode_device(garbage)
    without_number = message(pack_attribute(RES_QP_ENTRY, u8(TYPE, 2)))
    for payload in (b"", device(), message(), message(entry(), head=u32(DEV_INDEX, 0)), without_number):
        assert decode_queue_pairs(payload) == []
    whole = message(entry(1), entry(2))
    assert [pair.lqpn for pair in decode_queue_pairs(whole[:length])] == ([1, 2] if length >= len(whole) else [])


def test_all_devices_are_asked_although_one_refuses_and_no_more_is_kept_than_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {0: [message(entry(1), entry(2))], 1: [message(entry(3), entry(4), head=device(1, "mlx5_1"))]}
    kernel = FakeKernel(answers)
    monkeypatch.setattr(rdma_netlink, "NetlinkSocket", lambda _: kernel)
    found = [(pair.device, pair.lqpn) for pair in list_queue_pairs()]
    assert found == [("mlx5_0", 1), ("mlx5_0", 2), ("mlx5_1", 3), ("mlx5_1", 4)]
    assert kernel.is_closed
    monkeypatch.setattr(rdma_netlink, "MOST_QUEUE_PAIRS", 3)
    assert [pair.lqpn for pair in list_queue_pairs()] == [1, 2, 3]
    kernel.refusing = {0}
    assert [pair.lqpn for pair in list_queue_pairs()] == [3, 4]


def test_kernel_without_rdma_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> FakeKernel:
        raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")

    monkeypatch.setattr(rdma_netlink, "NetlinkSocket", refuse)
    with pytest.raises(NotPresent, match="this kernel has no RDMA netlink: Protocol not supported"):
        list_queue_pairs()
