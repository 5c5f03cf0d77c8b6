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
GET, RES_QP_GET = (5 << 10) + 1, (5 << 10) + 10
DEV_INDEX, DEV_NAME, PORT_INDEX = 1, 2, 3
RES_QP, RES_QP_ENTRY, LQPN, RQPN, RQ_PSN, TYPE, STATE, PID, KERN_NAME, SUBTYPE = (
    19,
    20,
    21,
    22,
    23,
    26,
    27,
    28,
    29,
    98,
)
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

    def __init__(self, answers: dict[int, list[bytes]], refusing: frozenset[int] = frozenset()) -> None:
        self._answers, self._refusing = answers, refusing
        self.is_closed = False

    def dump(self, kind: int, body: bytes) -> Iterator[Datagram]:
        if kind == GET:
            payloads = [device(index, f"mlx5_{index}") for index in self._answers]
        else:
            (index,) = struct.unpack("=I", body[4:8])
            if index in self._refusing:
                raise OSError(errno.ENODEV, "No such device")
            payloads = self._answers[index]
        for payload in payloads:
            yield Datagram(b"head" + payload, [(kind, 4, 4 + len(payload)), (kind + 1, 4, 4 + len(payload))])

    def close(self) -> None:
        self.is_closed = True


def test_queue_pair_of_a_process_is_decoded_with_both_numbers() -> None:
    found = decode_queue_pairs(message(entry(more=u32(RQPN, 511) + u32(RQ_PSN, 7) + u32(PID, 4242))))
    assert found == [QueuePair(device="mlx5_0", port=1, lqpn=300, rqpn=511, pid=4242, state="RTS", type="RC")]


def test_queue_pair_of_the_kernel_has_no_process_and_one_without_a_peer_no_remote_number() -> None:
    (pair,) = decode_queue_pairs(message(entry(1, text(KERN_NAME, "ib_core"), kind=1, state=3)))
    assert (pair.pid, pair.rqpn, pair.type) == (None, None, "GSI")


def test_queue_pair_of_a_driver_has_its_name() -> None:
    (pair,) = decode_queue_pairs(message(entry(more=text(SUBTYPE, "DCI"), kind=255)))
    assert pair.type == "DRIVER/DCI"


def test_queue_pair_without_a_port_and_with_values_of_a_later_kernel_is_still_one() -> None:
    later = u32(LQPN, 9) + u8(TYPE, 77) + u8(STATE, 88) + u32(4000, 1)
    (pair,) = decode_queue_pairs(message(pack_attribute(RES_QP_ENTRY, later)))
    assert (pair.port, pair.state, pair.type) == (0, "state 88", "type 77")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        device(),
        message(),
        message(entry(), head=u32(DEV_INDEX, 0)),
        message(pack_attribute(RES_QP_ENTRY, u8(TYPE, 2))),
    ],
    ids=["nothing", "no table", "empty table", "no device", "no number"],
)
def test_message_without_a_queue_pair_gives_none(payload: bytes) -> None:
    assert decode_queue_pairs(payload) == []


@given(st.binary(max_size=300))
def test_garbage_never_raises(garbage: bytes) -> None:
    assert all(isinstance(pair, QueuePair) for pair in decode_queue_pairs(message(entry())[:20] + garbage))
    assert decode_device(garbage) is None or decode_device(garbage)


@given(st.integers(0, 200))
def test_message_that_is_cut_gives_what_came_whole(length: int) -> None:
    whole = message(entry(1), entry(2))
    found = decode_queue_pairs(whole[:length])
    assert [pair.lqpn for pair in found] == ([1, 2] if length >= len(whole) else [])


def test_all_devices_are_asked_and_the_socket_closed() -> None:
    kernel = FakeKernel({0: [message(entry(1), entry(2))], 1: [message(entry(3), head=device(1, "mlx5_1"))]})
    assert [(pair.device, pair.lqpn) for pair in list_queue_pairs(lambda: kernel)] == [
        ("mlx5_0", 1),
        ("mlx5_0", 2),
        ("mlx5_1", 3),
    ]
    assert kernel.is_closed


def test_device_that_refuses_does_not_hide_the_others() -> None:
    kernel = FakeKernel({0: [], 1: [message(entry(3), head=device(1, "mlx5_1"))]}, refusing=frozenset({0}))
    assert [pair.lqpn for pair in list_queue_pairs(lambda: kernel)] == [3]


def test_more_queue_pairs_than_are_kept_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_netlink, "MOST_QUEUE_PAIRS", 3)
    kernel = FakeKernel({0: [message(entry(1), entry(2))], 1: [message(entry(3), entry(4), head=device(1))]})
    assert [pair.lqpn for pair in list_queue_pairs(lambda: kernel)] == [1, 2, 3]


def test_kernel_without_rdma_is_an_answer() -> None:
    def refuse() -> FakeKernel:
        raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")

    with pytest.raises(NotPresent, match="this kernel has no RDMA netlink: Protocol not supported"):
        list_queue_pairs(refuse)
