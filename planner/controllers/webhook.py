"""Any controller behind one URL: each act is posted as a CloudEvents envelope, and the answer says what became of it.

The id of an envelope is made of mark, act and subject, so it is the same however often an act is tried, and a
receiver that remembers ids does nothing twice. With a secret, requests are signed as Standard Webhooks describe
(https://www.standardwebhooks.com): the receiver can tell that they are ours and fresh. A dry run posts nothing.
"""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from lockstep.clock import NS_PER_S, Clock, SystemClock, rfc3339
from lockstep.errors import BadInput, ControllerDown
from planner.controllers.answers import parse_job, parse_nodes, parse_report
from planner.controllers.asking import read_within
from planner.controllers.orders import check_mark
from planner.controllers.protocol import JobView, Node, Report, Restart
from planner.controllers.running import Deadline

_MAX_ANSWER_BYTES = 16 << 20  # 100,000 nodes; more is not an answer
_NOT_FOUND, _BUSY = 404, (408, 429)
_SECRET_PREFIX = "whsec_"  # noqa: S105  # what Standard Webhooks put before the secret, no secret itself
_TYPE = "dev.lockstep."


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """Where to post, and where to look."""

    url: str
    secret: str | None = None  # base64, with or without whsec_
    nodes_url: str | None = None  # answers GET with {"nodes": [...]}; None: nothing is known of nodes
    job_url: str | None = None  # with {job} in it; answers GET with a job, or 404
    timeout_s: float = 30.0
    restarts_whole_job: bool = True  # False: the receiver starts processes again in the allocation they have
    dry_run: bool = False


class WebhookController:
    """Posts acts. Redirects are not followed: they would carry a signed order to a place nobody configured."""

    name = "webhook"

    def __init__(
        self, options: WebhookOptions, clock: Clock | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._options, self._clock = options, clock or SystemClock()
        self.restarts_whole_job = options.restarts_whole_job
        self._key = _decode_secret(options.secret)
        self._client = httpx.Client(transport=transport, follow_redirects=False, timeout=options.timeout_s)

    def nodes(self) -> Sequence[Node]:
        """Return the nodes that the receiver tells; none when it cannot be asked."""
        if self._options.nodes_url is None:
            return ()
        status, text = self._ask("GET", self._options.nodes_url)
        if status != httpx.codes.OK:
            raise ControllerDown(f"{self._options.nodes_url} does not tell its nodes: HTTP {status}")
        return parse_nodes(text, self._options.nodes_url)

    def job(self, job: str) -> JobView | None:
        """Return the job that the receiver tells; None when it cannot be asked or does not know it."""
        if self._options.job_url is None:
            return None
        status, text = self._ask("GET", self._options.job_url.replace("{job}", quote(job, safe="")))
        if status not in (httpx.codes.OK, _NOT_FOUND):
            raise ControllerDown(f"{self._options.job_url} does not tell about job {job}: HTTP {status}")
        return parse_job(text, "the receiver") if status == httpx.codes.OK else None

    def isolate(self, node: str, mark: str, reason: str) -> Report:
        """Ask the receiver to let no new work start on a node."""
        return self._act("isolate", mark, node, {"node": node, "reason": reason})

    def release(self, node: str, mark: str) -> Report:
        """Ask the receiver to give a node back to service, if it was isolated under this mark."""
        return self._act("release", mark, node, {"node": node})

    def restart(self, order: Restart) -> Report:
        """Ask the receiver to start a job again."""
        data = {
            "job": order.job,
            "exclude": list(order.exclude),
            "nnodes": order.nnodes,
            "checkpoint": order.checkpoint,
            "environment": dict(order.environment),
        }
        return self._act("restart", order.mark, order.job, data)

    def reattempt(self, job: str, mark: str) -> Report:
        """Ask the receiver to let a job try again in place."""
        return self._act("reattempt", mark, job, {"job": job})

    def _act(self, act: str, mark: str, subject: str, data: Mapping[str, Any]) -> Report:
        if self._options.dry_run:
            return Report("would", f"{act} of {subject} would be posted to {self._options.url}")
        now_ns = self._clock.now_ns()
        name = f"{check_mark(mark)}/{act}/{subject}"
        envelope = {
            "specversion": "1.0",
            "id": name,
            "type": _TYPE + act,
            "source": "/lockstep/planner",
            "subject": subject,
            "time": rfc3339(now_ns),
            "datacontenttype": "application/json",
            "data": {"mark": mark, **data},
        }
        body = json.dumps(envelope).encode()
        headers = {"Content-Type": "application/cloudevents+json", **self._sign(name, now_ns // NS_PER_S, body)}
        status, text = self._ask("POST", self._options.url, body, headers)
        if httpx.codes.is_success(status):
            return parse_report(text, self._options.url)
        return Report("refused", f"{self._options.url} refused the {act} of {subject}: HTTP {status} {text[:200]}")

    def _sign(self, name: str, now_s: int, body: bytes) -> dict[str, str]:
        headers = {"webhook-id": name, "webhook-timestamp": str(now_s)}
        if self._key is None:
            return headers
        signed = hmac.digest(self._key, f"{name}.{now_s}.".encode() + body, hashlib.sha256)
        return headers | {"webhook-signature": "v1," + base64.b64encode(signed).decode()}

    def _ask(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Return status and text; ControllerDown when nobody answers in time, as a whole, or is in trouble."""
        deadline = Deadline(self._options.timeout_s, self._clock)
        try:
            with self._client.stream(method, url, content=body, headers=headers) as response:
                text = read_within(response, deadline, _MAX_ANSWER_BYTES)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ControllerDown(f"{url} does not answer: {str(error) or type(error).__name__}") from error
        if response.status_code >= 500 or response.status_code in _BUSY:
            raise ControllerDown(f"{url} cannot answer now: HTTP {response.status_code} {text[:200]}")
        return response.status_code, text


def _decode_secret(secret: str | None) -> bytes | None:
    if secret is None:
        return None
    try:
        key = base64.b64decode(secret.strip().removeprefix(_SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise BadInput("the webhook's secret is not base64, as Standard Webhooks want it") from None
    if not key:
        raise BadInput("the webhook's secret is empty: anybody could sign with it")
    return key
