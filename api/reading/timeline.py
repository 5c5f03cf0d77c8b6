"""Who has been told, who acted, what was done by itself: everything about an incident in the order it happened."""

from collections.abc import Iterable, Iterator
from typing import Literal, get_args

from pydantic import Field

from api.paging import Place, digest_of
from api.reading.moments import show_moment
from lockstep.control.database import ControlDatabase
from lockstep.control.decisions import list_decisions
from lockstep.control.deliveries import Delivery
from lockstep.control.executions import find_execution, list_isolated, list_orders
from lockstep.control.incidents import get_incident
from lockstep.control.pages import deliveries_about, outcomes_of
from lockstep.control.verdict_changes import VerdictChange, list_verdict_changes
from lockstep.decision import Decision
from lockstep.execution import Execution, Isolated, Order, Outcome, Step
from lockstep.incident import Incident
from lockstep.verdict import Frozen

Kind = Literal["opened", "verdict", "decision", "order", "step", "isolation", "told", "closed", "outcome"]

_ORDER = {kind: number for number, kind in enumerate(get_args(Kind))}
_ANALYZER, _PLANNER, _ALERTS = "analyzer", "planner", "alerts"  # who acts where no person does


class Entry(Frozen):
    """One thing that happened."""

    ts_ns: int = Field(ge=0)
    at: str | None = Field(None, description="the same as a person reads it")
    kind: Kind
    who: str = Field(description="a person, or the service that did it by itself")
    by_itself: bool = Field(description="whether no person asked for it")
    what: str = Field(description="one sentence")
    subject: str = Field(description="the incident, decision, node or receiver that it is about")


def read_timeline(control: ControlDatabase, incident: str) -> list[Entry]:
    """Return what happened to an incident, oldest first, or raise NotPresent."""
    found = get_incident(control, incident)
    decisions = list_decisions(control, incident=incident, limit=1000)
    entries = [*_of_incident(found, list_verdict_changes(control, incident))]
    ours = {decision.id for decision in decisions}
    for decision in decisions:
        entries.append(_of_decision(decision))
        entries += [_of_order(order) for order in list_orders(control, decision.id)]
        entries += _of_execution(find_execution(control, decision.id))
    entries += _of_isolations(each for each in list_isolated(control) if each.decision in ours)
    entries += _of_deliveries(deliveries_about(control, incident))
    entries += [_of_outcome(outcome) for outcome in outcomes_of(control, [incident]).values()]
    return sorted(entries, key=place_of)


def place_of(entry: Entry) -> Place:
    """Return where an entry stands: by its moment, and within one moment causes before their effects."""
    return entry.ts_ns, _ORDER[entry.kind], digest_of(entry)


def _entry(ts_ns: int, kind: Kind, who: str, what: str, subject: str, *, by_itself: bool = True) -> Entry:
    return Entry(
        ts_ns=ts_ns, at=show_moment(ts_ns), kind=kind, who=who, by_itself=by_itself, what=what, subject=subject
    )


def _of_incident(incident: Incident, changes: Iterable[VerdictChange]) -> Iterator[Entry]:
    told = list(changes)
    first = told[0].reason if told else incident.verdict.reason
    yield _entry(incident.opened_ns, "opened", _ANALYZER, first, incident.id)
    for change in told[1:]:
        if change.state == "open":
            said = f"now {change.fault_class} of {change.component}, grade {change.grade}: {change.reason}"
            yield _entry(change.ts_ns, "verdict", _ANALYZER, said, incident.id)
    if incident.closed_ns is not None:
        yield _entry(incident.closed_ns, "closed", _ANALYZER, incident.closed_because or "closed", incident.id)


def _of_decision(decision: Decision) -> Entry:
    held = f"; held: {decision.held_because}" if decision.held_because else ""
    what = f"{decision.mode}s {decision.action}: {decision.reason}{held}"
    return _entry(decision.created_ns, "decision", _PLANNER, what, decision.id)


def _of_order(order: Order) -> Entry:
    what = f"{order.kind}: {order.why}" if order.why else order.kind
    return _entry(order.ts_ns, "order", order.who, what, order.decision, by_itself=order.who == _PLANNER)


def _of_execution(execution: Execution | None) -> Iterator[Entry]:
    """Return when each step began and how it ended; one that only waits has not happened."""
    for step in execution.steps if execution else ():
        if step.began_ns is not None:
            yield _of_step(execution, step, step.began_ns, "begins")
        if step.ended_ns is not None:
            yield _of_step(execution, step, step.ended_ns, f"{step.state}: {step.said}".rstrip(": "))
    if execution and execution.ended_ns is not None:
        what = f"{execution.action} {execution.state}: {execution.reason}".rstrip(": ")
        yield _entry(execution.ended_ns, "step", _PLANNER, what, execution.decision)


def _of_step(execution: Execution | None, step: Step, ts_ns: int, how: str) -> Entry:
    asked_by = execution.approved_by if execution else ""
    is_own = asked_by in ("", _PLANNER, "policy")
    return _entry(ts_ns, "step", _PLANNER, f"{step.act} {step.subject} {how}", step.subject, by_itself=is_own)


def _of_isolations(isolated: Iterable[Isolated]) -> Iterator[Entry]:
    for each in isolated:
        yield _entry(each.since_ns, "isolation", _PLANNER, f"{each.node} is out of service: {each.reason}", each.node)
        if each.changed_ns > each.since_ns:
            what = f"{each.node} is {each.state}: {each.said}".rstrip(": ")
            yield _entry(each.changed_ns, "isolation", _PLANNER, what, each.node)


def _of_deliveries(deliveries: Iterable[Delivery]) -> Iterator[Entry]:
    for delivery in deliveries:
        tries = delivery.tries
        ts_ns = tries.log[-1].ts_ns if tries.log else delivery.created_ns
        how = f"{delivery.state} after {tries.count} tries" if tries.count > 1 else delivery.state
        what = f"{delivery.target} is told {tries.news.kind}: {how}"
        yield _entry(ts_ns, "told", _ALERTS, what, delivery.target)


def _of_outcome(outcome: Outcome) -> Entry:
    part = f", it was {outcome.part}" if outcome.part else ""
    what = f"the verdict was {'right' if outcome.was_right else 'wrong'}{part}: {outcome.why}".rstrip(": ")
    return _entry(outcome.ts_ns, "outcome", outcome.who, what, outcome.incident, by_itself=False)
