"""How commands talk to a running Lockstep: the options for it, and lockstep.client for routes it has no word for."""

from typing import Annotated

import typer

from lockstep.client.server import Json, Query
from lockstep.client.server import Server as Connection

Server = Annotated[str, typer.Option(help="Address of the Lockstep server.")]
Token = Annotated[str, typer.Option(envvar="LOCKSTEP_TOKEN", help="Token with scope read, unless reads are open.")]
DEFAULT_SERVER = "http://127.0.0.1:8642"


def ask(server: str, token: str, path: str, query: Query) -> Json:
    """Return what the server answers to a question."""
    with Connection(server, token) as connection:
        return connection.get(path, query)


def tell(server: str, token: str, method: str, path: str, told: Json) -> Json:
    """Tell the server something and return its answer."""
    with Connection(server, token) as connection:
        return connection.tell(method, path, told)
