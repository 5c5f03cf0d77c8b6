"""What is said of a scenario is compared with what it expects, and timed from the fault to when it could be heard."""

import math
from typing import Any

import pytest

from lockstep.clock import NS_PER_S
from simulator.scenario import Scenario, find_scenario
from tests.testbed.scenarios.outcome import Listener, Outcome, Pace

SCENARIO = find_scenario("testbed-host-link-strong-socket")
BEGAN_NS = 1_000 * NS_PER_S
BROKE_NS = BEGAN_NS + 20 * NS_PER_S


def incident(
    component: str, after_s: float, fault_class: str = "comm_slow", identity: str = "one", confidence: float = 0.9
) -> dict[str, Any]:
    verdict = {"class": fault_class, "component": component, "confidence": confidence}
    opened_ns = BEGAN_NS + int(after_s * NS_PER_S)
    return {"id": identity, "verdict": verdict, "opened_ns": opened_ns, "updated_ns": opened_ns}


def pace(*step_ends_s: float) -> Pace:
    return Pace(BROKE_NS, tuple(BEGAN_NS + int(end_s * NS_PER_S) for end_s in step_ends_s))


def outcome(*incidents: dict[str, Any], scenario: Scenario = SCENARIO, listener: Listener | None = None) -> Outcome:
    return Outcome(scenario, BEGAN_NS, incidents, pace(), tuple(listener.said) if listener else ())


def at(after_s: float) -> int:
    return BEGAN_NS + int(after_s * NS_PER_S)


@pytest.mark.parametrize("component", ["link:h6/eth1--leaf1", "nic:h6/eth1"])
def test_expected_verdict_in_time_is_right(component: str) -> None:
    assert outcome(incident(component, after_s=35)).is_right


@pytest.mark.parametrize(
    "said",
    [
        incident("nic:h5/eth1", after_s=35),
        incident("nic:h6/eth1", after_s=51),  # the fault comes at 20 s, the verdict is due within 30
        incident("nic:h6/eth1", after_s=35, fault_class="comm_hang"),
    ],
)
def test_another_part_class_or_a_late_verdict_is_missed_and_wrong(said: dict[str, Any]) -> None:
    judged = outcome(said)
    assert not judged.is_right
    assert (judged.missed, judged.wrong) == (list(SCENARIO.expect), [said])


def test_silence_is_right_only_where_nothing_breaks() -> None:
    assert not outcome().is_right
    assert outcome(scenario=find_scenario("testbed-host-link-healthy-socket")).is_right


def test_incident_is_noted_when_it_is_first_heard_and_when_it_names_another_part() -> None:
    listener = Listener()
    listener.hear([incident("host:h6", after_s=24)], at(25))
    listener.hear([incident("host:h6", after_s=24, confidence=0.95)], at(26))
    listener.hear([incident("nic:h6/eth1", after_s=24), incident("host:h1", after_s=28, identity="two")], at(29))
    heard = [(said.at_ns, said.incident, said.component) for said in listener.said]
    assert heard == [(at(25), "one", "host:h6"), (at(29), "one", "nic:h6/eth1"), (at(29), "two", "host:h1")]


def test_first_right_answer_counts_and_neither_a_wrong_one_nor_one_from_before_the_fault() -> None:
    listener = Listener()
    listener.hear([incident("nic:h6/eth1", after_s=10, identity="early")], at(12))
    listener.hear([incident("host:h6", after_s=24)], at(25))
    assert outcome(listener=listener).first_right() is None
    listener.hear([incident("nic:h6/eth1", after_s=24)], at(29))
    first = outcome(listener=listener).first_right()
    assert first is not None
    assert first.at_ns == at(29)


def test_delay_is_told_in_seconds_and_in_steps_that_the_broken_job_did() -> None:
    told = pace(18, 18.5, 19, 19.5, 21, 23, 25, 27, 29)
    assert told.usual_s == pytest.approx(0.5)
    assert (told.seconds_until(at(26)), told.steps_until(at(26))) == (6, 3)


@pytest.mark.parametrize(("heard_s", "is_within"), [(30, True), (30.1, False)])
def test_seconds_are_allowed_on_top_of_the_steps_that_the_slow_job_did(heard_s: float, is_within: bool) -> None:
    assert pace(19, 19.5, 21, 23, 25, 27, 29).is_within(at(heard_s), steps=3, seconds=5) == is_within


@pytest.mark.parametrize(("heard_s", "is_within"), [(27.5, True), (27.6, False)])
def test_job_that_hangs_is_allowed_its_usual_steps(heard_s: float, is_within: bool) -> None:
    assert pace(19, 19.5, 20).is_within(at(heard_s), steps=5, seconds=5) == is_within


def test_pace_of_a_job_broken_before_its_second_step_is_unknown_and_nothing_is_within_it() -> None:
    told = pace(19)
    assert math.isnan(told.usual_s)
    assert not told.is_within(at(21), steps=5, seconds=5)
