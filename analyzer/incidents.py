"""Is it new, the same, over, intermittent: findings of evaluations become incidents with a beginning and an end.

A finding belongs to what was seen before when its class is akin and it names one of the same parts, as its own or as
one that it cannot be told from. Reported is the part that the evaluations so far speak for most; its confidence is
the mean of their likelihoods, so a fault that evaluations keep naming otherwise is never sure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from analyzer.impact import Account, Progress, charge, impact_of, open_account, resume_account
from analyzer.steps.history import WORTH_SAYING
from analyzer.verdicts import GradingOptions, close, finding_of, open_incident
from analyzer.windows.outage import find_last_told, hosts_of, is_unseen
from analyzer.windows.window import Context, Finding
from lockstep.clock import NS_PER_S
from lockstep.verdict import FaultClass, Incident, Side
from lockstep.words import timestamp

Name = tuple[FaultClass, str, Side | None]

# Classes that one fault can show in turn: a process that is stopped looks hung until the kernel says it died, and a
# host that is late may be starved or wait for data.
_KIN: dict[FaultClass, str] = {
    "comm_slow": "pair",
    "noncomm_slow": "straggler",
    "software": "any",
    "global_slow": "global",
    "comm_hang": "hang",
    "noncomm_hang": "hang",
    "crash": "hang",
    "telemetry_lost": "telemetry",
}


_SLOW = ("pair", "straggler")
_NAMES_NOBODY: frozenset[FaultClass] = frozenset({"global_slow", "telemetry_lost"})


@dataclass(frozen=True, slots=True)
class TrackingOptions:
    """How long a fault must last to be told, and be gone to be over."""

    confirm_evaluations: int = 2  # one evaluation can be a burst of somebody else's traffic
    least_new_ns: int = NS_PER_S  # in what confirms: statistics are per second
    most_new_ns: int = 2 * NS_PER_S  # that is asked for, where a step is longer or nobody knows how long it is
    early_likelihood: float = (
        0.8  # from which an early one confirms: it shares most of its seconds with the one before
    )
    confirm_scattered: int = 3  # looks that are not in a row: what comes and goes is a fault, too
    clear_evaluations: int = 4  # longer than it takes to appear, so that a fault at the edge does not flap
    pending_evaluations: int = 15  # what was not seen again for this long was a hiccup
    flap_evaluations: int = 150  # what comes back within five minutes is the same fault again
    least_confidence: float = 0.3  # below, three parts or more are as likely: silence is better than a guess
    fade: float = 0.9  # an evaluation counts half as much as one 14 s later, so that a better answer gets through
    forget_ns: int = 120_000_000_000  # a job that finished nothing for this long is gone, and so are its incidents
    grading: GradingOptions = field(default_factory=GradingOptions)


@dataclass(frozen=True)
class Sighting:
    """One fault as it was seen over several evaluations."""

    since_ns: int
    findings: Mapping[Name, Finding]  # the newest of each name it was given
    tally: Mapping[Name, float]  # likelihood that each name gathered, fading
    weight: float = 0.0  # of the evaluations in which it was seen, fading
    streak: int = 0  # looks in a row
    evaluations: int = 0  # in which it was seen
    absent: int = 0  # looks in a row in which it was not
    counted_ns: int = 0  # end of the newest evaluation that counts
    was_early: bool = False  # it was one between two others
    incident: Incident | None = None
    account: Account | None = None  # what it has cost, since it was reported

    @property
    def best(self) -> Name:
        return max(self.tally, key=lambda name: self.tally[name])

    @property
    def confidence(self) -> float:
        """Return the mean likelihood of its best name over the evaluations in which it was seen."""
        return min(1.0, self.tally[self.best] / self.weight)

    @property
    def parts(self) -> frozenset[str]:
        """Return all parts that its names speak of."""
        return frozenset().union(*(_parts(finding) for finding in self.findings.values()))

    @property
    def is_open(self) -> bool:
        return self.incident is not None and self.incident.state == "open"


@dataclass(frozen=True)
class JobState:
    """What is remembered of a job's faults between evaluations."""

    sightings: tuple[Sighting, ...] = ()

    def names_a_part(self, evaluations: int) -> bool:
        """Return whether a part was found at fault of late: then it explains why all are slow.

        Once it was told that all are, only a part that was told as well does: another may be a hiccup.
        """
        is_told = any(incident.verdict.fault_class == "global_slow" for incident in self.open)
        recent = (
            seen
            for seen in self.sightings
            if seen.is_open or (seen.absent <= evaluations and (seen.incident or not is_told))
        )
        return any(name[0] not in _NAMES_NOBODY for seen in recent for name in seen.tally)

    @property
    def since_ns(self) -> int | None:
        """Return when the first of the faults began that are seen now; None: nothing is wrong."""
        return min((seen.since_ns for seen in self.sightings if not seen.absent), default=None)

    @property
    def is_pending(self) -> bool:
        """Return whether the last evaluation saw a fault that was never reported."""
        return any(not seen.incident and not seen.absent for seen in self.sightings)

    def awaits_second(self, evaluations: int) -> bool:
        """Return whether a fault was just seen that so many evaluations in a row would confirm."""
        return any(not seen.incident and not seen.absent and seen.streak < evaluations for seen in self.sightings)

    @property
    def open_findings(self) -> list[Finding]:
        """Return what is said of the faults that are open and were seen in the last evaluation."""
        return [seen.findings[seen.best] for seen in self.sightings if seen.is_open and not seen.absent]

    @property
    def open(self) -> list[Incident]:
        return [seen.incident for seen in self.sightings if seen.incident and seen.is_open]


