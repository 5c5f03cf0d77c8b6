"""The timeline of an incident tells in order who was told, who acted, and what was done without anybody asking."""

import pytest

from api.views.timeline import find_changes, read_timeline, timeline_key
from lockstep.errors import NotPresent
from lockstep.execution import Execution, Isolated, Order, Outcome, Step
from lockstep.fabrics import leaf_spine
from lockstep.notification import Alert, Notification
from lockstep.records import Comm
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import give_order, save_decisions, save_execution, save_outcome
from lockstep.state.deliveries import Outgoing, save_round
from lockstep.state.fabric import publish_topology
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease, take_lease
from lockstep.store.store import Store
from lockstep.verdict import Incident
from tests.api.views.build import NOW, happening, heartbeat, incident_on, load_job, put
from tests.builders import SECOND, T0, make
from tests.lockstep.state.build import decision


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
    assert all(entry.automatic and entry.who == "analyzer" for entry in entries)


def test_decision_order_steps_and_isolation_follow_each_other(control: ControlDatabase, lease: Lease) -> None:
    save_incidents(control, [opened()], None)
    save_decisions(control, [decision("d1", created_ns=at(1))], None)
    give_order(control, Order(decision="d1", kind="approve", who="ann", why="go", ts_ns=at(2)))
    steps = (
        Step(act="isolate", subject="h3", state="done", began_ns=at(3), ended_ns=at(4), message="drained"),
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
        message="the test runs",
    )
    save_execution(control, run, lease, [node])
    entries = read_timeline(control, "i1")
    assert [(entry.kind, entry.who, entry.automatic) for entry in entries] == [
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
    matter = Alert(
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
    news = Notification(id="e1", kind="incident.opened", key="i0", ts_ns=at(1), alerts=(other, matter))
    save_round(control, held, [Outgoing("pager", news, replaces=False, is_end=False)], [])
    (told,) = (entry for entry in read_timeline(control, "i1") if entry.kind == "notified")
    assert (told.subject, told.what, told.ts_ns) == ("pager", "pager is sent incident.opened: waiting", at(1))


def test_outcome_is_the_word_of_a_person(control: ControlDatabase) -> None:
    save_incidents(control, [opened()], None)
    save_outcome(
        control, Outcome(incident="i1", was_right=False, part="nic:h4/eth0", who="ann", why="rma", ts_ns=at(9))
    )
    last = read_timeline(control, "i1")[-1]
    assert (last.kind, last.who, last.automatic) == ("outcome", "ann", False)
    assert last.what == "the verdict was wrong, it was nic:h4/eth0: rma"


def test_entries_stand_in_the_order_of_their_places(control: ControlDatabase) -> None:
    save_incidents(control, [opened()], None)
    save_decisions(control, [decision(f"d{n}", created_ns=T0) for n in range(3)], None)  # all at one moment
    entries = read_timeline(control, "i1")
    assert [timeline_key(entry) for entry in entries] == sorted(timeline_key(entry) for entry in entries)
    assert entries[0].kind == "opened"


def test_unknown_incident_has_no_timeline(control: ControlDatabase) -> None:
    with pytest.raises(NotPresent, match="there is no incident 'i1'"):
        read_timeline(control, "i1")


SINCE = NOW  # when the faults of these tests begin


def fault(job: str, attempt: int = 0) -> Incident:
    return incident_on("nic:h3/eth1", "i1", job=job, opened_ns=SINCE).model_copy(update={"attempt": attempt})


def kinds(store: Store, control: ControlDatabase, incident: Incident) -> list[tuple[str, str, float]]:
    return [(change.kind, change.subject, change.seconds_before) for change in find_changes(store, control, incident)]


def test_event_on_a_host_of_the_job_is_a_change(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "e")
    put(
        shared_store,
        [
            happening("e-h0", SINCE - 30 * SECOND, "gpu:e-h0/1"),
            happening("elsewhere", SINCE, "gpu:elsewhere/0"),
            happening("e-h0", SINCE - 7200 * SECOND, "gpu:e-h0/0"),
        ],
    )
    found = find_changes(shared_store, control, fault("e"))
    assert [(change.kind, change.subject) for change in found] == [("attempt", "e"), ("event", "gpu:e-h0/1")]
    assert found[1].what == "test on e-h0: error xid, it broke"
    assert found[1].seconds_before == 30.0
    assert found[1].at == "2023-11-14T22:13:00Z"


def test_event_long_before_is_a_change_where_it_is_asked_for(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "long")
    put(shared_store, [happening("long-h0", SINCE - 7200 * SECOND, "gpu:long-h0/0")])
    assert len(find_changes(shared_store, control, fault("long"), before_s=10_000)) == 2
    assert len(find_changes(shared_store, control, fault("long"))) == 1


def test_job_that_begins_on_the_same_host_is_a_neighbour(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "quiet")
    put(shared_store, [make(Comm, job="noisy", host="quiet-h1", init_ns=SINCE - SECOND)])
    assert ("neighbour", "noisy", 1.0) in kinds(shared_store, control, fault("quiet"))


def test_new_attempt_with_another_nccl_is_named(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "new")
    put(shared_store, [make(Comm, job="new", attempt=1, host="new-h0", init_ns=SINCE, nccl_version="2.29.1")])
    found = {change.kind: change.what for change in find_changes(shared_store, control, fault("new", attempt=1))}
    assert found["attempt"].startswith("attempt")
    assert found["nccl_version"] == "attempt 1 runs NCCL 2.29.1, the one before 2.28.9"


def test_collector_of_another_version_is_a_change(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "up")
    put(
        shared_store,
        [heartbeat("up-h0", SINCE - SECOND, version="1.0"), heartbeat("up-h0", SINCE + SECOND, version="1.1")],
    )
    (change,) = (each for each in find_changes(shared_store, control, fault("up")) if each.kind == "agent_version")
    assert change.what == "the collector of up-h0 became 1.1, it was among 1.0, 1.1"


def test_published_topology_is_a_change(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "cable")
    fabric = leaf_spine(hosts=2, nics_per_host=1, leaves=1, spines=1)
    publish_topology(control, fabric, source="lldp", now_ns=SINCE - 5 * SECOND, who="ann")
    assert ("topology", "1", 5.0) in kinds(shared_store, control, fault("cable"))


@pytest.mark.parametrize("job", ["never-heard-of", "it's \\ odd"])
def test_job_without_telemetry_has_no_changes(shared_store: Store, control: ControlDatabase, job: str) -> None:
    assert find_changes(shared_store, control, fault(job)) == []


def test_changes_come_newest_first(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "order")
    put(shared_store, [happening("order-h0", SINCE - n * SECOND, "gpu:order-h0/0") for n in (3, 1, 2)])
    moments = [change.ts_ns for change in find_changes(shared_store, control, fault("order"))]
    assert moments == sorted(moments, reverse=True)
    assert T0 in moments
