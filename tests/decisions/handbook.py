"""What an experienced SRE would answer, case by case, and the planner that is asked.

Each row of a table is one night: what was seen, what is at hand, the right answer and why it is right. The real
planner answers, from incidents in a real control database; only what a controller and telemetry would tell is written
down. Unless a row says otherwise: job `train` has 64 GPUs on h0 to h7 and saved a checkpoint ten minutes ago, h8 is
an idle spare, a controller is set that does everything, and the policy lets it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from lockstep.decision import Action, Decision, ManualReason, Mode
from lockstep.execution import Execution
from lockstep.records import Event
from lockstep.sections import PlannerSettings
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import list_decisions, save_decisions, save_execution
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease
from lockstep.verdict import Incident, Verdict
from planner.context import JobFacts, Resume
from planner.controllers.protocol import NOT_IN_PLACE
from planner.decide import PlannerOptions
from planner.escalation import LEVELS
from planner.service import PlannerService
from planner.snapshot import Snapshot
from tests.planner.build import cluster, decision, execution, incident, job, seconds

SLURM: dict[str, object] = {"controller": "slurm", "acts": NOT_IN_PLACE, "restarts_whole_job": True}
NOBODY: dict[str, object] = {"can_restart": False, "restarts_whole_job": True}
HOUR_S = 3600.0


@dataclass(frozen=True)
class Case:
    """One night, the answer, and why."""

    seen: str  # what a person would say who was woken
    verdicts: Sequence[Verdict]
    answer: Action
    why: str  # it is right
    takes: tuple[str, ...] = ()  # nodes that are taken out of service, all in one decision
    asks: ManualReason | None = None  # why a person has to act; None: it is automatic, or nothing is to be done
    says: Sequence[str] = ()  # parts of what the decision says: its reason, what holds it, commands, where to look
    hours: tuple[float, float] | None = None  # GPU-hours it costs at most, and that doing nothing costs at least
    at_s: float = 10.0  # since the fault began
    job: Mapping[str, object] = field(default_factory=dict)
    cluster: Mapping[str, object] = field(default_factory=dict)
    mode: Mode = "execute"
    events: Sequence[Event] = ()
    tried: Sequence[Execution] = ()  # before, and it did not help
    seat: str | None = None  # what the rank runs on
    behind_s: float = 0.0  # by which the analyzer lags


@dataclass
class Reader:
    """Tells what a case says is known."""

    case: Case

    def read(self, incident: Incident, now_ns: int) -> Snapshot:
        mine = job(**{"job": incident.job, **self.case.job})
        around = cluster(**self.case.cluster)
        return Snapshot(mine, around, events=self.case.events, seat=self.case.seat)

    def resume_on(self, job: JobFacts, nodes: int, now_ns: int) -> Resume | None:
        return job.resume if nodes < len(job.nodes) else None  # asked for where nodes are lost


def answer(case: Case, control: ControlDatabase, lease: Lease) -> Decision:
    """Return what the planner decides about the first verdict of a case."""
    seen_ns = seconds(case.at_s - case.behind_s)
    for number, verdict in enumerate(case.verdicts):
        seen = verdict.model_copy(update={"last_seen_ns": seen_ns})
        made = incident(seen, name=f"i{number}", opened_s=5.0 - number).model_copy(update={"updated_ns": seen_ns})
        save_incidents(control, [made], None)
    for run in case.tried:
        before = decision(cast(Action, run.action), id=run.decision, incident="i0", job=run.job, expires_ns=1)
        save_decisions(control, [before.model_copy(update={"created_ns": run.began_ns})], lease)
        save_execution(control, run, lease)
    actions = [action for level in LEVELS.values() for action in level]
    options = PlannerOptions(PlannerSettings(modes=dict.fromkeys(actions, case.mode)))
    PlannerService(control, Reader(case), options).run_once(lease, seconds(case.at_s))
    return next(each for each in list_decisions(control, incident="i0") if each.expires_ns > 1)


def check(case: Case, control: ControlDatabase, lease: Lease) -> Decision:
    """Ask the planner, and hold its answer against that of the case."""
    found = answer(case, control, lease)
    told = "\n".join((found.reason, found.held_because or "", *found.by_hand, *found.inspect))
    assert found.action == case.answer, f"{case.why}\nthe planner says: {told}"
    assert tuple(part.node for part in found.isolate) == case.takes, told
    assert found.manual_because == case.asks, told
    assert [part for part in case.says if part not in told] == [], told
    assert found.evidence_age_s == case.behind_s
    if case.hours is not None:
        nothing = next(option.cost.gpu_hours for option in found.alternatives if option.action == "none")
        assert (found.cost.gpu_hours or 0.0) <= case.hours[0], told
        assert (nothing or 0.0) >= case.hours[1], told
    return found


def offers(found: Decision) -> set[Action]:
    """Return the alternatives that have a price: those that somebody could choose instead."""
    return {option.action for option in found.alternatives if option.cost.gpu_hours is not None}


def name_of(case: Any) -> str:  # Any: what pytest has
    """Return how a case is called in the report."""
    return case.seen.replace(" ", "-") if isinstance(case, Case) else ""


def tried(action: Action, component: str, **changes: object) -> Execution:
    """Return that something was done about a part ten minutes ago, and it had come about."""
    when = {"decision": "d0", "incident": "i0", "began_ns": seconds(-600), "ended_ns": seconds(-500)}
    return execution(action=action, component=component, **when, **changes)


def large(**changes: object) -> dict[str, object]:
    """Return a job of 128 hosts and 1,024 GPUs, as people lose thousands of GPU-hours with."""
    return {"nodes": tuple(f"h{number}" for number in range(128)), "gpus": 1024} | changes


def aged(age_s: float) -> dict[str, object]:
    """Return a job that has no checkpoint and has run for so long."""
    return {"resume": None, "resume_smaller": None, "age_s": age_s}
