"""A verdict in words: what, since when, how sure, and what it costs."""

from lockstep.clock import NS_PER_S
from lockstep.incident import Incident
from lockstep.verdict import Verdict

NOTHING = "no verdict: nothing stands out in what was recorded, which is silence, not proof of health"
_STANDING = ("comm_hang", "noncomm_hang", "crash")  # in which the job does not go on at all
_S_PER_HOUR = 3_600.0
_WORTH_TELLING = 1.005  # of a step's time before: half a percent is what rounding would hide


def part_words(verdict: Verdict) -> str:
    """Return the part with the direction at fault."""
    return f"{verdict.component} {verdict.side}" if verdict.side else verdict.component


def lost_gpu_hours(verdict: Verdict) -> float | None:
    """Return how long GPUs waited in all because of the part; None when it is not known by how much.

    In a hang everybody waits all the time. Of a step that takes r times as long, 1 - 1/r is waiting.
    """
    hours = max(verdict.last_seen_ns - verdict.since_ns, 0) / NS_PER_S / _S_PER_HOUR
    if verdict.fault_class in _STANDING:
        return hours * verdict.impact.ranks_waiting
    ratio = verdict.impact.step_time_ratio
    return None if ratio is None else hours * verdict.impact.ranks_waiting * max(1 - 1 / max(ratio, 1e-9), 0.0)


def impact_words(verdict: Verdict) -> str:
    """Return what the fault costs: step time, waiting ranks, GPU-hours, as far as they are known."""
    ratio, waiting = verdict.impact.step_time_ratio, verdict.impact.ranks_waiting
    said = []
    if verdict.fault_class in _STANDING:
        said.append("the job stands still")
    elif ratio is not None and ratio >= _WORTH_TELLING:
        said.append(f"steps take {ratio:.2f} times as long")
    if waiting:
        said.append(f"{waiting:,} ranks wait" if waiting > 1 else "1 rank waits")
    lost = lost_gpu_hours(verdict)
    if lost:
        said.append(f"{figure(lost)} GPU-hours lost")
    return ", ".join(said) or "cost not known"


def lasting_words(incident: Incident) -> str:
    """Return how long a fault was seen, and how often it came back."""
    verdict = incident.verdict
    said = seconds_words((verdict.last_seen_ns - verdict.since_ns) / NS_PER_S)
    return f"{said}, came back {incident.flaps} times" if incident.flaps else said


def coverage_words(verdict: Verdict) -> str:
    """Return what share of the job was seen, where it was not all of it."""
    unseen = 1 - verdict.coverage
    return "" if unseen < 0.005 else f"{100 * unseen:.0f} % of the job's hosts told nothing"


def seconds_words(seconds: float) -> str:
    """Return a length of time as people say it.

    >>> seconds_words(0.25), seconds_words(45.2), seconds_words(312), seconds_words(7_500)
    ('0.25 s', '45 s', '5 min 12 s', '2 h 5 min')
    """
    if seconds < 10:
        return f"{figure(seconds)} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3_600} h {whole % 3_600 // 60} min"


def figure(number: float) -> str:
    """Return a number with two digits that count.

    >>> figure(0.0312), figure(1.7), figure(431.7)
    ('0.031', '1.7', '432')
    """
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
