"""One holder at a time, with a number that never comes back; of several processes with one duty exactly one works."""

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from structlog.testing import capture_logs

from lockstep.clock import NS_PER_S, ManualClock, SystemClock
from lockstep.errors import ControlAway, LeaseLost, LockstepError, StoreAway
from lockstep.state.database import ControlDatabase
from lockstep.state.leases import Duty, DutyOptions, Lease, check_held, check_lease, release_lease, take_lease
from lockstep.state.tables import LEASES
from tests.fixtures.control import hold_lease
from tests.lockstep.state.child import child, race_for_leases
from tests.waiting import LIMIT_S, HastyClock, eventually

TTL_NS = 10 * NS_PER_S
OPTIONS = DutyOptions(period_s=1.0, lease_s=10.0)

_fresh_names = map(str, count())


def take(db: ControlDatabase, holder: str, now_ns: int = 0) -> Lease:
    return hold_lease(db, "analyzer", holder, ttl_ns=TTL_NS, now_ns=now_ns)


def test_lease_is_renewed_by_its_holder_taken_by_another_when_it_expired_and_lost_when_released(
    db: ControlDatabase,
) -> None:
    first = take(db, "a", now_ns=5)
    assert first == Lease("analyzer", "a", 1, TTL_NS + 5)
    assert take_lease(db, "planner", "b", TTL_NS, now_ns=5), "leases of different names are independent"
    assert take(db, "a", now_ns=7) == Lease("analyzer", "a", 1, TTL_NS + 7)
    check_lease(db, first, now_ns=TTL_NS + 6)
    assert take_lease(db, "analyzer", "b", TTL_NS, now_ns=TTL_NS + 6) is None
    second = take(db, "b", now_ns=TTL_NS + 7)
    assert second == Lease("analyzer", "b", 2, 2 * TTL_NS + 7)
    with pytest.raises(LeaseLost, match="lease analyzer of a, generation 1, is over: b has it now, generation 2"):
        check_lease(db, first, now_ns=0)
    release_lease(db, first)
    check_lease(db, second, now_ns=TTL_NS)
    with pytest.raises(LeaseLost, match=f"expired at {2 * TTL_NS + 7} and it is {2 * TTL_NS + 7} now"):
        check_lease(db, second, now_ns=2 * TTL_NS + 7)
    release_lease(db, second)
    with pytest.raises(LeaseLost, match="nobody has it now"):
        check_lease(db, second, now_ns=TTL_NS)
    assert take(db, "b", now_ns=1).generation == 3
    with pytest.raises(LeaseLost, match="does not know it"):
        check_lease(db, Lease("unheard-of", "a", 1, TTL_NS), now_ns=0)


def test_lease_that_ends_beyond_two_lease_times_was_written_by_a_clock_ahead_and_holds_nobody_up(
    db: ControlDatabase,
) -> None:
    take(db, "ahead", now_ns=TTL_NS)
    assert take_lease(db, "analyzer", "b", TTL_NS, now_ns=0) is None, "two clocks may differ by a lease time"
    check_held(db, ["analyzer"], TTL_NS, now_ns=0)
    take(db, "ahead", now_ns=TTL_NS + 1)
    for names in (["analyzer"], ["planner", "analyzer"]):
        with pytest.raises(LockstepError, match=f"nobody holds the lease of: {', '.join(names)}"):
            check_held(db, names, TTL_NS, now_ns=0)
    assert take(db, "b", now_ns=0) == Lease("analyzer", "b", 2, TTL_NS)


@pytest.mark.slow
def test_of_two_processes_exactly_one_wins_each_lease(db: ControlDatabase, db_url: str) -> None:
    with ExitStack() as stack:
        rivals = [stack.enter_context(child(race_for_leases, db_url, holder)) for holder in "ab"]
        assert [rival.heard() for rival in rivals] == ["ready", "ready"]
        for rival in rivals:
            rival.go()
        won = [name for rival in rivals for name in rival.heard().split()]
    assert sorted(won, key=int) == [str(number) for number in range(20)]


