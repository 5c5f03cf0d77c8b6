"""Slurm by way of slurmrestd: what its version offers is asked of it, all else of the commands.

What there is, slurmrestd says itself in its OpenAPI document. Version 22.05 reads nodes and jobs and cancels jobs; it
cannot drain a node, nor read a batch script or the configuration. Jobs are always submitted by sbatch: slurmrestd
does not read `#SBATCH` lines, without which the same script would be another job.
"""

import json
import os
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import quote

import httpx

from lockstep.errors import ControllerDown, ControllerSaidNo
from planner.controllers.asking import read_within
from planner.controllers.running import Deadline
from planner.controllers.slurm_commands import SlurmCommands, SlurmOptions, is_unknown, own_user, raise_refusal
from planner.controllers.slurm_parsing import SlurmJob, SlurmNode, pick_marked
from planner.controllers.slurm_rest_answers import (
    NOBODY_BEHIND,
    Json,
    Offer,
    find_offer,
    read_errors,
    read_jobs,
    read_nodes,
)

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
            said = str(error) or type(error).__name__
            raise ControllerDown(f"slurmrestd at {self._address} does not answer: {said}") from None

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
            raise ControllerSaidNo(
                f"slurmrestd at {self._address} does not take {self._user}: HTTP {status} {text[:200]}"
            )
        try:
            told: Any = json.loads(text)
        except ValueError:
            told = None
        if not isinstance(told, Mapping):
            raise ControllerDown(f"slurmrestd at {self._address} answers HTTP {status} {text[:200]!r}")
        return told


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
