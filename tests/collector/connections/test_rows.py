"""A row is sent again only when it says more, and never more of them than there is room for."""

from dataclasses import replace

from collector.connections.log_report import LoggedConnection
from collector.connections.rows import (
    HostNics,
    Key,
    Owner,
    SentRows,
    is_better,
    network_transport,
    rows_of_log,
    worth_of,
)
from collector.sources.connections import load_words
from lockstep.records import Connection

OWNER = Owner((42, 7), "h0", "job", 0, 1)
LOGGED = LoggedConnection(1, 0, 1, 0, "send", "NET", "IB", ("mlx5_0:1",), "", None, confidence=0.9)


def row_of(logged: LoggedConnection = LOGGED) -> Connection:
    (row,) = rows_of_log(OWNER, [logged], HostNics(), load_words().networks).rows.values()
    return row


def better(row: Connection, sent: Connection) -> bool:
    return is_better(worth_of(row), worth_of(sent))


def test_row_with_more_confidence_or_another_field_is_better_and_one_seen_later_is_not() -> None:
    row = row_of()
    assert better(replace(row, confidence=0.95), replace(row, sport=1))
    assert not better(replace(row, confidence=0.5, sport=1), row)
    assert better(replace(row, sport=1), row)
    assert not better(row, replace(row, sport=1))
    assert not better(replace(row, seen_ns=9), row)
    nameless = row_of(replace(LOGGED, devices=()))
    assert (nameless.nic, nameless.confidence) == (None, 0.45)


def test_rows_beyond_the_limit_come_the_next_time_and_those_without_room_are_counted_once() -> None:
    sent = SentRows()
    rows: dict[Key, Connection] = {(42, 7, number): row_of() for number in range(5)}
    assert [len(sent.choose(rows, 3)), sent.has_more] == [3, True]
    assert [len(sent.choose(rows, 3)), sent.has_more] == [2, False]
    assert sent.choose(rows, 3) == []
    sent = SentRows()
    sent.MOST_ROWS = 2
    mine: dict[Key, Connection] = {(1, 1, number): row_of() for number in range(2)}
    others: dict[Key, Connection] = {(2, 1, number): row_of() for number in range(2)}
    for _ in range(3):
        sent.choose(mine, 10)
        sent.choose(others, 10)
    assert [sent.pop_lost(), sent.pop_lost()] == [2, 0]
    sent.forget_all_but([(2, 1)])
    assert len(sent.choose(others, 10)) == 2


def test_networks_are_known_by_how_they_begin() -> None:
    networks = load_words().networks
    names = ["IB", "IBext_v8", "ib", "Socket", "AWS Libfabric", "Libfabric", "FastSocket", "gIB", "Pigeon"]
    found = [network_transport(name, networks) for name in names]
    assert found == ["ib", "ib", "ib", "socket", "ofi", "ofi", "socket", "ib", None]
