"""What happened in each phase of a drill, and when: read from store, control database and the job's own log."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from lockstep.clock import NS_PER_S
from lockstep.decision import Decision
from lockstep.execution import Execution, Isolated
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import list_decisions, list_executions, list_isolated
from lockstep.state.documents import AuditLine, list_audit, record
from lockstep.state.incidents import VerdictChange, list_incidents, list_verdict_changes
from lockstep.store.store import Store
from tests.testbed.training.checkpointed import LoggedStep, read_lines

_WHO = "drill"
_BREAK, _MEND = "break_part", "mend_part"
_MOST_LINES = 10_000
_USUAL = 50  # steps or operations before a fault, of which the usual pace is the median
_MOST_DIFFERENCE = 1e-5  # of losses: sums of other ranks in another order
_ENDS = """
SELECT max(end_ns) AS ended_ns FROM operations
WHERE func = 'AllReduce' AND end_ns IS NOT NULL GROUP BY job, seq ORDER BY ended_ns
"""
_WORDS = {"isolate": "drained", "restart": "started again", "watch": "running"}


def note_broken(control: ControlDatabase, phase: str, part: str, now_ns: int) -> None:
    """Write down that a phase begins with a part that is broken, or only looks so."""
    record(control, who=_WHO, what=_BREAK, subject=part, why=phase, now_ns=now_ns)


def note_mended(control: ControlDatabase, part: str, why: str, now_ns: int) -> None:
    """Write down that a part is well again, which the job would have gone on with."""
    record(control, who=_WHO, what=_MEND, subject=part, why=why, now_ns=now_ns)


def host_of(part: str) -> str:
    """Return the host of a part, the first of a link.

    >>> host_of("nic:h1/eth0"), host_of("host:h1"), host_of("link:h1/eth0--leaf0")
    ('h1', 'h1', 'h1')
    """
    return part.partition(":")[2].partition("/")[0]


@dataclass(frozen=True)
class Records:
    """All that was written meanwhile, each kind in the order of time."""

    audit: Sequence[AuditLine]
    verdicts: Sequence[VerdictChange]  # each time that one was another; an incident keeps only its last word
    decisions: Sequence[Decision]
    runs: Sequence[Execution]
    isolated: Sequence[Isolated]
    operations: Sequence[int]  # when each ended, of all attempts
    steps: Sequence[LoggedStep]


def read_records(store: Store, control: ControlDatabase, log: Path) -> Records:
    """Return what store, control database and the job's log know of a drill."""
    incidents = list_incidents(control, limit=_MOST_LINES)
    changes = [change for incident in incidents for change in list_verdict_changes(control, incident.id)]
    return Records(
        audit=list_audit(control, limit=_MOST_LINES, who=_WHO)[::-1],
        verdicts=sorted(changes, key=lambda change: change.ts_ns),
        decisions=list_decisions(control, limit=_MOST_LINES)[::-1],
        runs=list_executions(control, limit=_MOST_LINES)[::-1],
        isolated=list_isolated(control),
        operations=store.query(_ENDS, {})["ended_ns"].to_pylist(),
        steps=read_lines(log),
    )


@dataclass(frozen=True, slots=True)
class Phase:
    """One fault and what came of it; `seconds` since the fault, in their order."""

    name: str
    part: str
    verdict: str | None  # on the part's host, that the decision rests on
    decision: Decision | None
    seconds: Mapping[str, float]
    speed: float  # of its usual, that the job had until the cure
    lost_gpu_hours: float  # against a job that nothing happens to, up to the last of the moments
    idle_gpu_hours: float  # that would have been lost by then if nobody had done anything

    @property
    def held_because(self) -> str | None:
        return self.decision.held_because if self.decision else None

    def as_json(self) -> dict[str, Any]:
        return {
            "phase": self.name,
            "part": self.part,
            "verdict": self.verdict,
            "action": self.decision.action if self.decision else None,
            "held_because": self.held_because,
            "seconds": {what: round(after_s, 1) for what, after_s in self.seconds.items()},
            "speed": round(self.speed, 3),
            "gpu_hours": {"lost": round(self.lost_gpu_hours, 4), "doing_nothing": round(self.idle_gpu_hours, 4)},
        }


@dataclass(frozen=True, slots=True)
class Timeline:
    """All phases, and what the job did in all."""

    phases: tuple[Phase, ...]
    steps: int  # the highest that was done
    missing: tuple[int, ...]  # that were never done
    loss_difference: float  # the largest, against a job of one rank that nothing happens to

    @property
    def problems(self) -> list[str]:
        """What did not go as it should, a sentence each."""
        open_ones = [
            f"{phase.name}: never {what}"
            for phase in self.phases
            for what in ("named", "decided", "stepping", "undone" if phase.held_because else "returned")
            if what not in phase.seconds
        ]
        missing = [f"{len(self.missing)} steps were never done"] if self.missing else []
        differs = [f"losses differ by {self.loss_difference:.1e}"] if self.loss_difference > _MOST_DIFFERENCE else []
        return [*open_ones, *missing, *differs]

    def as_json(self) -> dict[str, Any]:
        job = {"steps": self.steps, "missing": self.missing, "loss_difference": self.loss_difference}
        return {"phases": [phase.as_json() for phase in self.phases], **job, "problems": self.problems}


