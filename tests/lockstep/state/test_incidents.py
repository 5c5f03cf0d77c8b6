"""Incidents come back as they were saved, page by page, and only from whoever may write them."""

import pytest
from sqlalchemy import update

from lockstep.errors import BadInput, ControlAway, LeaseLost, NotPresent, StoreVersionMismatch
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.incidents import get_incident, list_incidents, open_incidents, save_incidents
from lockstep.state.leases import Lease, refuse_stale, release_lease, take_lease
from lockstep.state.tables import INCIDENTS
from tests.lockstep.state.build import incident


def test_incident_comes_back_as_it_was_saved(db: ControlDatabase) -> None:
    saved = incident("i1", state="closed")
    save_incidents(db, [saved], None)
    assert get_incident(db, "i1") == saved


def test_saving_again_replaces_the_whole_incident(db: ControlDatabase) -> None:
    save_incidents(db, [incident("i1")], None)
    save_incidents(db, [incident("i1", state="closed", updated_ns=900)], None)
    assert list_incidents(db) == [incident("i1", state="closed", updated_ns=900)]
    assert open_incidents(db) == []


def test_of_two_versions_in_one_call_the_later_stays(db: ControlDatabase) -> None:
    save_incidents(db, [incident("i1", updated_ns=1), incident("i1", updated_ns=2)], None)
    assert get_incident(db, "i1").updated_ns == 2


def test_saving_nothing_is_allowed(db: ControlDatabase) -> None:
    save_incidents(db, [], None)
    assert list_incidents(db) == []


def test_unknown_incident_is_not_present(db: ControlDatabase) -> None:
    with pytest.raises(NotPresent, match="there is no incident 'i9'"):
        get_incident(db, "i9")


def test_incidents_are_found_by_job_and_state(db: ControlDatabase) -> None:
    mine, closed, other = incident("i1"), incident("i2", state="closed"), incident("i3", job="other")
    save_incidents(db, [mine, closed, other], None)
    assert list_incidents(db, job="train", state="open") == [mine]
    assert list_incidents(db, state="closed") == [closed]
    assert open_incidents(db, "train") == [mine]
    assert open_incidents(db) == [other, mine]


def test_pages_show_each_incident_once_newest_first(db: ControlDatabase) -> None:
    # Mixed case and equal times: where a locale would sort differently from one database to the other.
    ids = [("a", 10), ("B", 10), ("b", 10), ("old", 5), ("new", 20)]
    save_incidents(db, [incident(key, opened_ns=opened_ns) for key, opened_ns in ids], None)
    seen, before = list[str](), None
    while page := list_incidents(db, limit=2, before=before):
        seen += [found.id for found in page]
        before = (page[-1].opened_ns, page[-1].id)
    assert seen == ["new", "b", "a", "B", "old"]


def test_incident_opened_between_two_pages_does_not_shift_the_second(db: ControlDatabase) -> None:
    save_incidents(db, [incident(f"i{n}", opened_ns=n) for n in range(4)], None)
    last = list_incidents(db, limit=2)[-1]
    save_incidents(db, [incident("late", opened_ns=99)], None)
    assert [i.id for i in list_incidents(db, limit=2, before=(last.opened_ns, last.id))] == ["i1", "i0"]


def test_page_without_rows_is_refused(db: ControlDatabase) -> None:
    with pytest.raises(BadInput, match="limit is 0"):
        list_incidents(db, limit=0)


def test_holder_of_the_lease_may_save(db: ControlDatabase) -> None:
    save_incidents(db, [incident()], _take(db, "a", now_ns=0))
    assert len(list_incidents(db)) == 1


def test_former_holder_is_refused_and_nothing_is_written(db: ControlDatabase) -> None:
    stale = _take(db, "a", now_ns=0)
    current = _take(db, "b", now_ns=50)
    save_incidents(db, [incident("i1")], current)
    with pytest.raises(LeaseLost, match="generation 1, is over: b has it now, generation 2"):
        save_incidents(db, [incident("i1", state="closed"), incident("i2")], stale)
    assert list_incidents(db) == [incident("i1")]


def test_released_lease_no_longer_lets_its_holder_save(db: ControlDatabase) -> None:
    lease = _take(db, "a", now_ns=0)
    release_lease(db, lease)
    with pytest.raises(LeaseLost):
        save_incidents(db, [incident()], lease)


def test_lease_cannot_be_taken_while_its_holder_is_writing(db: ControlDatabase, control_url: str) -> None:
    lease = _take(db, "a", now_ns=0)
    with open_control(control_url, lock_wait_ms=1) as impatient:
        with db.begin() as connection:
            refuse_stale(connection, lease)
            with pytest.raises(ControlAway, match="lock"):
                _take(impatient, "b", now_ns=50)
        assert _take(impatient, "b", now_ns=50).generation == 2


def test_document_of_another_version_is_named(db: ControlDatabase) -> None:
    save_incidents(db, [incident("i1")], None)
    with db.begin() as connection:
        connection.execute(update(INCIDENTS).values(document='{"id": "i1", "mood": "new"}'))
    with pytest.raises(StoreVersionMismatch, match="holds Incident that this version cannot read"):
        get_incident(db, "i1")


def _take(db: ControlDatabase, holder: str, now_ns: int) -> Lease:
    lease = take_lease(db, "analyzer", holder, ttl_ns=50, now_ns=now_ns)
    assert lease is not None
    return lease
