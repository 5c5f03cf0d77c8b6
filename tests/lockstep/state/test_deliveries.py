"""A message is written once, sent in the order of its thread, kept under one id, and forgotten with age."""

from typing import Any

import pytest

from lockstep.alerts import Alert, Notification, Thread
from lockstep.errors import BadInput, LeaseLost, NotPresent
from lockstep.state import deliveries
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import list_audit
from lockstep.state.leases import Lease, take_lease
from lockstep.state.targets import Health, list_health
from tests.fixtures.control import hold_lease

ALERT = Alert(
    subject="i1",
    family="incident",
    job="train",
    component="nic:h3/eth1",
    fault_class="comm_slow",
    grade="isolate",
    mark="m",
    since_ns=1,
    headline="h",
    reason="r",
)


@pytest.fixture
def lease(db: ControlDatabase) -> Lease:
    return hold_lease(db, "alerts", "me", ttl_ns=1000)


def message(
    event: str, *, target: str = "ops", key: str = "i1", ts_ns: int = 10, **flags: bool
) -> deliveries.Outgoing:
    news = Notification(id=event, kind="incident.opened", key=key, ts_ns=ts_ns, alerts=(ALERT,))
    return deliveries.Outgoing(target, news, **({"replaces": False, "is_end": False} | flags))


def thread(target: str = "ops", **changes: Any) -> Thread:
    made = Thread(target=target, subject="i1", key="i1", number=1, reported_ns=10, alert=ALERT)
    return made.model_copy(update=changes)


def begin(db: ControlDatabase, lease: Lease, number: int) -> deliveries.Delivery:
    begun = deliveries.begin_try(db, lease, number, 20)
    assert begun is not None
    return begun


def settle(db: ControlDatabase, lease: Lease, sent: deliveries.Delivery, state: Any = "delivered") -> None:
    told = deliveries.Try(ts_ns=20, status=200, said="HTTP 200")
    deliveries.settle_try(db, lease, sent, state, 30, told, Health(since_ns=0))


def send(db: ControlDatabase, lease: Lease, number: int, state: Any = "delivered") -> deliveries.Delivery:
    sent = begin(db, lease, number)
    settle(db, lease, sent, state)
    return sent


def states(db: ControlDatabase, target: str = "ops") -> list[tuple[str, str]]:
    return [(each.event, each.state) for each in reversed(deliveries.list_deliveries(db, target))]


def test_message_is_written_once_and_only_under_the_lease(db: ControlDatabase, lease: Lease) -> None:
    for _ in range(2):
        deliveries.save_round(db, lease, [message("e1"), message("e1", target="other")], [thread()])
    assert states(db) == [("e1", "waiting")]
    assert states(db, "other") == [("e1", "waiting")]
    assert deliveries.list_threads(db, (), since_ns=99) == [thread()]
    take_lease(db, "alerts", "another", ttl_ns=100, now_ns=2000)
    with pytest.raises(LeaseLost):
        deliveries.save_round(db, lease, [message("e2")], [thread(subject="i2")])
    assert (states(db), deliveries.list_threads(db, (), 0)) == ([("e1", "waiting")], [thread()])


def test_of_a_thread_the_first_is_sent_and_the_others_wait_for_it(db: ControlDatabase, lease: Lease) -> None:
    deliveries.save_round(db, lease, [message("e1"), message("e2"), message("e3", key="i2")], [])
    first, third = deliveries.due_deliveries(db, 10)
    assert [first[1] + 2, third[1]] == [third[1]] * 2
    assert deliveries.due_deliveries(db, 9) == []
    begun = begin(db, lease, first[1])
    assert deliveries.begin_try(db, lease, first[1], 20) is None, "it is under way"
    assert [number for _, number in deliveries.due_deliveries(db, 99)] == [third[1]]
    settle(db, lease, begun)
    assert len(deliveries.due_deliveries(db, 99)) == 2


def test_what_was_under_way_when_its_process_died_is_sent_again(db: ControlDatabase, lease: Lease) -> None:
    deliveries.save_round(db, lease, [message("e1")], [])
    ((_, number),) = deliveries.due_deliveries(db, 10)
    deliveries.begin_try(db, lease, number, 20)
    assert deliveries.due_deliveries(db, 10**18) == []
    taken = hold_lease(db, "alerts", "another", ttl_ns=100, now_ns=2000)
    assert deliveries.resume_sending(db, taken, 2000) == 1
    assert deliveries.due_deliveries(db, 2000) == [("ops", number)]
    with pytest.raises(LeaseLost):
        deliveries.begin_try(db, lease, number, 2001)