def resume(incidents: Iterable[Incident]) -> JobState:
    """Return the state of a job whose open incidents were found in the control database."""
    sightings = []
    for incident in incidents:
        finding = finding_of(incident.verdict)
        known = Sighting(incident.verdict.since_ns, {_name(finding): finding}, {_name(finding): finding.likelihood})
        account = resume_account(incident.verdict.impact, incident.verdict.since_ns, incident.updated_ns)
        sightings.append(replace(known, weight=1.0, streak=1, evaluations=1_000, incident=incident, account=account))
    return JobState(tuple(sightings))


def track(
    state: JobState,
    findings: Sequence[Finding] | None,
    context: Context,
    progress: Progress,
    options: TrackingOptions,
    outages: Sequence[Finding] = (),
) -> tuple[JobState, list[Incident]]:
    """Return the state after one evaluation, and the incidents that were opened, updated or closed by it.

    An evaluation that could not be judged (None) says nothing new of a fault, but that nobody confirms it. Outages of
    telemetry are seen all the same. Nobody is missed in an early evaluation: what it sees is seen again by the next.
    """
    is_blind = findings is None
    if findings is None and not outages:
        unjudged = JobState(tuple(_leave_unconfirmed(seen, context) for seen in state.sightings))
        return unjudged, unjudged.open
    if context.is_early:  # what it is in doubt about waits for the next
        findings = [each for each in findings or () if each.likelihood >= options.early_likelihood]
    matched, fresh = _match(state.sightings, [*outages, *(findings or ())])
    fresh = [finding for finding in fresh if not finding.is_stale]
    if _is_settling(state.sightings, matched, context):
        fresh = [finding for finding in fresh if _KIN[finding.fault_class] in ("hang", "telemetry")]
    if _is_renamed(state.sightings, matched):
        fresh = [replace(each, is_certain=each.is_certain and each.fault_class == "crash") for each in fresh]
    seen = [
        _see_again(known, found, context, options)
        if found
        else (known if is_blind or context.is_early else _miss(known, context))
        for known, found in zip(state.sightings, matched, strict=True)
    ]
    for finding in fresh:
        since_ns = context.fresh_ns if finding.since_ns is None else finding.since_ns
        seen.append(_see_again(Sighting(since_ns, findings={}, tally={}), [finding], context, options))
    is_found = [*map(bool, matched), *(True for _ in fresh)]
    seen, is_found = _name_slowdown(seen, is_found, options)
    is_explained = any(found and one.best[0] not in _NAMES_NOBODY for one, found in zip(seen, is_found, strict=True))
    reported = [
        _report(one, context, progress, options)
        if found
        else (one if context.is_early else _leave(one, context, progress, options, is_explained))
        for one, found in zip(seen, is_found, strict=True)
    ]
    changed = [one.incident for one, before in zip(reported, seen, strict=True) if one.incident != before.incident]
    patience = {True: options.flap_evaluations, False: options.pending_evaluations}  # by whether it was reported
    kept = tuple(one for one in reported if one.is_open or one.absent <= patience[one.incident is not None])
    return JobState(kept), [incident for incident in changed if incident]


def _name_slowdown(
    seen: list[Sighting], is_found: list[bool], options: TrackingOptions
) -> tuple[list[Sighting], list[bool]]:
    """Return the sightings with a slowdown of all ranks joined to the part that turned out to make it."""
    everybody = next((one for one in seen if one.is_open and one.best[0] == "global_slow"), None)
    named = [one for one in seen if not one.incident and _KIN[one.best[0]] in _SLOW and _is_confirmed(one, options)]
    if everybody is None or not named:
        return seen, is_found
    culprit = max(named, key=lambda one: one.confidence)
    since_ns = min(culprit.since_ns, everybody.since_ns)
    joined = replace(culprit, since_ns=since_ns, incident=everybody.incident, account=everybody.account)
    kept = [(one, found) for one, found in zip(seen, is_found, strict=True) if one is not everybody]
    return [joined if one is culprit else one for one, _ in kept], [found for _, found in kept]


