"""What happened when a link turned slow, and when: read afterwards from the store and the control database."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from lockstep.host_paths import PathSummary
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import AuditLine, list_audit, record
from lockstep.state.fabric import list_path_plans
from lockstep.state.incidents import list_incidents
from lockstep.store.store import Store
from lockstep.verdict import Incident, Verdict

_WHO = "testbed"
_DEGRADED, _MOVED = "degrade_link", "move_connection"
_MOST_LINES = 10_000  # of each kind: hours of a link that flaps
_SLOW = 1.5  # times the usual: noise of a busy machine stays below, and a link that is worth a plan is above
_IN_A_ROW = 3  # steps that are no longer slow, so that it was not by chance
_COUNTED = 10  # steps of which the times afterwards are told
# An operation ends on its last rank; one that lasts over the end of a minute has two rows.
_ENDS = """
SELECT max(end_ns) AS ended_ns FROM operations
WHERE job = {job:String} AND func = {func:String} AND end_ns IS NOT NULL GROUP BY seq ORDER BY seq
"""


def note_degraded(control: ControlDatabase, link: str, why: str, now_ns: int) -> None:
    """Write down that a link carries less from now on."""
    record(control, who=_WHO, what=_DEGRADED, subject=f"link:{link}", why=why, now_ns=now_ns)


def note_moved(control: ControlDatabase, connection: str, generation: int, why: str, now_ns: int) -> None:
    """Write down that a live connection is on another path since a plan of this number."""
    record(control, who=_WHO, what=_MOVED, subject=connection, why=f"plan {generation}: {why}", now_ns=now_ns)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the job, which one operation ends."""

    end_ns: int
    took_s: float


@dataclass(frozen=True)
class Records:
    """All that was written meanwhile, each kind in the order of time."""

    steps: Sequence[Step]
    incidents: Sequence[Incident]
    plans: Sequence[PathSummary]
    audit: Sequence[AuditLine]


def read_records(store: Store, control: ControlDatabase, job: str, func: str = "AllReduce") -> Records:
    """Return what store and control database know of a job whose every step ends with one operation of this kind."""
    ends = store.query(_ENDS, {"job": job, "func": func})["ended_ns"].to_pylist()
    return Records(
        steps=[Step(end, (end - before) / NS_PER_S) for before, end in pairwise(ends)],
        incidents=list_incidents(control, job=job, limit=_MOST_LINES)[::-1],
        plans=list_path_plans(control, limit=_MOST_LINES)[::-1],
        audit=list_audit(control, limit=_MOST_LINES)[::-1],
    )


@dataclass(frozen=True)
class Timeline:
    """From the fault to the usual pace; None: it did not happen while anybody looked."""

    link: str  # as in verdicts
    degraded_ns: int
    usual_s: float  # a step before the fault
    first_slow: Step | None
    slow_s: float | None  # a step between the fault and the move
    incident: Incident | None  # the first after the fault, with its last word; opens where its telemetry ends
    plan: PathSummary | None  # the first after the fault that moves connections because a link is ill
    moved_ns: int | None  # when the last of its connections was on its new path
    moved: int
    back: Step | None  # the first of some in a row that are no longer slow, after the move
    back_s: float | None  # a step from then on
    returned: int  # moves by later plans: the link is trusted again while nobody uses it, or it has healed

    @property
    def reason(self) -> str | None:
        """What the planner had heard of the link when it planned around it, as it wrote it down beside the plan.

        That is the verdict as it was then: an incident keeps only its last word.
        """
        begin = f"{self.link.removeprefix('link:')} counts "
        return next((each for each in (self.plan.reasons if self.plan else ()) if each.startswith(begin)), None)

    @property
    def is_closed(self) -> bool:
        """Return whether the link was named, left, and the job fast again."""
        named = self.reason is not None and f"{self.link} needs " in self.reason
        return named and self.back is not None

    def after_s(self, timestamp_ns: int) -> float:
        """Return the seconds since the fault."""
        return (timestamp_ns - self.degraded_ns) / NS_PER_S


