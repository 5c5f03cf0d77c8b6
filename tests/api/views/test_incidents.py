"""Incidents with their outcome, the quick list of them, and in order what happened to each and changed before."""

import asyncio
import json

import pytest

from api.dependencies import read_cursor
from api.views.incidents import IncidentFilter, IncidentPages, IncidentView, render_page, view_incident
from api.views.timeline import find_changes, read_timeline, timeline_key
from lockstep.clock import ManualClock
from lockstep.errors import NotPresent
from lockstep.execution import Order, Outcome, Step
from lockstep.fabrics import leaf_spine
from lockstep.records import Comm
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import give_order, save_decisions, save_execution, save_outcome
from lockstep.state.deliveries import Outgoing, save_round
from lockstep.state.documents import read_document
from lockstep.state.fabric import publish_topology
from lockstep.state.incidents import outcomes_of, page_incidents, save_incidents
from lockstep.state.leases import Lease
from lockstep.store.store import Store
from lockstep.verdict import Incident
from tests.api.alerts.build import make_alert, make_notification
from tests.api.views.build import NOW, happening, heartbeat, incident_on, load_job, put
from tests.builders import SECOND, T0, make
from tests.fixtures.control import hold_lease
from tests.lockstep.state.build import decision
from tests.lockstep.state.test_executions import execution, isolated

ALL = IncidentFilter()


def list_shown(control: ControlDatabase, wanted: IncidentFilter, limit: int) -> list[IncidentView]:
    stored = page_incidents(control, **dict(wanted), limit=limit)
    outcomes = outcomes_of(control, [each.id for each in stored])
    return [view_incident(read_document(Incident, each.document), outcomes.get(each.id)) for each in stored]


def confirm(control: ControlDatabase, incident: str) -> Outcome:
    outcome = Outcome(incident=incident, was_right=True, part="nic:h3/eth1", who="ann", why="swapped", ts_ns=T0)
    save_outcome(control, outcome)
    return outcome


def test_incident_comes_with_readable_times_and_its_outcome(control: ControlDatabase) -> None:
    save_incidents(control, [incident_on("nic:h3/eth1", "i1")], None)
    outcome = confirm(control, "i1")
    (shown,) = list_shown(control, ALL, 10)
    assert (shown.opened_at, shown.closed_at, shown.outcome) == ("2023-11-14T22:13:20Z", None, outcome)


def test_quick_list_says_what_the_thorough_one_says(control: ControlDatabase) -> None:
    save_incidents(control, [incident_on("nic:h3/eth1", f"i{n}", opened_ns=T0 + n) for n in range(5)], None)
    confirm(control, "i3")
    page = render_page(control, ALL, 3, None)
    shown = [each.model_dump(mode="json", by_alias=True) for each in list_shown(control, ALL, 3)]
    assert json.loads(page.body) == {"items": shown, "next": page.next}
    assert read_cursor(page.next, int, str) == (T0 + 2, "i2")
    assert render_page(control, ALL, 3, (T0 + 2, "i2")).next is None


def test_kept_page_is_rendered_anew_after_a_write_or_a_second(
    control: ControlDatabase,
) -> None:
    clock = ManualClock()
    pages = IncidentPages(control, clock)
    first = pages.render(ALL, 3, None)
    clock.advance(1.5)
    assert pages.render(ALL, 3, None) is not first
    pages = IncidentPages(control, ManualClock())
    save_incidents(control, [incident_on("nic:h3/eth1", "i1")], None)
    first = pages.render(ALL, 3, None)
    assert b'"outcome":null' in first.body
    assert pages.render(ALL, 3, None) is first
    assert pages.render(ALL, 2, None) is not first
    confirm(control, "i1")
    assert b'"who":"ann"' in pages.render(ALL, 3, None).body
    save_incidents(control, [incident_on("nic:h9/eth1", "i1")], None)
    assert b"nic:h9/eth1" in pages.render(ALL, 3, None).body


def test_incidents_are_chosen_by_class_and_by_the_part_that_the_verdict_names(control: ControlDatabase) -> None:
    told = [incident_on(name, f"i{number}") for number, name in enumerate(("nic:h3/eth1", "NIC:h3/eth1"), 1)]
    save_incidents(control, [*told, incident_on("link:leaf1--spine2", "i3", fault_class="comm_hang")], None)
    by_part = list_shown(control, IncidentFilter(component="nic:h3/eth1"), 10)
    assert [each.id for each in by_part] == ["i1"]
    # It is among what was ruled out in every verdict, which does not count.
    by_link = list_shown(control, IncidentFilter(component="link:leaf1--spine2"), 10)
    assert [each.id for each in by_link] == ["i3"]
    assert [each.id for each in list_shown(control, IncidentFilter(fault_class="comm_hang"), 10)] == ["i3"]


