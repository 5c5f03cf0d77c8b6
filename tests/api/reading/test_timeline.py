"""The timeline of an incident tells in order who was told, who acted, and what was done without anybody asking."""

import pytest

from api.reading.timeline import place_of, read_timeline
from lockstep.control.database import ControlDatabase
from lockstep.control.decisions import save_decisions
from lockstep.control.deliveries import Outgoing, save_round
from lockstep.control.executions import give_order, save_execution, save_outcome
from lockstep.control.incidents import save_incidents
from lockstep.control.leases import Lease, take_lease
from lockstep.errors import NotPresent
from lockstep.execution import Execution, Isolated, Order, Outcome, Step
from lockstep.incident import Incident
from lockstep.news import Matter, News
from tests.api.reading.build import incident_on
from tests.builders import SECOND, T0
from tests.lockstep.control.build import decision


def at(seconds: float) -> int:
    return T0 + round(seconds * SECOND)


@pytest.fixture
def lease(control: ControlDatabase) -> Lease:
    held = take_lease(control, "planner", "test", ttl_ns=3600 * SECOND, now_ns=T0)
    assert held is not None
    return held


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
    assert all(entry.by_itself and entry.who == "analyzer" for entry in entries)


def test_decision_order_steps_and_isolation_follow_each_other(control: ControlDatabase, lease: Lease) -> None:
    save_incidents(control, [opened()], None)
    save_decisions(control, [decision("d1", created_ns=at(1))], None)
    give_order(control, Order(decision="d1", kind="approve", who="ann", why="go", ts_ns=at(2)))
    steps = (
        Step(act="isolate", subject="h3", state="done", began_ns=at(3), ended_ns=at(4), said="drained"),
        Step(act="restart", subject="train"),
    )
    run = Execution(
        decision="d1",
        incident="i1",
        job="train",
        action="replace",
        component="nic:h3/eth1",
        state="executing",
        generation=1,
        approved_by="ann",
        began_ns=at(3),
        steps=steps,
    )
    node = Isolated(
        node="h3",
        component="nic:h3/eth1",
        decision="d1",
        job="train",
        reason="sends slowly",
        state="testing",
        since_ns=at(4.5),
        changed_ns=at(60),
        said="the test runs",
    )
    save_execution(control, run, lease, [node])
    entries = read_timeline(control, "i1")
    assert [(entry.kind, entry.who, entry.by_itself) for entry in entries] == [
        ("opened", "analyzer", True),
        ("decision", "planner", True),
        ("order", "ann", False),
        ("step", "planner", False),
        ("step", "planner", False),
        ("isolation", "planner", True),
        ("isolation", "planner", True),
    ]
    said = [entry.what for entry in entries]
    assert said[1] == "observes replace: a spare is cheaper than waiting"
    assert said[2:5] == ["approve: go", "isolate h3 begins", "isolate h3 done: drained"]
    assert said[5:] == ["h3 is out of service: sends slowly", "h3 is testing: the test runs"]


def test_who_was_told_is_there_also_when_the_message_told_of_others_too(control: ControlDatabase) -> None:
    save_incidents(control, [opened()], None)
    held = take_lease(control, "alerts", "test", ttl_ns=SECOND, now_ns=T0)
    assert held is not None
    matter = Matter(
        subject="i1",
        family="incident",
        job="train",
        component="nic:h3/eth1",
        fault_class="comm_slow",
        grade="isolate",
        mark="m",
        since_ns=T0,
        headline="h",
        reason="r",
    )
    other = matter.model_copy(update={"subject": "i0"})
    news = News(id="e1", kind="incident.opened", key="i0", ts_ns=at(1), matters=(other, matter))
    save_round(control, held, [Outgoing("pager", news, replaces=False, is_end=False)], [])
    (told,) = (entry for entry in read_timeline(control, "i1") if entry.kind == "told")
    assert (told.subject, told.what, told.ts_ns) == ("pager", "pager is told incident.opened: waiting", at(1))


def test_outcome_is_the_word_of_a_person(control: ControlDatabase) -> None:
    save_incidents(control, [opened()], None)
    save_outcome(
        control, Outcome(incident="i1", was_right=False, part="nic:h4/eth0", who="ann", why="rma", ts_ns=at(9))
    )
    last = read_timeline(control, "i1")[-1]
    assert (last.kind, last.who, last.by_itself) == ("outcome", "ann", False)
    assert last.what == "the verdict was wrong, it was nic:h4/eth0: rma"


def test_entries_stand_in_the_order_of_their_places(control: ControlDatabase) -> None:
    save_incidents(control, [opened()], None)
    save_decisions(control, [decision(f"d{n}", created_ns=T0) for n in range(3)], None)  # all at one moment
    entries = read_timeline(control, "i1")
    assert [place_of(entry) for entry in entries] == sorted(place_of(entry) for entry in entries)
    assert entries[0].kind == "opened"


def test_unknown_incident_has_no_timeline(control: ControlDatabase) -> None:
    with pytest.raises(NotPresent, match="there is no incident 'i1'"):
        read_timeline(control, "i1")
