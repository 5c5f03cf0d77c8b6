"""A detail request reaches its host until it expires."""

from lockstep.batches import DetailRequest
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import add_detail_request, detail_requests_by_host


def request(
    detail_request_id: str = "w1", *, host: str = "h3", kind: str = "detail", expires_ns: int = 100
) -> DetailRequest:
    return DetailRequest(
        id=detail_request_id, host=host, kind=kind, details={"ranks": [3, 7], "for_s": 30.5}, expires_ns=expires_ns
    )


def pending(db: ControlDatabase, host: str, now_ns: int) -> list[DetailRequest]:
    return detail_requests_by_host(db, now_ns).get(host, [])


def test_detail_request_comes_back_as_it_was_made(db: ControlDatabase) -> None:
    add_detail_request(db, request())
    assert pending(db, "h3", now_ns=99) == [request()]


def test_detail_request_is_only_for_its_host(db: ControlDatabase) -> None:
    add_detail_request(db, request(host="h4"))
    assert pending(db, "h3", now_ns=0) == []


def test_expired_detail_request_is_no_longer_pending(db: ControlDatabase) -> None:
    add_detail_request(db, request(expires_ns=100))
    assert pending(db, "h3", now_ns=100) == []


def test_detail_requests_that_have_expired_are_deleted_with_the_next_one(db: ControlDatabase) -> None:
    add_detail_request(db, request("old", expires_ns=100))
    add_detail_request(db, request("new", expires_ns=300), now_ns=100)
    assert [found.id for found in pending(db, "h3", now_ns=0)] == ["new"]


def test_most_pressing_detail_request_comes_first(db: ControlDatabase) -> None:
    add_detail_request(db, request("late", expires_ns=200))
    add_detail_request(db, request("soon", kind="probe", expires_ns=100))
    assert [found.id for found in pending(db, "h3", now_ns=0)] == ["soon", "late"]


def test_detail_request_is_prolonged_by_adding_it_again(db: ControlDatabase) -> None:
    add_detail_request(db, request(expires_ns=100))
    add_detail_request(db, request(expires_ns=300))
    assert pending(db, "h3", now_ns=200) == [request(expires_ns=300)]


def test_detail_requests_of_all_hosts_come_together(db: ControlDatabase) -> None:
    for name, host in (("w1", "h3"), ("w2", "h4"), ("w3", "h3")):
        add_detail_request(db, request(name, host=host))
    found = detail_requests_by_host(db, now_ns=0)
    assert {host: [one.id for one in requests] for host, requests in found.items()} == {
        "h3": ["w1", "w3"],
        "h4": ["w2"],
    }
