"""A wish reaches its host until it expires."""

from lockstep.control.database import ControlDatabase
from lockstep.control.wishes import add_wish, delete_expired, wishes_by_host
from lockstep.wish import Wish


def wish(wish_id: str = "w1", *, host: str = "h3", kind: str = "detail", expires_ns: int = 100) -> Wish:
    return Wish(id=wish_id, host=host, kind=kind, details={"ranks": [3, 7], "for_s": 30.5}, expires_ns=expires_ns)


def pending(db: ControlDatabase, host: str, now_ns: int) -> list[Wish]:
    return wishes_by_host(db, now_ns).get(host, [])


def test_wish_comes_back_as_it_was_made(db: ControlDatabase) -> None:
    add_wish(db, wish())
    assert pending(db, "h3", now_ns=99) == [wish()]


def test_wish_is_only_for_its_host(db: ControlDatabase) -> None:
    add_wish(db, wish(host="h4"))
    assert pending(db, "h3", now_ns=0) == []


def test_expired_wish_is_no_longer_pending(db: ControlDatabase) -> None:
    add_wish(db, wish(expires_ns=100))
    assert pending(db, "h3", now_ns=100) == []


def test_most_pressing_wish_comes_first(db: ControlDatabase) -> None:
    add_wish(db, wish("late", expires_ns=200))
    add_wish(db, wish("soon", kind="probe", expires_ns=100))
    assert [found.id for found in pending(db, "h3", now_ns=0)] == ["soon", "late"]


def test_wish_is_prolonged_by_adding_it_again(db: ControlDatabase) -> None:
    add_wish(db, wish(expires_ns=100))
    add_wish(db, wish(expires_ns=300))
    assert pending(db, "h3", now_ns=200) == [wish(expires_ns=300)]


def test_only_expired_wishes_are_deleted(db: ControlDatabase) -> None:
    for number in range(1, 4):
        add_wish(db, wish(f"w{number}", expires_ns=number * 100))
    assert delete_expired(db, now_ns=200) == 2
    assert [found.id for found in pending(db, "h3", now_ns=0)] == ["w3"]


def test_wishes_of_all_hosts_come_together(db: ControlDatabase) -> None:
    for name, host in (("w1", "h3"), ("w2", "h4"), ("w3", "h3")):
        add_wish(db, wish(name, host=host))
    found = wishes_by_host(db, now_ns=0)
    assert {host: [one.id for one in wishes] for host, wishes in found.items()} == {"h3": ["w1", "w3"], "h4": ["w2"]}
