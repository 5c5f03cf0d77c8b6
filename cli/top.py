"""lockstep top: jobs, incidents, agents and waiting decisions of a running Lockstep, live in the terminal."""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from statistics import median
from typing import Annotated

import typer
from pydantic import Field
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table as Picture
from rich.text import Text

from cli.client import DEFAULT_SERVER, Server, Token
from cli.setup import out
from lockstep.client import Client
from lockstep.client.client import AgentView, Condition, Job, ListedDecision, TrainingStep
from lockstep.clock import NS_PER_S, Clock, SystemClock, rfc3339
from lockstep.decision import Decision
from lockstep.errors import ServerRefused
from lockstep.verdict import Frozen, Incident
from lockstep.words import lasting

_BARS = "▁▂▃▄▅▆▇█"
_BARS_WIDE = 20
_STYLES = {"crashed": "bold red", "hung": "bold red", "slow": "yellow", "unseen": "yellow", "running": "green"}
_RISING = 1.1  # step time over that before from which on it is coloured
_MOST_AGENTS = 8
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


def command(
    once: Annotated[bool, typer.Option("--once", help="Print once and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output, once.")] = False,
    every_s: Annotated[float, typer.Option("--every", min=0.2, help="Seconds between two looks.")] = 5.0,
    server: Server = DEFAULT_SERVER,
    token: Token = "",
) -> None:
    """Show what happens now: jobs, incidents, agents, pending approvals."""
    clock = SystemClock()
    with Client(server, token) as lockstep:
        if as_json:
            out.print_json(data=read_overview(lockstep, clock.now_ns()).model_dump(by_alias=True))
        elif once or not out.is_terminal:
            out.print(picture_overview(read_overview(lockstep, clock.now_ns())))
        else:
            with Live(console=out, screen=True, auto_refresh=False) as live, suppress(KeyboardInterrupt):
                watch(lockstep, clock, every_s, threading.Event(), lambda shown: live.update(shown, refresh=True))


def watch(
    lockstep: Client, clock: Clock, every_s: float, stop: threading.Event, show: Callable[[RenderableType], None]
) -> None:
    """Look again and again and show it; what was known stays while the server is away, with a sentence above it."""
    known: RenderableType = Text("")
    while not stop.is_set():
        try:
            known = picture_overview(read_overview(lockstep, clock.now_ns()))
            show(known)
        except ServerRefused as refusal:
            if not refusal.is_passing:
                raise
            sentence = f"{refusal}; trying again every {every_s:g} s, what follows is what was known before"
            show(Group(Text(sentence, style="bold red"), known))
        clock.wait(stop, every_s)


def picture_overview(overview: Overview) -> RenderableType:
    """Return the whole picture."""
    head = f"Lockstep {overview.version} at {overview.server}, {rfc3339(overview.at_ns)}"
    return Group(
        Text(head, style="bold"),
        *([Text(overview.analysis, style="bold red")] if overview.analysis else []),
        _section(f"Incidents, {len(overview.incidents)} open", _picture_incidents(overview)),
        _section(f"Decisions, {len(overview.waiting)} approvals pending", _picture_waiting(overview)),
        _section(f"Jobs, {len(overview.jobs)} running", _picture_jobs(overview.jobs)),
        _section(f"Agents, {overview.agents} reporting, {len(overview.ailing)} not well", _picture_agents(overview)),
    )


def draw_bars(values: tuple[float, ...]) -> str:
    """Return the newest values as a line of bars, from nothing to the largest.

    >>> draw_bars((1.0, 2.0, 4.0))
    '▂▄█'
    """
    shown = values[-_BARS_WIDE:]
    top = max(shown, default=0.0)
    return "".join(_BARS[max(round(value / top * len(_BARS)) - 1, 0)] for value in shown) if top > 0 else ""


def _section(title: str, body: Picture) -> RenderableType:
    heading = Text(f"\n{title}", style="bold cyan")
    return Group(heading, body) if body.row_count else heading


def _picture_incidents(overview: Overview) -> Picture:
    picture = Picture("since", "job", "class", "part", "sure", "what", box=None, expand=True)
    for incident in overview.incidents:
        verdict = incident.verdict
        age_s = max(overview.at_ns - incident.opened_ns, 0) // NS_PER_S
        style = "bold red" if verdict.grade == "isolate" else ""
        sure = f"{verdict.confidence:.2f}"
        picture.add_row(
            lasting(age_s), incident.job, verdict.fault_class, verdict.component, sure, verdict.reason, style=style
        )
    return picture


def _picture_waiting(overview: Overview) -> Picture:
    picture = Picture("id", "job", "action", "expires in", "why", "approve with", box=None, expand=True)
    for decision in overview.waiting:
        left_s = max(decision.expires_ns - overview.at_ns, 0) // NS_PER_S
        order = f"lockstep decisions approve {decision.id}"
        picture.add_row(decision.id, decision.job, decision.action, lasting(left_s), decision.reason, order)
    return picture


def _picture_jobs(jobs: tuple[JobTrend, ...]) -> Picture:
    picture = Picture("job", "is", "ranks", "hosts", "step", "step time", "against before", "", box=None)
    for trend in jobs:
        job = trend.job
        ratio = Text("" if trend.ratio is None else f"{trend.ratio:.2f}x")
        if trend.ratio is not None and trend.ratio >= _RISING:
            ratio.stylize("bold yellow")
        picture.add_row(
            job.job,
            Text(job.condition, style=_STYLES[job.condition]),
            str(job.ranks),
            str(job.hosts),
            "" if job.step is None else str(job.step),
            "" if job.step_s is None else f"{job.step_s:.3g} s",
            ratio,
            draw_bars(trend.step_times_s),
        )
    return picture


def _picture_agents(overview: Overview) -> Picture:
    picture = Picture("host", "release", "last seen", "behind", "rows lost", "waiting", "", box=None)
    for agent in overview.ailing[:_MOST_AGENTS]:
        seen_s = max(overview.at_ns - agent.last_seen_ns, 0) // NS_PER_S
        lost = f"{agent.dropped} ({agent.dropped_lately} lately)"
        waiting = f"{agent.spool_bytes / 1e6:.1f} MB"
        style = "bold red" if agent.is_silent else "yellow"
        picture.add_row(
            agent.host,
            agent.version,
            lasting(seen_s),
            f"{agent.lag_s:.0f} s",
            lost,
            waiting,
            "; ".join(agent.missing),
            style=style,
        )
    return picture


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
