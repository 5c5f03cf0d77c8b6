"""A fault over its lifetime: opened once, updated while it lasts, closed with a reason."""

from typing import Literal

from pydantic import Field

from lockstep.verdict import Frozen, Verdict


class Incident(Frozen):
    """One fault of one job from its first verdict to its end."""

    id: str
    job: str
    attempt: int = Field(0, ge=0)
    state: Literal["open", "closed"]
    opened_ns: int = Field(ge=0)
    updated_ns: int = Field(ge=0)
    closed_ns: int | None = Field(None, ge=0)
    closed_because: str | None = None
    flaps: int = Field(0, ge=0, description="times it went away and came back")
    verdict: Verdict = Field(description="the newest one")
