"""Slurm by way of slurmrestd: what its version offers is asked of it, all else of the commands.

What there is, slurmrestd says itself in its OpenAPI document. Version 22.05 reads nodes and jobs and cancels jobs; it
cannot drain a node, nor read a batch script or the configuration. Jobs are always submitted by sbatch: slurmrestd
does not read `#SBATCH` lines, without which the same script would be another job.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from lockstep.clock import NS_PER_S, rfc3339
from lockstep.errors import ControllerDown, ControllerRefused
from planner.controllers.running import Deadline, read_within
from planner.controllers.slurm_commands import SlurmCommands, SlurmOptions, is_unknown, own_user, raise_refusal
from planner.controllers.slurm_jobs import SlurmJob, SlurmNode, pick_marked, read_state

Json = Mapping[str, Any]  # Any: as it came from slurmrestd, not yet looked at
Model = TypeVar("Model", bound=BaseModel)
_PATH = re.compile(r"/slurm/(v[\d.]+)/(.+?)/?")
_NEEDED = frozenset({("get", "nodes"), ("get", "node/{node_name}"), ("get", "jobs"), ("get", "job/{job_id}")})
_UNSPECIFIED = -1  # the number of "Unspecified error"
NOBODY_BEHIND = "slurmctld does not answer, or the token is wrong or has run out"  # what 22.05 means by it


@dataclass(frozen=True, slots=True)
class Offer:
    """What the newest version of slurmrestd's API can do."""

    root: str  # such as /slurm/v0.0.38
    calls: frozenset[tuple[str, str]]  # method and path, such as ("delete", "job/{job_id}")


