"""What a report is made of, whoever found it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from analyzer.wires.matrix import DelayMatrix
from lockstep.incident import Incident

StepTimes = Sequence[tuple[int, float]]  # moment in nanoseconds, seconds that the step took


class Described(Protocol):
    """All that is known of what happened; the analyzer's description fits."""

    @property
    def incidents(self) -> Sequence[Incident]: ...

    @property
    def matrix(self) -> DelayMatrix | None: ...

    @property
    def step_times(self) -> StepTimes: ...


@dataclass(frozen=True)
class OnlyIncidents:
    """What a running Lockstep tells: incidents, without the data they were found in."""

    incidents: Sequence[Incident]
    matrix: DelayMatrix | None = None
    step_times: StepTimes = ()


@dataclass(frozen=True)
class Span:
    """From when to when a report tells."""

    begin_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return max(self.end_ns - self.begin_ns, 1)

    def share(self, moment_ns: int) -> float:
        """Return where a moment lies, 0 at the beginning and 1 at the end."""
        return min(max((moment_ns - self.begin_ns) / self.length_ns, 0.0), 1.0)


def span_of(described: Described) -> Span | None:
    """Return the stretch of time that incidents and steps cover; None when there are neither."""
    moments = [moment for moment, _ in described.step_times]
    for incident in described.incidents:
        moments += [incident.verdict.since_ns, incident.verdict.last_seen_ns]
    return Span(min(moments), max(moments)) if moments else None