def test_page_of_a_moment_ago_is_shown_unless_something_was_written_here(
    control: ControlDatabase,
) -> None:
    clock = ManualClock(T0)
    pages = IncidentPages(control, clock)

    def shown() -> bytes:
        return asyncio.run(pages.find(ALL, 10, None)).body

    assert shown() == b'{"items":[],"next":null}'
    save_incidents(control, [incident_on("nic:h3/eth1", "i1")], None)
    assert b"nic:h3/eth1" not in shown()
    pages.forget()
    assert b"nic:h3/eth1" in shown()
    save_incidents(control, [incident_on("nic:h9/eth1", "i1")], None)
    clock.advance(0.5)
    assert b"nic:h9/eth1" in shown()


def test_pages_and_queries_that_nobody_asks_for_again_do_not_fill_the_memory(control: ControlDatabase) -> None:
    pages = IncidentPages(control, ManualClock(T0))

    async def ask_for_many() -> None:
        for number in range(200):
            await pages.find(IncidentFilter(job=f"j{number}"), 1, None)

    asyncio.run(ask_for_many())
    assert len(pages._pages) <= 64
    pages = IncidentPages(control, ManualClock(T0))
    asked = (ALL, 3, None)
    pages.learn(b"limit=3", asked)
    assert pages.meaning_of(b"limit=3") == asked
    assert pages.meaning_of(b"limit=4") is None
    pages.learn(b"x" * 2_000, asked)
    assert pages.meaning_of(b"x" * 2_000) is None
    for number in range(1_000):
        pages.learn(b"%d" % number, asked)
    assert len(pages._meanings) <= 64


def at(seconds: float) -> int:
    return T0 + round(seconds * SECOND)


@pytest.fixture
def lease(control: ControlDatabase) -> Lease:
    return hold_lease(control, "planner", now_ns=T0)


def opened(reason: str = "") -> Incident:
    return incident_on("nic:h3/eth1", "i1", reason=reason)


def changed(incident: Incident, seconds: float, **verdict: object) -> Incident:
    said = incident.verdict.model_copy(update=verdict)
    return incident.model_copy(update={"updated_ns": at(seconds), "verdict": said})


def test_incident_opens_changes_its_mind_and_closes(control: ControlDatabase) -> None:
    save_incidents(control, [opened(reason="a NIC is slow")], None)
    save_incidents(control, [changed(opened(), 5, confidence=0.5)], None)  # figures alone are no news
    save_incidents(control, [changed(opened(), 10, component="link:h3/eth1--leaf1", reason="it is the cable")], None)
    closed = changed(opened(), 20, component="link:h3/eth1--leaf1")
    ended = {"state": "closed", "closed_ns": at(20), "closed_because": "the cable was replaced"}
    save_incidents(control, [closed.model_copy(update=ended)], None)
    entries = read_timeline(control, "i1")
    assert [(entry.ts_ns, entry.kind, entry.what) for entry in entries] == [
        (T0, "opened", "a NIC is slow"),
        (at(10), "verdict", "now comm_slow of link:h3/eth1--leaf1, grade isolate: it is the cable"),
        (at(20), "closed", "the cable was replaced"),
    ]
    assert entries[0].at == "2023-11-14T22:13:20Z"
    assert all(entry.automatic and entry.who == "analyzer" for entry in entries)


def test_decision_order_steps_and_isolation_follow_each_other(control: ControlDatabase, lease: Lease) -> None:
    save_incidents(control, [opened()], None)
    save_decisions(control, [decision("d1", created_ns=at(1))], None)
    give_order(control, Order(decision="d1", kind="approve", who="ann", why="go", ts_ns=at(2)))
    drain = Step(act="isolate", subject="h3", state="done", began_ns=at(3), ended_ns=at(4), message="drained")
    steps = (drain, Step(act="restart", subject="train"))
    run = execution("d1", began_ns=at(3)).model_copy(update={"approved_by": "ann", "steps": steps})
    times = {"since_ns": at(4.5), "changed_ns": at(60)}
    node = isolated(reason="sends slowly", state="testing", message="the test runs", **times)
    save_execution(control, run, lease, [node])
    entries = read_timeline(control, "i1")
    own, step, isolation = ("opened", "analyzer", True), ("step", "planner", False), ("isolation", "planner", True)
    others = [("decision", "planner", True), ("order", "ann", False), step, step, isolation, isolation]
    assert [(entry.kind, entry.who, entry.automatic) for entry in entries] == [own, *others]
    said = [entry.what for entry in entries]
    assert said[1] == "observes replace: a spare is cheaper than waiting"
    assert said[2:5] == ["approve: go", "isolate h3 begins", "isolate h3 done: drained"]
    assert said[5:] == ["h3 is out of service: sends slowly", "h3 is testing: the test runs"]