def make_timeline(records: Records, loss_difference: float) -> Timeline:
    """Return what came of each fault, up to the next."""
    faults = [line for line in records.audit if line.what == _BREAK]
    ends_ns = [*(line.ts_ns for line in faults[1:]), max(step.time_ns for step in records.steps) + 1]
    done = {step.step for step in records.steps}
    return Timeline(
        phases=tuple(_make_phase(records, fault, end_ns) for fault, end_ns in zip(faults, ends_ns, strict=True)),
        steps=max(done),
        missing=tuple(sorted(set(range(1, max(done) + 1)) - done)),
        loss_difference=loss_difference,
    )


def _make_phase(records: Records, fault: AuditLine, next_ns: int) -> Phase:
    host, since_ns = host_of(fault.subject), fault.ts_ns
    mine = [each for each in records.verdicts if since_ns < each.ts_ns < next_ns and host_of(each.component) == host]
    made = [
        each
        for each in records.decisions
        if since_ns < each.created_ns < next_ns and each.isolate and host_of(each.part or "") == host
    ]
    run = next((each for each in records.runs if each.decision in {decision.id for decision in made}), None)
    decision = next((each for each in made if run is None or each.id == run.decision), None)
    basis = [each for each in mine if decision and (each.component, each.grade) == (decision.part, decision.grade)]
    mended_ns = next((line.ts_ns for line in records.audit if _is_mend(line, fault, next_ns)), None)
    cure_ns = mended_ns or _find_end(run, "restart") or next_ns
    moments = dict(sorted(_list_moments(records, mine, decision, run, cure_ns), key=lambda moment: moment[1]))
    end_ns = max(moments.values(), default=next_ns)
    speed = _find_speed(records.operations, fault.ts_ns, cure_ns)
    hours = max(step.ranks for step in records.steps) / 3_600  # a rank stands for a GPU
    return Phase(
        name=fault.why,
        part=fault.subject,
        verdict=_say([*basis, *mine][0]) if mine else None,
        decision=decision,
        seconds={what: (at_ns - fault.ts_ns) / NS_PER_S for what, at_ns in moments.items()},
        speed=speed,
        lost_gpu_hours=hours * _find_lost(records.steps, fault.ts_ns, end_ns),
        idle_gpu_hours=hours * (1 - speed) * ((mended_ns or end_ns) - fault.ts_ns) / NS_PER_S,
    )


def _is_mend(line: AuditLine, fault: AuditLine, next_ns: int) -> bool:
    return line.what == _MEND and line.subject == fault.subject and fault.ts_ns < line.ts_ns < next_ns


def _list_moments(
    records: Records, mine: Sequence[VerdictChange], decision: Decision | None, run: Execution | None, cure_ns: int
) -> Iterator[tuple[str, int]]:
    if mine:
        yield "named", mine[0].ts_ns
    if decision:
        yield "decided", decision.created_ns
    if run:
        yield from ((_WORDS[step.act], step.ended_ns) for step in run.steps if step.act in _WORDS and step.ended_ns)
        if run.state == "undone" and run.ended_ns:
            yield "undone", run.ended_ns
        back = [
            each.changed_ns for each in records.isolated if (each.decision, each.state) == (run.decision, "returned")
        ]
        yield from (("returned", at_ns) for at_ns in back)
    stepping = next((step.time_ns for step in records.steps if step.time_ns > cure_ns), None)
    if run and stepping:
        yield "stepping", stepping


def _find_end(run: Execution | None, act: str) -> int | None:
    return (
        next((step.ended_ns for step in run.steps if step.act == act and step.state == "done"), None) if run else None
    )


def _say(verdict: VerdictChange) -> str:
    return f"{verdict.fault_class} {verdict.component} ({verdict.confidence:.2f}, {verdict.grade})"


def _find_speed(ends_ns: Sequence[int], broke_ns: int, cure_ns: int) -> float:
    """Return the share of its usual speed that a job had between fault and cure."""
    usual_ns = _usual([end_ns for end_ns in ends_ns if end_ns <= broke_ns])
    done = sum(broke_ns < end_ns <= cure_ns for end_ns in ends_ns)
    return min(done * usual_ns / (cure_ns - broke_ns), 1.0)


def _find_lost(steps: Sequence[LoggedStep], broke_ns: int, end_ns: int) -> float:
    """Return the seconds between two moments in which the job came no further; what it does again does not count."""
    before = [step for step in steps if step.time_ns <= broke_ns]
    newest = [step for step in steps if step.time_ns <= end_ns][-1]
    usual_ns = _usual([step.time_ns for step in before])
    return (end_ns - broke_ns - (newest.step - before[-1].step) * usual_ns) / NS_PER_S


def _usual(ends_ns: Sequence[int]) -> float:
    return median(later - sooner for sooner, later in pairwise(ends_ns[-_USUAL:]))


def describe(timeline: Timeline) -> Iterator[str]:
    """Yield the timeline line by line, in seconds since each fault."""
    for phase in timeline.phases:
        action = f"{phase.decision.action}: {phase.decision.reason}" if phase.decision else "nothing was decided"
        yield f"{phase.name}: {phase.part}; {phase.verdict or 'nobody named it'}; {action}"
        yield from (f"{after_s:7.1f} s  {what}" for what, after_s in phase.seconds.items())
        if phase.held_because:
            yield f"  held: {phase.held_because}"
        yield (
            f"  at {phase.speed:.0%} of its speed until the cure; {phase.lost_gpu_hours:.4f} GPU-hours lost, "
            f"{phase.idle_gpu_hours:.4f} by then if nobody had acted"
        )
    yield (
        f"{timeline.steps} steps, {len(timeline.missing)} missing; losses differ by {timeline.loss_difference:.0e} "
        "at most from those of a job that nothing happens to"
    )
