"""lockstep serve api|analyzer|planner: one service a process, for compose and systemd."""

import threading
from functools import partial

import structlog
import typer
from prometheus_client import CollectorRegistry

from api.app import create_app
from api.head import Duties, opened_analyzer, opened_api, opened_planner
from api.routes.health import health_app
from api.web import check_exposure, listen_on, serve
from cli.setup import configure_logging, settings_of
from lockstep.clock import SystemClock
from lockstep.config import Settings
from lockstep.errors import LockstepError
from lockstep.state.leases import Shard
from lockstep.verdict import Incident

app = typer.Typer(no_args_is_help=True, help="Run one service, for compose and systemd.")

_log = structlog.get_logger("serve")


@app.command("api")
def serve_api(context: typer.Context) -> None:
    """Serve the HTTP API, take in what collectors send, and send alerts; of several, one sends."""
    settings = settings_of(context)
    check_exposure(settings.api)
    listener = listen_on(settings.api.listen, "LOCKSTEP_API_LISTEN")
    with opened_api(settings, SystemClock()) as (parts, duties):

        def started() -> None:
            duties.start()
            _log.info("api is up", listen=settings.api.listen)

        serve(create_app(parts), listener, started, duties.close, settings.api)


@app.command("analyzer")
def serve_analyzer(context: typer.Context) -> None:
    """Turn closed windows into incidents; of several, one is active for a share of the jobs."""
    settings = settings_of(context)
    own, *others = Shard.all_of(settings.analyzer.processes)
    processes = {shard.name: partial(_serve_shard, settings, shard) for shard in others}
    with opened_analyzer(settings, SystemClock(), _announce, own, processes) as duties:
        _serve_duties(duties, settings.analyzer.listen, "LOCKSTEP_ANALYZER_LISTEN")


@app.command("planner")
def serve_planner(context: typer.Context) -> None:
    """Turn incidents into decisions, and flows into a path plan where that is wanted; of several, one is active."""
    settings = settings_of(context)
    with opened_planner(settings, SystemClock()) as duties:
        _serve_duties(duties, settings.planner.listen, "LOCKSTEP_PLANNER_LISTEN")


def _serve_shard(settings: Settings, shard: Shard, leave: threading.Event) -> None:
    """Follow a share of the jobs, as a process of its own, until it is to leave."""
    configure_logging(settings.log_level)
    with opened_analyzer(settings, SystemClock(), _announce, shard) as duties:
        duties.start()
        leave.wait()
        duties.close()


def _serve_duties(duties: Duties, listen: str, setting: str) -> None:
    def check_ready() -> None:
        for duty in duties.all:
            duty.check_held()
        if troubles := [duty.trouble for duty in duties.all if duty.trouble]:
            raise LockstepError("; ".join(troubles))

    def started() -> None:
        duties.start()
        for duty in duties.all:
            _log.info("service is up", service=duty.name, listen=listen)

    listener = listen_on(listen, setting)
    serve(health_app(check_ready, [CollectorRegistry()]), listener, started, duties.close)


def _announce(incident: Incident) -> None:
    if incident.state == "closed" or incident.updated_ns == incident.opened_ns:
        _log.info(
            "incident " + ("closed" if incident.state == "closed" else "opened"),
            incident=incident.id,
            job=incident.job,
            component=incident.verdict.component,
            reason=incident.closed_because or incident.verdict.reason,
        )
