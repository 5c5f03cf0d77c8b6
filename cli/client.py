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


Json = dict[str, Any]  # Any: whatever the route says


def ask(server: str, token: str, path: str, query: dict[str, str]) -> Json:
    """Return what the server answers to a question."""
    with answered(server, token, path, query) as answer:
        answer.read()
        return dict(answer.json())


def tell(server: str, token: str, method: str, path: str, told: Json) -> Json:
    """Tell the server something and return its answer."""
    with answered(server, token, path, {}, method, told) as answer:
        answer.read()
        return dict(answer.json())


@contextmanager
def answered(
    server: str, token: str, path: str, query: dict[str, str], method: str = "GET", told: Json | None = None
) -> Iterator[httpx.Response]:
    """Ask the server and hand over its answer as a stream; anything but success is raised as one sentence."""
    if not token.isascii():
        raise BadInput("a token is plain ASCII; this one is not")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with (
            httpx.Client(base_url=server, timeout=_TIMEOUT_S, headers=headers, trust_env=False) as client,
            client.stream(method, path, params=query, json=told) as answer,
        ):
            if not answer.is_success:
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
