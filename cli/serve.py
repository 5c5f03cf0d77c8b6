"""lockstep serve api|analyzer|planner: one service a process, for compose and systemd."""

from collections.abc import Sequence
from contextlib import ExitStack

import structlog
import typer
from prometheus_client import CollectorRegistry

from api.alerts.service import make_alerts
from api.app import create_app
from api.parts import Parts
from api.routes.health import health_app
from cli.head import keys_of, make_analyzer, make_duty, make_gateway, make_path_service, topology_of
from cli.opening import layout_of, listen_on, served_store
from cli.planning import make_planner
from cli.setup import make_state_dir, settings_of
from cli.web import check_exposure, serve
from lockstep.clock import SystemClock
from lockstep.control.database import open_control
from lockstep.control.duty import Duty, Work
from lockstep.errors import LockstepError
from lockstep.incident import Incident
from lockstep.sections import split_listen

app = typer.Typer(no_args_is_help=True, help="Run one service, for compose and systemd.")

_log = structlog.get_logger("serve")


@app.command("api")
def serve_api(context: typer.Context) -> None:
    """Serve the HTTP API, take in what collectors send, and send alerts; of several, one sends."""
    settings, clock = settings_of(context), SystemClock()
    check_exposure(settings.api)
    listener = listen_on(*split_listen(settings.api.listen), "LOCKSTEP_API_LISTEN")
    make_state_dir(settings)
    with ExitStack() as stack:
        store = stack.enter_context(served_store(settings, clock))
        control = stack.enter_context(open_control(settings.control_url, keys=keys_of(settings)))
        parts = Parts(
            settings=settings,
            store=store,
            layout=layout_of(settings),
            control=control,
            gateway=make_gateway(settings, store, clock),
            clock=clock,
            topology=topology_of(settings, control),
        )
        alerts = make_alerts(parts)
        stack.callback(alerts.close)
        duty = make_duty("alerts", alerts.run_once, settings, control, clock)

        def started() -> None:
            duty.start()
            _log.info("api is up", listen=settings.api.listen)

        serve(create_app(parts), listener, started, duty.close, settings.api)


@app.command("analyzer")
def serve_analyzer(context: typer.Context) -> None:
    """Turn closed windows into incidents; of several, one is active."""
    settings, clock = settings_of(context), SystemClock()
    make_state_dir(settings)
    with ExitStack() as stack:
        store = stack.enter_context(served_store(settings, clock))
        control = stack.enter_context(open_control(settings.control_url))
        service = make_analyzer(settings, store, control, topology_of(settings, control), _announce)
        duty = make_duty("analyzer", service.run_once, settings, control, clock)
        _serve_duties([duty], settings.analyzer.listen, "LOCKSTEP_ANALYZER_LISTEN")


@app.command("planner")
def serve_planner(context: typer.Context) -> None:
    """Turn incidents into decisions, and flows into a path plan where that is wanted; of several, one is active."""
    settings, clock = settings_of(context), SystemClock()
    make_state_dir(settings)
    with ExitStack() as stack:
        control = stack.enter_context(open_control(settings.control_url))
        topology = topology_of(settings, control)
        needs_store = settings.planner.paths or settings.planner.controller != "none"
        store = stack.enter_context(served_store(settings, clock)) if needs_store else None
        works: dict[str, Work] = {"planner": make_planner(settings, store, control, topology).run_once}
        if store is not None and settings.planner.paths:
            works["paths"] = make_path_service(store, control, topology).run_once
        duties = [make_duty(name, work, settings, control, clock) for name, work in works.items()]
        _serve_duties(duties, settings.planner.listen, "LOCKSTEP_PLANNER_LISTEN")


def _serve_duties(duties: Sequence[Duty], listen: str, setting: str) -> None:
    def check_ready() -> None:
        if troubles := [duty.trouble for duty in duties if duty.trouble]:
            raise LockstepError("; ".join(troubles))

    def started() -> None:
        for duty in duties:
            duty.start()
            _log.info("service is up", service=duty.name, listen=listen)

    def close() -> None:
        for duty in duties:
            duty.close()

    listener = listen_on(*split_listen(listen), setting)
    serve(health_app(check_ready, [CollectorRegistry()]), listener, started, close)


def _announce(incident: Incident) -> None:
    if incident.state == "closed" or incident.updated_ns == incident.opened_ns:
        _log.info(
            "incident " + ("closed" if incident.state == "closed" else "opened"),
            incident=incident.id,
            job=incident.job,
            component=incident.verdict.component,
            reason=incident.closed_because or incident.verdict.reason,
        )
