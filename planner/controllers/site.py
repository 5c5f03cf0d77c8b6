"""A site's own controller: its commands, or one URL to which each act is posted."""

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter

from lockstep.clock import NS_PER_S, Clock, SystemClock, rfc3339
from lockstep.config import read_secret
from lockstep.errors import BadInput, ControllerDown
from planner.controllers.protocol import (
    EVERY_ACT,
    JobView,
    Node,
    Outcome,
    Report,
    Restart,
    check_mark,
    check_name,
    check_order,
    find_variables,
)
from planner.controllers.running import Deadline, Finished, make_environment, read_within, run_within

_NODES = TypeAdapter(tuple[Node, ...])
_JOB = TypeAdapter(JobView)
_REPORT = TypeAdapter(Report)
Parsed = TypeVar("Parsed")


def parse_nodes(text: str, where: str) -> tuple[Node, ...]:
    """Return nodes from {"nodes": [{"name", "is_usable", "mark"?, "reason"?}]}."""
    return _parse(text, f"the nodes that {where} gave", lambda told: _NODES.validate_python(told.get("nodes")))


def parse_job(text: str, where: str) -> JobView | None:
    """Return a job from {"id", "state", "nodes"?, "restarts"?, "mark"?}; None from an empty object."""
    return _parse(text, f"the job that {where} gave", lambda told: _JOB.validate_python(told) if told else None)


def parse_report(text: str, where: str) -> Report:
    """Return a report from {"outcome", "what", "job"?}; `failed` when it makes no sense."""
    try:
        return _parse(text, f"the answer of {where}", _REPORT.validate_python)
    except ControllerDown as nonsense:
        return Report("failed", str(nonsense))


def _parse(text: str, what: str, read: Callable[[dict[str, Any]], Parsed]) -> Parsed:
    try:
        reported = json.loads(text)
        if not isinstance(reported, dict):
            raise ValueError(f"not an object: {text[:200]!r}")
        return read(reported)
    except ValueError as error:  # pydantic's is one, too
        raise ControllerDown(f"{what} cannot be understood: {' '.join(str(error).split())[:300]}") from None


Template = tuple[str, ...]
_PLACEHOLDER = re.compile(r"\{([a-z]+)\}")
_OUTCOMES: dict[int, Outcome] = {0: "done", 3: "already", 4: "refused"}


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """The command of each act; empty: there is none, and the act is refused."""

    isolate: Template = ()  # {node} {mark} {reason}
    release: Template = ()  # {node} {mark}
    restart: Template = ()  # {job} {mark} {exclude} {nnodes} {checkpoint}; its variables are in the environment
    reattempt: Template = ()  # {job} {mark}
    nodes: Template = ()  # prints {"nodes": [{"name", "is_usable", "mark"?, "reason"?}]}
    job: Template = ()  # {job}; prints {"id", "state", "nodes"?, "restarts"?, "mark"?}, or {} when it knows none
    timeout_s: float = 60.0  # of each command
    restarts_whole_job: bool = True  # False: `restart` starts processes again in the allocation they have
    dry_run: bool = False


_PLACEHOLDERS: dict[str, set[str]] = {
    "isolate": {"node", "mark", "reason"},
    "release": {"node", "mark"},
    "restart": {"job", "mark", "exclude", "nnodes", "checkpoint"},
    "reattempt": {"job", "mark"},
    "nodes": set(),
    "job": {"job"},
}


class CommandController:
    """Runs a site's own commands."""

    name = "command"

    def __init__(self, options: CommandOptions) -> None:
        check_templates(options)
        self._options = options
        self.acts = frozenset(act for act in EVERY_ACT if getattr(options, act))
        self.restarts_whole_job = options.restarts_whole_job

    def nodes(self) -> Sequence[Node]:
        ended = self._query(self._options.nodes, {})
        return () if ended is None else parse_nodes(ended.out, ended.command[0])

    def job(self, job: str) -> JobView | None:
        check_name(job, "job")
        ended = self._query(self._options.job, {"job": job})
        return None if ended is None else parse_job(ended.out, ended.command[0])

    def isolate(self, node: str, mark: str, reason: str) -> Report:
        check_name(node, "node")
        return self._act("isolate", self._options.isolate, {"node": node, "mark": mark, "reason": reason})

    def release(self, node: str, mark: str) -> Report:
        check_name(node, "node")
        return self._act("release", self._options.release, {"node": node, "mark": mark})

    def restart(self, order: Restart) -> Report:
        """Run the command that starts a job again; the last line may name the job's new id as `job=ID`."""
        check_order(order)
        values = {
            "job": order.job,
            "mark": order.mark,
            "exclude": ",".join(order.exclude),
            "nnodes": "" if order.nnodes is None else str(order.nnodes),
            "checkpoint": order.checkpoint or "",
        }
        report = self._act("restart", self._options.restart, values, find_variables(order))
        named = re.search(r"\bjob=(\S+)", report.what)
        return Report(report.outcome, report.what, named[1] if named and report.is_good else order.job)

    def reattempt(self, job: str, mark: str) -> Report:
        check_name(job, "job")
        return self._act("reattempt", self._options.reattempt, {"job": job, "mark": mark})

    def _act(
        self, act: str, template: Template, values: Mapping[str, str], extra: Mapping[str, str] | None = None
    ) -> Report:
        check_mark(values["mark"])
        if not template:
            return Report("refused", f"no command is configured to {act}")
        command = fill(template, values)
        if self._options.dry_run:
            return Report("would", f"would run {command}")
        ended = run_within(command, Deadline(self._options.timeout_s), make_environment(extra or {}))
        outcome = _OUTCOMES.get(ended.code, "failed")
        if outcome == "failed":
            return Report(outcome, ended.complaint)
        lines = ended.out.strip().splitlines() or [f"{command[0]} ended with {ended.code} and said nothing"]
        return Report(outcome, lines[-1].strip()[:500])

    def _query(self, template: Template, values: Mapping[str, str]) -> Finished | None:
        if not template:
            return None
        ended = run_within(fill(template, values), Deadline(self._options.timeout_s), make_environment({}))
        if ended.code != 0:
            raise ControllerDown(ended.complaint)
        return ended


