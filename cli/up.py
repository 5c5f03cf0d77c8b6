"""lockstep up: everything on this machine in one process."""

from typing import Annotated

import typer
from rich.text import Text

from api.app import create_app
from cli.demo import Demo
from cli.head import Head, opened_head
from cli.opening import listen_on, with_listen
from cli.setup import err, out, settings_of
from cli.web import check_exposure, scheme_of, serve
from lockstep.clock import NS_PER_S, SystemClock, rfc3339
from lockstep.config import Settings
from lockstep.incident import Incident
from lockstep.sections import split_listen
from lockstep.sim.library import find_story
from lockstep.sim.story import Story, build_topology

_DEMO_STORY = "nic-half-speed"


def command(
    context: typer.Context,
    demo: Annotated[bool, typer.Option("--demo", help="Add a simulated cluster in which a NIC turns slow.")] = False,
    story: Annotated[str, typer.Option(help="Which story the demo tells; see `lockstep story list`.")] = _DEMO_STORY,
) -> None:
    """Run store, gateway, API, analyzer and planner in one process until Ctrl-C."""
    settings = settings_of(context)
    told = find_story(story) if demo else None
    if demo:  # nobody can reach it but from this machine, and the page says that it is open
        check_exposure(settings.api, is_demo=True)
        local = {"open_reads": True, "tls_cert": None, "tls_key": None}  # its collectors know no certificate
        settings = settings.model_copy(update={"api": settings.api.model_copy(update=local)})
    _run(settings, told)


def _run(settings: Settings, story: Story | None) -> None:
    clock = SystemClock()
    check_exposure(settings.api)
    listener = listen_on(*split_listen(settings.api.listen), "LOCKSTEP_API_LISTEN")
    settings = with_listen(settings, listener)
    topology = build_topology(story.cluster) if story else None
    notice = f"Demo: {story.summary}. Reads need no token." if story else ""
    with opened_head(settings, clock, topology, _announce, notice) as head:
        demo = Demo(story, settings, head.parts.control, clock) if story else None
        serve(
            create_app(head.parts),
            listener,
            on_started=lambda: _start(head, demo, settings),
            on_leaving=lambda: _leave(head, demo),
            api=settings.api,
        )
    err.print("stopped; nothing is left running")


def _start(head: Head, demo: Demo | None, settings: Settings) -> None:
    for duty in head.duties:
        duty.start()
    if demo:
        demo.start()
        err.print(f"{head.parts.notice} A verdict follows within half a minute after second 20.")
    out.print(f"Lockstep is up: {scheme_of(settings.api)}://{settings.api.listen}  (Ctrl-C stops it)")


def _leave(head: Head, demo: Demo | None) -> None:
    err.print("stopping")
    if demo:
        demo.close()
    for duty in head.duties:
        duty.close()


def _announce(incident: Incident) -> None:
    """Print one line when an incident opens or closes; its updates are on the page."""
    verdict = incident.verdict
    clock_time = rfc3339(incident.updated_ns)[11:19]
    if incident.state == "closed":
        out.print(Text.assemble(f"{clock_time} closed ", (verdict.component, "bold"), f": {incident.closed_because}"))
    elif incident.updated_ns == incident.opened_ns:
        seconds = (incident.opened_ns - verdict.since_ns) // NS_PER_S
        out.print(
            Text.assemble(
                f"{clock_time} {verdict.fault_class} ",
                (verdict.component, "bold red"),
                f" ({verdict.confidence:.2f}, {seconds} s after it began): {verdict.reason}",
            )
        )
