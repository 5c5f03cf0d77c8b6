"""Verdicts and decisions in words that every place says alike: the dashboard, commands, reports, and alerts."""

from lockstep.clock import NS_PER_S, rfc3339
from lockstep.decision import Action, Decision, ManualReason
from lockstep.verdict import FaultClass, Incident, Verdict

UNKNOWN = "unknown"  # never a zero for what nobody measured


def clean(text: str) -> str:
    """Return a text whose lines are as they were, with a mark for all that a terminal would obey.

    >>> clean("job\\x1b[2J\\u202e 7\\n")
    'job�[2J� 7\\n'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t\u00a0" else "\ufffd" for letter in text)


def figure(number: float | None) -> str:
    """Return a number with the digits that count.

    >>> figure(0.0312), figure(1.7), figure(431.7), figure(12_345.6), figure(None)
    ('0.031', '1.7', '432', '12,346', 'unknown')
    """
    if number is None:
        return UNKNOWN
    return f"{number:,.0f}" if abs(number) >= 10 else f"{number:.2g}"


def share(part: float | None) -> str:
    """Return a share in percent; of a small one the digits that count.

    >>> share(0.9349), share(1.0), share(0.0153), share(None)
    ('93 %', '100 %', '1.5 %', 'unknown')
    """
    return UNKNOWN if part is None else f"{figure(100 * part)} %"


def lasting(seconds: float | None) -> str:
    """Return a length of time.

    >>> lasting(0.25), lasting(45.2), lasting(312), lasting(7_500), lasting(400_000)
    ('0.25 s', '45 s', '5 min 12 s', '2 h 5 min', '4 d 15 h')
    """
    if seconds is None:
        return UNKNOWN
    if seconds < 10:
        return f"{figure(seconds)} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


_USUALLY_BEHIND_S = 10  # an evaluation every two seconds, and some for a run that had much to do


def analysis_words(until_ns: int | None, now_ns: int) -> str:
    """Return how far behind the analysis is that has judged all up to then; nothing where it keeps up.

    >>> analysis_words(0, 42 * NS_PER_S), analysis_words(0, 3 * NS_PER_S), analysis_words(None, 0)
    ('analysis 42 s behind', '', '')
    """
    behind_s = (now_ns - until_ns) / NS_PER_S if until_ns is not None else 0.0
    return f"analysis {lasting(behind_s)} behind" if behind_s > _USUALLY_BEHIND_S else ""


def between(start_ns: int, end_ns: int) -> str:
    """Return how long it is from one moment to another; a moment that is ahead counts as now."""
    return lasting(max(end_ns - start_ns, 0) / NS_PER_S)


def timestamp(ts_ns: int) -> str:
    """Return date and time to the second, in UTC.

    >>> timestamp(1_794_814_664_500_000_000), minute(0)
    ('2026-11-16 07:37:44', '1970-01-01 00:00')
    """
    return rfc3339(ts_ns)[:19].replace("T", " ")


def minute(ts_ns: int) -> str:
    """Return date and time to the minute, in UTC."""
    return timestamp(ts_ns)[:16]


def clock_time(ts_ns: int) -> str:
    """Return the time of day to the second, in UTC."""
    return timestamp(ts_ns)[11:]


def money(amount: float | None) -> str:
    """Return an amount in the site's currency, which Lockstep does not know by name."""
    return UNKNOWN if amount is None else f"{amount:,.2f}"


def size(octets: float | None) -> str:
    """Return a number of bytes.

    >>> size(17), size(1_500), size(2_400_000)
    ('17 B', '1.5 kB', '2.4 MB')
    """
    if octets is None:
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB"):
        if octets < 1000:
            return f"{octets:.0f} {unit}" if unit == "B" else f"{octets:.1f} {unit}"
        octets /= 1000
    return f"{octets:.1f} TB"


_LEAST_HOURS = 0.001  # GPU-hours, a few seconds of one GPU: less is not worth a word
_LEAST_RATIO = 1.005  # of a step's time before: half a percent is what rounding would hide

CLASSES: dict[FaultClass, str] = {
    "comm_slow": "Slow communication",
    "noncomm_slow": "Slow outside of communication",
    "global_slow": "Everybody slower",
    "comm_hang": "Hung in communication",
    "noncomm_hang": "Hung outside of communication",
    "crash": "Crashed",
    "software": "Software",
    "telemetry_lost": "Telemetry lost",
}
_DOES: dict[FaultClass, str] = {
    "comm_slow": "slows communication",
    "noncomm_slow": "is slow",
    "global_slow": "is slower as a whole",
    "comm_hang": "hangs communication",
    "noncomm_hang": "hangs",
    "crash": "crashed",
    "software": "has a fault in its software",
    "telemetry_lost": "sends no telemetry",
}
_SIDES = {"tx": "sends", "rx": "receives"}


def headline(incident: Incident, *, names_job: bool = False) -> str:
    """Return the sentence that is grasped in five seconds: the part, what it does, since when, what it costs."""
    verdict = incident.verdict
    is_job = verdict.component == f"job:{incident.job}"
    where = f" in job {incident.job}" if names_job and not is_job else ""
    cost = impact_words(verdict, is_over=incident.state == "closed")
    return f"{verdict.component} {fault_words(verdict)}{where} {_time_words(incident)}: {cost}"


