"""One Lockstep server over HTTP: its address, a token, and every refusal as one exception with one sentence."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from lockstep.config import trusted
from lockstep.errors import BadInput, ServerAway, ServerRefused

Json = dict[str, Any]  # Any: whatever the route says
Query = Mapping[str, str | int | tuple[str, ...] | None]  # None: not asked for; several are asked for side by side
M = TypeVar("M", bound=BaseModel)

_TIMEOUT_S = 120.0
_UNKNOWN = 401  # nobody knows who asks


class Server:
    """Connections to one server, kept open between questions; safe to share between threads."""

    def __init__(
        self, url: str, token: str = "", *, timeout_s: float = _TIMEOUT_S, ca_file: Path | None = None
    ) -> None:
        """`ca_file` has authorities beside the system's; without it LOCKSTEP_CA_FILE names them."""
        if not token.isascii():
            raise BadInput("a token is plain ASCII; this one is not")
        self.url = url
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        named = ca_file or os.environ.get("LOCKSTEP_CA_FILE")
        try:
            context = trusted(Path(named) if named else None) if url.startswith("https:") else False
            self._http = httpx.Client(
                base_url=url, timeout=timeout_s, headers=headers, trust_env=False, verify=context
            )
        except httpx.InvalidURL as error:
            raise self._away(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, query: Query | None = None) -> Json:
        """Return what the server answers to a question."""
        with self.answered("GET", path, query) as answer:
            return self._document(answer)

    def send(self, method: str, path: str, body: Json, headers: Mapping[str, str] | None = None) -> Json:
        """Send the server a document and return its answer."""
        with self.answered(method, path, body=body, headers=headers) as answer:
            return self._document(answer)

    @contextmanager
    def answered(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        *,
        body: Json | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout_s: float | None = None,
    ) -> Iterator[httpx.Response]:
        """Ask and hand over the answer as a stream; raise ServerRefused or ServerAway for anything but success."""
        asked = {name: value for name, value in (query or {}).items() if value is not None}
        timeout = httpx.Timeout(self._http.timeout.connect, read=read_timeout_s or self._http.timeout.read)
        try:
            with self._http.stream(method, path, params=asked, json=body, headers=headers, timeout=timeout) as answer:
                if not answer.is_success:
                    answer.read()
                    raise self._refusal(answer)
                yield answer
        except (httpx.RequestError, httpx.InvalidURL, httpx.StreamError) as error:
            raise self._away(error) from error

    def understood(self, model: type[M], document: object) -> M:
        """Return a document, or its JSON, as a model; unknown fields are left out: a server may be newer."""
        try:
            if isinstance(document, str):
                return model.model_validate_json(document, extra="ignore")
            return model.model_validate(document, extra="ignore")
        except ValidationError as error:
            raise self._stranger() from error

    def listed(self, page: Json) -> list[Json]:
        """Return the items of a page."""
        items = page.get("items")
        if not isinstance(items, list):
            raise self._stranger()
        return items

    def _document(self, answer: httpx.Response) -> Json:
        answer.read()
        try:
            return dict(answer.json())
        except (ValueError, TypeError) as error:
            raise self._stranger() from error

    def _stranger(self) -> ServerRefused:
        return ServerRefused(f"what answers at {self.url} is no Lockstep server of this version", 200)

    def _away(self, error: Exception) -> ServerAway:
        return ServerAway(f"no Lockstep server answers at {self.url}: {error}")

    def _refusal(self, answer: httpx.Response) -> ServerRefused:
        try:
            document: Json = answer.json()
            detail, kind = str(document["detail"]), str(document.get("type", "about:blank"))
        except (ValueError, KeyError, TypeError):
            detail, kind = f"answered {answer.status_code}", "about:blank"
        lacks = answer.status_code == _UNKNOWN and "Authorization" not in answer.request.headers
        way_out = "; set LOCKSTEP_TOKEN (`lockstep token create NAME --scope read`)" if lacks else ""
        return ServerRefused(f"{self.url}: {detail}{way_out}", answer.status_code, kind=kind, detail=detail)


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its id for resuming, its kind, and what it says."""

    id: str
    kind: str
    data: str


def parse_events(lines: Iterable[str]) -> Iterator[Event]:
    """Yield each event once its blank line has come; what a broken connection left unfinished is not one.

    >>> list(parse_events(["id: 7", "event: opened", "data: {}", "", "data: lost"]))
    [Event(id='7', kind='opened', data='{}')]
    """
    last_id, kind, data = "", "", list[str]()
    for line in lines:
        if line:
            name, _, value = line.partition(":")  # a line that begins with a colon is a sign of life: no name
            value = value.removeprefix(" ")
            if name == "data":
                data.append(value)
            elif name == "event":
                kind = value
            elif name == "id" and "\0" not in value:
                last_id = value
        else:
            if data:
                yield Event(last_id, kind or "message", "\n".join(data))
            kind, data = "", []
