"""What people do on an incident's page: a yes, a no, an undo, and what it turned out to be. REST does the same."""

from typing import TypeVar, cast

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from api.auth import Actor
from api.dashboard.addresses import incident_page
from api.dashboard.page_route import PageRoute
from api.parts import parts_of
from api.routes import decisions
from api.routes.session import Form
from lockstep.control.decisions import get_decision
from lockstep.errors import BadInput
from lockstep.execution import OrderKind
from lockstep.verdict import Frozen

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_Told = TypeVar("_Told", bound=Frozen)
_KINDS = ("approve", "reject", "undo")


@router.post("/incidents/{incident_id}/orders")
def order(request: Request, incident_id: str, form: Form, actor: Actor) -> RedirectResponse:
    """Approve, reject or undo a decision of the incident, and show the page again."""
    kind, decision = form.get("kind", ""), form.get("decision", "")
    if kind not in _KINDS:
        raise BadInput(f"{kind!r} is none of {', '.join(_KINDS)}")
    if get_decision(parts_of(request).control, decision).incident != incident_id:
        raise BadInput(f"decision {decision} is not about incident {incident_id}")
    word = _checked(decisions.Word, why=form.get("why", ""))
    decisions.order(request, decision, cast(OrderKind, kind), word, actor)
    return _back(incident_id, "decision")


@router.post("/incidents/{incident_id}/outcome")
def outcome(request: Request, incident_id: str, form: Form, actor: Actor) -> RedirectResponse:
    """Write down what the incident turned out to be, and show the page again."""
    told = _checked(
        decisions.Confirmation,
        was_right=form.get("was_right", ""),
        part=form.get("part", "").strip() or None,
        why=form.get("why", ""),
    )
    decisions.confirm(request, incident_id, told, actor)
    return _back(incident_id, "outcome")


def _checked(model: type[_Told], **fields: object) -> _Told:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise BadInput("; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())) from error


def _back(incident_id: str, part: str) -> RedirectResponse:
    return RedirectResponse(f"{incident_page(incident_id)}#{part}", status_code=303)
