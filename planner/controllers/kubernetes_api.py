"""Plain requests to a Kubernetes API server through the official client: objects as they travel, every status seen.

The client brings what is hard (kubeconfig, tokens that expire, certificates, proxies). Its generated classes are left
aside: they refuse objects of a newer server, while we read a handful of fields and must carry all others along.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.clock import Clock
from lockstep.errors import BadInput, ControllerDown
from planner.controllers.running import Deadline

MERGE_PATCH = "application/merge-patch+json"
Object = dict[str, Any]  # Any: a Kubernetes object as JSON; its fields are read in one place each
_MAX_ANSWER_BYTES = 256 << 20  # 5,000 nodes at 50 kB each; more is not an answer to anything we ask
_CHUNK_BYTES = 1 << 16
_BUSY = (408, 429)  # besides 5xx: ask again later
_RESERVE_S = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said to one request."""

    status: int
    body: Object = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        """The server's own sentence, with its status."""
        return f"{self.body.get('message') or self.body.get('reason') or 'no message'} (HTTP {self.status})"


class Calls:
    """Requests that share one deadline, so that an act of several ends in time too."""

    def __init__(self, client: Any, timeout_s: float, clock: Clock | None = None) -> None:
        self._client, self._deadline = client, Deadline(timeout_s, clock)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """Return an object; status 404 when there is none."""
        return self._ask("GET", path, query)

    def patch(self, path: str, patch: Object) -> Answer:
        """Change an object by merge patch; with metadata.resourceVersion in it, 409 when it was changed meanwhile."""
        return self._ask("PATCH", path, None, patch, MERGE_PATCH)

    def create(self, path: str, manifest: Object) -> Answer:
        """Create an object; 409 when its name is taken."""
        return self._ask("POST", path, None, manifest)

    def delete(self, path: str, uid: str) -> Answer:
        """Delete exactly this object and first what it owns; 404 when it is gone, 409 when another has its name."""
        options = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
        return self._ask("DELETE", path, None, options)

    def list(self, path: str, query: Mapping[str, str] | None = None) -> list[Object]:
        """Return all objects of a collection, page by page."""
        found: list[Object] = []
        page = dict(query or {}) | {"limit": "500"}
        while True:
            answer = self.get(path, page)
            if not answer.is_good:
                raise ControllerDown(f"the Kubernetes API does not list {path}: {answer.message}")
            found += answer.body.get("items") or []
            after = answer.body.get("metadata", {}).get("continue")
            if not after:
                return found
            page["continue"] = after

    def wait_until(self, is_so: Callable[[], bool]) -> bool:
        """Ask again until it is so; False when the time is nearly over before, so that one request is left."""
        return self._deadline.wait_until(is_so, _RESERVE_S)

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        kind: str = "application/json",
    ) -> Answer:
        from kubernetes.client import ApiException  # raised for a certificate that does not fit
        from urllib3.exceptions import HTTPError  # comes with the client

        if self._deadline.left_s <= 0:
            raise ControllerDown(f"the Kubernetes API did not answer within {self._deadline.timeout_s:g} s")
        headers = {"Accept": "application/json", **({"Content-Type": kind} if body is not None else {})}
        try:
            request = self._client.param_serialize(
                method, path, query_params=list((query or {}).items()), header_params=headers, body=body,
                auth_settings=["BearerToken"],
            )  # fmt: skip
            response = self._client.call_api(*request, _request_timeout=self._deadline.left_s)
            answer = Answer(response.status, _decode(self._read(response.response)))
        except (ApiException, HTTPError, OSError) as error:
            raise ControllerDown(f"the Kubernetes API does not answer: {error}") from error
        if answer.status >= 500 or answer.status in _BUSY:
            raise ControllerDown(f"the Kubernetes API cannot answer now: {answer.message}")
        return answer

    def _read(self, raw: Any) -> bytes:
        """Return the body: read piece by piece, because a server that trickles keeps every single read in time."""
        body = bytearray()
        while piece := raw.read1(_CHUNK_BYTES):
            body += piece
            if self._deadline.left_s <= 0 or len(body) > _MAX_ANSWER_BYTES:
                raw.close()
                limits = f"{self._deadline.timeout_s:g} s and {_MAX_ANSWER_BYTES} bytes"
                raise ControllerDown(f"the Kubernetes API did not end its answer within {limits}")
        raw.release_conn()
        return bytes(body)


def connect(kubeconfig: str | None = None, context: str | None = None) -> Any:
    """Return a client as configured: from a kubeconfig, or without one as the pod that this process runs in."""
    try:
        from kubernetes import client, config  # heavy, and wanted only where this controller is chosen
    except ImportError as error:
        raise BadInput("the Kubernetes controller needs its client: pip install 'lockstep[kubernetes]'") from error
    settings = client.Configuration()
    try:
        if kubeconfig or context:
            config.load_kube_config(kubeconfig, context, client_configuration=settings)
        else:
            config.load_incluster_config(client_configuration=settings)
    except config.ConfigException as error:
        raise BadInput(f"no Kubernetes cluster is configured: {error}") from error
    return quiet_client(settings)


def quiet_client(settings: Any) -> Any:
    """Return a client that does not try again by itself: its repeats would outlast our deadline."""
    from kubernetes import client

    settings.retries = False
    return client.ApiClient(settings)


def _decode(body: bytes) -> Object:
    try:
        decoded = json.loads(body) if body else {}
    except ValueError:
        decoded = {"message": body[:200].decode(errors="replace")}
    return decoded if isinstance(decoded, dict) else {"message": "an answer that is no object"}
