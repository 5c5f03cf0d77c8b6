"""How commands talk to a running Lockstep: its address, and a token from the option or the environment."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import httpx
import typer

from lockstep.errors import BadInput, ServerRefused

Server = Annotated[str, typer.Option(help="Address of the Lockstep server.")]
Token = Annotated[str, typer.Option(envvar="LOCKSTEP_TOKEN", help="Token with scope read, unless reads are open.")]
DEFAULT_SERVER = "http://127.0.0.1:8642"

_TIMEOUT_S = 120.0


@contextmanager
def answered(server: str, token: str, path: str, query: dict[str, str]) -> Iterator[httpx.Response]:
    """Ask the server and hand over its answer as a stream; anything but success is raised as one sentence."""
    if not token.isascii():
        raise BadInput("a token is plain ASCII; this one is not")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with (
            httpx.Client(base_url=server, timeout=_TIMEOUT_S, headers=headers, trust_env=False) as client,
            client.stream("GET", path, params=query) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                answer.read()
                raise ServerRefused(f"{server}: {_detail(answer)}", answer.status_code)
            yield answer
    except (httpx.RequestError, httpx.InvalidURL) as error:
        raise ServerRefused(f"no Lockstep server answers at {server}: {error}", 0) from error


def _detail(answer: httpx.Response) -> str:
    try:
        document: Any = answer.json()
        return str(document["detail"])
    except (ValueError, KeyError, TypeError):
        return f"answered {answer.status_code}"
