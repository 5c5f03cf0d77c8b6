"""lockstep host: whether a training host can tell what verdicts are made of."""

import socket
from dataclasses import asdict

import typer

from cli.setup import AsJson, configure_logging, out, settings_of
from collector.check import Check, check_host
from lockstep.clock import SystemClock
from lockstep.errors import LockstepError

app = typer.Typer(no_args_is_help=True, help="Whether a training host can tell what verdicts are made of.")


@app.callback()
def _named() -> None:
    """Keep the name of the one command."""


@app.command("check")
def check(context: typer.Context, as_json: AsJson = False) -> None:
    """Look at head node, token, clock, plugin and sources, as the user and with the settings of the collector."""
    settings = settings_of(context).collector
    configure_logging("error")  # what sources have to say is among the checks
    host = settings.host or socket.gethostname().split(".", 1)[0]
    checks: list[Check] = []
    for found in check_host(host, settings, SystemClock()):
        checks.append(found)
        if not as_json:
            out.print(f"{found.state:8} {found.name:12} {found.message}", highlight=False)
    if as_json:
        out.print_json(data=[asdict(found) for found in checks])
    if failed := [found.name for found in checks if found.state == "failed"]:
        raise LockstepError(f"{host} is not ready: mend {', '.join(dict.fromkeys(failed))}")
