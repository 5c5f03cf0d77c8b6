"""One holder at a time, told apart by a number that never comes back."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.clock import NS_PER_S, ManualClock
from lockstep.errors import LeaseLost
from lockstep.state.database import ControlDatabase
from lockstep.state.leases import Lease, check_lease, release_lease, take_lease
from tests.lockstep.state.child import child, go, heard

TTL_NS = 10 * NS_PER_S

_fresh_names = map(str, count())


def test_free_lease_goes_to_whoever_asks(db: ControlDatabase) -> None:
    assert take_lease(db, "analyzer", "a", TTL_NS, now_ns=5) == Lease("analyzer", "a", 1, TTL_NS + 5)


def test_held_lease_is_refused_to_others_until_it_expires(db: ControlDatabase) -> None:
    take_lease(db, "analyzer", "a", TTL_NS, now_ns=0)
    assert take_lease(db, "analyzer", "b", TTL_NS, now_ns=TTL_NS - 1) is None
    assert take_lease(db, "analyzer", "b", TTL_NS, now_ns=TTL_NS) == Lease("analyzer", "b", 2, 2 * TTL_NS)


def test_renewal_keeps_the_generation_and_moves_the_end(db: ControlDatabase) -> None:
    first = take_lease(db, "analyzer", "a", TTL_NS, now_ns=0)
    assert first is not None
    assert take_lease(db, "analyzer", "a", TTL_NS, now_ns=7) == Lease("analyzer", "a", 1, TTL_NS + 7)
    check_lease(db, first, now_ns=TTL_NS + 6)


def test_released_lease_is_free_and_its_number_is_not_used_again(db: ControlDatabase) -> None:
    first = take_lease(db, "analyzer", "a", TTL_NS, now_ns=0)
    assert first is not None
    release_lease(db, first)
    with pytest.raises(LeaseLost, match="nobody has it now"):
        check_lease(db, first, now_ns=1)
    again = take_lease(db, "analyzer", "a", TTL_NS, now_ns=1)
    assert again is not None
    assert again.generation == 2


def test_release_by_a_former_holder_changes_nothing(db: ControlDatabase) -> None:
    first = take_lease(db, "analyzer", "a", TTL_NS, now_ns=0)
    second = take_lease(db, "analyzer", "b", TTL_NS, now_ns=TTL_NS)
    assert first is not None
    assert second is not None
    release_lease(db, first)
    check_lease(db, second, now_ns=TTL_NS)


def test_lease_that_passed_on_is_lost_and_the_message_says_to_whom(db: ControlDatabase) -> None:
    first = take_lease(db, "analyzer", "a", TTL_NS, now_ns=0)
    take_lease(db, "analyzer", "b", TTL_NS, now_ns=TTL_NS)
    assert first is not None
    with pytest.raises(LeaseLost, match="lease analyzer of a, generation 1, is over: b has it now, generation 2"):
        check_lease(db, first, now_ns=0)


def test_expired_lease_is_lost_even_when_nobody_took_it(db: ControlDatabase) -> None:
    lease = take_lease(db, "analyzer", "a", TTL_NS, now_ns=0)
    assert lease is not None
    with pytest.raises(LeaseLost, match=f"expired at {TTL_NS} and it is {TTL_NS} now"):
        check_lease(db, lease, now_ns=TTL_NS)


def test_lease_that_the_database_never_gave_is_lost(db: ControlDatabase) -> None:
    with pytest.raises(LeaseLost, match="does not know it"):
        check_lease(db, Lease("planner", "a", 1, TTL_NS), now_ns=0)


def test_leases_of_different_names_are_independent(db: ControlDatabase) -> None:
    assert take_lease(db, "analyzer", "a", TTL_NS, now_ns=0)
    assert take_lease(db, "planner", "b", TTL_NS, now_ns=0)


def test_of_many_threads_exactly_one_wins_each_round(db: ControlDatabase) -> None:
    holders = [f"thread{number}" for number in range(8)]
    with ThreadPoolExecutor(len(holders)) as pool:
        for turn in range(5):

            def take(holder: str, now_ns: int = turn * TTL_NS) -> Lease | None:
                return take_lease(db, "analyzer", holder, TTL_NS, now_ns)

            winners = [lease for lease in pool.map(take, holders) if lease]
            assert len(winners) == 1
            release_lease(db, winners[0])
            assert winners[0].generation == turn + 1


def test_of_two_processes_exactly_one_wins_each_lease(control_url: str) -> None:
    with ExitStack() as stack:
        rivals = [stack.enter_context(child("race_for_leases", control_url, holder)) for holder in "ab"]
        assert [heard(rival) for rival in rivals] == ["ready", "ready"]
        for rival in rivals:
            go(rival)
        won = [name for rival in rivals for name in heard(rival).split()]
    assert sorted(won, key=int) == [str(number) for number in range(20)]


ACTS = st.tuples(st.sampled_from(["take", "release", "wait"]), st.sampled_from("abc"), st.integers(1, 15))


# Each example has a lease of its own, so they may share one database.
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=st.lists(ACTS, max_size=15))
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
        assert len({lease.generation for lease in given_out if _is_held(db, lease, clock.now_ns())}) <= 1
    generations = [lease.generation for lease in given_out]
    assert generations == sorted(generations)
    assert len({(lease.generation, lease.holder) for lease in given_out}) == len(set(generations))


def _is_held(db: ControlDatabase, lease: Lease, now_ns: int) -> bool:
    try:
        check_lease(db, lease, now_ns)
    except LeaseLost:
        return False
    return True
