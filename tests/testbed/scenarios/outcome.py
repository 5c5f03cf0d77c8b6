"""What was said of a scenario that was told, whether it is right, and how long after the fault it could be heard."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from lockstep.clock import NS_PER_S
from simulator.scenario import Expectation, Scenario


@dataclass(frozen=True)
class ReportedVerdict:
    """What an incident says from a moment on, as one who asks the API all the time hears it."""

    at_ns: int
    evaluated_ns: int  # end of the telemetry that it was said of; what is later was spent on its way and on judging
    incident: str
    fault_class: str
    component: str
    confidence: float

    def is_right(self, wanted: Expectation) -> bool:
        """Return whether it names what is expected, whenever that is."""
        return _names(self.fault_class, self.component, wanted)


@dataclass
class Listener:
    """Remembers what incidents said, each time that it was something new."""

    reported: list[ReportedVerdict] = field(default_factory=list)

    def receive(self, incidents: Iterable[dict[str, Any]], now_ns: int) -> None:
        """Note what is new in the incidents as the API gives them."""
        last = {each.incident: (each.fault_class, each.component) for each in self.reported}
        for incident in incidents:
            verdict = incident["verdict"]
            if last.get(incident["id"]) != (verdict["class"], verdict["component"]):
                words = verdict["class"], verdict["component"], verdict["confidence"]
                self.reported.append(ReportedVerdict(now_ns, incident["updated_ns"], incident["id"], *words))


@dataclass(frozen=True)
class Pace:
    """When the job's steps were done by all its ranks, in order, and when it was broken."""

    broke_ns: int
    step_ends_ns: tuple[int, ...]

    @property
    def usual_s(self) -> float:
        """The usual time from one step to the next before the fault; not a number while there were no two."""
        ends = [end_ns for end_ns in self.step_ends_ns if end_ns <= self.broke_ns]
        gaps = [later - sooner for sooner, later in pairwise(ends)]
        return median(gaps) / NS_PER_S if gaps else float("nan")

    def seconds_until(self, timestamp_ns: int) -> float:
        return (timestamp_ns - self.broke_ns) / NS_PER_S

    def steps_until(self, timestamp_ns: int) -> int:
        """Return how many steps the broken job did before a moment; one that hangs does none."""
        return sum(self.broke_ns < end_ns <= timestamp_ns for end_ns in self.step_ends_ns)

    def is_within(self, timestamp_ns: int, steps: int, seconds: float) -> bool:
        """Return whether a moment is at most some seconds after some steps; of a job that hangs, usual steps."""
        ends = [end_ns for end_ns in self.step_ends_ns if end_ns > self.broke_ns]
        done_ns = ends[steps - 1] if len(ends) >= steps else self.broke_ns + steps * self.usual_s * NS_PER_S
        return timestamp_ns <= done_ns + seconds * NS_PER_S


@dataclass(frozen=True)
class Outcome:
    """What the head node said of a scenario, and what it should have."""

    scenario: Scenario
    began_ns: int
    incidents: tuple[dict[str, Any], ...]
    pace: Pace
    reported: tuple[ReportedVerdict, ...] = ()

    @property
    def steps(self) -> int:
        return len(self.pace.step_ends_ns)

    @property
    def missed(self) -> list[Expectation]:
        """Verdicts that are right and were not given in time."""
        return [
            wanted for wanted in self.scenario.expect if not any(self._is_right(i, wanted) for i in self.incidents)
        ]

    @property
    def wrong(self) -> list[dict[str, Any]]:
        """Incidents that no expectation calls right."""
        return [i for i in self.incidents if not any(self._is_right(i, wanted) for wanted in self.scenario.expect)]

    @property
    def is_right(self) -> bool:
        return not self.missed and not self.wrong

    def first_right(self) -> ReportedVerdict | None:
        """Return the first right thing that was said after the fault; None when nothing was."""
        after = (each for each in self.reported if each.at_ns >= self.pace.broke_ns)
        return next((each for each in after if any(each.is_right(wanted) for wanted in self.scenario.expect)), None)

    def _is_right(self, incident: dict[str, Any], wanted: Expectation) -> bool:
        verdict = incident["verdict"]
        broke_s = wanted.after_s if wanted.after_s is not None else self.scenario.breaks_at_s or 0.0
        latest_ns = self.began_ns + (broke_s + wanted.within_s) * NS_PER_S
        return _names(verdict["class"], verdict["component"], wanted) and incident["opened_ns"] <= latest_ns


def _names(fault_class: str, component: str, wanted: Expectation) -> bool:
    is_class = fault_class in (wanted.fault_class, *wanted.also_class)
    return is_class and component in (wanted.component, *wanted.also_right)