def make_timeline(records: Records) -> Timeline:
    """Return the timeline of the first fault; BadInput where there was none, or no step before it."""
    fault = next((line for line in records.audit if line.what == _DEGRADED), None)
    if fault is None:
        raise BadInput("nobody wrote down that a link was degraded")
    before = [step.took_s for step in records.steps if step.end_ns <= fault.ts_ns]
    if not before:
        raise BadInput(f"the store has no step that ended before {fault.subject} was degraded")
    usual_s, after = median(before), [step for step in records.steps if step.end_ns > fault.ts_ns]
    moves = [line for line in records.audit if line.what == _MOVED and line.ts_ns > fault.ts_ns]
    ill = [plan for plan in records.plans if plan.made_ns > fault.ts_ns and plan.weights]
    plan = next((plan for plan in ill if _moves_of(plan, moves)), None)
    ours = _moves_of(plan, moves) if plan else []
    moved_ns = max(ours, default=None)
    back = _find_back(after, usual_s, moved_ns)
    return Timeline(
        link=fault.subject,
        degraded_ns=fault.ts_ns,
        usual_s=usual_s,
        first_slow=next((step for step in after if step.took_s > _SLOW * usual_s), None),
        slow_s=_middle([step for step in after[1:] if moved_ns is None or step.end_ns <= moved_ns]),
        incident=next((each for each in records.incidents if each.opened_ns > fault.ts_ns), None),
        plan=plan,
        moved_ns=moved_ns,
        moved=len(ours),
        back=back,
        back_s=_middle([step for step in after if back and step.end_ns >= back.end_ns][:_COUNTED]),
        returned=len(moves) - len(ours),
    )


def _moves_of(plan: PathSummary, moves: Sequence[AuditLine]) -> list[int]:
    """Return when connections were moved because of a plan."""
    return [line.ts_ns for line in moves if line.why.startswith(f"plan {plan.generation}:")]


def _find_back(steps: Sequence[Step], usual_s: float, moved_ns: int | None) -> Step | None:
    since = [step for step in steps if moved_ns is not None and step.end_ns > moved_ns]
    for index in range(len(since) - _IN_A_ROW + 1):
        if all(step.took_s <= _SLOW * usual_s for step in since[index : index + _IN_A_ROW]):
            return since[index]
    return None


def _middle(steps: Sequence[Step]) -> float | None:
    return median(step.took_s for step in steps) if steps else None


def describe(timeline: Timeline) -> Iterator[str]:
    """Yield the timeline line by line, in seconds since the fault; what did not happen is left out."""
    timestamps = sorted(_list_timestamps(timeline), key=lambda timestamp: timestamp[0])
    yield from (f"{timeline.after_s(at_ns):5.1f} s  {what}" for at_ns, what in timestamps)
    times = {"usually": timeline.usual_s, "slow": timeline.slow_s, "moved": timeline.back_s}
    yield "steps: " + ", ".join(f"{how} {took_s:.2f} s" for how, took_s in times.items() if took_s is not None)


def _list_timestamps(timeline: Timeline) -> Iterator[tuple[int, str]]:
    yield timeline.degraded_ns, f"{timeline.link} is degraded"
    if timeline.first_slow:
        yield timeline.first_slow.end_ns, f"the first slow step ends, after {timeline.first_slow.took_s:.2f} s"
    if timeline.incident:
        described = _say(timeline.incident.verdict)
        yield (
            timeline.incident.opened_ns,
            f"the telemetry ends that opens an incident, whose last word is {described}",
        )
    if timeline.plan:
        weights = ", ".join(f"{link} counts {weight:.0%}" for link, weight in timeline.plan.weights.items())
        yield timeline.plan.made_ns, f"plan {timeline.plan.generation}: {timeline.reason or weights}"
    if timeline.moved_ns is not None:
        yield timeline.moved_ns, f"{timeline.moved} connections are on other paths"
    if timeline.back:
        yield (
            timeline.back.end_ns,
            f"the first step ends that is not slow any more, after {timeline.back.took_s:.2f} s",
        )


def _say(verdict: Verdict) -> str:
    doubt = f", or {', '.join(verdict.ambiguous_with)}" if verdict.ambiguous_with else ""
    return f"{verdict.fault_class} {verdict.component} ({verdict.confidence:.2f}){doubt}"
