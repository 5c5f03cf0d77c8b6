"""What is the alert: open incidents, proposals nobody has answered, actions that ended."""

from typing import Any

from api.alerts.active import ACTION_NS, ActiveAlerts, find_active
from lockstep.decision import Decision
from lockstep.execution import Execution
from lockstep.verdict import Incident
from tests.api.alerts.build import after, fault
from tests.builders import T0
from tests.lockstep.state.build import decision
from tests.lockstep.state.test_executions import execution


def seen(
    *incidents: Incident,
    decisions: tuple[Decision, ...] = (),
    answered: tuple[str, ...] = (),
    executions: tuple[Execution, ...] = (),
    at_s: float = 0.0,
) -> ActiveAlerts:
    return find_active(incidents, decisions, answered, executions, after(at_s), settle_ns=60 * 10**9)


def proposal(name: str = "d1", **changes: Any) -> Decision:
    usual = {"mode": "propose", "expires_ns": after(600), "created_ns": T0}
    return decision(name).model_copy(update=usual | changes)


def ended(**changes: Any) -> Execution:
    return execution("d1", "done").model_copy(update={"ended_ns": T0, **changes})


def test_closed_incident_is_the_matter_until_it_has_settled() -> None:
    closed = fault(state="closed", closed_ns=after(10), closed_because="mended")
    assert set(seen(closed, at_s=69).alerts) == {"i1"}
    active = seen(closed, at_s=70)
    assert (set(active.alerts), active.over["i1"].reason) == (set(), "mended")


def test_proposal_waits_for_a_person() -> None:
    alert = seen(fault(), decisions=(proposal(),)).alerts["proposal:i1"]
    assert alert.headline == "replace for job train, taking out nic:h3/eth1"
    assert alert.facts["standstill"] == "90 s"
    held = proposal(mode="execute", held_because="two nodes an hour are enough")
    facts = seen(fault(), decisions=(held,)).alerts["proposal:i1"].facts
    assert facts["held because"] == "two nodes an hour are enough"


def test_nobody_is_asked_about_what_needs_no_answer() -> None:
    nothing = [
        seen(fault(), decisions=(proposal(mode="observe"),)),
        seen(fault(), decisions=(proposal(mode="execute"),)),
        seen(fault(), decisions=(proposal(action="none"),)),
        seen(fault(), decisions=(proposal(),), answered=("d1",)),
        seen(fault(), decisions=(proposal(approved_by="ada"),)),
        seen(fault(), decisions=(proposal(),), at_s=601),
        seen(decisions=(proposal(),)),
        seen(fault(), decisions=(proposal(), proposal("d2", mode="observe", created_ns=after(1)))),
    ]
    assert [set(active.alerts) & {"proposal:i1"} for active in nothing] == [set()] * len(nothing)


def test_same_proposal_again_has_the_same_mark() -> None:
    first = seen(fault(), decisions=(proposal(),)).alerts["proposal:i1"]
    again = seen(fault(), decisions=(proposal("d2", created_ns=after(5)),)).alerts["proposal:i1"]
    other = seen(fault(), decisions=(proposal("d3", action="reroute"),)).alerts["proposal:i1"]
    assert first.mark == again.mark != other.mark


def test_action_is_told_when_it_has_ended_and_not_for_ever() -> None:
    assert "action:d1" not in seen(fault(), executions=(execution("d1"),)).alerts
    told = seen(fault(), executions=(ended(state="failed", reason="the node did not answer"),)).alerts["action:d1"]
    assert (told.mark, told.grade, told.reason) == ("failed", "isolate", "the node did not answer")
    assert "action:d1" not in seen(fault(), executions=(ended(),), at_s=ACTION_NS / 1e9).alerts


def test_part_that_cannot_be_told_from_another_is_named() -> None:
    facts = seen(fault()).alerts["i1"].facts
    assert facts["or it is"] == "link:h3/eth1--leaf1"
    assert facts["step time"] == "1.42 times what it was"
