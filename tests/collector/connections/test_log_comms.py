"""A channel's communicator is found by who writes, or is left open; its id is the profiler's where that can be."""

import pytest

from collector.connections.log_lines import ChannelLine, CommBegins
from collector.connections.log_report import LIKELY, MOST_COMMS, SURE, UNKNOWN, CommBook, child_id

WORLD, SPLIT = 0xA0, 0xB0
MAIN, PROXY, OTHER_PROXY = 1, 20, 30


def channel(rank: int = 1, peer: int = 0) -> ChannelLine:
    return ChannelLine(0, 0, rank, peer, "send", "NET", "IB", 0)


def book_of(release: tuple[int, int] | None = (2, 28)) -> CommBook:
    """A process with a world of four ranks and a split of two, rank 1 of both."""
    book = CommBook()
    book.release = release
    book.begin(MAIN, CommBegins(WORLD, 1, 4, 0, 0x53025406BC896DD3))
    book.add_proxy(PROXY)
    book.finish(WORLD)
    book.begin(MAIN, CommBegins(SPLIT, 1, 2, 0, None, WORLD, 1, 2130503744))
    book.add_proxy(OTHER_PROXY)
    return book


def find(book: CommBook, line: ChannelLine, tid: int = MAIN) -> tuple[int | None, float]:
    comm, confidence = book.find(tid, line)
    return (comm.pointer if comm else None), confidence


def test_channel_written_while_a_communicator_is_made_is_its_own() -> None:
    assert find(book_of(), channel()) == (SPLIT, SURE)


@pytest.mark.parametrize(("proxy", "pointer"), [(PROXY, WORLD), (OTHER_PROXY, SPLIT)])
def test_later_channel_belongs_to_the_communicator_whose_proxy_was_asked(proxy: int, pointer: int) -> None:
    book = book_of()
    book.finish(SPLIT)
    book.ask_proxy(proxy)
    book.answer_proxy(MAIN)
    assert find(book, channel()) == (pointer, SURE)
    assert find(book, channel()) == (None, UNKNOWN)  # the answer was for one channel


def test_channel_that_fits_only_one_communicator_is_likely_its_own() -> None:
    book = book_of()
    book.finish(SPLIT)
    assert find(book, channel(peer=3)) == (WORLD, LIKELY)


def test_channel_that_fits_several_is_left_open() -> None:
    book = book_of()
    book.finish(SPLIT)
    assert find(book, channel()) == (None, UNKNOWN)
    assert find(book, channel(rank=3)) == (None, UNKNOWN)


def test_communicator_that_ended_has_no_channels() -> None:
    book = book_of()
    book.end(SPLIT)
    assert find(book, channel()) == (WORLD, LIKELY)


def test_child_without_a_proxy_of_its_own_shares_its_parent_s() -> None:
    book = book_of()
    book.end(SPLIT)
    book.begin(MAIN, CommBegins(SPLIT, 0, 2, 0, None, WORLD, 2, 5))
    book.finish(SPLIT)
    book.ask_proxy(PROXY)
    book.answer_proxy(MAIN)
    assert find(book, channel(rank=0, peer=1)) == (SPLIT, SURE)


def test_proxy_that_begins_while_two_are_made_belongs_to_nobody() -> None:
    book = CommBook()
    for tid, pointer in ((1, WORLD), (2, SPLIT)):
        book.begin(tid, CommBegins(pointer, 1, 4, 0, 7))
    book.add_proxy(PROXY)
    assert [comm.proxy_tid for comm in book.comms] == [None, None]


def test_id_is_the_profiler_s_from_the_release_in_which_both_are_the_same() -> None:
    assert [comm.id for comm in book_of((2, 26)).comms] == [0x53025406BC896DD3, 0xE9BF466C3E5EEA0D]


@pytest.mark.parametrize("release", [(2, 25), (2, 19), None])
def test_id_of_an_earlier_or_unknown_release_cannot_be_joined_and_stays_open(release: tuple[int, int] | None) -> None:
    assert [comm.id for comm in book_of(release).comms] == [None, None]


@pytest.mark.parametrize(
    ("number", "color", "reported"),
    [
        (1, 2130503744, 0xE9BF466C3E5EEA0D),
        (2, 1121016176, 0x8529115817769D70),
        (3, 1684518034, 0x61432D88D0FBAF0D),
        (4, 1984952676, 0x4D1CA9F10452B067),
    ],
)
def test_id_of_a_split_is_the_one_that_ras_reported_on_a_real_job(number: int, color: int, reported: int) -> None:
    assert child_id(0x53025406BC896DD3, number, color) == reported


def test_endless_communicators_do_not_fill_the_memory() -> None:
    book = CommBook()
    for pointer in range(MOST_COMMS + 10):
        book.begin(MAIN, CommBegins(pointer, 0, 2, 0, 1))
    assert [book.comms[0].pointer, len(book.comms)] == [10, MOST_COMMS]
