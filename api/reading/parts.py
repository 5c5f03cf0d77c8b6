"""What is told of a part: its history in figures, and every incident, event and isolation in it."""

from pydantic import Field

from api.reading.sightings import Sighting
from lockstep.execution import Isolated, Outcome
from lockstep.verdict import FaultClass, Frozen, Grade


class PartSummary(Frozen):
    """A part that has a history, in figures."""

    component: str
    kind: str
    incidents: int = Field(ge=0, description="that named it")
    confirmed: int = Field(ge=0, description="times that somebody confirmed its fault")
    cleared: int = Field(ge=0, description="incidents that named it and were confirmed to be wrong")
    isolations: int = Field(ge=0)
    severe_events: int = Field(ge=0, description="errors that hosts told of it")
    last_ns: int = Field(ge=0, description="when it was last told of")
    last_at: str | None = None
    flags: tuple[str, ...] = Field((), description="sentences: sent back and here again, moved, faulty again")


class PartIncident(Frozen):
    """An incident in the history of a part."""

    id: str
    job: str
    component: str
    fault_class: FaultClass = Field(alias="class")
    grade: Grade
    confidence: float
    state: str
    opened_ns: int
    opened_at: str | None = None
    reason: str
    outcome: Outcome | None = None


class PartEvent(Frozen):
    """Something that a host told of a part."""

    ts_ns: int
    at: str | None = None
    host: str
    source: str
    kind: str
    component: str
    severity: str
    message: str


class PartHistory(PartSummary):
    """All that is known of one part, the newest first."""

    history: tuple[PartIncident, ...] = ()
    events: tuple[PartEvent, ...] = ()
    out_of_service: tuple[Isolated, ...] = ()
    sightings: tuple[Sighting, ...] = Field((), description="of GPUs: which were at this place, and where else")