def check_templates(options: CommandOptions) -> None:
    """Raise BadInput for a placeholder that its act cannot fill, or for a program that is one."""
    for act, allowed in _PLACEHOLDERS.items():
        template: Template = getattr(options, act)
        asked = {name for argument in template for name in _PLACEHOLDER.findall(argument)}
        if asked - allowed:
            known = ", ".join(sorted(allowed)) or "none"
            raise BadInput(f"the command for {act} has {{{min(asked - allowed)}}} in it; it can have: {known}")
        if template and _PLACEHOLDER.search(template[0]):
            raise BadInput(f"the program for {act} must be named, not filled in: {template[0]}")


def fill(template: Template, values: Mapping[str, str]) -> Template:
    """Return the arguments with their placeholders filled in. What is filled in is never looked at again.

    >>> fill(("drain", "--node={node}", "{reason}"), {"node": "h1", "reason": "{node} is slow"})
    ('drain', '--node=h1', '{node} is slow')
    """
    for name, value in values.items():
        if value.startswith("-") or "\0" in value:
            raise BadInput(f"{name} would be taken for an option, or for no text at all: {value!r}")
    return tuple(_PLACEHOLDER.sub(lambda matched: values[matched[1]], argument) for argument in template)


_MAX_ANSWER_BYTES = 16 << 20  # 100,000 nodes; more is not an answer
_NOT_FOUND, _BUSY = 404, (408, 429)
_SECRET_PREFIX = "whsec_"  # noqa: S105  # what Standard Webhooks put before the secret, no secret itself
_TYPE = "dev.lockstep."


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """Where to post, and where to look."""

    url: str
    secret_file: Path | None = None  # holds base64, with or without whsec_; not in the settings: people see those
    nodes_url: str | None = None  # answers GET with {"nodes": [...]}; None: nothing is known of nodes
    job_url: str | None = None  # with {job} in it; answers GET with a job, or 404
    timeout_s: float = 30.0
    restarts_whole_job: bool = True  # False: the receiver starts processes again in the allocation they have
    dry_run: bool = False


class WebhookController:
    """Posts acts. Redirects are not followed: they would carry a signed order to a place nobody configured."""

    name = "webhook"
    acts = EVERY_ACT

    def __init__(
        self, options: WebhookOptions, clock: Clock | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._options, self._clock = options, clock or SystemClock()
        self.restarts_whole_job = options.restarts_whole_job
        self._key = _read_key(options.secret_file)
        self._client = httpx.Client(transport=transport, follow_redirects=False, timeout=options.timeout_s)

    def nodes(self) -> Sequence[Node]:
        if self._options.nodes_url is None:
            return ()
        status, text = self._ask("GET", self._options.nodes_url)
        if status != httpx.codes.OK:
            raise ControllerDown(f"{self._options.nodes_url} does not list its nodes: HTTP {status}")
        return parse_nodes(text, self._options.nodes_url)

    def job(self, job: str) -> JobView | None:
        if self._options.job_url is None:
            return None
        status, text = self._ask("GET", self._options.job_url.replace("{job}", quote(job, safe="")))
        if status not in (httpx.codes.OK, _NOT_FOUND):
            raise ControllerDown(f"{self._options.job_url} does not describe job {job}: HTTP {status}")
        return parse_job(text, "the receiver") if status == httpx.codes.OK else None

    def isolate(self, node: str, mark: str, reason: str) -> Report:
        return self._act("isolate", mark, node, {"node": node, "reason": reason})

    def release(self, node: str, mark: str) -> Report:
        return self._act("release", mark, node, {"node": node})

    def restart(self, order: Restart) -> Report:
        data = {
            "job": order.job,
            "exclude": list(order.exclude),
            "nnodes": order.nnodes,
            "checkpoint": order.checkpoint,
            "environment": dict(order.environment),
        }
        return self._act("restart", order.mark, order.job, data)

    def reattempt(self, job: str, mark: str) -> Report:
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


def _read_key(file: Path | None) -> bytes | None:
    if file is None:
        return None
    secret = read_secret(file, "the webhook's secret")
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise BadInput("the webhook's secret is not base64, as Standard Webhooks want it") from None
    if not key:
        raise BadInput("the webhook's secret is empty: anybody could sign with it")
    return key
