"""Of several processes with one duty exactly one works, another takes over, and what fails is told once."""

from collections.abc import Callable

import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from lockstep.clock import NS_PER_S, ManualClock
from lockstep.errors import ControlAway, LeaseLost, StoreAway
from lockstep.state.database import ControlDatabase
from lockstep.state.leases import Duty, DutyOptions, Lease, take_lease
from lockstep.state.tables import LEASES
from tests.waiting import HastyClock, eventually

OPTIONS = DutyOptions(period_s=1.0, lease_s=10.0)


class Worker:
    """Notes under which generation and when it worked; raises what it is told to."""

    def __init__(self) -> None:
        self.done: list[tuple[int, int]] = []
        self.fault: Exception | None = None

    def __call__(self, lease: Lease, now_ns: int) -> None:
        if self.fault:
            raise self.fault
        self.done.append((lease.generation, now_ns // NS_PER_S))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_lease_is_renewed_while_the_work_takes_longer_than_it_lasts(db: ControlDatabase, clock: ManualClock) -> None:
    taken: list[Lease | None] = []

    def work(lease: Lease, now_ns: int) -> None:
        for _ in range(3):
            clock.advance(0.5)
            eventually(lambda: expiry(db, "planner") == clock.now_ns() + 0.9 * NS_PER_S)
        taken.append(take_lease(db, "planner", "another", NS_PER_S, clock.now_ns()))

    Duty("planner", "me", db, clock, work, DutyOptions(period_s=1.0, lease_s=0.9)).run_once()
    assert taken == [None]


def expiry(db: ControlDatabase, name: str) -> int:
    with db.read() as connection:
        return int(connection.execute(select(LEASES.c.expires_ns).where(LEASES.c.name == name)).scalar_one())


Make = Callable[[str], tuple[Duty, Worker]]


@pytest.fixture
def make(db: ControlDatabase, clock: ManualClock) -> Make:
    def make_duty(holder: str) -> tuple[Duty, Worker]:
        worker = Worker()
        return Duty("analyzer", holder, db, clock, worker, OPTIONS), worker

    return make_duty


def test_duty_works_each_time_under_one_generation(make: Make, clock: ManualClock) -> None:
    duty, worker = make("a")
    for _ in range(3):
        duty.run_once()
        clock.advance(1)
    assert worker.done == [(1, 0), (1, 1), (1, 2)]
    assert duty.is_held


def test_of_two_one_works_and_the_other_waits_without_trouble(make: Make, clock: ManualClock) -> None:
    (first, busy), (second, idle) = make("a"), make("b")
    for _ in range(30):  # three times as long as a lease lasts: each round renews it
        first.run_once()
        second.run_once()
        clock.advance(1)
    assert (len(busy.done), idle.done) == (30, [])
    assert (first.is_held, second.is_held, second.trouble) == (True, False, None)


def test_other_takes_over_when_the_first_was_silent_for_the_length_of_the_lease(
    make: Make, clock: ManualClock
) -> None:
    (first, _), (second, successor) = make("a"), make("b")
    first.run_once()
    clock.advance(9)
    second.run_once()
    assert successor.done == []
    clock.advance(1)
    second.run_once()
    assert successor.done == [(2, 10)]


def test_first_that_wakes_up_late_does_not_work_and_knows_it(make: Make, clock: ManualClock) -> None:
    (first, sleeper), (second, _) = make("a"), make("b")
    first.run_once()
    clock.advance(10)
    second.run_once()
    first.run_once()
    assert sleeper.done == [(1, 0)]
    assert (first.is_held, second.is_held) == (False, True)


def test_closed_duty_lets_go_so_that_the_other_need_not_wait(make: Make) -> None:
    (first, _), (second, successor) = make("a"), make("b")
    first.run_once()
    first.close()
    second.run_once()
    assert successor.done == [(2, 0)]


def test_closing_a_duty_of_another_takes_nothing_from_it(make: Make) -> None:
    (first, worker), (second, _) = make("a"), make("b")
    first.run_once()
    second.run_once()
    second.close()
    first.run_once()
    assert worker.done == [(1, 0), (1, 0)]


def test_duty_that_finds_its_lease_lost_stops_and_takes_it_up_again_when_it_is_free(make: Make) -> None:
    duty, worker = make("a")
    worker.fault = LeaseLost("lease analyzer is over: b has it now")
    duty.run_once()
    assert (duty.is_held, duty.trouble) == (False, "lease analyzer is over: b has it now")
    worker.fault = None
    duty.run_once()
    assert (duty.is_held, duty.trouble) == (True, None)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (StoreAway("the store is away"), "the store is away"),
        (KeyError("rank"), "KeyError: 'rank'"),
    ],
)
def test_trouble_is_kept_told_once_and_cleared(make: Make, fault: Exception, told: str) -> None:
    duty, worker = make("a")
    with capture_logs() as lines:
        duty.run_once()
        worker.fault = fault
        for _ in range(3):
            duty.run_once()
            assert duty.trouble == told
        worker.fault = None
        duty.run_once()
    assert duty.trouble is None
    assert duty.is_held
    assert [(line["event"], line.get("reason")) for line in lines] == [
        ("duty taken", None),
        ("duty fails", told),
        ("duty works again", None),
    ]


def test_another_trouble_is_told_anew(make: Make) -> None:
    duty, worker = make("a")
    with capture_logs() as lines:
        for reason in ("first", "second"):
            worker.fault = StoreAway(reason)
            duty.run_once()
    assert [line["reason"] for line in lines if line["event"] == "duty fails"] == ["first", "second"]


def test_control_database_that_is_away_is_trouble_and_nothing_is_done(
    make: Make, db: ControlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    duty, worker = make("a")

    def fail() -> None:
        raise ControlAway("the control database is gone")

    with monkeypatch.context() as patch, capture_logs() as lines:
        patch.setattr(db, "begin", fail)
        duty.run_once()
        assert (worker.done, duty.trouble) == ([], "the control database is gone")
    duty.run_once()
    assert (len(worker.done), duty.trouble) == (1, None)
    assert len(lines) == 1


def test_close_while_the_database_is_away_leaves_the_lease_to_expire(
    make: Make, db: ControlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    duty, _ = make("a")
    duty.run_once()

    def fail() -> None:
        raise ControlAway("the control database is gone")

    monkeypatch.setattr(db, "begin", fail)
    with capture_logs() as lines:
        duty.close()
    assert [line["event"] for line in lines] == ["lease not released, it expires by itself"]


def test_duty_that_is_started_works_until_it_is_closed(db: ControlDatabase) -> None:
    worker = Worker()
    duty = Duty("analyzer", "a", db, HastyClock(), worker, OPTIONS)
    duty.start()
    eventually(lambda: len(worker.done) >= 3)
    duty.close()
    done = len(worker.done)
    assert {generation for generation, _ in worker.done} == {1}
    second = Duty("analyzer", "b", db, HastyClock(), worker, OPTIONS)
    second.run_once()
    assert len(worker.done) == done + 1
