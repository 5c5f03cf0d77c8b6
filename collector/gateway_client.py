"""The way to the gateway: one batch at a time, in order, until it is acknowledged."""

import httpx
from pydantic import ValidationError

from collector.parcel import Parcel
from lockstep.batches import (
    AGENT_HEADER,
    BOOT_HEADER,
    CONTENT_TYPE,
    ENCODING,
    NUMBER_HEADER,
    VERSION_HEADER,
)
from lockstep.errors import BadInput, DestinationAway, ServerRefused
from lockstep.records import RECORDS_VERSION
from lockstep.wish import Receipt

_TIMEOUT_S = 10.0


class GatewayClient:
    """Sends batches of one agent."""

    def __init__(self, server: str, token: str, agent: str) -> None:
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": CONTENT_TYPE,
            "Content-Encoding": ENCODING,
            AGENT_HEADER: agent,
            VERSION_HEADER: str(RECORDS_VERSION),
        }
        url = _parse(server)
        try:
            self._client = httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
        except UnicodeEncodeError:
            raise BadInput(f"the token and the name of the host, {agent!r}, must be plain ASCII") from None

    def send(self, parcel: Parcel) -> Receipt:
        """Return the receipt; ServerRefused when the server says no, DestinationAway when it says nothing."""
        headers = {BOOT_HEADER: parcel.boot, NUMBER_HEADER: str(parcel.number)}
        try:
            answer = self._client.post("/api/v1/ingest", content=parcel.body, headers=headers)
        except httpx.RequestError as error:
            raise DestinationAway(f"the gateway does not answer: {error}") from error
        if answer.status_code != httpx.codes.OK:
            raise ServerRefused(_detail(answer), answer.status_code)
        try:
            return Receipt.model_validate_json(answer.content)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ServerRefused(f"the server's receipt makes no sense: {reason}", answer.status_code) from error

    def close(self) -> None:
        self._client.close()


def _parse(server: str) -> httpx.URL:
    expected = "expected http(s)://host:port"
    try:
        url = httpx.URL(server)
    except httpx.InvalidURL as error:
        raise BadInput(f"{server!r} is not the address of a gateway: {error}; {expected}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise BadInput(f"{server!r} is not the address of a gateway; {expected}")
    return url


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {answer.status_code}"
