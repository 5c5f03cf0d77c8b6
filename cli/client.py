"""How commands talk to a running Lockstep: the options for it, and lockstep.client for routes it has no word for."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Annotated

import typer

from lockstep.client import Client
from lockstep.client.server import Json, Query
from lockstep.client.server import Server as Connection
from lockstep.errors import LockstepError

Server = Annotated[str, typer.Option(envvar="LOCKSTEP_SERVER", help="Address of the Lockstep server.")]
Token = Annotated[str, typer.Option(envvar="LOCKSTEP_TOKEN", help="Token with scope read, unless reads are open.")]
DEFAULT_SERVER = "http://127.0.0.1:8642"


def ask(server: str, token: str, path: str, query: Query) -> Json:
    """Return what the server answers to a question."""
    with Connection(server, token) as connection:
        return connection.get(path, query)


def send(server: str, token: str, path: str, body: Json) -> Json:
    """Post a document to the server and return its answer."""
    with Connection(server, token) as connection:
        return connection.send("POST", path, body)


_TIMEOUT_S = 0.5  # somebody waits with a finger on the key
_MOST = 100


def offer_jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Return the jobs of a running Lockstep whose names begin so; none where no server answers at once."""
    return _offer(context, incomplete, lambda client: (job.job for job in client.jobs()))


def offer_decisions(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of the newest decisions that begin so, with the same patience."""
    return _offer(context, incomplete, lambda client: (decision.id for decision in client.decisions()))


def _offer(context: typer.Context, incomplete: str, names: Callable[[Client], Iterable[str]]) -> list[str]:
    params = context.params
    try:
        with Client(params["server"], params["token"] or "", timeout_s=_TIMEOUT_S) as client:
            return [name for name in dict.fromkeys(islice(names(client), _MOST)) if name.startswith(incomplete)]
    except LockstepError:
        return []  # a sentence would land in the middle of what is being typed
