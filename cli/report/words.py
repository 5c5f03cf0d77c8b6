"""What only a report says: the part with its side, the cost so far, how long it lasted, and what is unseen."""

from lockstep.clock import NS_PER_S
from lockstep.figures import figure, lasting
from lockstep.incident import Incident
from lockstep.verdict import Verdict
from lockstep.words import impact_words, lost_gpu_hours

NOTHING = "no verdict: nothing stands out in what was recorded, which is silence, not proof of health"


def part_words(verdict: Verdict) -> str:
    """Return the part with the direction at fault."""
    return f"{verdict.component} {verdict.side}" if verdict.side else verdict.component


def cost_words(verdict: Verdict) -> str:
    """Return what the fault does to the job, and the GPU-hours it has cost where they are known."""
    lost = lost_gpu_hours(verdict)
    return f"{impact_words(verdict)}, {figure(lost)} GPU-hours lost" if lost else impact_words(verdict)


def lasting_words(incident: Incident) -> str:
    """Return how long a fault was seen, and how often it came back."""
    verdict = incident.verdict
    said = lasting((verdict.last_seen_ns - verdict.since_ns) / NS_PER_S)
    return f"{said}, came back {incident.flaps} times" if incident.flaps else said


def coverage_words(verdict: Verdict) -> str:
    """Return what share of the job was seen, where it was not all of it."""
    unseen = 1 - verdict.coverage
    return "" if unseen < 0.005 else f"{100 * unseen:.0f} % of the job's hosts told nothing"
