"""What a person on call wants to see at once: jobs and their trend, open incidents, agents, what waits for a word."""

from collections.abc import Iterable, Sequence
from itertools import islice
from statistics import median

from pydantic import Field

from lockstep.client.answers import AgentView, Condition, Job, ListedDecision, TrainingStep
from lockstep.client.client import Client
from lockstep.decision import Decision
from lockstep.errors import ServerRefused
from lockstep.verdict import Frozen, Incident

_MOST_JOBS = 20  # whose steps are asked for: each is a request
_MOST_INCIDENTS = 50
_MOST_DECISIONS = 100
_STEPS = 60  # newest ones of which the trend is made
_NEWEST = 10  # of these, those that count as now
_LAG_S = 10.0  # a healthy agent is two seconds behind; verdicts wait for nobody longer than 15
_TROUBLED: tuple[Condition, ...] = ("crashed", "hung", "unseen", "slow")  # the worst first
_ORDER = (*_TROUBLED, "running")


class JobTrend(Frozen):
    """A job, and how its step time changed."""

    job: Job
    step_times_s: tuple[float, ...] = Field((), description="the newest, in the order of time")
    ratio: float | None = Field(
        None,
        description="step time now over that before the fault where an incident tells, else over that of the steps "
        "before; None: too few steps",
    )


class Overview(Frozen):
    """Everything at one moment."""

    server: str
    version: str
    at_ns: int
    analysis: str = Field("", description="how far behind the analysis is, where it is")
    jobs: tuple[JobTrend, ...] = ()
    incidents: tuple[Incident, ...] = ()
    waiting: tuple[Decision, ...] = Field((), description="decisions that wait for a person's word")
    agents: int = Field(0, ge=0, description="heard of within an hour")
    ailing: tuple[AgentView, ...] = Field(
        (), description="silent, without readings, late, or losing rows; the worst first"
    )


def read_overview(client: Client, now_ns: int) -> Overview:
    """Ask a server for all of it; takes a request per list, per running job and per decision that may wait."""
    incidents = tuple(islice(client.incidents(state="open"), _MOST_INCIDENTS))
    agents = list(client.agents())
    jobs = list(islice(client.jobs(_TROUBLED, page=_MOST_JOBS), _MOST_JOBS))
    if left := _MOST_JOBS - len(jobs):  # those in trouble leave room for running ones: one page of each at most
        jobs += islice(client.jobs(("running",), page=left), left)
    return Overview(
        server=client.server.url,
        version=client.version(),
        at_ns=now_ns,
        analysis=client.analysis(),
        jobs=tuple(_read_trend(client, job, incidents) for job in choose_jobs(jobs)),
        incidents=incidents,
        waiting=tuple(_read_waiting(client, incidents, now_ns)),
        agents=len(agents),
        ailing=tuple(find_ailing(agents)),
    )


def choose_jobs(jobs: Iterable[Job]) -> list[Job]:
    """Return the newest attempt of each job that has not ended, the worst first."""
    newest = {job.job: job for job in sorted(jobs, key=lambda job: job.attempt)}
    alive = [job for job in newest.values() if job.condition != "ended"]
    return sorted(alive, key=lambda job: (_ORDER.index(job.condition), job.job))[:_MOST_JOBS]


def find_trend(step_times_s: Sequence[float]) -> float | None:
    """Return the median of the newest step times over that of those before them.

    >>> find_trend([2.0] * 20 + [3.0] * 10)
    1.5
    """
    now, before = step_times_s[-_NEWEST:], step_times_s[:-_NEWEST]
    usual = median(before) if before else 0.0
    return median(now) / usual if usual > 0 else None


def find_slowness(job: Job, incidents: Iterable[Incident]) -> float | None:
    """Return how much longer its steps take by the worst of its incidents; a fault soon makes up all newest steps."""
    own = (each.verdict.impact for each in incidents if (each.job, each.attempt) == (job.job, job.attempt))
    return max((impact.step_time_ratio for impact in own if impact.step_time_ratio is not None), default=None)


def find_waiting(
    decisions: Iterable[ListedDecision], incidents: Iterable[Incident], now_ns: int
) -> list[ListedDecision]:
    """Return the newest decision of each open incident that proposes something and has not been carried out."""
    still_open = {incident.id for incident in incidents}
    newest: dict[str, ListedDecision] = {}
    for decision in decisions:  # the newest first
        newest.setdefault(decision.incident, decision)
    return [
        decision
        for decision in newest.values()
        if decision.incident in still_open
        and decision.action != "none"
        and decision.execution is None
        and decision.expires_ns > now_ns
        and decision.mode != "observe"
    ]


def find_ailing(agents: Iterable[AgentView]) -> list[AgentView]:
    """Return agents that are silent, lack readings, are behind, or lose rows, the worst first."""
    ailing = [each for each in agents if each.is_silent or each.missing or each.lag_s > _LAG_S or each.dropped_lately]

    def order(agent: AgentView) -> tuple[bool, bool, int, float, str]:
        return not agent.is_silent, not agent.missing, -agent.dropped_lately, -agent.lag_s, agent.host

    return sorted(ailing, key=order)


def _read_trend(client: Client, job: Job, incidents: Iterable[Incident]) -> JobTrend:
    steps = [step for step in _read_steps(client, job.job) if step.attempt == job.attempt]
    times_s = tuple(step.step_s for step in reversed(steps))
    return JobTrend(job=job, step_times_s=times_s, ratio=find_slowness(job, incidents) or find_trend(times_s))


def _read_steps(client: Client, job: str) -> list[TrainingStep]:
    """Return the newest steps of a job; one whose name the server does not take must not hide all others."""
    try:
        return list(islice(client.steps(job), _STEPS))
    except ServerRefused as refusal:
        if refusal.is_passing:
            raise
        return []


def _read_waiting(client: Client, incidents: Sequence[Incident], now_ns: int) -> Iterable[Decision]:
    if not incidents:
        return
    for decision in find_waiting(islice(client.decisions(), _MOST_DECISIONS), incidents, now_ns):
        if not client.decision(decision.id).orders:  # an order, whichever, is somebody's word
            yield decision
