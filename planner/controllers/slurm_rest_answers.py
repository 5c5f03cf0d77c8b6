"""What slurmrestd says, as values: what its version offers, nodes, jobs and errors. Pure.

Recorded from Slurm 22.05 (API v0.0.36 to v0.0.38). From v0.0.39 on, as its sources tell, a state is a list of words
and a number may be {"set", "infinite", "number"}; both are understood.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from lockstep.clock import NS_PER_S, rfc3339
from lockstep.errors import ControllerSaidNo
from planner.controllers.slurm_parsing import SlurmJob, SlurmNode, read_state

Json = Mapping[str, Any]  # Any: as it came from slurmrestd, not yet looked at
Model = TypeVar("Model", bound=BaseModel)
_PATH = re.compile(r"/slurm/(v[\d.]+)/(.+?)/?")
_NEEDED = frozenset({("get", "nodes"), ("get", "node/{node_name}"), ("get", "jobs"), ("get", "job/{job_id}")})
_NOT_SAID_WHY = -1  # the number of "Unspecified error"
NOBODY_BEHIND = "slurmctld does not answer, or the token is wrong or has run out"  # what 22.05 means by it


@dataclass(frozen=True, slots=True)
class Offer:
    """What the newest version of slurmrestd's API can do."""

    root: str  # such as /slurm/v0.0.38
    calls: frozenset[tuple[str, str]]  # method and path, such as ("delete", "job/{job_id}")


class _Told(BaseModel):
    """Base of what slurmrestd tells: only what we need of it."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _Moment(_Told):
    number: int = 0


class _Node(_Told):
    name: str
    state: str | list[str]
    state_flags: list[str] = []
    reason: str | None = None
    reason_set_by_user: str | None = None
    reason_changed_at: int | _Moment = 0


class _Job(_Told):
    job_id: int
    job_state: str | list[str]
    nodes: str | None = None
    comment: str | None = None
    restart_cnt: int | None = None
    user_name: str | None = None


class _Error(_Told):
    error: str | None = None
    description: str | None = None
    errno: int | None = None  # what 22.05 calls error_number of nodes
    error_number: int | None = None


class _Nodes(_Told):
    nodes: list[_Node]


class _Jobs(_Told):
    jobs: list[_Job]


class _Errors(_Told):
    errors: list[_Error] = []


def find_offer(document: Json) -> Offer:
    """Return what the newest API in an OpenAPI document can do that reads nodes and jobs; ControllerSaidNo: none."""
    offered: dict[str, set[tuple[str, str]]] = {}
    for path, methods in document.get("paths", {}).items():
        if found := _PATH.fullmatch(path):
            offered.setdefault(found[1], set()).update((method, found[2]) for method in methods)
    usable = [version for version, calls in offered.items() if calls >= _NEEDED]
    if not usable:
        known = ", ".join(sorted(offered)) or "none"
        raise ControllerSaidNo(f"slurmrestd offers no API that reads nodes and jobs; its versions are: {known}")
    newest = max(usable, key=_numbers)
    return Offer(f"/slurm/{newest}", frozenset(offered[newest]))


def read_nodes(answer: Json) -> list[SlurmNode]:
    """Return the nodes of an answer."""
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
        raise ControllerSaidNo(f"the answer of slurmrestd cannot be understood: {where}: {first['msg']}") from None


def _as_node(node: _Node) -> SlurmNode:
    words = [*([node.state] if isinstance(node.state, str) else node.state), *node.state_flags]
    moment = node.reason_changed_at
    changed_s = moment if isinstance(moment, int) else moment.number
    when = rfc3339(changed_s * NS_PER_S) if changed_s else ""
    states = frozenset(word.upper() for word in words)
    return SlurmNode(node.name, states, node.reason or "", (node.reason_set_by_user or "") if when else "", when)


def _as_job(job: _Job) -> SlurmJob:
    words = [job.job_state] if isinstance(job.job_state, str) else job.job_state
    # A list has the lasting state and what happens now: ["CANCELLED", "COMPLETING"] has not ended yet.
    state = next((word for word in words if word in ("COMPLETING", "CONFIGURING")), words[0] if words else "")
    told = {
        "JobId": str(job.job_id),
        "JobState": state,
        "NodeList": job.nodes or "",
        "Restarts": str(job.restart_cnt or 0),
        "Comment": job.comment or "",
        "UserId": job.user_name or "",
    }
    return SlurmJob(str(job.job_id), read_state(state), {key: value for key, value in told.items() if value})


def _describe(error: _Error) -> str:
    if _NOT_SAID_WHY in (error.errno, error.error_number):
        return NOBODY_BEHIND
    said = error.description or error.error or "it does not say what"
    words = f"{error.error}: {said}" if error.error and error.error not in said else said
    return " ".join(words.split())[:500]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