def close_all(state: JobState, now_ns: int, last_ns: int) -> tuple[JobState, list[Incident]]:
    """Return the state of a job of which nothing came since `last_ns`, and its incidents closed for that reason."""
    return JobState(), [
        close(incident, now_ns, f"no telemetry of the job since {timestamp(last_ns)} UTC") for incident in state.open
    ]


def _match(sightings: Sequence[Sighting], findings: Sequence[Finding]) -> tuple[list[list[Finding]], list[Finding]]:
    """Return the findings that belong to each sighting, and those that are new, one of each fault."""
    matched: list[list[Finding]] = [[] for _ in sightings]
    fresh: dict[tuple[str, FaultClass], Finding] = {}
    for finding in sorted(findings, key=lambda finding: -finding.likelihood):
        scores = [max((_likeness(finding, one) for one in seen.findings.values()), default=0) for seen in sightings]
        best = max(range(len(scores)), key=lambda index: scores[index], default=None)
        if best is not None and scores[best]:
            matched[best].append(finding)
        else:
            fresh.setdefault((finding.component, finding.fault_class), finding)
    return matched, list(fresh.values())


def _is_settling(sightings: Sequence[Sighting], matched: Sequence[list[Finding]], context: Context) -> bool:
    """Return whether the window reaches back into a fault that was told and is over, or stood still.

    What moves again looks slow that long: a slow part that is first seen then is held until it is seen without.
    """
    return any(
        seen.incident is not None
        and _KIN[seen.best[0]] not in ("telemetry", "global")  # a part explains what hit everybody
        and seen.incident.verdict.last_seen_ns > context.window.start_ns
        and (not found or _KIN[seen.best[0]] == "hang")
        for seen, found in zip(sightings, matched, strict=True)
    )


def _is_renamed(sightings: Sequence[Sighting], matched: Sequence[list[Finding]]) -> bool:
    """Return whether a standstill that was told was not found: what is, may be another name for it, until it lasts.

    Not what an error or the kernel says of another part.
    """
    pairs = zip(sightings, matched, strict=True)
    return any(seen.is_open and not found and _KIN[seen.best[0]] == "hang" for seen, found in pairs)


def _likeness(one: Finding, other: Finding) -> int:
    """Return how alike two findings are; 0: they are of different faults."""
    if _explains(one, other) or _explains(other, one):
        return 1
    kin = {_KIN[one.fault_class], _KIN[other.fault_class]}
    if len(kin - {"any"}) > 1:
        return 0
    if one.component == other.component or kin == {"telemetry"}:  # where telemetry is lost may grow and shrink
        return 3
    if one.component in _parts(other) or other.component in _parts(one):
        return 2
    if kin == {"hang"} and any(each.component.startswith("job:") for each in (one, other)):
        return 2  # a standstill without a part, of which one is known by now
    return int(_is_within(one, other) or _is_within(other, one))


def _is_within(one: Finding, other: Finding) -> bool:
    """Return whether one is about a part of the host, or a NIC at an end of the pair, that another one is about."""
    (kind, _, name), (whole, _, where) = one.component.partition(":"), other.component.partition(":")
    in_host = whole == "host" and any(where in hosts_of(part) for part in _parts(one))
    return in_host or (kind == "nic" and name in where.split("--"))


def _explains(one: Finding, other: Finding) -> bool:
    """Return whether one is about a host whose connections look slow because of it, and the other about these."""
    return one.slows_pairs and _KIN[other.fault_class] == "pair" and _is_within(other, one)


def _parts(finding: Finding) -> frozenset[str]:
    return frozenset((finding.component, *finding.ambiguous_with))


def _name(finding: Finding) -> Name:
    return finding.fault_class, finding.component, finding.side


def _see_again(known: Sighting, found: Sequence[Finding], context: Context, options: TrackingOptions) -> Sighting:
    best = max(found, key=lambda finding: finding.likelihood)
    if best.is_stale or not _is_new_enough(known, context, options):
        return known
    tally = {name: value * options.fade for name, value in known.tally.items()}
    if best.slows_pairs:  # what made its connections look slow was it all along
        tally = {_name(best): sum(tally.values())}
    tally[_name(best)] = tally.get(_name(best), 0.0) + best.likelihood
    return replace(
        known,
        findings={**known.findings, _name(best): best},
        tally=tally,
        weight=known.weight * options.fade + 1.0,
        streak=known.streak + 1,
        evaluations=known.evaluations + 1,
        absent=0,
        counted_ns=context.window.end_ns,
        was_early=context.is_early,
    )


