"""Which level of the escalation an incident stands on: try again, restart the process, take the node away.

What was tried is read from the executions that were written down, so the escalation survives whoever climbed it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.clock import NS_PER_S
from lockstep.decision import Action, Decision
from lockstep.execution import Execution
from lockstep.records import Event
from lockstep.verdict import ALARM_RATIO, Incident, Verdict

Severity = Literal[1, 2, 3]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of error. The first row whose source and pattern fit an event is the event's."""

    source: str  # kinds of events, as a regular expression
    pattern: str  # in the event's message, whatever its case
    severity: Severity
    name: str

    def fits(self, event: Event) -> bool:
        is_of_source = re.fullmatch(self.source, event.kind) is not None
        return is_of_source and re.search(self.pattern, event.message, re.IGNORECASE) is not None


_EXCEPTION = "python_exception|run_exit"
_ENDED = "process_exit|process_gone"

TABLE: tuple[Row, ...] = (
    Row("host_lost|agent_silent", "", 1, "node lost"),
    Row("gpu_lost|pcie_lost", "", 1, "GPU lost"),
    # The collector says which XIDs blame the application and leave the GPU healthy.
    Row("xid|sxid", "blame application", 2, "error of the application on the GPU"),
    Row("xid|sxid", "", 1, "XID of the hardware"),
    Row(_EXCEPTION, r"\becc\b|uncorrectable", 1, "ECC error"),
    Row(_EXCEPTION, r"nvlink|nvswitch", 1, "NVLink error"),
    Row(_EXCEPTION, r"driver (shutting down|error|version)|system not yet initialized", 1, "GPU driver error"),
    Row(_EXCEPTION, r"invalid dma|dma mapping", 1, "invalid DMA mapping"),
    Row(_EXCEPTION, r"(connection|connect\w*).*(refused|reset|closed|timed out)|broken pipe", 3, "connection broke"),
    Row(_EXCEPTION, r"ncclremoteerror|remote process exited|socket (error|timeout)", 3, "network error"),
    Row(_EXCEPTION, r"nccl.*time(d)? ?out|watchdog.*time(d)? ?out|collective.*time(d)? ?out", 3, "NCCL timeout"),
    Row(_EXCEPTION, r"out of memory|outofmemory", 2, "out of memory"),
    Row(_EXCEPTION, r"cuda|illegal memory|cublas|cudnn|device-side assert", 2, "CUDA error"),
    Row(_EXCEPTION, "", 2, "other error of the software"),
    Row(_ENDED, "", 2, "process ended abnormally"),
    Row("oom", "", 2, "host ran out of memory"),
    Row("process_stuck|process_stopped", "", 2, "process hangs"),
    Row("link_flapping|link_down", "", 3, "link down or flapping"),
    Row("nic_.*", "", 3, "NIC error"),
)

# What a verdict by itself says, where no event says more. A slow part is as bad as a dead one: nothing that is done
# to the process cures it. When it is worth acting is another question (decide.py).
_BY_CLASS: Mapping[str, Severity] = {
    "comm_hang": 3,
    "noncomm_hang": 2,
    "crash": 2,
    "software": 2,
    "comm_slow": 3,
    "noncomm_slow": 3,
    "global_slow": 3,
    "telemetry_lost": 3,
}


def classify(event: Event) -> Row | None:
    """Return the kind of error that an event is; None: it is no error that we know."""
    return next((row for row in TABLE if row.fits(event)), None)


def severity_of(verdict: Verdict, events: Sequence[Event] = ()) -> tuple[Severity, str]:
    """Return how bad an incident is and why: the worst event about its part, else what the verdict says by itself.

    Severity 3 is tried again in place, 2 restarts the process, 1 takes the node away. Each row says why.
    """
    known = [(row, event) for event in events if (row := classify(event)) is not None]
    if known and verdict.fault_class in ("crash", "comm_hang", "noncomm_hang"):
        row, event = min(known, key=lambda each: each[0].severity)
        return row.severity, f"{row.name}: {event.message}"
    # How sure it is decides whether a person is asked (limits.py), not what the right answer is.
    if verdict.fault_class in ("comm_slow", "noncomm_slow") and is_accused(verdict):
        return 1, "the part stays slow whatever is done to the process"
    if verdict.fault_class == "crash" and verdict.component.startswith(("host:", "gpu:")):
        return 1, f"{verdict.component} is gone"
    if verdict.fault_class != "global_slow" and is_alarm(ratio := verdict.impact.step_time_ratio):
        return 2, f"steps take {ratio:.1f} times as long as usual"
    return _BY_CLASS[verdict.fault_class], f"a verdict of class {verdict.fault_class}"


