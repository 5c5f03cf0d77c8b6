"""The shadow scorecard, and the ledger of where the time of faults went."""

from fastapi import Request
from fastapi.responses import HTMLResponse

from api.dashboard.addresses import call
from api.dashboard.page_route import page_router
from api.dashboard.rendering import render
from api.parts import parts_of
from api.routes import decisions
from lockstep.control.decisions import list_decisions
from lockstep.control.executions import list_outcomes
from lockstep.control.incidents import list_incidents
from planner.recovery.ledger import Downtime
from planner.recovery.scorecard import Scorecard

router = page_router()

_RECENT = 100


@router.get("/scorecard")
def scorecard(request: Request) -> HTMLResponse:
    """Return what the advice was worth, and what each fault cost."""
    control = parts_of(request).control
    rows = decisions.downtime(request)["items"]
    return render(
        request,
        "scorecard.html",
        "scorecard",
        "Scorecard",
        (call("/scorecard"), call("/downtime")),
        score=Scorecard.model_validate(decisions.scorecard(request)),
        downtimes=[Downtime.model_validate(_without_total(row)) for row in rows],
        incidents=list_incidents(control, limit=_RECENT),
        outcomes=list_outcomes(control),
        advice={
            each.incident: each for each in reversed(list_decisions(control, limit=500)) if each.action != "none"
        },
    )


def _without_total(row: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if name != "total_s"}
