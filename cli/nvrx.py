"""lockstep nvrx: what NVIDIA's ft_launcher asks on a training host, answered until stopped."""

import signal
import socket as network
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cli.client import DEFAULT_SERVER, Server, Token
from cli.setup import err
from lockstep.client import Client
from lockstep.clock import SystemClock
from lockstep.decision import Decision
from lockstep.errors import BadInput
from planner.controllers.nvrx import Exclusion, find_isolated, find_noted, serve_health
from planner.controllers.nvrx_attribution import Attribution, serving_attribution

app = typer.Typer(no_args_is_help=True, help="What NVIDIA's ft_launcher asks on a training host.")

_ENDING = (signal.SIGINT, signal.SIGTERM)
_ASK_S = 5.0  # the launcher waits for us before every rendezvous


@app.command()
def health(
    socket: Annotated[Path, typer.Option(help="Where the launcher asks.")] = Path("/run/lockstep/nvhcd.sock"),
    directory: Annotated[
        Path | None, typer.Option(help="The nvrx controller's notes; else the server is asked what is isolated.")
    ] = None,
    name: Annotated[list[str] | None, typer.Option(help="This host's name; may be given more than once.")] = None,
    server: Server = DEFAULT_SERVER,
    token: Token = "",
) -> None:
    """Say before each rendezvous whether this host is in service (ft_launcher --ft-node-health-check-endpoint)."""
    names = tuple(name or _own_names())
    with _keep_signals(), Client(server, token, timeout_s=_ASK_S) as lockstep:

        def find() -> Exclusion | None:
            return find_noted(directory, names) if directory else find_isolated(lockstep.isolated(), names)

        running = serve_health(find, socket)
        _wait(f"health of {' or '.join(names)} at unix://{socket}")
        running.stop(None).wait()


@app.command()
def attribution(
    listen: Annotated[str, typer.Option(help="Where the launcher asks: host:port, of this host.")] = "127.0.0.1:8644",
    job: Annotated[str, typer.Option(help="What Lockstep calls the job; else as the launcher does.")] = "",
    settle_s: Annotated[float, typer.Option(min=1.0, help="A cycle without a decision by then has none.")] = 60.0,
    server: Server = DEFAULT_SERVER,
    token: Token = "",
) -> None:
    """Say after a failed cycle whether the job shall go on (ft_launcher --ft-attribution-endpoint)."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise BadInput(f"--listen {listen!r} is no host:port")
    with _keep_signals(), Client(server, token, timeout_s=_ASK_S) as lockstep:

        def find(name: str) -> Decision | None:
            return next(lockstep.decisions(job=name), None)

        asked = Attribution(find, SystemClock(), job or None, settle_s)
        with serving_attribution(asked, host, int(port)) as address:
            _wait(f"attribution at {address}")


@contextmanager
def _keep_signals() -> Iterator[None]:
    """Let the signals that end us wait until we ask for them; threads of servers started meanwhile never see them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(what: str) -> None:
    """Say that it is up, and return when the process is told to stop."""
    err.print(f"lockstep: {what}", highlight=False)
    signal.sigwait(_ENDING)


def _own_names() -> list[str]:
    """Return how controllers may call this host: its name, whole and without the domain."""
    whole = network.gethostname()
    return list(dict.fromkeys([whole, whole.partition(".")[0]]))
