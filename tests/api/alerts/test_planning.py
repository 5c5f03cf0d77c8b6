"""What is the alert, and one receiver's view of it: every alert once as it begins, changes and ends."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.alerts.active import ACTION_NS, ActiveAlerts, find_active, trouble_alert
from api.alerts.planning import MOST_DOUBLINGS, Known, Plan, is_notable, patience_ns, plan_notifications, wants
from lockstep.alerts import Alert, Target, Thread
from lockstep.decision import Decision
from lockstep.execution import Execution
from lockstep.verdict import Impact, Incident
from tests.api.alerts.build import after, fault, make_alert, target
from tests.builders import T0
from tests.conftest import REPO
from tests.lockstep.state.build import decision
from tests.lockstep.state.test_executions import execution

GROUP_NS = 30 * 10**9


class Told:
    """A receiver that remembers its threads between rounds, as the control database does."""

    def __init__(self, receiver: Target) -> None:
        self.receiver, self.now_ns = receiver, T0
        self.threads: dict[str, Thread] = {}
        self.messages: list[tuple[str, str, int]] = []  # kind, key, alerts
        self.ids: list[str] = []

    def round(self, *alerts: Alert, after_s: float = 1.0) -> Plan:
        self.now_ns += round(after_s * 1e9)
        active = ActiveAlerts(self.now_ns, {each.subject: each for each in alerts})
        plan = plan_notifications(self.receiver, Known(self.threads, T0), active, GROUP_NS)
        self.threads = self.threads | {thread.subject: thread for thread in plan.threads}
        notification = [message.notification for message in plan.outgoing]
        self.messages += [(each.kind, each.key, len(each.alerts)) for each in notification]
        self.ids += [each.id for each in notification]
        return plan


def action(state: str) -> Alert:
    changes = {"subject": "action:d1", "family": "action", "mark": state, "since_ns": after(1)}
    return make_alert().model_copy(update=changes)


def proposal() -> Alert:
    return make_alert().model_copy(update={"subject": "proposal:i1", "family": "decision", "mark": "replace"})


@pytest.mark.parametrize("kind", ["webhook", "slack"])  # who gets every event, and who gets groups
def test_incident_that_wavers_for_an_hour_is_no_storm_and_what_is_worse_is_told_at_once(kind: str) -> None:
    told, updates = Told(target(kind=kind)), list[Plan]()
    for look in range(1800):
        plan = told.round(make_alert(grade="alert", component=f"gpu:h{look % 2}/0"), after_s=2)
        updates += [plan] * bool(plan.outgoing)
    assert len(told.messages) == 8, "after 30 s, then 1, 2, 4, 8 and 16 minutes, then every 16"
    assert told.messages[:2] == [("incident.opened", "i1", 1), ("incident.updated", "i1", 1)]
    (opened,), (updated, *_) = (plan.outgoing for plan in updates[:2])
    assert updated.notification.before == opened.notification.alerts[0]
    told.round(make_alert(grade="isolate", component="gpu:h1/0"), after_s=31)
    assert len(told.messages) == 9


@pytest.mark.parametrize(("kind", "expected"), [("slack", 0), ("email", 0), ("pagerduty", 1), ("alertmanager", 1)])
def test_answered_proposal_is_withdrawn_only_where_it_would_stay(kind: str, expected: int) -> None:
    told = Told(target(kind=kind))
    told.round(proposal())
    told.round()
    assert [kind for kind, *_ in told.messages] == ["decision.proposed"] + ["decision.settled"] * expected


@pytest.mark.parametrize("kind", ["slack", "webhook", "pagerduty", "alertmanager"])
def test_action_is_told_with_its_outcome_but_no_pager_is_used_for_what_went_well(kind: str) -> None:
    told = Told(target(kind=kind))
    told.round(action("done").model_copy(update={"since_ns": T0 - 1}))
    assert told.messages == [], "it is from before the receiver was there"
    told = Told(target(kind=kind))
    told.round(action("done"))
    told.round(action("undone"), after_s=31)
    told.round()
    expected = ["action.executed", "action.undone"] if kind in ("slack", "webhook") else []
    assert [kind for kind, *_ in told.messages] == expected, "and nothing is resolved that was never sent"


def test_trouble_of_our_own_is_told_whatever_grades_and_jobs_are_asked_for() -> None:
    trouble = trouble_alert("agents", "no agent reports: none spoke today", T0)
    told = Told(target(grades=("note",), jobs=("other",)))
    told.round(trouble)
    told.round()
    assert [kind for kind, *_ in told.messages] == ["lockstep.troubled", "lockstep.recovered"]


@pytest.mark.parametrize(
    ("expected", "fields"),
    [(True, {}), (True, {"jobs": ("tr*",)}), (False, {"jobs": ("x", "other-*")})]
    + [(False, {"grades": ("alert",)}), (False, {"events": ("decision",)})],
)
def test_receiver_gets_what_it_asked_for(fields: dict[str, Any], expected: bool) -> None:
    assert wants(target(**fields), make_alert()) is expected
    assert not wants(target(), make_alert(grade="note")), "unless it is asked for"
    assert wants(target(grades=("note",)), make_alert(grade="note"))


def test_pager_of_the_manual_rings_for_a_job_that_stands_still_however_uncertain_the_part() -> None:
    manual = (REPO / "docs" / "operations.md").read_text(encoding="utf-8")
    example = tomllib.loads("[alerts]" + manual.partition("[alerts]")[2].partition("```")[0])
    (pager,) = (Target(**each) for each in example["alerts"]["targets"] if each["kind"] == "pagerduty")
    deadlock = Impact(stands_still=True, ranks_waiting=63, gpus=64)
    hung = make_alert(job="llama-3", fault_class="software", grade="note", impact=deadlock)
    assert (hung.severity, hung.grade, hung.facts["severity"]) == ("critical", "note", "critical")
    assert wants(pager, hung)
    assert wants(target(), hung), "somebody has to look"
    assert not wants(pager, make_alert(job="llama-3", grade="isolate")), "sure of what costs little"


def test_second_wave_is_gathered_under_its_first_incident() -> None:
    told = Told(target(kind="pagerduty"))
    told.round(make_alert("i1"))
    for _ in range(10):
        told.round(make_alert("i1"), make_alert("i2"), make_alert("i3"))
    assert told.messages == [("incident.opened", "i1", 1)]
    told.round(make_alert("i1"), make_alert("i2"), make_alert("i3"), make_alert("i4"), after_s=20)
    assert told.messages[1:] == [("incident.opened", "i2", 3)]
    told.round(make_alert("i2"), make_alert("i3"))
    assert told.messages[2:] == [("incident.closed", "i1", 1)]
    told.round(make_alert("i3"))
    assert len(told.messages) == 3, "two of three are over: nobody is told until all are"
    told.round()
    assert told.messages[3:] == [("incident.closed", "i2", 1)]


def test_what_comes_back_while_its_message_lasts_is_not_told_again_and_jobs_are_not_mixed() -> None:
    told = Told(target(kind="slack"))
    told.round(make_alert("i1"), make_alert("i2"))
    told.round(make_alert("i2"), after_s=40)
    told.round(make_alert("i1"), make_alert("i2"), after_s=40)
    told.round(make_alert("i1"), after_s=40)
    assert told.messages == [("incident.opened", "i1", 2)]
    told.round(after_s=40)
    assert told.messages[1:] == [("incident.closed", "i1", 1)]
    told = Told(target(kind="slack"))
    told.round(make_alert("i1", job="a"), make_alert("i2", job="b"), make_alert("i3", job="a"))
    assert told.messages == [("incident.opened", "i1", 2), ("incident.opened", "i2", 1)]


_GRADES = st.dictionaries(st.sampled_from(["i1", "i2", "i3"]), st.sampled_from(["isolate", "alert", "note"]))


@given(
    st.lists(st.tuples(_GRADES, st.floats(0.5, 90)), max_size=15),
    st.sampled_from(["webhook", "alertmanager", "slack", "pagerduty", "email"]),
)
def test_every_beginning_has_one_end_and_no_message_comes_twice(states: Any, kind: Any) -> None:
    told = Told(target(kind=kind))
    for grades, after_s in states:
        told.round(*(make_alert(name, grade=grade) for name, grade in grades.items()), after_s=after_s)
    told.round(after_s=100)
    assert len(set(told.ids)) == len(told.ids)
    assert all(thread.is_over for thread in told.threads.values())
    keys = {key for _, key, _ in told.messages}
    for key in keys:
        kinds = [kind for kind, mine, _ in told.messages if mine == key and kind != "incident.updated"]
        pairs = ["incident.opened", "incident.closed"] * (len(kinds) // 2)
        assert kinds == pairs, "it begins and ends in turn"


def slowed(ratio: float | None, **changes: Any) -> Alert:
    return make_alert(impact=Impact(step_time_ratio=ratio, ranks_waiting=1), **changes)


def thread(told: Alert, number: int) -> Thread:
    return Thread(target="ops", subject=told.subject, key=told.subject, number=number, reported_ns=T0, alert=told)


@pytest.mark.parametrize(
    ("told", "now", "expected"),
    [
        (1.2, 1.4, True),
        (1.2, 1.39, False),
        (1.4, 1.2, True),
        (1.4, 1.25, False),
        (1.02, 1.1, False),  # twice the loss, and nobody would get up for it
        (1.0, 1.2, True),
        (None, 1.2, True),
        (None, 1.1, False),
        (3.0, None, False),  # unknown is not mended
    ],
)
def test_impact_is_news_by_a_step(told: float | None, now: float | None, expected: bool) -> None:
    assert is_notable(slowed(told), slowed(now)) is expected
    figures: dict[str, Any] = {"confidence": 0.4, "reason": "in other words", "coverage": 0.5, "last_seen_ns": T0 + 1}
    assert not is_notable(make_alert(), make_alert(**figures)), "what changes with each look is no news"


def test_what_is_worse_never_waits_longer_and_what_is_not_twice_as_long_each_time_up_to_a_limit() -> None:
    standstill = slowed(1.42, grade="alert", fault_class="comm_hang")
    for now in (slowed(1.42, grade="isolate", component="gpu:h9/0"), standstill, slowed(1.9, grade="alert")):
        assert patience_ns(thread(make_alert(grade="alert"), 40), now, GROUP_NS) == GROUP_NS
    waits = [patience_ns(thread(make_alert(), told), make_alert(component="gpu:h9/0"), GROUP_NS) for told in range(9)]
    assert [wait // GROUP_NS for wait in waits] == [1, 1, 2, 4, 8, 16, 32, 32, 32]
    assert waits[-1] == GROUP_NS << MOST_DOUBLINGS
    asked = make_alert().model_copy(update={"family": "decision"})
    changed = asked.model_copy(update={"mark": "other"})
    assert patience_ns(thread(asked, 9), changed, GROUP_NS) == GROUP_NS, "a changed proposal is not held back"


@given(st.floats(0.5, 10), st.floats(0.5, 10))
def test_what_was_told_of_an_impact_is_not_news_the_other_way_round_at_once(told: float, now: float) -> None:
    if is_notable(slowed(told), slowed(now)):
        assert abs(now - told) >= 0.19, "so that what wavers by less is told once"
    assert not is_notable(slowed(now), slowed(now))


def seen(
    *incidents: Incident,
    decisions: tuple[Decision, ...] = (),
    answered: tuple[str, ...] = (),
    executions: tuple[Execution, ...] = (),
    at_s: float = 0.0,
) -> ActiveAlerts:
    return find_active(incidents, decisions, answered, executions, after(at_s), settle_ns=60 * 10**9)


def proposed(name: str = "d1", **changes: Any) -> Decision:
    usual = {"mode": "propose", "expires_ns": after(600), "created_ns": T0}
    return decision(name).model_copy(update=usual | changes)


def ended(**changes: Any) -> Execution:
    return execution("d1", "done").model_copy(update={"ended_ns": T0, **changes})


def test_closed_incident_is_the_matter_until_it_has_settled() -> None:
    closed = fault(state="closed", closed_ns=after(10), closed_because="mended")
    assert set(seen(closed, at_s=69).alerts) == {"i1"}
    active = seen(closed, at_s=70)
    assert (set(active.alerts), active.over["i1"].reason) == (set(), "mended")
    facts = seen(fault()).alerts["i1"].facts
    assert facts["or it is"] == "link:h3/eth1--leaf1"
    assert facts["step time"] == "1.42 times what it was"


def test_proposal_waits_for_a_person_and_the_same_again_has_the_same_mark() -> None:
    alert = seen(fault(), decisions=(proposed(),)).alerts["proposal:i1"]
    assert alert.headline == "replace for job train, taking out nic:h3/eth1"
    assert alert.facts["standstill"] == "90 s"
    held = proposed(mode="execute", held_because="two nodes an hour are enough")
    facts = seen(fault(), decisions=(held,)).alerts["proposal:i1"].facts
    assert facts["held because"] == "two nodes an hour are enough"
    first = seen(fault(), decisions=(proposed(),)).alerts["proposal:i1"]
    again = seen(fault(), decisions=(proposed("d2", created_ns=after(5)),)).alerts["proposal:i1"]
    other = seen(fault(), decisions=(proposed("d3", action="reroute"),)).alerts["proposal:i1"]
    assert first.mark == again.mark != other.mark


def test_nobody_is_asked_about_what_needs_no_answer() -> None:
    nothing = [
        seen(fault(), decisions=(proposed(mode="observe"),)),
        seen(fault(), decisions=(proposed(mode="execute"),)),
        seen(fault(), decisions=(proposed(action="none"),)),
        seen(fault(), decisions=(proposed(),), answered=("d1",)),
        seen(fault(), decisions=(proposed(approved_by="ada"),)),
        seen(fault(), decisions=(proposed(),), at_s=601),
        seen(decisions=(proposed(),)),
        seen(fault(), decisions=(proposed(), proposed("d2", mode="observe", created_ns=after(1)))),
    ]
    assert [set(active.alerts) & {"proposal:i1"} for active in nothing] == [set()] * len(nothing)


def test_action_is_told_when_it_has_ended_and_not_for_ever() -> None:
    assert "action:d1" not in seen(fault(), executions=(execution("d1"),)).alerts
    told = seen(fault(), executions=(ended(state="failed", reason="the node did not answer"),)).alerts["action:d1"]
    assert (told.mark, told.grade, told.reason) == ("failed", "isolate", "the node did not answer")
    assert "action:d1" not in seen(fault(), executions=(ended(),), at_s=ACTION_NS / 1e9).alerts
