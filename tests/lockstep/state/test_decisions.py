"""Decisions come back as they were saved, with the incident they answer."""

import pytest

from lockstep.errors import LeaseLost, NotPresent
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import get_decision, list_decisions, save_decisions
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import take_lease
from tests.lockstep.state.build import decision, incident


@pytest.fixture(autouse=True)
def _two_incidents(db: ControlDatabase) -> None:
    save_incidents(db, [incident("i1"), incident("i2", job="other")], None)


def test_decision_comes_back_as_it_was_saved(db: ControlDatabase) -> None:
    save_decisions(db, [decision("d1")], None)
    assert get_decision(db, "d1") == decision("d1")


def test_approval_replaces_the_decision(db: ControlDatabase) -> None:
    save_decisions(db, [decision("d1")], None)
    approved = decision("d1").model_copy(update={"approved_by": "ada"})
    save_decisions(db, [approved], None)
    assert list_decisions(db) == [approved]


def test_decisions_are_found_by_incident_and_job_newest_first(db: ControlDatabase) -> None:
    first, second = decision("d1", created_ns=1), decision("d2", created_ns=2)
    other = decision("d3", incident="i2", job="other", created_ns=3)
    save_decisions(db, [first, second, other], None)
    assert list_decisions(db, incident="i1") == [second, first]
    assert list_decisions(db, job="other") == [other]
    assert list_decisions(db, limit=1, before=(3, "d3")) == [second]


def test_unknown_decision_is_not_present(db: ControlDatabase) -> None:
    with pytest.raises(NotPresent, match="there is no decision 'd9'"):
        get_decision(db, "d9")


def test_decision_about_an_unknown_incident_is_refused_with_all_others(db: ControlDatabase) -> None:
    with pytest.raises(NotPresent, match="decision 'd2' answers incident 'i9', which is not here"):
        save_decisions(db, [decision("d1"), decision("d2", incident="i9")], None)
    assert list_decisions(db) == []


def test_former_holder_is_refused_and_nothing_is_written(db: ControlDatabase) -> None:
    stale = take_lease(db, "planner", "a", ttl_ns=50, now_ns=0)
    current = take_lease(db, "planner", "b", ttl_ns=50, now_ns=50)
    with pytest.raises(LeaseLost, match="b has it now, generation 2"):
        save_decisions(db, [decision("d1")], stale)
    assert list_decisions(db) == []
    save_decisions(db, [decision("d1")], current)
    assert list_decisions(db) == [decision("d1")]
