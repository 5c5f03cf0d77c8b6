"""Incidents come back as saved, page by page, with what changed and when; detail requests reach their hosts."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from lockstep.batches import DetailRequest
from lockstep.errors import BadInput, ControlAway, LeaseLost, NotPresent, StoreVersionMismatch
from lockstep.execution import Outcome
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.decisions import save_decisions, save_outcome
from lockstep.state.incidents import (
    add_detail_requests,
    changes_since,
    detail_requests_by_host,
    get_incident,
    list_incidents,
    list_verdict_changes,
    newest_change,
    note_changes,
    open_incidents,
    outcomes_of,
    page_incidents,
    save_incidents,
    state_of_incidents,
)
from lockstep.state.leases import Lease, refuse_stale, release_lease
from lockstep.state.tables import INCIDENTS
from lockstep.verdict import Incident
from tests.fixtures.control import hold_lease
from tests.lockstep.state.build import decision, incident

ROUNDS = 8
JOBS, CLASSES = ("a", "b'\"%"), ("comm_slow", "crash")
STATES: tuple[Literal["open", "closed"], ...] = ("open", "closed")
PARTS = ("nic:h0/eth0", "NIC:h0/eth0", "link:h0/eth0--leaf%", "gpu:h_0/1")


def with_verdict(usual: Incident, **verdict: object) -> Incident:
    return usual.model_copy(update={"verdict": usual.verdict.model_copy(update=verdict)})


def take(db: ControlDatabase, holder: str, now_ns: int) -> Lease:
    return hold_lease(db, "analyzer", holder, ttl_ns=50, now_ns=now_ns)


def test_incident_comes_back_as_it_was_saved_last_and_is_found_by_job_and_state(db: ControlDatabase) -> None:
    save_incidents(db, [], None)
    assert list_incidents(db) == []
    with pytest.raises(NotPresent, match="there is no incident 'i9'"):
        get_incident(db, "i9")
    save_incidents(db, [incident("i2", updated_ns=1), incident("i2", updated_ns=2)], None)
    assert get_incident(db, "i2").updated_ns == 2, "of two versions in one call the later stays"
    mine, closed, other = incident("i1"), incident("i2", state="closed", updated_ns=900), incident("i3", job="other")
    save_incidents(db, [mine, closed, other], None)
    assert get_incident(db, "i2") == closed
    assert list_incidents(db, job="train", state="open") == open_incidents(db, "train") == [mine]
    assert list_incidents(db, state="closed") == [closed]
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
    with pytest.raises(BadInput, match="limit is 0"):
        list_incidents(db, limit=0)


def test_only_the_holder_of_the_lease_may_save(db: ControlDatabase) -> None:
    stale = take(db, "a", now_ns=0)
    save_incidents(db, [incident("i0")], stale)
    current = take(db, "b", now_ns=50)
    save_incidents(db, [incident("i1")], current)
    with pytest.raises(LeaseLost, match="generation 1, is over: b has it now, generation 2"):
        save_incidents(db, [incident("i1", state="closed"), incident("i2")], stale)
    release_lease(db, current)
    with pytest.raises(LeaseLost):
        save_incidents(db, [incident("i3")], current)
    assert list_incidents(db) == [incident("i1"), incident("i0")]


def test_lease_cannot_be_taken_while_its_holder_is_writing(db: ControlDatabase, db_url: str) -> None:
    lease = take(db, "a", now_ns=0)
    with open_control(db_url, lock_wait_ms=1) as impatient:
        with db.begin() as connection:
            refuse_stale(connection, lease)
            with pytest.raises(ControlAway, match="lock"):
                take(impatient, "b", now_ns=50)
        assert take(impatient, "b", now_ns=50).generation == 2


def test_document_of_another_version_is_named(db: ControlDatabase) -> None:
    save_incidents(db, [incident("i1")], None)
    with db.begin() as connection:
        connection.execute(update(INCIDENTS).values(document='{"id": "i1", "mood": "new"}'))
    with pytest.raises(StoreVersionMismatch, match="holds Incident that this version cannot read"):
        get_incident(db, "i1")


@st.composite
def incidents(draw: st.DrawFn, prefix: str) -> list[Incident]:
    made = []
    for number in range(draw(st.integers(0, 6))):
        job, state = draw(st.sampled_from(JOBS)), draw(st.sampled_from(STATES))
        usual = incident(f"{prefix}{number}", job=job, state=state, opened_ns=draw(st.integers(0, 3)))
        verdict = {name: draw(st.sampled_from(FILTERS[name])) for name in ("fault_class", "component", "grade")}
        impact = usual.verdict.impact.model_copy(update={"severity": draw(st.sampled_from(SEVERITIES))})
        made.append(with_verdict(usual, **verdict, impact=impact))
    return made


SEVERITIES = ("critical", "warning", "info")
FILTERS: Mapping[str, Sequence[str | int]] = {
    "job": JOBS,
    "state": STATES,
    "fault_class": CLASSES,
    "component": (*PARTS, "x' OR '1'='1"),
    "grade": ("isolate", "alert", "note"),
    "severity": SEVERITIES,
    "host": ("h0", "h_0", "leaf%", "h", "%", "eth0"),
    "from_ns": (1, 2),
    "to_ns": (2, 3),
}
WANTED = st.fixed_dictionaries({name: st.none() | st.sampled_from(values) for name, values in FILTERS.items()})


@given(incidents("i"), incidents("later"), st.integers(1, 3), WANTED)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_incident_that_is_wanted_is_seen_once_and_in_order(
    db: ControlDatabase, here: list[Incident], later: list[Incident], limit: int, wanted: dict[str, Any]
) -> None:
    with db.begin() as connection:
        for table in ("verdict_changes", "changes", "incidents"):
            connection.exec_driver_sql(f"DELETE FROM {table}")
    save_incidents(db, here, None)
    seen: list[tuple[int, str]] = []
    more = True
    while more:
        page = page_incidents(db, **wanted, limit=limit, before=seen[-1] if seen else None)
        seen += [(each.opened_ns, each.id) for each in page]
        save_incidents(db, later, None)
        more = len(page) == limit
    assert seen == sorted(set(seen), reverse=True)
    expected = {(each.opened_ns, each.id) for each in here if fits(each, wanted)}
    assert expected <= set(seen)
    assert set(seen) <= expected | {(each.opened_ns, each.id) for each in later if fits(each, wanted)}


def fits(incident: Incident, wanted: Mapping[str, Any]) -> bool:
    verdict = incident.verdict
    facts = {**verdict.model_dump(), "severity": verdict.severity, "job": incident.job, "state": incident.state}
    checks: dict[str, Callable[[Any], bool]] = {
        "host": lambda host: (
            host in {end.partition("/")[0] for end in verdict.component.partition(":")[2].split("--")}
        ),
        "from_ns": lambda from_ns: incident.opened_ns >= from_ns,
        "to_ns": lambda to_ns: incident.opened_ns < to_ns,
    }
    return all(
        value is None or (checks[name](value) if name in checks else facts[name] == value)
        for name, value in wanted.items()
    )


def test_outcomes_are_found_and_every_change_moves_the_state(db: ControlDatabase) -> None:
    outcome = Outcome(incident="i1", was_right=True, who="ann", ts_ns=1)
    states = [state_of_incidents(db)]
    for updated_ns in (200, 300):
        save_incidents(db, [incident("i1", updated_ns=updated_ns)], None)
        states.append(state_of_incidents(db))
    save_outcome(db, outcome)
    assert len({*states, state_of_incidents(db)}) == 4
    assert (outcomes_of(db, ["i1", "i2"]), outcomes_of(db, [])) == ({"i1": outcome}, {})


def test_change_comes_with_the_thing_as_it_is_now(db: ControlDatabase) -> None:
    assert (newest_change(db), changes_since(db, 0, 10)) == (0, [])
    save_incidents(db, [incident("i1")], None)
    save_incidents(db, [incident("i1", state="closed")], None)
    save_decisions(db, [decision("d1")], None)
    changes = changes_since(db, 0, 10)
    told = [(change.number, change.first, change.kind, change.subject) for change in changes]
    assert told == [(2, 1, "incident", "i1"), (3, 3, "decision", "d1")]
    assert '"state":"closed"' in changes[0].document


def test_reader_goes_on_where_it_was_past_what_is_gone_or_undone(db: ControlDatabase) -> None:
    with suppress(ZeroDivisionError), db.begin() as connection:
        note_changes(connection, "incident", ["undone"])
        raise ZeroDivisionError
    assert newest_change(db) == 0
    with db.begin() as connection:
        note_changes(connection, "incident", ["never-saved"])
    save_incidents(db, [incident(f"i{number}") for number in range(5)], None)
    assert [change.subject for change in changes_since(db, 0, 3)] == ["i0", "i1"]
    assert [change.subject for change in changes_since(db, 3, 2)] == ["i2", "i3"]
    assert changes_since(db, 6, 10) == []


def test_reader_misses_nothing_while_several_write(db: ControlDatabase) -> None:
    """A number that shows up after a higher one was read would be missed for ever."""
    is_over = threading.Event()

    def write(who: str) -> None:
        for number in range(ROUNDS):
            save_incidents(db, [incident(f"{who}-{number}")], None)

    def read() -> list[str]:
        seen: list[str] = []
        known = 0
        while True:
            was_over = is_over.is_set()
            page = changes_since(db, known, 7)
            seen += [change.subject for change in page]
            known = page[-1].number if page else known
            if was_over and not page:
                return seen

    with ThreadPoolExecutor(4) as threads:
        reading = threads.submit(read)
        for writer in [threads.submit(write, who) for who in "abc"]:
            writer.result()
        is_over.set()
        seen = reading.result()
    assert sorted(seen) == sorted(f"{who}-{number}" for who in "abc" for number in range(ROUNDS))


def test_change_of_the_verdict_is_a_line_and_new_figures_are_none(db: ControlDatabase) -> None:
    first, other = incident("i1"), incident("i2")
    moved = with_verdict(incident("i1", updated_ns=201), component="gpu:h1/0")
    save_incidents(db, [first, other, moved], None)
    for updated_ns, figures in ((202, {"confidence": 0.1}), (203, {"grade": "note"}), (204, {"grade": "note"})):
        save_incidents(db, [with_verdict(incident(updated_ns=updated_ns), component="gpu:h1/0", **figures)], None)
    save_incidents(db, [incident("i1", state="closed", updated_ns=300)], None)
    lines = list_verdict_changes(db, "i1")
    assert [(line.ts_ns, line.component, line.grade, line.state) for line in lines] == [
        (200, "nic:h3/eth1", "isolate", "open"),
        (201, "gpu:h1/0", "isolate", "open"),
        (203, "gpu:h1/0", "note", "open"),
        (300, "nic:h3/eth1", "isolate", "closed"),
    ]
    assert lines[-1].reason == "the NIC was replaced"
    assert [line.component for line in list_verdict_changes(db, "i2")] == ["nic:h3/eth1"]
    assert list_verdict_changes(db, "i3") == []


def test_detail_request_reaches_its_host_until_it_expires(db: ControlDatabase) -> None:
    details = {"ranks": [3, 7], "for_s": 30.5}
    late = DetailRequest(id="late", host="h3", kind="detail", details=details, expires_ns=200)
    soon = late.model_copy(update={"id": "soon", "kind": "probe", "expires_ns": 100})
    other = soon.model_copy(update={"id": "other", "host": "h4"})
    for request in (late, soon, other):
        add_detail_requests(db, request)
    assert detail_requests_by_host(db, now_ns=99) == {"h3": [soon, late], "h4": [other]}
    assert detail_requests_by_host(db, now_ns=100) == {"h3": [late]}
    prolonged = late.model_copy(update={"expires_ns": 300})
    add_detail_requests(db, prolonged, now_ns=100)  # what has expired is deleted
    assert detail_requests_by_host(db, now_ns=0) == {"h3": [prolonged]}