class _Response(BaseModel):
    """Base of what slurmrestd tells: only what we need of it."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _Timestamp(_Response):
    number: int = 0


class _Node(_Response):
    name: str
    state: str | list[str]
    state_flags: list[str] = []
    reason: str | None = None
    reason_set_by_user: str | None = None
    reason_changed_at: int | _Timestamp = 0


class _Job(_Response):
    job_id: int
    job_state: str | list[str]
    nodes: str | None = None
    comment: str | None = None
    restart_cnt: int | None = None
    user_name: str | None = None


class _Error(_Response):
    error: str | None = None
    description: str | None = None
    errno: int | None = None  # what 22.05 calls error_number of nodes
    error_number: int | None = None


class _Nodes(_Response):
    nodes: list[_Node]


class _Jobs(_Response):
    jobs: list[_Job]


class _Errors(_Response):
    errors: list[_Error] = []


def find_offer(document: Json) -> Offer:
    """Return what the newest API in an OpenAPI document can do that reads nodes and jobs; ControllerRefused: none."""
    offered: dict[str, set[tuple[str, str]]] = {}
    for path, methods in document.get("paths", {}).items():
        if found := _PATH.fullmatch(path):
            offered.setdefault(found[1], set()).update((method, found[2]) for method in methods)
    usable = [version for version, calls in offered.items() if calls >= _NEEDED]
    if not usable:
        known = ", ".join(sorted(offered)) or "none"
        raise ControllerRefused(f"slurmrestd offers no API that reads nodes and jobs; its versions are: {known}")
    newest = max(usable, key=lambda version: [int(number) for number in re.findall(r"\d+", version)])
    return Offer(f"/slurm/{newest}", frozenset(offered[newest]))


def read_nodes(answer: Json) -> list[SlurmNode]:
    return [_as_node(node) for node in _validate(_Nodes, answer).nodes]


def read_jobs(answer: Json) -> list[SlurmJob]:
    """Return the jobs of an answer, with the fields that a view of a job needs."""
    return [_as_job(job) for job in _validate(_Jobs, answer).jobs]


def read_errors(answer: Json) -> str:
    """Return what slurmrestd complains of, as one line; empty: of nothing."""
    return "; ".join(_describe(error) for error in _validate(_Errors, answer).errors)


def _validate(model: type[Model], answer: Json) -> Model:
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ControllerRefused(f"the answer of slurmrestd cannot be understood: {where}: {first['msg']}") from None


def _as_node(node: _Node) -> SlurmNode:
    words = [*([node.state] if isinstance(node.state, str) else node.state), *node.state_flags]
    timestamp = node.reason_changed_at
    changed_s = timestamp if isinstance(timestamp, int) else timestamp.number
    when = rfc3339(changed_s * NS_PER_S) if changed_s else ""
    states = frozenset(word.upper() for word in words)
    return SlurmNode(node.name, states, node.reason or "", (node.reason_set_by_user or "") if when else "", when)


def _as_job(job: _Job) -> SlurmJob:
    words = [job.job_state] if isinstance(job.job_state, str) else job.job_state
    # A list has the lasting state and what happens now: ["CANCELLED", "COMPLETING"] has not ended yet.
    state = next((word for word in words if word in ("COMPLETING", "CONFIGURING")), words[0] if words else "")
    reported = {
        "JobId": str(job.job_id),
        "JobState": state,
        "NodeList": job.nodes or "",
        "Restarts": str(job.restart_cnt or 0),
        "Comment": job.comment or "",
        "UserId": job.user_name or "",
    }
    return SlurmJob(str(job.job_id), read_state(state), {key: value for key, value in reported.items() if value})


def _describe(error: _Error) -> str:
    if _UNSPECIFIED in (error.errno, error.error_number):
        return NOBODY_BEHIND
    message = error.description or error.error or "it does not say what"
    words = f"{error.error}: {message}" if error.error and error.error not in message else message
    return " ".join(words.split())[:500]


_DOCUMENT = "/openapi/v3"
_MOST_BYTES = 256 << 20  # 22.05 needs some 5 KB for a job and 1.5 KB for a node
_UNIX = "unix://"
_NOT_TAKEN, _GONE = (401, 403), (404, 405)


class Slurmrestd:
    """A slurmrestd, and what it offers; that is asked for once, and again when it turns out to have changed."""

    def __init__(self, address: str, options: SlurmOptions) -> None:
        self._socket = address.removeprefix(_UNIX) if address.startswith(_UNIX) else None
        self._address = address
        self._base = "http://localhost" if self._socket else address.rstrip("/")
        self._options = options
        self._offer: Offer | None = None

    def offer(self, deadline: Deadline) -> Offer:
        """Return what this slurmrestd can do."""
        if self._offer is None:
            self._offer = find_offer(self._parse(*self._send("GET", _DOCUMENT, deadline)))
        return self._offer

    def call(self, method: str, path: str, deadline: Deadline, body: Json | None = None) -> tuple[Json, str]:
        """Return an answer of the newest API, and what it complains of; empty: of nothing."""
        status, text = self._send(method, f"{self.offer(deadline).root}/{path}", deadline, body)
        if status in _GONE and not text.startswith("{"):
            self._offer = None
            raise ControllerDown(f"{self._address} no longer has {method} {path}: it will be asked what it has")
        answer = self._parse(status, text)
        return answer, read_errors(answer)

    def refuse(self, complaint: str) -> NoReturn:
        """Raise what slurmrestd complained of."""
        if NOBODY_BEHIND in complaint:
            raise ControllerDown(f"slurmrestd at {self._address} answers for nobody: {complaint}")
        raise_refusal(complaint, f"slurmrestd says: {complaint}", self._user)

    @property
    def _user(self) -> str:
        return self._options.rest_user or own_user()

    def _send(self, method: str, path: str, deadline: Deadline, body: Json | None = None) -> tuple[int, str]:
        """Send one request over a connection of its own; slurmrestd ends connections as it likes."""
        if self._socket and not os.path.exists(self._socket):
            raise ControllerDown(f"slurmrestd at {self._address} does not answer: there is no such socket")
        transport = httpx.HTTPTransport(uds=self._socket, verify=self._base.startswith("https"))
        limits = httpx.Timeout(max(deadline.left_s, 0.001))
        try:
            with (
                httpx.Client(transport=transport, timeout=limits, trust_env=False) as client,
                client.stream(method, self._base + path, headers=self._headers(), json=body) as response,
            ):
                return response.status_code, read_within(response, deadline, _MOST_BYTES)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            message = str(error) or type(error).__name__
            raise ControllerDown(f"slurmrestd at {self._address} does not answer: {message}") from None

    def _headers(self) -> dict[str, str]:
        file = self._options.rest_token_file
        if file is None:  # rest_auth/local: slurmrestd asks the kernel who we are
            return {}
        try:
            token = file.read_text().strip().removeprefix("SLURM_JWT=")  # `scontrol token` puts it before
        except OSError as failure:
            raise ControllerDown(f"the token for slurmrestd cannot be read from {file}: {failure.strerror}") from None
        return {"X-SLURM-USER-NAME": self._user, "X-SLURM-USER-TOKEN": token}

    def _parse(self, status: int, text: str) -> Json:
        if status in _NOT_TAKEN:
            raise ControllerRefused(
                f"slurmrestd at {self._address} does not take {self._user}: HTTP {status} {text[:200]}"
            )
        try:
            reported: Any = json.loads(text)
        except ValueError:
            reported = None
        if not isinstance(reported, Mapping):
            raise ControllerDown(f"slurmrestd at {self._address} answers HTTP {status} {text[:200]!r}")
        return reported


class SlurmRest(SlurmCommands):
    """slurmrestd for what it offers and the commands for the rest, within the time of one call."""

    def __init__(self, options: SlurmOptions, server: Slurmrestd) -> None:
        super().__init__(options)
        self._server = server

    def show_nodes(self) -> list[SlurmNode]:
        return read_nodes(self._get("nodes"))

    def show_node(self, name: str) -> SlurmNode | None:
        found = read_nodes(self._get(f"node/{quote(name, safe='')}"))
        return next((node for node in found if node.name == name), None)

    def view_jobs(self, job: str) -> list[SlurmJob]:
        return read_jobs(self._get(f"job/{quote(job, safe='')}"))

    def find_marked(self, mark: str) -> str | None:
        jobs = read_jobs(self._get("jobs"))
        return pick_marked(((job.id, job.fields.get("Comment", "")) for job in jobs), mark)

    def update_node(self, name: str, **changes: str) -> None:
        if not self._offers("post", "node/{node_name}"):
            super().update_node(name, **changes)
            return
        state, reason = changes["State"], changes.get("Reason")
        body = {"state": [state]} | ({"reason": reason} if reason is not None else {})
        self._change("POST", f"node/{quote(name, safe='')}", body)

    def cancel(self, job: str) -> None:
        if not self._offers("delete", "job/{job_id}"):
            super().cancel(job)
            return
        self._change("DELETE", f"job/{quote(job, safe='')}")

    def _offers(self, method: str, path: str) -> bool:
        return (method, path) in self._server.offer(self.deadline).calls

    def _get(self, path: str) -> Json:
        """Return an answer; of what Slurm does not know, one without nodes and jobs."""
        answer, complaint = self._server.call("GET", path, self.deadline)
        if not complaint:
            return answer
        if not is_unknown(complaint):
            self._server.refuse(complaint)
        return {"nodes": [], "jobs": []}

    def _change(self, method: str, path: str, body: Json | None = None) -> None:
        _, complaint = self._server.call(method, path, self.deadline, body)
        if complaint:
            self._server.refuse(complaint)
