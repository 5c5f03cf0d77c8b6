"""The way to the gateway: one batch at a time, in order, until it is acknowledged."""

import http.client
import json
import ssl
from urllib.parse import SplitResult, urlsplit

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
    """Sends batches of one agent, over one connection for as long as that holds."""

    def __init__(self, server: str, token: str, agent: str) -> None:
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": CONTENT_TYPE,
            "Content-Encoding": ENCODING,
            AGENT_HEADER: agent,
            VERSION_HEADER: str(RECORDS_VERSION),
        }
        if not (token.isascii() and agent.isascii()):
            raise BadInput(f"the token and the name of the host, {agent!r}, must be plain ASCII")
        url = _parse(server)
        self._path = url.path.rstrip("/") + "/api/v1/ingest"
        self._connection = _connection(url)

    def send(self, parcel: Parcel) -> Receipt:
        """Return the receipt; ServerRefused when the server says no, DestinationAway when it says nothing."""
        headers = self._headers | {BOOT_HEADER: parcel.boot, NUMBER_HEADER: str(parcel.number)}
        try:
            status, content = self._post(parcel.body, headers)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise DestinationAway(f"the gateway does not answer: {str(error) or type(error).__name__}") from error
        if status != http.client.OK:
            raise ServerRefused(_detail(status, content), status)
        try:
            return Receipt.model_validate_json(content)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ServerRefused(f"the server's receipt makes no sense: {reason}", status) from error

    def close(self) -> None:
        self._connection.close()

    def _post(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """Return status and body of the answer; what was sent may be sent again, so an old connection is tried."""
        is_old = self._connection.sock is not None
        try:
            self._connection.request("POST", self._path, body, headers)
            answer = self._connection.getresponse()
        except ConnectionError:  # RemoteDisconnected too: the server does not keep idle connections for ever
            self._connection.close()
            if not is_old:
                raise
            self._connection.request("POST", self._path, body, headers)
            answer = self._connection.getresponse()
        return answer.status, answer.read()


def _connection(url: SplitResult) -> http.client.HTTPConnection:
    if url.scheme == "http":
        return http.client.HTTPConnection(url.hostname or "", url.port, timeout=_TIMEOUT_S)
    return http.client.HTTPSConnection(
        url.hostname or "", url.port, timeout=_TIMEOUT_S, context=ssl.create_default_context()
    )


def _parse(server: str) -> SplitResult:
    expected = "expected http(s)://host:port"
    try:
        url = urlsplit(server)
        is_address = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError as error:
        raise BadInput(f"{server!r} is not the address of a gateway: {error}; {expected}") from None
    if not is_address:
        raise BadInput(f"{server!r} is not the address of a gateway; {expected}")
    return url


def _detail(status: int, content: bytes) -> str:
    try:
        return str(json.loads(content)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {status}"