def is_accused(verdict: Verdict) -> bool:
    """Return whether somebody should act on a verdict: on a note nobody does, and a rank is no hardware."""
    return verdict.grade == "isolate" or (verdict.grade == "alert" and not verdict.component.startswith("rank:"))


def is_alarm(step_time_ratio: float | None) -> bool:
    """Return whether steps take so long that the job counts as hanging, whoever is to blame."""
    return step_time_ratio is not None and step_time_ratio >= ALARM_RATIO


def find_dead(incident: Incident, incidents: Sequence[Incident], nodes: Sequence[str]) -> tuple[Verdict, ...]:
    """Return what else of the job's nodes is gone for sure beside a part that is: they leave service together."""
    others = [each.verdict for each in incidents if each.job == incident.job and each.id != incident.id]
    gone = [verdict for verdict in others if _is_gone(verdict) and (not nodes or _host_of(verdict) in nodes)]
    return tuple(gone) if _is_gone(incident.verdict) else ()


def misses_dead(known: Decision | None, incident: Incident, incidents: Sequence[Incident]) -> bool:
    """Return whether a decision takes a dead node away, and another died since that it should take as well."""
    isolated = {part.node for part in known.isolate} if known else set()
    dead = {_host_of(verdict) for verdict in find_dead(incident, incidents, ())}
    return bool(isolated) and not dead <= isolated


def _is_gone(verdict: Verdict) -> bool:
    is_of_a_node = verdict.component.startswith(("host:", "gpu:"))
    return is_of_a_node and verdict.fault_class == "crash" and verdict.grade == "isolate"


def _host_of(verdict: Verdict) -> str:
    return verdict.component.partition(":")[2].partition("/")[0]


# What may be done at each severity; whatever was right one level below may still be right above.
LEVELS: Mapping[Severity, tuple[Action, ...]] = {
    3: ("none", "reroute", "reattempt"),
    2: ("none", "reroute", "restart_process"),
    1: ("none", "reroute", "recycle", "drop_replica", "reconfigure", "replace"),
}


def level_of(action: str) -> Severity:
    """Return the severity at which an action is the usual answer."""
    usual: Mapping[str, Severity] = {"reroute": 3, "reattempt": 3, "restart_process": 2}
    return usual.get(action, 1)


_MEMORY_NS = 3600 * NS_PER_S  # the same part failing again within this time has not been cured
_FAILURES = 2  # of taking the node away, after which a person is needed


@dataclass(frozen=True, slots=True)
class Level:
    """Where an incident stands."""

    severity: Severity
    reason: str
    is_raised: bool = False  # a cure in place was tried and did not hold
    is_exhausted: bool = False  # taking the node away was tried as well: a person is needed


def find_level(base: Severity, why: str, component: str, tried: Sequence[Execution], now_ns: int) -> Level:
    """Return the severity of an incident: that of the error, raised by each cure of the same part that did not hold.

    `tried` are executions of the job, in any order; those about other parts or long ago do not count.
    """
    mine = [run for run in tried if run.component == component and run.outcome in ("done", "failed")]
    spent = [run for run in mine if (run.ended_ns or 0) >= now_ns - _MEMORY_NS]
    severity, reason = base, why
    failed = sum(level_of(run.action) == 1 for run in spent if run.outcome == "failed")
    for run in sorted(spent, key=lambda run: run.began_ns):
        level = level_of(run.action)
        if level == 1:
            is_exhausted = run.state == "done" or failed >= _FAILURES
            return Level(1, f"{run.action} did not cure {component}", True, is_exhausted)
        if level <= severity:
            severity, reason = 2 if level == 3 else 1, f"{run.action} did not cure {component}"
    return Level(severity, reason, is_raised=severity < base)