ACTS = st.tuples(st.sampled_from(["take", "release", "wait"]), st.sampled_from("abc"), st.integers(1, 15))


# Each example has a lease of its own, so they may share one database.
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=st.lists(ACTS, max_size=10))
def test_any_sequence_leaves_one_holder_and_rising_generations(
    db: ControlDatabase, acts: list[tuple[str, str, int]]
) -> None:
    name, clock, given_out = next(_fresh_names), ManualClock(), list[Lease]()
    for act, holder, seconds in acts:
        if act == "take":
            lease = take_lease(db, name, holder, TTL_NS, clock.now_ns())
            given_out += [lease] if lease else []
        elif act == "release":
            for lease in [lease for lease in given_out if lease.holder == holder][-1:]:
                release_lease(db, lease)
        else:
            clock.advance(seconds)
        assert len({lease.generation for lease in given_out if is_held(db, lease, clock.now_ns())}) <= 1
    generations = [lease.generation for lease in given_out]
    assert generations == sorted(generations)
    assert len({(lease.generation, lease.holder) for lease in given_out}) == len(set(generations))


def is_held(db: ControlDatabase, lease: Lease, now_ns: int) -> bool:
    with suppress(LeaseLost):
        check_lease(db, lease, now_ns)
        return True
    return False


class Worker:
    """Notes under which generation and when it worked; raises the fault that it has."""

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


Make = Callable[[str], tuple[Duty, Worker]]


@pytest.fixture
def make(db: ControlDatabase, clock: ManualClock) -> Make:
    def make_duty(holder: str) -> tuple[Duty, Worker]:
        worker = Worker()
        return Duty("analyzer", holder, db, clock, worker, OPTIONS), worker

    return make_duty


def read_expiry(db: ControlDatabase, name: str) -> int:
    with db.read() as connection:
        return int(connection.execute(select(LEASES.c.expires_ns).where(LEASES.c.name == name)).scalar_one())


