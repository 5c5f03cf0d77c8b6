"""Who looks at a page, and what it should therefore offer."""

from dataclasses import dataclass

from fastapi import Request

from api.auth import allows, find_caller
from lockstep.errors import NotAllowed


@dataclass(frozen=True)
class Viewer:
    """Who looks; what somebody may not do is not offered, and refused all the same where it is tried."""

    name: str | None = None  # None: nobody has logged in
    can_act: bool = False
    can_administer: bool = False


def find_viewer(request: Request) -> Viewer:
    """Return who looks; a session that is over is nobody, since reads may be open."""
    try:
        found = find_caller(request)
    except NotAllowed:
        return Viewer()
    return Viewer(found.name, allows(found.scope, "act"), allows(found.scope, "admin")) if found else Viewer()
