"""lockstep top: jobs, incidents, agents and waiting decisions of a running Lockstep, live in the terminal."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table as Picture
from rich.text import Text

from cli.client import DEFAULT_SERVER, Server, Token
from cli.setup import out
from lockstep.client import Client
from lockstep.client.overview import JobTrend, Overview, read_overview
from lockstep.clock import NS_PER_S, Clock, SystemClock, rfc3339
from lockstep.errors import ServerRefused
from lockstep.words import lasting

_BARS = "▁▂▃▄▅▆▇█"
_STYLES = {"crashed": "bold red", "hung": "bold red", "slow": "yellow", "unseen": "yellow", "running": "green"}
_RISING = 1.1  # step time over that before from which on it is coloured
_MOST_AGENTS = 8


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


def draw_bars(values: tuple[float, ...], width: int = 20) -> str:
    """Return the newest values as a line of bars, from nothing to the largest.

    >>> draw_bars((1.0, 2.0, 4.0))
    '▂▄█'
    """
    shown = values[-width:]
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
