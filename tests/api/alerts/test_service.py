"""Receivers are told once as something begins, changes and ends, and never in a storm."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from api.alerts.notifier import DeliveryCounts
from api.alerts.selfwatch import Agents, Facts, Patience, Watched, find_troubles, gather_facts, have_all_ended
from api.alerts.service import MOST_NAMED, QueueFigures, Receiver, read_queue
from lockstep.alerts import AlertSettings
from lockstep.execution import Order
from lockstep.records import Agent
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import give_order, save_decisions
from lockstep.state.leases import take_lease
from lockstep.state.targets import create_target
from lockstep.state.tokens import create_token
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from tests.api.alerts.build import LOOPBACK, Alerts, after, alerting, fault, target
from tests.api.alerts.receivers import answer, kinds, receiving
from tests.api.fake_store import AwayStore, away
from tests.builders import T0, make, rows
from tests.lockstep.state.build import decision


def test_incident_is_told_as_it_begins_changes_and_ends(tmp_path: Path) -> None:
    with receiving() as receiver, alerting(tmp_path, target(url=receiver.url)) as alerts:
        alerts.happen(fault())
        alerts.round()
        alerts.round(1)
        assert kinds(receiver) == ["incident.opened"], "once, however often it is looked at"
        alerts.happen(fault(confidence=0.5, reason="the same in other words"))
        alerts.round(60)
        assert kinds(receiver) == ["incident.opened"], "nobody is told of another confidence"
        alerts.happen(fault(component="nic:h4/eth0"))
        alerts.round(1)
        assert receiver.got[-1].document["data"]["items"][0]["component"] == "nic:h4/eth0"
        alerts.happen(fault(component="nic:h4/eth0", state="closed", closed_ns=after(61), closed_because="mended"))
        alerts.round(1)
        alerts.round(60)
        assert kinds(receiver) == ["incident.opened", "incident.updated", "incident.closed"]
        assert receiver.got[-1].document["data"]["items"][0]["reason"] == "mended"
        assert len({got.headers["webhook-id"] for got in receiver.got}) == 3


def test_receiver_of_the_settings_inside_the_site_that_is_not_allowed_is_named_at_the_start(tmp_path: Path) -> None:
    inside = (target("am", "alertmanager", url=f"http://{host}:9093") for host in ("127.0.0.1", "10.1.2.3"))
    named = [each.model_copy(update={"name": f"am{number}"}) for number, each in enumerate(inside)]
    with capture_logs() as logs, alerting(tmp_path, *named, allow=LOOPBACK) as alerts:
        alerts.round()
        alerts.round()
    (line,) = [line for line in logs if line["event"] == "receiver gets nothing"]
    assert line["target"] == "am1"
    assert "10.1.2.3" in line["reason"]


def test_what_comes_and_goes_is_not_told_each_time(tmp_path: Path) -> None:
    with receiving() as receiver, alerting(tmp_path, target(url=receiver.url), settle_s=60) as alerts:
        for second in range(0, 100, 20):
            alerts.happen(fault())
            alerts.round(10)
            alerts.happen(fault(state="closed", closed_ns=after(second + 10)))
            alerts.round(10)
        assert kinds(receiver) == ["incident.opened"]
        alerts.round(60)
        assert kinds(receiver) == ["incident.opened", "incident.closed"]
        alerts.happen(fault())
        alerts.round(1)
        assert kinds(receiver)[-1] == "incident.opened", "it is back: a new message with an id of its own"
        assert len({got.headers["webhook-id"] for got in receiver.got}) == 3


def test_fifty_incidents_at_once_are_two_messages_to_people(tmp_path: Path) -> None:
    with receiving() as receiver, alerting(tmp_path, target(kind="slack", url=receiver.url), group_s=30) as alerts:
        alerts.happen(fault("i00"))
        alerts.round()
        alerts.happen(*(fault(f"i{number:02}", component=f"gpu:h{number}/0") for number in range(1, 50)))
        for _ in range(4):
            alerts.round(15)
        assert len(receiver.got) == 2
        assert "49 incidents in job train" in receiver.got[1].document["text"]
        closed = {"state": "closed", "closed_ns": after(60)}
        alerts.happen(*(fault(f"i{number:02}", component=f"gpu:h{number}/0", **closed) for number in range(1, 50)))
        for _ in range(4):
            alerts.round(30)
        assert len(receiver.got) == 3, "and one message when the last of them is over"


def test_new_receiver_is_told_what_is_open_and_one_that_is_off_of_neither_begin_nor_end(tmp_path: Path) -> None:
    with receiving() as receiver, receiving() as other:
        off = target("off", "slack", url=other.url, enabled=False)
        with alerting(tmp_path, off, settle_s=0) as alerts:
            alerts.happen(fault(), fault("i2", state="closed", closed_ns=after(0)))
            alerts.round()
            create_target(alerts.control, target(url=receiver.url), who="ada", why="", now_ns=after(1))
            alerts.round(1)
            assert [got.document["subject"] for got in receiver.got] == ["i1"]
            alerts.happen(fault(state="closed", closed_ns=after(1)))
            alerts.round(2)
        assert other.got == []


def test_receiver_whose_key_is_lost_is_sent_nothing_until_it_is_back(tmp_path: Path) -> None:
    with receiving() as receiver, receiving() as other, alerting(tmp_path, target("b", url=other.url)) as alerts:
        create_target(alerts.control, target(url=receiver.url), who="ada", why="", now_ns=after(1))
        file = alerts.control.keys.file
        assert file is not None
        held = file.read_text()
        file.unlink()
        alerts.happen(fault())
        alerts.round(1)
        assert (len(receiver.got), [got.document["subject"] for got in other.got]) == (0, ["i1"])
        file.write_text(held)
        alerts.round(1)
        assert [got.document["subject"] for got in receiver.got] == ["i1"]


def test_trouble_of_our_own_is_told_and_so_is_its_end(tmp_path: Path) -> None:
    with receiving() as receiver, alerting(tmp_path, target(url=receiver.url)) as alerts:
        alerts.store.fault = away()
        alerts.round()
        alerts.round(1)
        assert kinds(receiver) == ["lockstep.troubled"]
        (alert,) = receiver.got[0].document["data"]["items"]
        assert (alert["class"], alert["component"]) == ("lockstep", "lockstep:store")
        assert alert["reason"] == "the store is away: the store at nowhere does not answer"
        alerts.store.fault = None
        for _ in range(8):
            alerts.round(60)
        assert kinds(receiver) == ["lockstep.troubled", "lockstep.recovered"]


def test_restart_does_not_take_back_what_it_has_not_looked_at_yet(tmp_path: Path) -> None:
    with receiving() as receiver:
        hook = target(url=receiver.url)
        with alerting(tmp_path, hook) as alerts:
            alerts.store.fault = away()
            alerts.round()
            alerts.round(1)
        with alerting(tmp_path, hook) as again:
            again.clock.advance(100)
            again.store.answers.clear()
            for _ in range(3):
                again.begin_round()
                again.clock.advance(1)
            again.store.answers.set()
            again.service.wait()
        assert kinds(receiver) == ["lockstep.troubled"]


def test_proposal_is_told_until_somebody_answers(tmp_path: Path) -> None:
    with (
        receiving(answer(202, b'{"status":"success"}')) as receiver,
        alerting(tmp_path, target(kind="pagerduty", url=receiver.url, events=("decision",))) as alerts,
    ):
        alerts.happen(fault())
        expires = {"mode": "propose", "created_ns": after(0), "expires_ns": after(600)}
        save_decisions(alerts.control, [decision("d1").model_copy(update=expires)], None)
        alerts.round()
        give_order(alerts.control, Order(decision="d1", kind="approve", who="ada", ts_ns=after(1)))
        alerts.round(2)
    told = [(got.document["event_action"], got.document["dedup_key"]) for got in receiver.got]
    assert told == [("trigger", "proposal:i1"), ("resolve", "proposal:i1")]


def figures_of(alerts: Alerts, *targets: object) -> QueueFigures:
    chosen = AlertSettings.model_construct(**{**AlertSettings().model_dump(), "targets": targets})
    return read_queue(chosen, alerts.control, alerts.clock.now_ns())


def counted(counts: DeliveryCounts) -> dict[tuple[str, str], float]:
    (family,) = counts.counter.collect()
    return {
        (sample.labels["kind"], sample.labels["result"]): sample.value
        for sample in family.samples
        if sample.name.endswith("_total") and sample.value
    }


@pytest.mark.parametrize(
    ("kind", "status", "result", "left", "oldest_s", "is_disabled"),
    [
        ("webhook", 200, "delivered", {}, 0.0, False),
        ("webhook", 500, "failed", {"waiting": 1}, 20.0, False),
        ("webhook", 410, "failed", {"waiting": 1}, 0.0, True),
        ("pagerduty", 400, "dead", {"dead": 1}, 0.0, False),  # refused for good: nothing waits
    ],
)
def test_try_is_counted_and_what_it_left_behind_is_seen(
    tmp_path: Path, kind: Any, status: int, result: str, left: dict[str, int], oldest_s: float, is_disabled: bool
) -> None:
    with receiving(answer(status)) as receiver:
        hook = target(kind=kind, url=receiver.url)
        with alerting(tmp_path, hook) as alerts:
            alerts.clock.advance(6)
            alerts.happen(fault())
            alerts.round()
            alerts.clock.advance(20)
            found = figures_of(alerts, hook)
    assert counted(alerts.counts) == {(kind, result): 1}
    (heard,) = alerts.counts.seconds.collect()
    sums = {sample.name.rpartition("_")[2]: sample.value for sample in heard.samples if not sample.labels}
    assert (sums["count"], sums["sum"]) == ((1, 6) if status == 200 else (0, 0)), "by the wall clock, once it came"
    assert found.messages == {(kind, state): left.get(state, 0) for state in ("waiting", "sending", "dead")}
    assert found.oldest_s == oldest_s, "what waits for a receiver that is gone has no age: nobody tries"
    assert found.receivers == (Receiver("ops", kind, int(status != 200), is_disabled=is_disabled),)


def test_of_many_receivers_the_worst_are_named(tmp_path: Path) -> None:
    with receiving(answer(500)) as receiver:
        ill = target("zz-ill", url=receiver.url)
        others = [target(f"r{number:02}", url=receiver.url, events=()) for number in range(MOST_NAMED + 5)]
        off = target("off", url=receiver.url, enabled=False)
        with alerting(tmp_path, ill, *others, off) as alerts:
            alerts.happen(fault())
            alerts.round()
            found = figures_of(alerts, ill, *others, off)
    assert len(found.receivers) == MOST_NAMED
    assert (found.receivers[0].name, found.receivers[1].name) == ("zz-ill", "r00")
    assert "off" not in {each.name for each in found.receivers}


NOW_NS = after(1000)
PATIENCE = Patience(silent_s=300, full_share=0.9, since_ns=T0)


def facts(**changes: Any) -> Facts:
    well: dict[str, Any] = {
        "agents": Agents(hosts=4, last_seen_ns=NOW_NS, last_host="h1", behind_s=5.0),
        "expects_agents": True,
        "store_trouble": None,
        "store_used": 0.5,
        "lease_ends": {"analyzer": NOW_NS + 1, "planner": NOW_NS + 1},
        "oldest_message": None,
    }
    return Facts(**(well | changes))


@pytest.mark.parametrize(
    ("changes", "name", "sentence"),
    [
        ({}, "", ""),
        ({"oldest_message": ("ops", NOW_NS - 1)}, "", ""),
        ({"agents": Agents(0, 0), "expects_agents": False}, "", ""),
        ({"agents": Agents(4, after(600))}, "agents", "no agent reports: the last of 4 hosts spoke 400 s ago"),
        ({"agents": Agents(0, 0)}, "agents", "no agent reports: no telemetry in the last 600 s"),
        ({"agents": Agents(4, NOW_NS, "h1", 301.0)}, "windows", "windows close without host h1: its data ends 301 s"),
        ({"store_trouble": "gone", "agents": None}, "store", "the store is away: gone"),
        ({"store_used": 0.93}, "disk", "the store's disk is nearly full: 93% of it is used"),
        ({"lease_ends": {"analyzer": 0, "planner": NOW_NS}}, "analyzer", "no analyzer is at work: nobody has held"),
        (
            {"lease_ends": {"analyzer": NOW_NS, "planner": after(600)}},
            "planner",
            "nobody has held its lease for 400 s",
        ),
        ({"oldest_message": ("ops", after(500))}, "alert_queue", "one to ops has waited for 500 s"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(changes: dict[str, Any], name: str, sentence: str) -> None:
    troubles = find_troubles(facts(**changes), PATIENCE, NOW_NS)
    assert list(troubles) == [name] * bool(name)
    assert sentence in troubles.get(name, "")
    before_there_was_a_chance = Patience(300, 0.9, since_ns=NOW_NS)
    assert find_troubles(facts(agents=Agents(0, 0), lease_ends={}), before_there_was_a_chance, NOW_NS) == {}


def test_agents_that_stopped_in_order_are_not_missed_until_one_reports_again() -> None:
    stopping = [Agents(2, T0), Agents(1, T0, ended=1), Agents(0, 0, ended=2), Agents(0, 0)]
    told = [*stopping, None, Agents(1, T0), Agents(0, 0)]
    states, state = [], False
    for agents in told:
        state = have_all_ended(agents, state)
        states.append(state)
    assert states == [False, False, True, True, True, False, False]


def test_facts_come_from_a_real_store_and_its_absence_is_one(shared_store: Store, control: ControlDatabase) -> None:
    found = gather_facts(Watched(shared_store), control, [], 0, after(21))
    assert found.agents == Agents(hosts=0, last_seen_ns=0, last_host="", behind_s=0.0)
    assert not found.expects_agents
    told = [
        make(Agent, host="h1", ts_ns=after(10), watermark_ns=after(9)),
        make(Agent, host="h2", ts_ns=after(20), watermark_ns=after(5)),
        make(Agent, host="silent", ts_ns=T0 - 600 * 10**9, watermark_ns=0),
        make(Agent, host="h4", ts_ns=after(11), watermark_ns=after(1), ended=True),
        make(Agent, host="h4", ts_ns=after(10), watermark_ns=after(1)),
    ]
    shared_store.insert(TABLE_BY_NAME["agents"], rows(*told), token="a")
    take_lease(control, "analyzer", "me", ttl_ns=5, now_ns=T0)
    create_token(control, scope="ingest", host="h1", name="h1", now_ns=T0)
    found = gather_facts(Watched(shared_store, lambda: "batches wait"), control, [], after(-700), after(21))
    assert found.agents == Agents(hosts=3, last_seen_ns=after(20), last_host="h2", behind_s=15.0, ended=1)
    assert (found.expects_agents, found.store_trouble, found.oldest_message) == (True, "batches wait", None)
    assert found.store_used is not None
    assert 0 < found.store_used < 1
    assert found.lease_ends == {"analyzer": T0 + 5, "planner": 0}
    found = gather_facts(Watched(AwayStore()), control, [], 0, T0)
    assert (found.agents, found.store_trouble) == (None, "the store at nowhere does not answer")
