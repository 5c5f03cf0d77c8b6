"""Each line of NCCL's log is read as its release writes it, and anything else gives nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.connections.log_lines import (
    LINE_BYTES,
    ChannelLine,
    CommBegins,
    CommChange,
    Fact,
    FailedCompletion,
    JoinedDevice,
    LogLine,
    NetDevices,
    ProxyLine,
    QueuePairLine,
    Release,
    Warned,
    read_line,
    understand,
)

# As they stand in public issues of NVIDIA/nccl and in own runs; where no such line was found, as the release's source
# writes them. Above them stands the release that they come from.
COMM = "cudaDev 0 nvmlDev 3 busId 60"
LINES: list[tuple[str, Fact]] = [
    # 2.10
    (
        "NET/IB : Using [0]hfi1_0:1/IB [1]hfi1_1:1/IB ; OOB ib0:10.148.7.175<0>",
        NetDevices("IB", (("hfi1_0:1",), ("hfi1_1:1",))),
    ),
    ("Channel 00 : 31[cb000] -> 0[7000] [receive] via NET/IB/1", ChannelLine(0, 0, 0, 31, "recv", "NET", "IB", 1)),
    # 2.19
    (f"comm 0x557f rank 36 nranks 64 {COMM} commId 0x5a - Init START", CommBegins(0x557F, 36, 64, 3, 0x5A)),
    ("New proxy send connection 2 from local rank 0, transport 2", ProxyLine("asked")),
    ("NET/IB: Dev 3 Port 1 qpn 4711 mtu 5 LID 12", QueuePairLine(3, 1, 4711)),
    # 2.21
    (
        f"ncclCommSplit comm 0x1f rank 1 nranks 2 {COMM} parent 0xab color 5 key 1 commId 0x9f - Init START",
        CommBegins(0x1F, 1, 2, 3, 0x9F, parent=0xAB, color=5),
    ),
    (
        "NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [2]mlx5_2:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
        NetDevices("IB", (("mlx5_0:1", "mlx5_1:1"), ("mlx5_2:1",))),
    ),
    ("Channel 03/0 : 8[0] -> 16[0] [send] via NET/IB/2(11)/G", ChannelLine(3, 0, 8, 16, "send", "NET", "IB", 2, 11)),
    # 2.22
    ("Channel 04/0 : 0[0] -> 7[7] via P2P/CUMEM", ChannelLine(4, 0, 0, 7, "send", "P2P")),
    # 2.23
    (
        "ncclCommInitRank comm 0x8e rank 6 nranks 16 cudaDev 6 nvmlDev 6 busId c8000 commId 0x49 - Init COMPLETE",
        CommChange(0x8E, is_ready=True),
    ),
    # 2.26
    (
        "Channel 03/0 : 8[0] -> 16[0] [send] via NET/AWS Libfabric/5/GDRDMA(PCI)/Shared",
        ChannelLine(3, 0, 8, 16, "send", "NET", "AWS Libfabric", 5),
    ),
    # 2.28
    ("NCCL version 2.28.9+cuda13.0", Release(2, 28)),
    (
        f"ncclCommSplit comm 0x18 rank 1 nranks 2 {COMM} parent 0x10 splitCount 1 color 213 key 1- Init START",
        CommBegins(0x18, 1, 2, 3, None, parent=0x10, child_number=1, color=213),
    ),
    ("comm 0x1f rank 3 nranks 4 cudaDev 0 busId 60 - Destroy COMPLETE", CommChange(0x1F, is_ready=False)),
    ("comm 0x1f rank 3 nranks 4 cudaDev 0 busId 60 - Abort COMPLETE", CommChange(0x1F, is_ready=False)),
    ("[Proxy Service] Device 0 CPU core 4", ProxyLine("began")),
    ("Connected to proxy localRank 0 -> connection 0x7f8c18005060", ProxyLine("answered")),
    (
        "NET/Socket : Using [0]eth0:10.0.0.1<0> [1]bond0.7:fd00::2<0>",
        NetDevices("Socket", (("eth0",), ("bond0.7",)), ("10.0.0.1", "fd00::2")),
    ),
    ("NET/IB : Made virtual device [4] name=mlx5_0+mlx5_1 s", JoinedDevice(4, ("mlx5_0", "mlx5_1"))),
    ("NET/IB: NCCL Dev 2 IbDev 5 Port 1 qpn 4711 mtu 5 GID 3 (0/A0000)", QueuePairLine(5, 1, 4711)),
    (
        "Channel 01/1 : 1[0] -> 3[0] [send] via NET/Socket/0/Shared",
        ChannelLine(1, 1, 1, 3, "send", "NET", "Socket", 0),
    ),
    ("CollNet 02/0 : 5 [receive] via COLLNET/SHARP/1/G", ChannelLine(2, 0, 5, -1, "recv", "COLLNET", "SHARP", 1)),
    # 2.30
    (
        f"[Rank 3] ncclCommInitRank comm 0x1f rank 3 nranks 4 {COMM} commId 0x2a - Init START",
        CommBegins(0x1F, 3, 4, 3, 0x2A),
    ),
    (
        "NET/IB : Using [0]mlx5_0:1:4:0/IB [1]mlx5_1:2::1/IB [RO]; OOB eth0:10.0.0.1<0>",
        NetDevices("IB", (("mlx5_0:1",), ("mlx5_1:2",))),
    ),
    ("Channel 04 : 0[0] -> 7[7] via SHM/direct/direct", ChannelLine(4, 0, 0, 7, "send", "SHM")),
]


@pytest.mark.parametrize(("text", "fact"), LINES)
def test_line_of_a_release_is_understood(text: str, fact: Fact) -> None:
    line = read_line(f"n1:417:530 [0] NCCL INFO {text}".encode())
    assert line == LogLine(417, 530, False, text)
    assert understand(line) == fact


GIDS = "localGid fd00:1148::ff22 remoteGidsfd00:1148::ff1f"


@pytest.mark.parametrize(
    ("head", "text", "status", "hca"),
    [
        ("n1:1:2 [3] ib.cc:1", "NET/IB : Got X with error 12, opcode 32, len 0, vendor err 129 (Send)", 12, None),
        ("n1:1:2 [4] ib.c:16", f"NET/IB : Got X with status=12 opcode=0 len=0 vendor err 9 (Recv) {GIDS}", 12, None),
        ("n1:1:2 [0] p2p.c:1", "NET/IBP:Got X with status=12 opcode=32698 len=32696 vendor err 129 (Send)", 12, None),
        ("[2026-11-15 08:57:50] n1:1:2 [0] t:1", f"NET/IB: Got X with status=5 opcode=0 {GIDS} hca a_3", 5, "a_3"),
        (
            "[2026-11-15 08:57:50] n1:1:2 [0] transport/net_ib.cc:2543",
            f"NET/IB: Got X with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) {GIDS} hca mlx5_bond_0",
            12,
            "mlx5_bond_0",
        ),
        ("n1:1:2 [0] g.cc:1", "NET/IB/GIN: Got X with status=13 opcode=0 len=4 (Send) hca mlx5_0", 13, "mlx5_0"),
    ],
    ids=["2.19: no status word", "2.21", "a plugin's", "2.26: adapter and time", "2.28: words", "2.28: by the GPU"],
)
def test_failed_completion_is_read_in_all_its_forms(head: str, text: str, status: int, hca: str | None) -> None:
    text = text.replace("Got X", "Got completion from peer 10.216.210.236<54862>")
    line = read_line(f"{head} NCCL WARN {text}".encode())
    assert line == LogLine(1, 2, True, text)
    assert understand(line) == FailedCompletion(text, status, hca)


NO_LINES = [b"", b"NCCL INFO Channel 00", b"n1:417 [0] NCCL INFO Using network IB", b"step 3 loss 0.1"]
NO_LINES += [f"n1:{ids} [0] NCCL INFO Using network IB".encode() for ids in ("x:530", "417:99999999999", "417:³")]


def test_other_warning_is_kept_as_a_sentence_and_what_nobody_of_nccl_wrote_is_none() -> None:
    line = read_line(b"n1:1:2 [0] misc/socket.cc:72 NCCL WARN socketProgress: Connection closed by remote peer n2<4>")
    assert line is not None
    assert understand(line) == Warned("socketProgress: Connection closed by remote peer n2<4>")
    assert [read_line(raw) for raw in NO_LINES] == [None] * 7


ALMOST_LINES = """Channel 00/02 :    0   1   2   3
Channel 00/0 : 0[0] -> 1[0] via NET/IB/0
Channel 00/0 : 0[0] -> 1[0] [send] via P2P/IPC
Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/x
Channel 00/0 : 999999999999[0] -> 1[0] [send] via NET/IB/0
NET/IB : Using ; OOB eth0
NET/Socket : Using [0]eth0
NET/Plugin: Loaded net plugin
comm 0xzz rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 0 commId 0x1 - Init START
"""


def test_line_that_only_looks_like_one_says_nothing() -> None:
    assert [understand(LogLine(1, 1, False, text)) for text in ALMOST_LINES.splitlines()] == [None] * 9


PIECES = ["Channel ", "NET/IB : Using ", "[0]={", "[0]mlx5_0:1/IB", "comm 0x", "[", "(", ":"]
WORDS = st.sampled_from([*(text for text, _ in LINES), *PIECES])
MARKS = st.sampled_from([b" NCCL INFO ", b" NCCL WARN ", b""])


@given(st.lists(WORDS | st.text(max_size=20), max_size=20), MARKS, st.binary(max_size=300))
def test_whatever_comes_never_raises(parts: list[str], mark: bytes, tail: bytes) -> None:
    for is_warning in (False, True):
        understand(LogLine(1, 1, is_warning, "".join(parts)))
    for head in ("".join(parts).encode("utf-8", "replace"), tail):
        line = read_line(head + mark + tail)
        assert line is None or understand(line) is not None or not line.is_warning


@pytest.mark.parametrize("unit", ["[0]", "[0]={", "mlx5_0:1", "a ", " hca ", "([", "1(", "/", "status=a "])
def test_longest_line_of_one_repeated_piece_is_read_once_over(unit: str) -> None:
    for beginning in ("NET/IB : Using ", "Channel ", "NET/IB: Got completion from peer a with status=", ""):
        text = (beginning + unit * LINE_BYTES)[:LINE_BYTES]
        for is_warning in (False, True):
            for _ in range(20):  # a pattern that went back and forth would not end here
                understand(LogLine(1, 1, is_warning, text))