def fault_words(verdict: Verdict) -> str:
    """Return what the part does, with the direction where a NIC has one at fault."""
    if kind_of(verdict.component) == "nic" and verdict.side and verdict.fault_class in ("comm_slow", "comm_hang"):
        return f"{_DOES[verdict.fault_class].partition(' ')[0]} what it {_SIDES[verdict.side]}"
    return _DOES[verdict.fault_class]


def kind_of(component: str) -> str:
    """Return the kind of a part, such as nic of nic:h3/eth1."""
    return component.partition(":")[0]


def impact_words(verdict: Verdict, *, is_over: bool = False) -> str:
    """Return what the fault does to the job, or did, and what that has cost, as far as it is known."""
    if verdict.fault_class == "telemetry_lost":
        return "nobody sees what the job does there"
    impact = verdict.impact
    ratio = impact.step_time_ratio if impact.mean_ratio is None or not is_over else impact.mean_ratio
    phrases = []
    if verdict.stands_still:
        phrases.append("the job stood still" if is_over else "the job stands still")
    elif ratio is not None and ratio >= _LEAST_RATIO:
        phrases.append(f"steps {'took' if is_over else 'take'} {ratio:.2f} times as long")
    if waiting := impact.ranks_waiting:
        waits = ("waited", "waited") if is_over else ("wait", "waits")
        phrases.append(f"{waiting:,} ranks {waits[0]}" if waiting > 1 else f"1 rank {waits[1]}")
    if (lost := verdict.lost_gpu_hours() or 0.0) >= _LEAST_HOURS:
        phrases.append(f"{figure(lost)} GPU-hours lost")
    return ", ".join(phrases) or "what it costs is not known"


def _time_words(incident: Incident) -> str:
    """Return since when it lasts, or from when to when it lasted; with the date, as nobody knows when it is read."""
    began = minute(incident.verdict.since_ns)
    if incident.verdict.fault_class == "crash":
        return f"at {began} UTC"
    if incident.closed_ns is None:
        return f"since {began} UTC"
    ended = minute(incident.closed_ns)
    return f"from {began} to {ended[11:] if ended[:10] == began[:10] else ended} UTC"


_DO: dict[Action, str] = {
    "reroute": "route around it",
    "reattempt": "try again in place",
    "restart_process": "restart on the same nodes",
    "recycle": "hand the work of {nodes} to peers",
    "drop_replica": "go on without the replica on {nodes}",
    "reconfigure": "restart on {count} nodes, without {nodes}",
    "replace": "replace {nodes}",
    "grow": "take nodes back in, {count} in all",
}
_MANUAL: dict[ManualReason, str] = {
    "no_controller": "automation is off: no job controller is set",
    "unable": "not automatic: the job controller cannot do it",
    "observed": "automation is off: planner.modes leaves it at observe",
    "proposed": "it waits for a person: planner.modes says propose",
    "held": "it waits for a person",
}


def recommendation(decision: Decision) -> str:
    """Return what somebody should do, in a line, with what that saves."""
    if decision.action == "none":
        return _say_nothing_to_do(decision)
    nodes = " and ".join(part.node for part in decision.isolate if part.node) or "it"
    what = _DO[decision.action].format(nodes=nodes, count=(decision.target or {}).get("nnodes", "fewer"))
    waiting = next((each.cost.gpu_hours for each in decision.alternatives if each.action == "none"), None)
    price = "" if decision.cost.gpu_hours is None else f": about {figure(decision.cost.gpu_hours)} GPU-hours"
    return f"Recommended: {what}{price}" + (f" instead of {figure(waiting)}" if price and waiting is not None else "")


def _say_nothing_to_do(decision: Decision) -> str:
    if decision.answered_by:
        return f"Answered together with another part, by decision {decision.answered_by}"
    inspect = f"inspect {'; '.join(decision.inspect)}" if decision.inspect else ""
    if decision.cost.throughput_after == 0:  # the job stands still
        return f"A person is needed: {inspect or 'no action is possible'}"
    if decision.cost.gpu_hours == 0:
        return "Nothing to do"
    return f"Wait, and {inspect}" if inspect else "Wait"


def automation(decision: Decision) -> str:
    """Return who carries a decision out, and why nobody does by itself; nothing where there is nothing to do."""
    if decision.action == "none":
        return ""
    if decision.manual_because is None:
        return "automatic" if decision.mode == "execute" else ""
    because = f": {decision.held_because}" if decision.held_because else ""
    return f"{_MANUAL[decision.manual_because]}{because if decision.manual_because == 'held' else ''}"


def by_hand(decision: Decision) -> str:
    """Return what a person would type or do; nothing where that follows from nothing here."""
    if decision.action in ("none", "reroute", "reattempt", "recycle", "drop_replica"):
        return ""
    if decision.by_hand:
        return " && ".join(decision.by_hand)
    if decision.manual_because not in ("no_controller", "unable"):
        return f"lockstep decisions approve {decision.id}"
    nodes = " and ".join(part.node for part in decision.isolate if part.node)
    out = f"take {nodes} out of the scheduler, then " if nodes else ""
    saved = (decision.resume or {}).get("checkpoint")
    return f"{out}start {decision.job} again from {saved or 'its newest checkpoint, or the beginning'}"
