"""The story of a process takes whatever its log holds, and has an end in memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.connections import log_report
from collector.connections.log_lines import ChannelLine, CommBegins, CommChange, ProxyLine, Warned
from collector.connections.log_report import LIKELY, MOST_COMMS, SURE, UNKNOWN, CommBook, LogReport, child_id
from collector.sources.connections import load_words
from tests.collector.sources.imitated_nccl import REAL_LOG, REAL_PID

HEAD = b"n1:417:417 [0] NCCL INFO "
CHANNEL = HEAD + b"Channel %d/0 : 0[0] -> 1[0] [send] via NET/IB/0"
REAL_LINES = REAL_LOG.read_bytes().splitlines()


def test_lines_of_others_are_passed_over_connections_beyond_the_limit_counted_and_unknown_devices_have_no_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_report, "MOST_CONNECTIONS", 3)
    other, report = LogReport(1), LogReport(REAL_PID)
    for line in REAL_LINES:
        other.take(line)
    assert (other.connections, other.networks, other.pop_troubles(), other.revision) == ({}, {}, [], 0)
    for number in (0, 1, 2, 3, 4, 0):
        report.take(CHANNEL % number)
    assert (len(report.connections), report.pop_lost(), report.pop_lost()) == (3, 2, 0)
    report.take(HEAD + b"NET/IB: Dev 7 Port 1 qpn 5 mtu 5 LID 1")
    assert ({one.devices for one in report.connections.values()}, dict(report.queue_pairs)) == ({()}, {5: ""})


@given(st.permutations(REAL_LINES), st.integers(0, 10_000))
def test_real_lines_in_any_order_and_cut_anywhere_never_raise(lines: list[bytes], cut: int) -> None:
    report = LogReport(REAL_PID)
    for line in lines:
        report.take(line[: cut % (len(line) + 1)] if cut % 3 else line)
    assert len(report.connections) <= 24 * 3


@pytest.mark.parametrize(
    ("sentence", "kind", "port"),
    [
        ("NET/IB : mlx5_3:1 async fatal event: local catastrophic error", "ib_async_fatal", "mlx5_3:1"),
        ("NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)", "ib_async_event", "mlx5_3:1"),
        ("Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1", "ib_call_failed", None),
        ("socketProgress: Connection closed by remote peer n2<4>", "socket_closed", None),
        ("socketProgressOpt: Call to recv from 10.0.0.9<1> failed : Connection timed out", "socket_error", None),
        ("NET/Socket : socket progress error", "net_warning", None),
        ("Cuda failure 'out of memory'", None, None),
    ],
)
def test_warning_has_a_kind_where_it_concerns_a_connection(sentence: str, kind: str | None, port: str | None) -> None:
    trouble = load_words().describe(Warned(sentence))
    assert (trouble.kind, trouble.port, trouble.message) == (kind, port, sentence) if trouble else kind is None


WORLD, SPLIT = 0xA0, 0xB0
MAIN, PROXY, OTHER_PROXY = 1, 20, 30
BEGAN = ProxyLine("began")
SPLIT_READY, SPLIT_ENDS = (CommChange(SPLIT, is_ready) for is_ready in (True, False))


def channel(rank: int = 1, peer: int = 0) -> ChannelLine:
    return ChannelLine(0, 0, rank, peer, "send", "NET", "IB", 0)


def book_of(release: tuple[int, int] | None = (2, 28)) -> CommBook:
    """A process with a world of four ranks and a split of two, rank 1 of both."""
    book = CommBook()
    book.release = release
    book.begin(MAIN, CommBegins(WORLD, 1, 4, 0, 0x53025406BC896DD3))
    book.take_proxy(PROXY, BEGAN)
    book.change(CommChange(WORLD, is_ready=True))
    book.begin(MAIN, CommBegins(SPLIT, 1, 2, 0, None, WORLD, 1, 2130503744))
    book.take_proxy(OTHER_PROXY, BEGAN)
    return book


def ask(book: CommBook, proxy: int) -> None:
    book.take_proxy(proxy, ProxyLine("asked"))
    book.take_proxy(MAIN, ProxyLine("answered"))


def find(book: CommBook, line: ChannelLine, tid: int = MAIN) -> tuple[int | None, float]:
    comm, confidence = book.find(tid, line)
    return (comm.pointer if comm else None), confidence


def test_channel_is_of_the_communicator_being_made_and_later_of_the_one_whose_proxy_was_asked() -> None:
    for proxy, pointer in ((PROXY, WORLD), (OTHER_PROXY, SPLIT)):
        book = book_of()
        assert find(book, channel()) == (SPLIT, SURE)
        book.change(SPLIT_READY)
        ask(book, proxy)
        assert find(book, channel()) == (pointer, SURE)
        assert find(book, channel()) == (None, UNKNOWN)  # the answer was for one channel


def test_channel_is_likely_of_the_only_communicator_it_fits_and_left_open_between_several() -> None:
    book = book_of()
    book.change(SPLIT_READY)
    assert find(book, channel(peer=3)) == (WORLD, LIKELY)
    assert find(book, channel()) == (None, UNKNOWN)
    assert find(book, channel(rank=3)) == (None, UNKNOWN)
    book.change(SPLIT_ENDS)
    assert find(book, channel()) == (WORLD, LIKELY)
    book.begin(MAIN, CommBegins(SPLIT, 0, 2, 0, None, WORLD, 2, 5))
    book.change(SPLIT_READY)
    ask(book, PROXY)
    assert find(book, channel(rank=0, peer=1)) == (SPLIT, SURE), "a child without a proxy shares its parent's"


def test_proxy_that_begins_while_two_are_made_belongs_to_nobody_and_the_number_of_all_is_bounded() -> None:
    book = CommBook()
    for tid, pointer in ((1, WORLD), (2, SPLIT)):
        book.begin(tid, CommBegins(pointer, 1, 4, 0, 7))
    book.take_proxy(PROXY, BEGAN)
    assert [comm.proxy_tid for comm in book.comms] == [None, None]
    endless = CommBook()
    for pointer in range(MOST_COMMS + 10):
        endless.begin(MAIN, CommBegins(pointer, 0, 2, 0, 1))
    assert [endless.comms[0].pointer, len(endless.comms)] == [10, MOST_COMMS]


def test_id_is_the_profiler_s_from_the_release_in_which_both_are_the_same_and_of_a_split_what_ras_reported() -> None:
    assert [comm.id for comm in book_of((2, 26)).comms] == [0x53025406BC896DD3, 0xE9BF466C3E5EEA0D]
    for release in ((2, 25), (2, 19), None):
        assert [comm.id for comm in book_of(release).comms] == [None, None]
    colors = (2130503744, 1121016176, 1684518034, 1984952676)  # of a real job
    ids = [child_id(0x53025406BC896DD3, number, color) for number, color in enumerate(colors, 1)]
    assert ids == [0xE9BF466C3E5EEA0D, 0x8529115817769D70, 0x61432D88D0FBAF0D, 0x4D1CA9F10452B067]
