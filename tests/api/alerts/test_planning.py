"""One receiver's view: every matter once as it begins, changes and ends, whatever the order of events."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.alerts.matters import Situation, trouble_matter
from api.alerts.planning import Known, Plan, plan_news, wants
from lockstep.alert_settings import Target
from lockstep.news import Matter, Thread
from tests.api.alerts.build import after, matter, target
from tests.builders import T0

GROUP_NS = 30 * 10**9


class Told:
    """A receiver that remembers its threads between rounds, as the control database does."""

    def __init__(self, receiver: Target) -> None:
        self.receiver, self.now_ns = receiver, T0
        self.threads: dict[str, Thread] = {}
        self.messages: list[tuple[str, str, int]] = []  # kind, key, matters
        self.ids: list[str] = []

    def round(self, *matters: Matter, after_s: float = 1.0, silenced: bool = False) -> Plan:
        self.now_ns += round(after_s * 1e9)
        situation = Situation(self.now_ns, {each.subject: each for each in matters})
        plan = plan_news(self.receiver, Known(self.threads, T0), situation, lambda _: silenced, GROUP_NS)
        self.threads = self.threads | {thread.subject: thread for thread in plan.threads}
        news = [message.news for message in plan.outgoing]
        self.messages += [(each.kind, each.key, len(each.matters)) for each in news]
        self.ids += [each.id for each in news]
        return plan


def action(state: str) -> Matter:
    changes = {"subject": "action:d1", "family": "action", "mark": state, "since_ns": after(1)}
    return matter().model_copy(update=changes)


def proposal() -> Matter:
    return matter().model_copy(update={"subject": "proposal:i1", "family": "decision", "mark": "replace"})


def test_update_waits_until_it_may_be_the_last() -> None:
    told = Told(target())
    told.round(matter())
    told.round(matter(grade="alert"))
    told.round(matter(grade="isolate", component="gpu:h9/0"))
    assert [kind for kind, *_ in told.messages] == ["incident.opened"]
    plan = told.round(matter(component="gpu:h9/0"), after_s=30)
    assert told.messages[1:] == [("incident.updated", "i1", 1)]
    assert plan.outgoing[0].news.before == matter()


@pytest.mark.parametrize("kind", ["webhook", "alertmanager", "slack", "pagerduty", "email"])
def test_incident_that_wavers_for_an_hour_is_no_storm_and_what_is_worse_is_told_at_once(kind: str) -> None:
    told = Told(target(kind=kind))
    for look in range(1800):
        told.round(matter(grade="alert", component=f"gpu:h{look % 2}/0"), after_s=2)
    assert len(told.messages) == 8, "after 30 s, then 1, 2, 4, 8 and 16 minutes, then every 16"
    told.round(matter(grade="isolate", component="gpu:h1/0"), after_s=31)
    assert len(told.messages) == 9


@pytest.mark.parametrize(("kind", "expected"), [("slack", 0), ("email", 0), ("pagerduty", 1), ("alertmanager", 1)])
def test_answered_proposal_is_withdrawn_only_where_it_would_stay(kind: str, expected: int) -> None:
    told = Told(target(kind=kind))
    told.round(proposal())
    told.round()
    assert [kind for kind, *_ in told.messages] == ["decision.proposed"] + ["decision.settled"] * expected


@pytest.mark.parametrize("kind", ["slack", "webhook"])
def test_action_is_told_with_its_outcome(kind: str) -> None:
    told = Told(target(kind=kind))
    told.round(action("done"))
    told.round(action("undone"), after_s=31)
    told.round()
    assert [kind for kind, *_ in told.messages] == ["action.executed", "action.undone"]


@pytest.mark.parametrize("kind", ["pagerduty", "alertmanager"])
def test_pager_is_not_used_for_what_went_well(kind: str) -> None:
    told = Told(target(kind=kind))
    told.round(action("done"))
    told.round()
    assert told.messages == [], "and nothing is resolved that was never sent"


def test_action_from_before_the_receiver_was_there_is_not_told() -> None:
    told = Told(target())
    told.round(action("done").model_copy(update={"since_ns": T0 - 1}))
    assert told.messages == []


def test_trouble_of_our_own_is_told_whatever_grades_and_jobs_are_asked_for() -> None:
    trouble = trouble_matter("agents", "no agent reports: none spoke today", T0)
    told = Told(target(grades=("note",), jobs=("other",)))
    told.round(trouble)
    told.round()
    assert [kind for kind, *_ in told.messages] == ["lockstep.troubled", "lockstep.recovered"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"jobs": ("tr*",)}, True),
        ({"jobs": ("x", "other-*")}, False),
        ({"grades": ("alert",)}, False),
        ({"events": ("decision",)}, False),
    ],
)
def test_receiver_gets_what_it_asked_for(fields: dict[str, Any], expected: bool) -> None:
    assert wants(target(**fields), matter()) is expected


def test_second_wave_is_gathered_under_its_first_incident() -> None:
    told = Told(target(kind="pagerduty"))
    told.round(matter("i1"))
    for _ in range(10):
        told.round(matter("i1"), matter("i2"), matter("i3"))
    assert told.messages == [("incident.opened", "i1", 1)]
    told.round(matter("i1"), matter("i2"), matter("i3"), matter("i4"), after_s=20)
    assert told.messages[1:] == [("incident.opened", "i2", 3)]
    told.round(matter("i2"), matter("i3"))
    assert told.messages[2:] == [("incident.closed", "i1", 1)]
    told.round(matter("i3"))
    assert len(told.messages) == 3, "two of three are over: nobody is told until all are"
    told.round()
    assert told.messages[3:] == [("incident.closed", "i2", 1)]


def test_what_comes_back_while_its_message_lasts_is_not_told_again() -> None:
    told = Told(target(kind="slack"))
    told.round(matter("i1"), matter("i2"))
    told.round(matter("i2"), after_s=40)
    told.round(matter("i1"), matter("i2"), after_s=40)
    told.round(matter("i1"), after_s=40)
    assert told.messages == [("incident.opened", "i1", 2)]
    told.round(after_s=40)
    assert told.messages[1:] == [("incident.closed", "i1", 1)]


def test_jobs_are_not_mixed_in_one_message() -> None:
    told = Told(target(kind="slack"))
    told.round(matter("i1", job="a"), matter("i2", job="b"), matter("i3", job="a"))
    assert told.messages == [("incident.opened", "i1", 2), ("incident.opened", "i2", 1)]


_STATES = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(["i1", "i2", "i3"]), st.sampled_from(["isolate", "alert", "note"])),
        st.floats(0.5, 90),
        st.booleans(),
    ),
    max_size=15,
)


@settings(max_examples=100)
@given(_STATES, st.sampled_from(["webhook", "alertmanager", "slack", "pagerduty", "email"]))
def test_every_beginning_has_one_end_and_no_message_comes_twice(states: Any, kind: Any) -> None:
    told = Told(target(kind=kind))
    for grades, after_s, silenced in states:
        told.round(*(matter(name, grade=grade) for name, grade in grades.items()), after_s=after_s, silenced=silenced)
    told.round(after_s=100)
    assert len(set(told.ids)) == len(told.ids)
    assert all(thread.is_over for thread in told.threads.values())
    keys = {key for _, key, _ in told.messages}
    for key in keys:
        kinds = [kind for kind, mine, _ in told.messages if mine == key and kind != "incident.updated"]
        pairs = ["incident.opened", "incident.closed"] * (len(kinds) // 2)
        assert kinds == pairs, "it begins and ends in turn"
