"""What is shown at once: the worst first, nothing that has ended, and only what really waits for a word."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.answers import AgentView, Job, ListedDecision
from lockstep.client.overview import choose_jobs, find_ailing, find_slowness, find_trend, find_waiting
from lockstep.decision import Mode
from lockstep.verdict import Impact, Incident
from tests.lockstep.state.build import decision, incident

Condition = Any  # a literal of several words


def job(name: str, condition: Condition = "running", attempt: int = 0) -> Job:
    return Job(job=name, attempt=attempt, condition=condition, ranks=8, hosts=1, first_ns=0, last_ns=1)


def agent(host: str, *, is_silent: bool = False, lag_s: float = 0.0, dropped_lately: int = 0) -> AgentView:
    fixed = {"version": "0.1.0", "last_seen_ns": 1, "dropped": dropped_lately, "spool_bytes": 0}
    return AgentView(host=host, is_silent=is_silent, lag_s=lag_s, dropped_lately=dropped_lately, **fixed)


def listed(name: str = "d1", *, mode: Mode = "propose", **changes: object) -> ListedDecision:
    made = ListedDecision.model_validate(decision(name).as_json() | {"expires_ns": 1000, "mode": mode})
    return made.model_copy(update=changes)


def test_worst_jobs_come_first_by_their_newest_attempt_and_ended_ones_not_at_all() -> None:
    jobs = [job("a"), job("b", "ended"), job("c", "slow"), job("d", "crashed"), job("e", "hung")]
    again = [job("f", "ended", attempt=1), job("f", "running"), job("g", "ended"), job("g", "slow", attempt=1)]
    assert [one.job for one in choose_jobs([*jobs, *again])] == ["d", "e", "c", "g", "a"]


@pytest.mark.parametrize("times", [[], [1.0] * 10, [0.0] * 30])
def test_without_a_past_there_is_no_trend(times: list[float]) -> None:
    assert find_trend(times) is None
    assert find_trend([2.0] * 25 + [60.0] + [2.0] * 4) == 1.0, "one long step is none"


def slowed(job_name: str, ratio: float | None) -> Incident:
    told = incident(job=job_name)
    impact = Impact(step_time_ratio=ratio, ranks_waiting=1)
    return told.model_copy(update={"verdict": told.verdict.model_copy(update={"impact": impact})})


def test_job_is_as_slow_as_the_worst_of_its_own_incidents_tells() -> None:
    told = [slowed("a", 1.2), slowed("a", None), slowed("a", 1.7), slowed("b", 3.0)]
    assert find_slowness(job("a", "slow"), told) == 1.7
    assert find_slowness(job("a", "slow", attempt=1), told) is None
    assert find_slowness(job("c"), told) is None


@given(st.lists(st.floats(0.1, 10), min_size=11, max_size=60), st.floats(0.5, 4))
def test_trend_knows_no_unit(times: list[float], unit: float) -> None:
    assert find_trend([one * unit for one in times]) == pytest.approx(find_trend(times))


@pytest.mark.parametrize(
    "changes",
    [{"mode": "observe"}, {"action": "none"}, {"execution": "done"}, {"expires_ns": 400}, {"incident": "i9"}],
    ids=["only observed", "nothing to do", "done", "expired", "incident is over"],
)
def test_newest_decision_waits_while_its_incident_lasts_and_nothing_was_done(changes: dict[str, object]) -> None:
    assert find_waiting([listed(), listed("d0")], [incident("i1")], now_ns=500) == [listed()]
    assert find_waiting([listed().model_copy(update=changes)], [incident("i1")], now_ns=500) == []
    assert find_waiting([listed("d2", mode="observe"), listed("d1")], [incident("i1")], now_ns=500) == []


def test_silent_agents_come_before_losing_ones_and_these_before_late_ones() -> None:
    agents = [agent("late", lag_s=60), agent("loses", dropped_lately=5), agent("silent", is_silent=True)]
    assert [one.host for one in find_ailing([agent("well", lag_s=2), *agents])] == ["silent", "loses", "late"]
