"""Policies: what the planner may do by itself, changed while it runs, and never over somebody else's change."""

import re
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from api.auth import Admin, Reader
from api.parts import Parts, parts_of
from api.problems import problem
from lockstep.control.policies import (
    PLANNER,
    PlannerPolicy,
    PolicyName,
    PolicyVersion,
    find_policy,
    list_policy_versions,
    policy_of,
    save_policy,
)
from lockstep.errors import BadInput, ChangedMeanwhile, NotPresent
from lockstep.verdict import Frozen

router = APIRouter(prefix="/api/v1/policies", tags=["policies"])

_TAG = re.compile(r'"([0-9]{1,9})"')


class Policies(Frozen):
    """All policies as they are in force."""

    items: tuple[PolicyVersion, ...]


class PolicyVersions(Frozen):
    """What a policy was, newest first."""

    items: tuple[PolicyVersion, ...]


class PolicyChange(Frozen):
    """What a policy is to be from now on, whole."""

    policy: PlannerPolicy
    why: str = Field("", max_length=1000, description="the reason, kept with the version and in the audit")


@router.get("", dependencies=[Reader])
def policies(request: Request) -> Policies:
    """Return every policy in force."""
    return Policies(items=(_in_force(parts_of(request), PLANNER),))


@router.get("/{name}", dependencies=[Reader])
def policy(request: Request, response: Response, name: str) -> PolicyVersion:
    """Return a policy; version 0 is what the settings say. The ETag is for If-Match when it is changed."""
    found = _in_force(parts_of(request), _known(name))
    response.headers["ETag"] = _tag(found)
    return found


@router.get("/{name}/versions", dependencies=[Reader])
def versions(request: Request, name: str, limit: Annotated[int, Query(ge=1, le=500)] = 100) -> PolicyVersions:
    """Return what was stored of a policy, with who changed it and why."""
    return PolicyVersions(items=tuple(list_policy_versions(parts_of(request).control, _known(name), limit)))


@router.put("/{name}", response_model=PolicyVersion)
def change(
    request: Request,
    response: Response,
    name: str,
    wanted: PolicyChange,
    admin: Admin,
    if_match: Annotated[str | None, Header()] = None,
) -> PolicyVersion | Response:
    """Replace a policy; the planner follows it from its next round on. Needs If-Match with the ETag that was read."""
    parts = parts_of(request)
    known = _known(name)
    _check_can_execute(parts, wanted.policy)
    if if_match is None:
        detail = f"say which version you saw: If-Match: {_tag(_in_force(parts, known))}"
        return problem(428, "precondition-required", detail, request)
    made = save_policy(
        parts.control,
        known,
        wanted.policy,
        after=_read_tag(if_match),
        who=admin,
        why=wanted.why,
        now_ns=parts.clock.now_ns(),
    )
    response.headers["ETag"] = _tag(made)
    return made


def _known(name: str) -> PolicyName:
    if name != PLANNER:
        raise NotPresent(f"there is no policy {name!r}, only {PLANNER!r}")
    return PLANNER


def _in_force(parts: Parts, name: PolicyName) -> PolicyVersion:
    stored = find_policy(parts.control, name)
    if stored is not None:
        return stored
    settings = policy_of(parts.settings.planner)
    return PolicyVersion(name=name, version=0, changed_ns=0, who="settings", why="", policy=settings)


def _check_can_execute(parts: Parts, wanted: PlannerPolicy) -> None:
    """Raise BadInput for a policy that promises what nobody would carry out."""
    executed = sorted(action for action, mode in wanted.modes.items() if mode == "execute")
    if executed and parts.settings.planner.controller == "none":
        raise BadInput(f"modes says execute for {executed}, and planner.controller names nobody who would")


def _tag(version: PolicyVersion) -> str:
    return f'"{version.version}"'


def _read_tag(if_match: str) -> int:
    match = _TAG.fullmatch(if_match.strip())
    if match is None:
        raise ChangedMeanwhile(f"{if_match[:40]!r} is no version of this policy")
    return int(match[1])