def _is_new_enough(known: Sighting, context: Context, options: TrackingOptions) -> bool:
    """Return whether an evaluation counts beside the last that did: the same seconds confirm nothing.

    Evaluations in their rhythm do. An early one, or the one after it, has to hold a step that is new, or as much that
    is new as one in the rhythm: more is asked of none.
    """
    if not known.evaluations or not (context.is_early or known.was_early):
        return True
    step_ns = max(context.period_ns or options.most_new_ns, options.least_new_ns)
    return context.window.end_ns - known.counted_ns >= min(step_ns, options.most_new_ns)


def _miss(known: Sighting, context: Context) -> Sighting:
    """Return a fault that was not seen in this evaluation; where nobody would have seen it, that is no news."""
    if is_unseen(known.findings[known.best], known.parts, context):
        return known
    return replace(known, streak=0, absent=known.absent + 1)


def _report(seen: Sighting, context: Context, progress: Progress, options: TrackingOptions) -> Sighting:
    return _update(seen, context, progress, options) if seen.is_open or _is_confirmed(seen, options) else seen


def _leave(
    seen: Sighting, context: Context, progress: Progress, options: TrackingOptions, is_explained: bool
) -> Sighting:
    """Return a fault that was not found: over, once evaluations that would have shown it did not for long enough.

    While steps stay as long as the fault made them and nobody else is at fault, it may only not show for a while.
    """
    left = _leave_unconfirmed(seen, context, progress)
    is_as_slow = not is_explained and not progress.is_stale and _is_as_slow(left)
    patience = options.pending_evaluations if is_as_slow else options.clear_evaluations
    if left.incident and left.is_open and left.absent >= patience:
        is_outage = left.incident.verdict.fault_class == "telemetry_lost"
        because = "its hosts report again" if is_outage else "the part has been normal again"
        return replace(left, incident=close(left.incident, context.window.end_ns, because))
    return left


def _is_as_slow(seen: Sighting) -> bool:
    """Return whether a slow part's job takes steps nearer to the longest that it made than to the usual ones."""
    account = seen.account
    if account is None or account.ratio is None or account.peak is None or _KIN[seen.best[0]] not in _SLOW:
        return False
    return account.ratio > WORTH_SAYING and account.ratio - 1.0 > (account.peak - 1.0) / 2


def _leave_unconfirmed(seen: Sighting, context: Context, progress: Progress | None = None) -> Sighting:
    """Return a fault that this evaluation does not confirm: how far that reaches tells how old its verdict is.

    Its steps still count, where any are known: what was slow until it healed may end only now.
    """
    if not seen.incident or not seen.is_open or not seen.account:
        return seen
    if is_unseen(seen.findings[seen.best], seen.parts, context):
        return replace(seen, incident=_leave_unseen(seen.incident, seen.parts, context))
    known = {"updated_ns": context.window.end_ns, "unseen_since_ns": None, "unseen_host": None, "unseen_source": None}
    if progress is None or progress.is_stale:
        return replace(seen, incident=seen.incident.model_copy(update=known))
    account = charge(seen.account, progress, None, context)
    impact = impact_of(account, seen.findings[seen.best], context)
    verdict = seen.incident.verdict.model_copy(update={"impact": impact})
    return replace(seen, incident=seen.incident.model_copy(update=known | {"verdict": verdict}), account=account)


def _leave_unseen(incident: Incident, parts: frozenset[str], context: Context) -> Incident:
    """Return an incident that nobody would see, with whose telemetry is missing."""
    host, report = find_last_told(parts, context) or (None, None)
    last_ns = report and min(report.reach_ns, context.window.start_ns)  # what was told of may be nothing of it
    missing = {
        "updated_ns": context.window.end_ns,
        "unseen_since_ns": incident.unseen_since_ns or last_ns or incident.updated_ns,
        "unseen_host": host,
        "unseen_source": report and report.missing_source,
    }
    return incident.model_copy(update=missing)


def _is_confirmed(seen: Sighting, options: TrackingOptions) -> bool:
    if seen.confidence < options.least_confidence:
        return False
    is_certain = seen.findings[seen.best].is_certain
    return is_certain or seen.streak >= options.confirm_evaluations or seen.evaluations >= options.confirm_scattered


def _update(seen: Sighting, context: Context, progress: Progress, options: TrackingOptions) -> Sighting:
    finding = replace(seen.findings[seen.best], likelihood=seen.confidence)
    opened = seen.account or open_account(progress, seen.since_ns, finding)
    account = charge(opened, progress, finding, context)
    incident = open_incident(finding, seen.since_ns, context, account, options.grading)
    if known := seen.incident:
        verdict = incident.verdict.model_copy(update={"id": known.id})
        flaps = known.flaps + (known.state == "closed")
        kept = {"id": known.id, "opened_ns": known.opened_ns, "flaps": flaps, "verdict": verdict}
        incident = incident.model_copy(update=kept)
    return replace(seen, incident=incident, account=account)