def test_lease_is_written_again_only_when_a_third_of_it_is_over(
    db: ControlDatabase, clock: ManualClock, make: Make
) -> None:
    duty, worker = make("a")
    ends = []
    clock.advance(100)
    for step_s in (0, 1, 2, 1, 5):
        clock.advance(step_s)
        duty.run_once()
        ends.append(read_expiry(db, "analyzer") // NS_PER_S)
    assert ends == [110, 110, 110, 114, 119]
    assert len(worker.done) == 5


def test_lease_is_renewed_while_the_work_takes_longer_than_it_lasts(db: ControlDatabase, clock: ManualClock) -> None:
    taken: list[Lease | None] = []

    def work(lease: Lease, now_ns: int) -> None:
        for _ in range(3):
            clock.advance(0.5)
            eventually(lambda: read_expiry(db, "planner") == clock.now_ns() + 0.9 * NS_PER_S)
        taken.append(take_lease(db, "planner", "another", NS_PER_S, clock.now_ns()))

    Duty("planner", "me", db, clock, work, DutyOptions(period_s=1.0, lease_s=0.9)).run_once()
    assert taken == [None]


def test_of_two_one_works_under_one_generation_and_the_other_waits(make: Make, clock: ManualClock) -> None:
    (first, busy), (second, idle) = make("a"), make("b")
    with capture_logs() as lines:
        for _ in range(30):  # three times as long as a lease lasts: each round renews it
            first.run_once()
            second.run_once()
            clock.advance(1)
    assert [(line["event"], line["holder"]) for line in lines] == [("duty taken", "a"), ("duty is another's", "a")]
    assert (busy.done, idle.done) == ([(1, second) for second in range(30)], [])
    assert (first.is_held, second.is_held, second.trouble) == (True, False, None)
    second.close()
    first.run_once()
    assert busy.done[-1] == (1, 30), "closing the duty of one takes nothing from the other"


def test_other_takes_over_from_one_that_was_silent_or_closed(make: Make, clock: ManualClock) -> None:
    (first, sleeper), (second, successor) = make("a"), make("b")
    first.run_once()
    for seconds in (9, 1):
        clock.advance(seconds)
        second.run_once()
    assert successor.done == [(2, 10)]
    first.run_once()
    assert sleeper.done == [(1, 0)], "it wakes up late and does not work"
    assert (first.is_held, second.is_held) == (False, True)
    second.close()
    first.run_once()
    assert sleeper.done == [(1, 0), (3, 10)], "nobody waits for a lease that was let go"


def test_trouble_is_kept_reported_once_and_cleared_and_a_duty_whose_lease_is_lost_takes_it_up_again(
    make: Make,
) -> None:
    lost = LeaseLost("lease analyzer is over: b has it now")
    faults = {"the store is away": StoreAway("the store is away"), "KeyError: 'rank'": KeyError("rank")}
    duty, worker = make("a")
    with capture_logs() as lines:
        duty.run_once()
        for message, worker.fault in faults.items():
            for _ in range(3):
                duty.run_once()
                assert (duty.trouble, duty.is_held) == (message, True)
        worker.fault = None
        duty.run_once()
    assert (duty.trouble, duty.is_held) == (None, True)
    assert [(line["event"], line.get("reason")) for line in lines] == [
        ("duty taken", None),
        *(("duty fails", message) for message in faults),
        ("duty works again", None),
    ]
    for worker.fault, found in ((lost, (str(lost), False)), (None, (None, True))):
        duty.run_once()
        assert (duty.trouble, duty.is_held) == found


def test_control_database_that_is_away_is_trouble_and_its_lease_expires(
    make: Make, db: ControlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    duty, worker = make("a")

    def fail() -> None:
        raise ControlAway("the control database is gone")

    with capture_logs() as lines:
        with monkeypatch.context() as patch:
            patch.setattr(db, "begin", fail)
            duty.run_once()
            assert (worker.done, duty.trouble, len(lines)) == ([], "the control database is gone", 1)
        duty.run_once()
        assert (len(worker.done), duty.trouble) == (1, None)
        monkeypatch.setattr(db, "begin", fail)
        duty.close()
    assert lines[-1]["event"] == "lease not released, it expires by itself"


def test_duty_in_the_midst_of_its_work_is_left_with_its_lease(db: ControlDatabase, clock: ManualClock) -> None:
    began, go_on = threading.Event(), threading.Event()

    def work(lease: Lease, now_ns: int) -> None:
        began.set()
        go_on.wait(LIMIT_S)

    duty = Duty("planner", "a", db, clock, work, OPTIONS)
    duty.start()
    assert began.wait(LIMIT_S)
    with capture_logs() as lines:
        duty.close(patience_s=0)
    assert [line["event"] for line in lines] == ["duty is left in the midst of its work, its lease expires by itself"]
    duty.check_held()
    go_on.set()
    duty.close()
    with pytest.raises(LockstepError, match="nobody holds the lease of: planner"):
        duty.check_held()


def test_duty_that_is_started_works_until_it_is_closed_and_at_once_when_it_is_woken(db: ControlDatabase) -> None:
    worker = Worker()
    duty = Duty("analyzer", "a", db, HastyClock(), worker, OPTIONS)
    duty.start()
    eventually(lambda: len(worker.done) >= 3)
    duty.close()
    done = len(worker.done)
    assert {generation for generation, _ in worker.done} == {1}
    patient = Duty("analyzer", "b", db, SystemClock(), worker, DutyOptions(period_s=3600.0))
    patient.start()
    eventually(lambda: len(worker.done) == done + 1)
    patient.wake()
    eventually(lambda: len(worker.done) == done + 2)
    patient.close()