@pytest.mark.parametrize(
    ("replaces", "is_tried", "expected"),
    [
        (True, False, [("e1", "superseded")]),  # what was never shown needs no end
        (True, True, [("e1", "superseded"), ("e2", "waiting")]),
        (False, False, [("e1", "waiting"), ("e2", "waiting")]),  # programs get beginning and end
    ],
)
def test_what_may_have_been_shown_is_ended(
    db: ControlDatabase, lease: Lease, replaces: bool, is_tried: bool, expected: list[tuple[str, str]]
) -> None:
    deliveries.save_round(db, lease, [message("e1", replaces=replaces)], [])
    if is_tried:
        send(db, lease, deliveries.due_deliveries(db, 10)[0][1], state="waiting")
    deliveries.save_round(db, lease, [message("e2", replaces=replaces, is_end=True)], [])
    assert states(db) == expected


def test_replay_begins_anew_under_the_old_id(db: ControlDatabase, lease: Lease) -> None:
    deliveries.save_round(db, lease, [message("e1")], [])
    sent = send(db, lease, deliveries.due_deliveries(db, 10)[0][1])
    again = deliveries.replay_delivery(db, "ops", "e1", who="ada", why="they lost it", now_ns=50)
    assert (again.state, again.due_ns, again.tries.count, len(again.tries.log)) == ("waiting", 50, 0, 1)
    assert again.tries.notification == sent.tries.notification
    line = list_audit(db, 1)[0]
    assert (line.who, line.what, line.subject, line.why) == ("ada", "replay_delivery", "ops/e1", "they lost it")
    deliveries.begin_try(db, lease, again.number, 51)
    with pytest.raises(BadInput, match="is being sent"):
        deliveries.replay_delivery(db, "ops", "e1", who="ada", why="", now_ns=52)
    with pytest.raises(NotPresent, match="target 'ops' has no delivery 'e9'"):
        deliveries.replay_delivery(db, "ops", "e9", who="ada", why="", now_ns=52)


def test_pages_go_from_new_to_old(db: ControlDatabase, lease: Lease) -> None:
    deliveries.save_round(db, lease, [message(f"e{number}") for number in range(5)], [])
    newest = deliveries.list_deliveries(db, "ops", limit=2)
    older = deliveries.list_deliveries(db, "ops", limit=9, before=newest[-1].number)
    assert [each.event for each in (*newest, *older)] == ["e4", "e3", "e2", "e1", "e0"]
    assert deliveries.list_deliveries(db, "ops", state="failed") == []
    with pytest.raises(BadInput, match="limit is 0"):
        deliveries.list_deliveries(db, "ops", limit=0)


def test_log_is_bounded_by_age_and_a_result_for_a_message_that_is_gone_is_dropped(
    db: ControlDatabase, lease: Lease
) -> None:
    deliveries.save_round(
        db, lease, [message("old", ts_ns=10), message("new", ts_ns=60)], [thread(is_over=True, reported_ns=60)]
    )
    deliveries.forget_deliveries(db, lease, before_ns=50)
    assert ([event for event, _ in states(db)], len(deliveries.list_threads(db, (), 0))) == (["new"], 1)
    deliveries.forget_deliveries(db, lease, before_ns=61)
    assert (states(db), deliveries.list_threads(db, (), 0)) == ([], [])
    deliveries.save_round(db, lease, [message("e1")], [])
    sent = begin(db, lease, deliveries.due_deliveries(db, 10)[0][1])
    deliveries.forget_deliveries(db, lease, before_ns=99)
    settle(db, lease, sent)
    assert (states(db), list_health(db)) == ([], {})


def test_threads_the_oldest_message_and_the_health_of_receivers_are_found(db: ControlDatabase, lease: Lease) -> None:
    over = [thread(subject=f"i{number}", is_over=True, reported_ns=number) for number in range(5)]
    late = [message("e1", target="off"), message("e2", ts_ns=70)]
    deliveries.save_round(db, lease, late, [thread(subject="open", reported_ns=0), *over])
    assert {each.subject for each in deliveries.list_threads(db, ["ops/i1"], since_ns=4)} == {"open", "i1", "i4"}
    assert deliveries.oldest_waiting(db, ["ops"]) == ("ops", 70)
    assert deliveries.oldest_waiting(db, []) is None
    assert deliveries.health_of(db, "ops", 7) == Health(since_ns=7)
    deliveries.save_health(db, lease, "ops", Health(since_ns=7, failures_in_row=3))
    assert deliveries.health_of(db, "ops", 99).failures_in_row == 3
