"""lockstep host: a training host joins, leaves, and is checked."""

import socket
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cli.setup import AsJson, configure_logging, out, settings_of
from collector.host import Check, check_host, join, leave
from lockstep.client.server import Server
from lockstep.clock import SystemClock
from lockstep.errors import LockstepError

app = typer.Typer(no_args_is_help=True, help="A training host joins, leaves, and is checked.")


JoinToken = Annotated[
    str, typer.Option("--token", envvar="LOCKSTEP_TOKEN", help="`lockstep token create NAME --scope join` makes it.")
]
Host = Annotated[str, typer.Option(help="Name in the topology, where the host's own is another.")]
Authority = Annotated[Path | None, typer.Option(help="Authority that signed the head's certificate.")]


@app.command("join")
def join_command(server: str, token: JoinToken, host: Host = "", ca_file: Authority = None) -> None:
    """Report to a head node from now on, by a token of scope join; needs root."""
    with Server(server, token, ca_file=ca_file) as head:
        for step in join(head, host or _own_name(), ca_file):
            out.print(step, highlight=False)
    out.print("`lockstep host check` looks whether all is well", highlight=False)


@app.command("leave")
def leave_command() -> None:
    """Report no longer: stop the collector, and have the head node forget this host's token; needs root."""
    for step in leave():
        out.print(step, highlight=False)


@app.command("check")
def check(context: typer.Context, as_json: AsJson = False) -> None:
    """Look at head node, token, clock, plugin and sources, as the user and with the settings of the collector."""
    settings = settings_of(context).collector
    configure_logging("error")  # what sources have to say is among the checks
    host = settings.host or _own_name()
    checks: list[Check] = []
    for found in check_host(host, settings, SystemClock()):
        checks.append(found)
        if not as_json:
            out.print(f"{found.state:8} {found.name:12} {found.message}", highlight=False)
    if as_json:
        out.print_json(data=[asdict(found) for found in checks])
    if failed := [found.name for found in checks if found.state == "failed"]:
        raise LockstepError(f"{host} is not ready: mend {', '.join(dict.fromkeys(failed))}")


def _own_name() -> str:
    return socket.gethostname().split(".", 1)[0]