def test_who_was_told_is_there_also_when_the_message_told_of_others_too(control: ControlDatabase) -> None:
    save_incidents(control, [opened()], None)
    held = hold_lease(control, "alerts", now_ns=T0)
    news = make_notification(make_alert("i0"), make_alert("i1")).model_copy(update={"ts_ns": at(1)})
    save_round(control, held, [Outgoing("pager", news, replaces=False, is_end=False)], [])
    (told,) = (entry for entry in read_timeline(control, "i1") if entry.kind == "notified")
    assert (told.subject, told.what, told.ts_ns) == ("pager", "pager is sent incident.opened: waiting", at(1))


def test_entries_stand_in_their_order_and_an_outcome_is_a_person_s_word(
    control: ControlDatabase,
) -> None:
    with pytest.raises(NotPresent, match="there is no incident 'i1'"):
        read_timeline(control, "i1")
    save_incidents(control, [opened()], None)
    save_decisions(control, [decision(f"d{n}", created_ns=T0) for n in range(3)], None)  # all at one moment
    outcome = Outcome(incident="i1", was_right=False, part="nic:h4/eth0", who="ann", why="rma", ts_ns=at(9))
    save_outcome(control, outcome)
    entries = read_timeline(control, "i1")
    assert [timeline_key(entry) for entry in entries] == sorted(timeline_key(entry) for entry in entries)
    assert entries[0].kind == "opened"
    assert (entries[-1].kind, entries[-1].who, entries[-1].automatic) == ("outcome", "ann", False)
    assert entries[-1].what == "the verdict was wrong, it was nic:h4/eth0: rma"


SINCE = NOW  # when the faults of these tests begin


def fault(job: str, attempt: int = 0) -> Incident:
    return incident_on("nic:h3/eth1", "i1", job=job, opened_ns=SINCE).model_copy(update={"attempt": attempt})


def kinds(store: Store, control: ControlDatabase, incident: Incident) -> list[tuple[str, str, float]]:
    return [(change.kind, change.subject, change.seconds_before) for change in find_changes(store, control, incident)]


def test_event_neighbour_other_nccl_agent_or_topology_is_a_change(
    shared_store: Store, control: ControlDatabase
) -> None:
    load_job(shared_store, "e")
    put(shared_store, [happening("e-h0", SINCE - n * SECOND, "gpu:e-h0/1") for n in (30, 10, 20)])
    put(shared_store, [happening("elsewhere", SINCE, "gpu:elsewhere/0")])
    put(shared_store, [happening("e-h0", SINCE - 7200 * SECOND, "gpu:e-h0/0")])
    found = find_changes(shared_store, control, fault("e"))
    timestamps = [change.ts_ns for change in found]
    assert timestamps == sorted(timestamps, reverse=True)
    assert sorted({(change.kind, change.subject) for change in found}) == [("attempt", "e"), ("event", "gpu:e-h0/1")]
    assert found[-1].what == "test on e-h0: error xid, it broke"
    assert (found[-1].seconds_before, found[-1].at) == (30.0, "2023-11-14T22:13:00Z")
    assert len(find_changes(shared_store, control, fault("e"), before_s=10_000)) == len(found) + 1
    load_job(shared_store, "new")
    put(shared_store, [make(Comm, job="noisy", host="new-h1", init_ns=SINCE - SECOND)])
    put(shared_store, [make(Comm, job="new", attempt=1, host="new-h0", init_ns=SINCE, nccl_version="2.29.1")])
    put(shared_store, [heartbeat("new-h0", SINCE - SECOND, version="1.0")])
    put(shared_store, [heartbeat("new-h0", SINCE + SECOND, version="1.1")])
    fabric = leaf_spine(hosts=2, nics_per_host=1, leaves=1, spines=1)
    publish_topology(control, fabric, source="lldp", now_ns=SINCE - 5 * SECOND, who="ann")
    assert {("topology", "1", 5.0), ("neighbour", "noisy", 1.0)} <= set(kinds(shared_store, control, fault("new")))
    said = {change.kind: change.what for change in find_changes(shared_store, control, fault("new", attempt=1))}
    assert said["attempt"].startswith("attempt")
    assert said["nccl_version"] == "attempt 1 runs NCCL 2.29.1, the one before 2.28.9"
    assert said["agent_version"] == "the collector of new-h0 became 1.1, it was among 1.0, 1.1"


@pytest.mark.parametrize("job", ["never-heard-of", "it's \\ odd"])
def test_job_without_telemetry_has_no_changes(shared_store: Store, control: ControlDatabase, job: str) -> None:
    assert find_changes(shared_store, control, fault(job)) == []
