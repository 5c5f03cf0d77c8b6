"""Where a store is, and what is said about an address that leads nowhere."""

from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.store.engine import Embedded, Server, parse_address


def test_a_directory_is_an_embedded_store() -> None:
    assert parse_address("chdb:///var/lib/x") == Embedded(Path("/var/lib/x"), "lockstep")


def test_spaces_in_a_directory_are_kept() -> None:
    assert parse_address("chdb:///var/lib/my%20store") == Embedded(Path("/var/lib/my store"))


def test_a_server_address_is_taken_apart() -> None:
    address = parse_address("https://ops:s%40fe@db.example:9443/tele")
    assert address == Server("db.example", 9443, "ops", "s@fe", "tele", secure=True)


def test_defaults_fill_what_an_address_leaves_out() -> None:
    assert parse_address("http://db") == Server("db", 8123, "default", "", "lockstep")
    assert parse_address("https://db") == Server("db", 8443, "default", "", "lockstep", secure=True)


def test_a_password_beside_the_address_is_used_when_it_has_none() -> None:
    beside = parse_address("http://u@db", password="beside")
    inside = parse_address("http://u:inside@db", password="beside")
    assert isinstance(beside, Server)
    assert isinstance(inside, Server)
    assert (beside.password, inside.password) == ("beside", "inside")


def test_a_password_is_never_shown() -> None:
    address = parse_address("http://u:hush@db/t")
    assert "hush" not in f"{address} {address!r}"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("chdb://relative/dir", "absolute directory"),
        ("chdb:///", "absolute directory"),
        ("ftp://db/t", "not 'ftp'"),
        ("plainly wrong", "not 'plainly wrong'"),
        ("http:///t", "names no host"),
        ("http://db:99999/t", "not a URL"),
        ("http://db/drop table", "cannot be a database name"),
    ],
)
def test_a_bad_address_is_refused_with_the_reason(url: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        parse_address(url)
