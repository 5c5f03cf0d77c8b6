"""Administration over REST: tokens, policies that change while the planner runs, and the audit."""

import re
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from api.auth import Admin, Agent, Joiner, Reader
from api.dependencies import Held, KnownParameters, Page, Paged, Parts, parts_of
from api.problems import problem
from lockstep.errors import BadInput, ChangedMeanwhile, NotPresent
from lockstep.state.documents import AuditLine, list_audit
from lockstep.state.policies import (
    PLANNER,
    PlannerPolicy,
    PolicyName,
    PolicyVersion,
    find_policy,
    list_policy_versions,
    policy_of,
    save_policy,
)
from lockstep.state.tokens import Scope, Token, create_token, join_host, list_tokens, match_token_id, revoke_token
from lockstep.verdict import Frozen

router = APIRouter(prefix="/api/v1", dependencies=[KnownParameters])

HOST = r"^[^\s/]+$"
Why = Annotated[str, Field(max_length=1000, description="the reason, kept in the audit")]


class TokenRequest(Frozen):
    """A token that is to be made."""

    name: str = Field(min_length=1, max_length=200, pattern=r"^\S(.*\S)?$", description="what it is for")
    scope: Scope = "read"
    host: str | None = Field(
        None,
        max_length=253,
        pattern=HOST,
        description="with scope ingest or fabric: the one host that may send with it; with join: the hosts that may, "
        "as gpu-[001-128]",
    )
    why: Why = ""


class NewToken(Frozen):
    """A token that was made; nobody can see its secret again."""

    id: str
    name: str
    scope: Scope
    host: str | None
    secret: str = Field(description="send it as Authorization: Bearer <secret>")


@router.get("/tokens", tags=["tokens"])
def tokens(parts: Held, page: Paged, _: Admin) -> Page[Token]:
    """Return all tokens without their secrets, revoked ones too, the oldest first."""
    found = list_tokens(parts.control)
    after = page.after(int, str)
    return page.cut_sorted(found, after, lambda token: (token.created_ns, token.id))


@router.post("/tokens", tags=["tokens"], status_code=201)
def create_token_here(parts: Held, wanted: TokenRequest, admin: Admin) -> NewToken:
    """Make a token. Its secret is in this answer and nowhere else; send an Idempotency-Key to get it once more."""
    given = wanted.model_dump(exclude={"why"})
    secret = create_token(parts.control, **given, now_ns=parts.clock.now_ns(), who=admin, why=wanted.why)
    return NewToken(id=match_token_id(secret), **given, secret=secret)


@router.delete("/tokens/{token_id}", tags=["tokens"], status_code=204)
def revoke(request: Request, token_id: str, admin: Admin, why: Annotated[str, Query(max_length=1000)] = "") -> None:
    """Make a token, and every browser that logged in with it, worth nothing from now on; a second time too."""
    parts = parts_of(request)
    revoke_token(parts.control, token_id, parts.clock.now_ns(), who=admin, why=why)
    request.app.state.token_cache.forget()


class JoiningHost(Frozen):
    """A host that is to report from now on."""

    host: str = Field(max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="its name in the topology")


@router.post("/hosts/join", tags=["hosts"], status_code=201, summary="Let a host join")
def join(parts: Held, joining: JoiningHost, joiner: Joiner) -> NewToken:
    """Make a token for a host that has none, with a token of scope join; the secret is in this answer alone."""
    secret = join_host(parts.control, joiner, joining.host, parts.clock.now_ns())
    name = f"{joining.host}, by {joiner.name}"
    return NewToken(id=match_token_id(secret), name=name, scope="ingest", host=joining.host, secret=secret)


@router.post("/hosts/leave", tags=["hosts"], summary="Let a host leave")
def leave(request: Request, agent: Agent) -> Token:
    """Make the token that asks worth nothing from now on: its host leaves."""
    parts = parts_of(request)
    revoke_token(parts.control, agent.id, parts.clock.now_ns(), who=agent.name, why="left")
    request.app.state.token_cache.forget()
    return agent


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


@router.get("/policies", tags=["policies"], dependencies=[Reader])
def policies(parts: Held) -> Policies:
    """Return every policy in force."""
    return Policies(items=(_in_force(parts, PLANNER),))


@router.get("/policies/{name}", tags=["policies"], dependencies=[Reader])
def policy(parts: Held, response: Response, name: str) -> PolicyVersion:
    """Return a policy; version 0 is what the settings say. The ETag is for If-Match when it is changed."""
    found = _in_force(parts, _known(name))
    response.headers["ETag"] = _tag(found)
    return found


@router.get("/policies/{name}/versions", tags=["policies"], dependencies=[Reader])
def versions(parts: Held, name: str, limit: Annotated[int, Query(ge=1, le=500)] = 100) -> PolicyVersions:
    """Return what was stored of a policy, with who changed it and why."""
    return PolicyVersions(items=tuple(list_policy_versions(parts.control, _known(name), limit)))


@router.put("/policies/{name}", tags=["policies"], response_model=PolicyVersion)
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
    executed = sorted((action for action, mode in wanted.policy.modes.items() if mode == "execute"))
    if executed and parts.settings.planner.controller == "none":
        raise BadInput(f"modes says execute for {executed}, and planner.controller names nobody who would")
    if if_match is None:
        detail = f"say which version you saw: If-Match: {_tag(_in_force(parts, known))}"
        return problem(428, "precondition-required", detail, request)
    tag = _TAG.fullmatch(if_match.strip())
    if tag is None:
        raise ChangedMeanwhile(f"{if_match[:40]!r} is no version of this policy")
    now_ns = parts.clock.now_ns()
    made = save_policy(
        parts.control, known, wanted.policy, after=int(tag[1]), who=admin, why=wanted.why, now_ns=now_ns
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


def _tag(version: PolicyVersion) -> str:
    return f'"{version.version}"'


@router.get("/audit", dependencies=[Reader])
def audit(
    parts: Held, page: Paged, who: str | None = None, what: str | None = None, subject: str | None = None
) -> Page[AuditLine]:
    """Return the newest lines first; each of who, what and subject narrows them down."""
    after = page.after(int)
    found = list_audit(
        parts.control,
        page.limit + 1,
        before=int(after[0]) if after else None,
        who=who,
        what=what,
        subject=subject,
    )
    return page.cut(found, lambda line: (line.id,))
